"""Tests of copying a table on a real Spark, and of parts of a file that are sent again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from haproc.engine.connect import SparkConnectEngine
from haproc.engine.copies import COMMIT, Begun, commit, files_of, line_of
from haproc.engine.errors import EngineError, ErrorKind
from tests.integration.engine_calls import apply, rows

pytestmark = pytest.mark.spark

RICH = """CREATE TABLE {}.rich (
  k INT NOT NULL COMMENT 'the key', v STRING DEFAULT 'x', c CHAR(3), p STRING, vr VARIANT,
  g INT GENERATED ALWAYS AS (k + 1), st STRUCT<a: INT, b: ARRAY<MAP<STRING, DATE>>>
) USING delta PARTITIONED BY (p) TBLPROPERTIES (
  'delta.feature.allowColumnDefaults' = 'supported', 'delta.columnMapping.mode' = 'name',
  'delta.enableDeletionVectors' = 'true', 'my.key' = '1')"""


async def test_copy_of_a_table_equals_the_table(engine: SparkConnectEngine, schema: str) -> None:
    for sql in (
        RICH.format(schema),
        f"INSERT INTO {schema}.rich (k, v, c, p, vr) VALUES (1, 'a', 'abc', 'ü/ %', "
        "parse_json('{\"a\": 1}')), (2, DEFAULT, 'a', NULL, NULL), (3, 'c', 'b', '', NULL)",
        f"DELETE FROM {schema}.rich WHERE k = 3",
        f"ALTER TABLE {schema}.rich RENAME COLUMN v TO `v 2`",
    ):
        await apply(engine, sql)
    copies = engine.copies(engine.lane(0))
    (table,) = [t for t in (await copies.inventory()).tables if t.key == (schema, "rich")]
    copy = replace(table, name="copy", request=7)
    place = await copies.begin(copy)
    assert await copies.begun([copy.key]) == {copy.key: Begun(copy.source, done=False)}
    adds = list(await copies.files(table, ""))
    for file in files_of(adds):
        size, data = await copies.read_file_part(table.location, file.path, 0, 1 << 20)
        assert file.size in (None, size) and len(data) == size
        assert await copies.put(place.location, file.path, 0, data, last=True) == size
    lines = commit(copy, place.id, await copies.state(table), "ring.log", 7, 1_790_000_000_000)
    lines += [line_of({"add": add}) for add in adds]
    await copies.put(place.location, COMMIT, 0, b"".join(lines), last=True)
    assert await copies.begun([copy.key]) == {copy.key: Begun(copy.source, done=True)}
    both = {each.name: each for each in await engine.table_states() if schema in each.name}
    sums = [await engine.checksum(each, timeout_s=60) for each in both.values()]
    assert len(sums) == 2 and sums[0] == sums[1]
    assert await engine.offsets_applied([f"spark_catalog.{schema}.copy"], "ring.log") == {
        f"spark_catalog.{schema}.copy": 7
    }
    # It goes on like the other one: default, generated column, marker.
    await apply(engine, f"INSERT INTO {schema}.copy (k, p) VALUES (5, 'n')")
    session = engine.session("reading")
    found = await rows(session, f"SELECT `v 2`, g FROM {schema}.copy WHERE k = 5")
    await session.aclose()
    assert found == [("x", 6)]


@pytest.mark.parametrize("name", ["_delta_log/00000000000000000003.json", "manifest-1.json"])
async def test_commit_file_is_not_replaced_by_another_commit_of_the_same_size(
    engine: SparkConnectEngine, tmp_path: Path, name: str
) -> None:
    copies, place = engine.copies(engine.lane(0)), f"file:{tmp_path}"
    one, other = b'{"of":"one"}\n{}', b'{"of":"two"}\n{}'
    for _ in range(2):  # the answer may have been lost
        assert await copies.put(place, name, 0, one, last=True) == len(one)
    with pytest.raises(EngineError, match="there is another commit already") as caught:
        await copies.put(place, name, 0, other, last=True)
    assert caught.value.kind is ErrorKind.APPLICATION
    assert (tmp_path / name).read_bytes() == one + b"\n"


async def test_last_part_of_a_file_that_failed_is_written_when_it_is_sent_again(
    engine: SparkConnectEngine, tmp_path: Path
) -> None:
    copies, place = engine.copies(engine.lane(0)), f"file:{tmp_path}"
    obstacle = tmp_path / "folder"
    obstacle.write_text("no folder")
    assert await copies.put(place, "folder/big", 0, b"one", last=False) == 3
    assert await copies.put(place, "folder/big", 3, b"two", last=False) == 6
    assert await copies.put(place, "folder/big", 3, b"two", last=False) == 6
    with pytest.raises(EngineError):
        await copies.put(place, "folder/big", 6, b"end", last=True)
    obstacle.unlink()
    assert await copies.put(place, "folder/big", 6, b"end", last=True) == 9
    assert (obstacle / "big").read_bytes() == b"onetwoend"
    # A server that was started again has nothing of a file: it begins anew.
    assert await copies.put(place, "folder/other", 3, b"two", last=True) == 0


@pytest.mark.thorough
async def test_state_of_a_table_with_a_wrong_location_is_no_availability_error(
    engine: SparkConnectEngine, schema: str, tmp_path: Path
) -> None:
    """A wrong mapping of another cluster's storage can cause this."""
    for name in ("one", "two"):
        await apply(engine, f"CREATE TABLE {schema}.{name} (k INT) USING delta")
    copies = engine.copies()
    found = {t.name: t for t in (await copies.inventory()).tables if t.schema == schema}
    one, two = found["one"], found["two"]
    assert await copies.state(one)
    for place in (f"file:{tmp_path}", f"file:{tmp_path}/none", two.location, "nofs://x/y"):
        with pytest.raises(EngineError) as raised:
            await copies.state(replace(one, location=place))
        assert raised.value.kind is not ErrorKind.AVAILABILITY, place


async def test_transfer_of_missing_files_is_no_availability_error(
    engine: SparkConnectEngine, schema: str, tmp_path: Path
) -> None:
    copies, paths = engine.copies(engine.lane(0)), [f"{n}.parquet" for n in range(5)]
    for count in (1, 5):  # by the driver, by a job
        with pytest.raises(EngineError) as raised:
            await copies.transfer(f"file:{tmp_path}/none", f"file:{tmp_path}/to", paths[:count])
        assert raised.value.kind is not ErrorKind.AVAILABILITY
