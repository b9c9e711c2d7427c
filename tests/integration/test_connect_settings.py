"""Tests of a PySpark program's settings: Spark's, HAProc's, its own, and refused ones."""

from __future__ import annotations

import pytest

from tests.integration.pyspark_program import FailedError, Program
from tests.integration.test_connect_door import behind_a_door

pytestmark = pytest.mark.spark
OWN = "spark.sql.legacy.castComplexTypesToString.enabled"
"""A setting that is in no list of HAProc."""


@pytest.mark.thorough
@behind_a_door("haproc-consistency=bounded")
def test_settings_of_spark_and_haproc_are_set_read_and_unset_and_reserved_ones_refused(
    program: Program,
) -> None:
    run = program.run
    run('spark.conf.set("spark.sql.ansi.enabled", "false")')
    assert run('spark.conf.get("spark.sql.ansi.enabled")') == "false"
    assert run('spark.sql("SELECT 1/0").collect()') == [[None]]
    run('spark.conf.unset("spark.sql.ansi.enabled")')
    assert run('spark.conf.get("spark.sql.ansi.enabled")') == "true"
    assert run('spark.conf.get("spark.sql.session.timeZone")') == "UTC"

    assert run('spark.conf.get("haproc.consistency")') == "bounded"
    run('spark.conf.set("haproc.consistency", "linearizable")')
    assert run('spark.conf.get("haproc.consistency")') == "linearizable"
    run('spark.conf.unset("haproc.consistency")')
    assert run('spark.conf.get("haproc.consistency")') == "bounded"
    with pytest.raises(FailedError, match="known values: any, bounded"):
        run('spark.conf.set("haproc.consistency", "some")')

    show_setting = 'spark.sql("SET haproc.write_concern").collect()'
    assert run(show_setting) == [["haproc.write_concern", "<undefined>"]]
    answer = run('spark.sql("SET haproc.write_concern = majority").collect()')
    assert answer == [["haproc.write_concern", "majority"]] == run(show_setting)
    assert run('spark.conf.get("haproc.write_concern")') == "majority"
    run('spark.sql("RESET haproc.write_concern")')
    assert run(show_setting) == [["haproc.write_concern", "<undefined>"]]
    run('spark.sql("SET haproc.consistency = any")')
    run('spark.sql("RESET")')
    assert run('spark.conf.get("haproc.consistency")') == "bounded"
    with pytest.raises(FailedError, match="there is no option"):
        run('spark.sql("SET haproc.nothing = 1")')
    for key, value in (
        ("spark.my.own", "1"),
        ("spark.sql.execution.pythonUDF.arrow.enabled", "true"),
        ("spark.sql.execution.pythonUDTF.arrow.enabled", "true"),
        ("spark.sql.pyspark.udf.profiler", "perf"),
    ):
        run(f'spark.conf.set("{key}", "{value}")')
        assert run(f'spark.conf.get("{key}")') == value
        run(f'spark.conf.unset("{key}")')
        assert run(f'spark.sql("SET {key} = {value}").collect()') == [[key, value]]
    case = "spark.sql.caseSensitive"
    run(f'spark.conf.set("{case}", spark.conf.get("{case}"))')
    assert run(f'spark.sql("SET {case} = false").collect()') == [[case, "false"]]
    for refused in (
        f'spark.conf.set("{case}", "true")',
        f'spark.conf.unset("{case}")',
        f'spark.sql("SET {case} = true")',
        'spark.conf.set("spark.executor.memory", "9g")',
        'spark.conf.set("spark.job.tags", "mine")',
    ):
        with pytest.raises(FailedError, match="HAPROC_RESERVED_SETTING"):
            run(refused)
    for static in (
        'spark.conf.set("spark.sql.warehouse.dir", "/tmp")',
        'spark.sql("SET spark.sql.warehouse.dir = elsewhere")',
    ):
        with pytest.raises(FailedError, match="CANNOT_MODIFY"):
            run(static)
    for key, is_modifiable in ((case, False), (OWN, True), ("spark.sql.warehouse.dir", False)):
        assert run(f'spark.conf.isModifiable("{key}")') is is_modifiable, key


@behind_a_door()
def test_session_setting_holds_for_queries_and_writes_until_it_is_unset(
    program: Program, schema: str
) -> None:
    run = program.run
    query = "SELECT CAST(array(1, NULL) AS STRING) AS s"
    run(f'spark.sql("CREATE TABLE {schema}.t (s STRING) USING delta")')
    given = {OWN: "true", "spark.sql.caseSensitive": "true", "spark.sql.warehouse.dir": "/x"}
    given["spark.sql.maxPlanStringLength"] = "no number"
    run(f"spark.conf._set_all({given!r}, silent=True)")  # as a builder does
    assert run(f'spark.conf.get("{OWN}")') == "true"
    assert run('spark.conf.get("spark.sql.caseSensitive")') == "false"
    assert run(f'spark.sql("{query}").collect()') == [["[1,]"]]
    run(f'spark.sql("{query}").writeTo("{schema}.t").append()')
    run(f'spark.sql("INSERT INTO {schema}.t {query}")')
    update = f'spark.sql("UPDATE {schema}.t SET s = CAST(array(1, NULL) AS STRING)")'
    with pytest.raises(FailedError, match=f"HAPROC_NONDETERMINISTIC.*{OWN}"):
        run(update)
    assert run(f'spark.table("{schema}.t").collect()') == [["[1,]"], ["[1,]"]]
    run(f'spark.conf.unset("{OWN}")')
    assert run(f'spark.sql("{query}").collect()') == [["[1, null]"]]
    run(update)
    assert run(f'spark.table("{schema}.t").collect()') == [["[1, null]"], ["[1, null]"]]
    # What unset goes back to is the server's own value.
    partitions = "spark.sql.shuffle.partitions"
    begins = run(f'spark.conf.get("{partitions}")')
    run(f'spark.conf.set("{partitions}", "7")')
    run(f'spark.conf.unset("{partitions}")')
    assert run(f'spark.conf.get("{partitions}")') == begins
