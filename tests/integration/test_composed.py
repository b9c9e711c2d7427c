"""Tests that combined statements give the same rows as one by one, on a real Spark.

`tests.integration.composing` runs many windows, for as long as it is given, and
`tests.unit.test_compose` has hundreds of them on SQLite.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from haproc.classify.insert import literal_type
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.interface import Column
from haproc.replicate.compose.reading import change_of
from haproc.replicate.compose.terms import Cell, storable
from tests.integration.composing import compare
from tests.integration.engine_calls import apply, rows
from tests.windows import DATES, LITERALS, MOMENTS, STRINGS, ZONED, combined, operation

NUMBERS = ("3Y", "2S", "7", "-1L", "1.5", "1.50", "-0.00", "2.0BD", "1.5F", "0.1F", "-0.0D", "1e2")


@pytest.mark.thorough
async def test_combined_windows_give_the_same_tables_as_their_single_statements(
    engine: SparkConnectEngine, schema: str
) -> None:
    tally = await compare(engine, schema, "suite", windows=1, length=6)
    assert tally.together > 2 and not tally.apart


@pytest.mark.thorough
async def test_combined_inserts_of_literals_of_all_types_store_the_same_as_single_inserts(
    engine: SparkConnectEngine, schema: str
) -> None:
    types = ", ".join(f"c{n} {kind}" for n, kind in enumerate(LITERALS))
    for half in "ab":
        await apply(engine, f"CREATE TABLE {schema}.{half} ({types}) USING delta")
    table = f"spark_catalog.{schema}.b"
    columns = await engine.plain_columns(table)
    assert columns is not None
    sqls = [insert(text, columns) for text in (*NUMBERS, "TRUE", "X'00FF'", "NULL")]
    # Not those that Spark might read by the clock.
    plain = tuple(t for t in STRINGS if change_of(operation(insert(t, columns), table)))
    sqls += [several(texts, columns) for texts in (plain, DATES, MOMENTS, ZONED)]
    for version, sql in enumerate(sqls):
        await apply(engine, sql.replace("THE_TABLE", f"{schema}.a"), version)
    ((text, members),) = combined(sqls, table, columns)
    assert len(members) == len(sqls)
    await apply(engine, text, 99)
    session = engine.session("looks")
    held = [sorted(map(repr, await rows(session, f"SELECT * FROM {schema}.{h}"))) for h in "ab"]
    assert held[0] == held[1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("columns", "clause"),
    [
        ("k bigint, g bigint GENERATED ALWAYS AS (k + 1)", ""),
        ("k bigint, c char(3)", ""),
        ("k bigint, c varchar(3)", ""),
        (
            "k bigint, c int DEFAULT 3",
            "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')",
        ),
        ("k bigint GENERATED ALWAYS AS IDENTITY, c int", ""),
        ("k bigint", "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"),
        ("k bigint", "TBLPROPERTIES ('delta.enableRowTracking' = 'true')"),
        ("k bigint, c string", "PARTITIONED BY (c)"),
    ],
)
async def test_table_with_generated_limited_or_tracked_columns_has_no_plain_columns(
    engine: SparkConnectEngine, schema: str, columns: str, clause: str
) -> None:
    await apply(engine, f"CREATE TABLE {schema}.t ({columns}) USING delta {clause}")
    assert await engine.plain_columns(f"spark_catalog.{schema}.t") is None


async def test_table_with_not_null_check_and_partition_has_plain_columns(
    engine: SparkConnectEngine, schema: str
) -> None:
    ddl = f"{schema}.t (k int NOT NULL, `group` string COMMENT 'x') USING delta PARTITIONED BY (k)"
    await apply(engine, f"CREATE TABLE {ddl}")
    await apply(engine, f"ALTER TABLE {schema}.t ADD CONSTRAINT positive CHECK (k > 0)")
    found = await engine.plain_columns(f"spark_catalog.{schema}.t")
    assert found is not None
    assert [(c.name, c.type_text) for c in found] == [("k", "int"), ("group", "string")]
    await apply(engine, f"CREATE TABLE {schema}.files (k int) USING parquet")
    assert await engine.plain_columns(f"spark_catalog.{schema}.files") is None
    assert await engine.plain_columns(f"spark_catalog.{schema}.nothing") is None


def insert(text: str, columns: Sequence[Column]) -> str:
    return several((text,), columns)


def several(texts: tuple[str, ...], columns: Sequence[Column]) -> str:
    """Return an INSERT of these literals, which have one type, into all columns that take it."""
    letter = literal_type(texts[0])
    assert letter is not None
    fit = [c.name for c in columns if storable(Cell(letter, texts[0]), c.type_text)]
    values = ", ".join(f"({', '.join([text] * len(fit))})" for text in texts)
    return f"INSERT INTO THE_TABLE ({', '.join(fit)}) VALUES {values}"
