"""Tests of table checksums, which show whether clusters differ, on a real Spark."""

from __future__ import annotations

import pytest

from haproc.classify.names import OWN_SCHEMA
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.interface import TableState
from tests.integration.engine_calls import apply

pytestmark = pytest.mark.spark

COLUMNS = """b BOOLEAN, i INT, l BIGINT, f FLOAT, d DOUBLE, n DECIMAL(20, 5), s STRING, y BINARY,
    c CHAR(4), day DATE, t TIMESTAMP, z TIMESTAMP_NTZ, a ARRAY<INT>, m MAP<STRING, INT>,
    o STRUCT<p: INT, q: ARRAY<STRING>>, v VARIANT, `odd``name` STRING"""
VALUES = """(true, 1, 2, 0.5, 1e300, 3.14159, 'ü', X'00ff', 'ab', DATE'2026-01-01',
    TIMESTAMP'2026-01-01 00:00:00Z', TIMESTAMP_NTZ'2026-01-01 00:00:00', array(1, NULL),
    map('k', 1), named_struct('p', 1, 'q', array('x')), parse_json('{"a": [1, 2]}'), 'x'),
    (NULL, NULL, NULL, NULL, double('NaN'), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL)"""


async def states(engine: SparkConnectEngine, schema: str) -> dict[str, TableState]:
    """Return the states of a schema's tables by plain name."""
    found = {state.name.replace("`", ""): state for state in await engine.table_states()}
    start = f"spark_catalog.{schema}."
    return {name.removeprefix(start): s for name, s in found.items() if name.startswith(start)}


async def sums(engine: SparkConnectEngine, schema: str) -> dict[str, str]:
    found = await states(engine, schema)
    return {name: await engine.checksum(state, timeout_s=60) for name, state in found.items()}


@pytest.mark.thorough
async def test_checksums_are_equal_for_equal_content_and_differ_otherwise(
    engine: SparkConnectEngine, schema: str
) -> None:
    for name in ("one", "two"):
        await apply(engine, f"CREATE TABLE {schema}.{name} ({COLUMNS}) USING delta")
    empty = await sums(engine, schema)
    assert empty["one"] == empty["two"] != ""
    await apply(engine, f"INSERT INTO {schema}.one VALUES {VALUES}")
    # The other way round, and in two commits: neither order nor files count.
    for n in (1, 0):
        where = "i IS NOT NULL" if n else "i IS NULL"
        await apply(engine, f"INSERT INTO {schema}.two SELECT * FROM {schema}.one WHERE {where}")
    full = await sums(engine, schema)
    assert full["one"] == full["two"] != empty["one"]
    await apply(engine, f"INSERT INTO {schema}.two SELECT * FROM {schema}.one WHERE i IS NULL")
    twice = await sums(engine, schema)
    assert twice["one"] == full["one"] != twice["two"]


@pytest.mark.thorough
async def test_checksum_is_that_of_the_surveyed_version(
    engine: SparkConnectEngine, schema: str
) -> None:
    await apply(engine, f"CREATE TABLE {schema}.t (n INT) USING delta")
    await apply(engine, f"INSERT INTO {schema}.t VALUES (1)")
    before = (await states(engine, schema))["t"]
    expected = await engine.checksum(before, timeout_s=60)
    await apply(engine, f"INSERT INTO {schema}.t VALUES (2)")
    await apply(engine, f"ALTER TABLE {schema}.t ADD COLUMNS (later STRING)")
    assert await engine.checksum(before, timeout_s=60) == expected
    assert (await sums(engine, schema))["t"] != expected


@pytest.mark.thorough
async def test_checksums_differ_for_other_columns_views_and_files(
    engine: SparkConnectEngine, schema: str
) -> None:
    await apply(engine, f"CREATE TABLE {schema}.int (n INT) USING delta")
    await apply(engine, f"CREATE TABLE {schema}.long (n BIGINT) USING delta")
    await apply(engine, f"CREATE TABLE {schema}.file (n INT) USING parquet")
    await apply(engine, f"CREATE TABLE {schema}.other (n INT) USING delta")
    await apply(engine, f"INSERT INTO {schema}.file VALUES (1)")
    for name, text in (("v", "n"), ("w", "n"), ("x", "n + 1 AS n")):
        await apply(engine, f"CREATE VIEW {schema}.{name} AS SELECT {text} FROM {schema}.int")
    found = await states(engine, schema)
    assert found.keys() == {"int", "long", "file", "other", "v", "w", "x"}
    assert found["int"].version == 0
    assert found["file"].version is None and found["file"].checksum
    sums_before = await sums(engine, schema)
    assert sums_before["int"] == sums_before["other"] != sums_before["long"]
    assert sums_before["v"] == sums_before["w"] != sums_before["x"]
    await apply(engine, f"INSERT INTO {schema}.file VALUES (2)")
    assert (await sums(engine, schema))["file"] != sums_before["file"]


@pytest.mark.thorough
async def test_checksums_leave_out_tables_of_an_interrupted_warm_up(
    engine: SparkConnectEngine,
) -> None:
    await apply(engine, f"CREATE SCHEMA IF NOT EXISTS {OWN_SCHEMA}")
    await apply(engine, f"CREATE OR REPLACE TABLE {OWN_SCHEMA}.t (n INT) USING delta")
    try:
        assert not [s.name for s in await engine.table_states() if OWN_SCHEMA in s.name]
    finally:
        await apply(engine, f"DROP SCHEMA {OWN_SCHEMA} CASCADE")
