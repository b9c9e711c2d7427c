"""Tests that everyday programs have the same result on plain Spark and on a ring.

Columns named like functions, upserts from temporary views and DataFrames, variables, settings,
change feeds: each program runs on one Spark without HAProc, and on the ring through haclient,
HTTP and PySpark.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Any, Final

import pytest

import haclient
from tests.integration.pyspark_program import FailedError, Program
from tests.rig import Rig

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

_MERGED: Final = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
_PEOPLE: Final = (
    "CREATE TABLE T (id INT, v STRING) USING delta",
    "INSERT INTO T VALUES (1, 'a'), (2, 'b'), (3, 'c')",
)
PROGRAMS: Final = {
    "column called current_date": (
        "CREATE TABLE T (current_date DATE, n INT) USING delta",
        "INSERT INTO T VALUES (DATE'2020-01-01', 1), (DATE'2026-05-05', 2)",
        "DELETE FROM T WHERE current_date > DATE'2026-01-01'",
        "INSERT INTO T REPLACE WHERE current_date >= DATE'2026-01-01' SELECT DATE'2026-02-02', 3",
        "SELECT * FROM T",
    ),
    "column called current_user": (
        "CREATE TABLE A (k INT, current_user STRING) USING delta",
        "INSERT INTO A VALUES (1, 'x'), (2, 'y')",
        "CREATE TABLE T (k INT, who STRING) USING delta",
        "INSERT INTO T SELECT k, current_user FROM A",
        "SELECT * FROM T",
    ),
    "column called now()": (
        "CREATE TABLE T (`now()` INT, s STRING, k INT) USING delta "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        "INSERT INTO T VALUES (1, 'now()', 9), (2, 'now()', 8), (3, 'x', 9)",
        "DELETE FROM T WHERE s = 'now()' AND k = 9",
        "UPDATE T SET k = `now()` + 1 WHERE `now()` > 2",
        "SELECT * FROM T",
    ),
    "upserts from a temporary view": (
        *_PEOPLE,
        "CREATE TEMPORARY VIEW T_new AS SELECT * FROM VALUES (2, 'B'), (4, 'D') n(id, v)",
        f"MERGE INTO T USING T_new s ON T.id = s.id {_MERGED}",
        "CREATE OR REPLACE TEMPORARY VIEW T_new AS SELECT id + 1 AS id, upper(v) AS v FROM T",
        f"MERGE INTO T AS t USING T_new ON t.id = T_new.id {_MERGED}",
        "SELECT * FROM T",
    ),
    "variables": (
        *_PEOPLE,
        "DECLARE OR REPLACE VARIABLE least INT DEFAULT 2",
        "DECLARE OR REPLACE VARIABLE said STRING DEFAULT 'it''s'",
        "UPDATE T SET v = said WHERE id = least",
        "SET VAR least = (SELECT max(id) FROM T) - 1",
        "DELETE FROM T WHERE id > least",
        "SELECT * FROM T",
    ),
    "view that reads the clock": (
        "CREATE TABLE T (id INT, at TIMESTAMP) USING delta",
        "CREATE VIEW T_v AS SELECT 1 AS id, current_timestamp() AS at",
        "MERGE INTO T USING T_v s ON T.id = s.id WHEN NOT MATCHED THEN INSERT *",
        "SELECT id, at IS NULL FROM T",
    ),
    "dynamic overwrite": (
        "CREATE TABLE T (id INT, p INT) USING delta PARTITIONED BY (p)",
        "INSERT INTO T VALUES (1, 1), (2, 2)",
        "SET spark.sql.sources.partitionOverwriteMode=dynamic",
        "INSERT OVERWRITE T SELECT 3, 2",
        "INSERT OVERWRITE T PARTITION (p) SELECT id + 10, p FROM T WHERE p = 1",
        "RESET spark.sql.sources.partitionOverwriteMode",
        "SELECT * FROM T",
    ),
    "change feed": (
        "CREATE TABLE A (id INT) USING delta TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
        "INSERT INTO A VALUES (1), (2)",
        "CREATE TABLE T (id INT, what STRING) USING delta",
        "INSERT INTO T SELECT id, _change_type FROM table_changes('A', 1)",
        "SELECT * FROM T",
    ),
    "variant beside a map of decimals": (
        "CREATE TABLE T (d MAP<STRING, DECIMAL(5, 2)>, j VARIANT) USING delta",
        "INSERT INTO T SELECT map('a', 1.25BD), parse_json('{\"a\": [1, null]}')",
        "SELECT d['a'], to_json(j) FROM T",
    ),
    "typing errors": (
        *_PEOPLE,
        "CREATE OR REPLACE TEMPORARY VIEW T_new AS SELECT 5 AS id, 'e' AS v",
        "INSERT INTO T SELECT id, bad FROM T_new",
        "INSERT INTO T SELECT id FROM T_none",
        "MERGE INTO T USING T_new s ON T.id = s.bad WHEN NOT MATCHED THEN INSERT *",
        "UPDATE T SET bad = 1",
        "SELECT * FROM T",
    ),
}
"""Statements in one session; T and A are tables. The last one shows their result."""

_PARAMETERS: Final = ':`x`, :said", args=dict(x=9, said="y"))'
"""Delta's parser drops parameters, so plain Spark has literals instead."""
FRAMES: Final = (
    *(f'spark.sql("{each}")' for each in _PEOPLE),
    'd = spark.createDataFrame([(2, "B"), (4, "D")], "id INT, v STRING")',
    'spark.sql("MERGE INTO T USING {d} s ON T.id = s.id '
    f'{_MERGED}", d=d.withColumn("v", F.concat("v", F.lit("!"))))',
    f'spark.sql("INSERT INTO T SELECT {_PARAMETERS}',
    'd.createOrReplaceTempView("T_batch")',
    'm = spark.table("T_batch").alias("s").mergeInto("T", F.expr("s.id = T.id"))',
    "m.whenMatched().updateAll().whenNotMatched().insertAll().merge()",
)
"""A program that only PySpark can express."""


_NAME: Final = re.compile(r"\b[TA](_\w+)?\b")


def in_names(text: str) -> str:
    """Return a program's text with new names for its tables and views."""
    prefix = f"e{uuid.uuid4().hex[:8]}_"
    return _NAME.sub(lambda found: prefix + found[0], text)


Outcomes = list[str]
"""The outcome of each statement: ``ok``, or the error's name."""


def by_haclient(rig: Rig, statements: Sequence[str]) -> Outcomes:
    """Run statements in one session."""
    outcomes = []
    with rig.cursor() as cursor:
        for sql in statements:
            try:
                cursor.execute(sql)
                outcomes.append("ok")
            except haclient.Error as error:
                outcomes.append(str(error.error_class))
    return outcomes


def by_http(rig: Rig, statements: Sequence[str]) -> Outcomes:
    """Run statements in one session."""
    session = uuid.uuid4().hex
    assert rig.send("a", "PUT", f"/api/ha/sessions/{session}", {})[0] == 200
    outcomes = []
    for sql in statements:
        sent = {"statement": sql, "session_id": session}
        code, answer = rig.post("a", "/api/2.0/sql/statements", sent)
        error = answer["status"].get("error") if code == 200 else answer
        outcomes.append(error["error_class"] if error else "ok")
    return outcomes


def by_pyspark(target: str, lines: Sequence[str], shows: str = "") -> tuple[Outcomes, list[Any]]:
    """Run lines of Python; ``shows``: a query, whose rows are returned as well."""
    program, outcomes = Program(target), []
    try:
        for line in lines:
            try:
                program.run(line)
                outcomes.append("ok")
            except FailedError as error:
                outcomes.append(error.details[0] if error.details else error.kind)
        rows = f"sorted([*map(str, row)] for row in spark.sql({shows!r}).collect())"
        return outcomes, program.run(rows) if shows else []
    finally:
        program.end()


def in_python(statements: Sequence[str]) -> list[str]:
    """Return lines that run statements."""
    return [f"spark.sql({sql!r}).collect()" for sql in statements]


def on_plain_spark(rig: Rig, lines: Sequence[str], shows: str) -> tuple[Outcomes, list[Any]]:
    """Run lines on the Spark of a cluster, without HAProc, in a schema of their own."""
    spark = rig.sparks.sparks["a"]
    schema = f"plain_{uuid.uuid4().hex[:8]}"
    begin = in_python([f"CREATE SCHEMA {schema}", f"USE {schema}"])
    try:
        outcomes, rows = by_pyspark(
            f"sc://localhost:{spark.port}/;token={spark.token}", [*begin, *lines], shows
        )
        return outcomes[2:], rows
    finally:
        by_pyspark(
            f"sc://localhost:{spark.port}/;token={spark.token}",
            in_python([f"DROP SCHEMA IF EXISTS {schema} CASCADE"]),
        )


def shown(rig: Rig, query: str) -> list[Any]:
    """Return a query's rows as texts, which are the same on all clusters."""
    rows = rig.everywhere(f"SELECT * FROM ({query}) ORDER BY ALL")
    return sorted([*map(str, row)] for row in rows)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_in_sql_has_the_result_of_plain_spark(rig: Rig, name: str) -> None:
    *statements, query = PROGRAMS[name]
    expected = on_plain_spark(rig, in_python(statements), query)
    door = f"sc://{rig.door('b')}"
    for way in (by_haclient, by_http, None):
        *own, last = in_names("\n".join((*statements, query))).split("\n")
        outcomes = by_pyspark(door, in_python(own))[0] if way is None else way(rig, own)
        assert (outcomes, shown(rig, last)) == expected, way


def test_program_with_dataframes_has_the_result_of_plain_spark(rig: Rig) -> None:
    query = "SELECT * FROM T"
    plain = [each.replace(_PARAMETERS, "9, 'y'\")") for each in FRAMES]
    expected = on_plain_spark(rig, plain, query)
    assert set(expected[0]) == {"ok"}
    *lines, last = in_names("\n".join((*FRAMES, query))).split("\n")
    outcomes, _ = by_pyspark(f"sc://{rig.door('a')}", lines)
    assert (outcomes, shown(rig, last)) == expected
