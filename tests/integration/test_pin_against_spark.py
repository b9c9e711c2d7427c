"""Pinned statements, run twice at different times in different sessions, give equal tables."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from haproc.classify.classifier import classify
from haproc.classify.model import Classified
from haproc.classify.names import Context
from haproc.classify.rules import Rules
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.interface import Settings
from haproc.pin.determinism import pin
from haproc.pin.functions import KEYWORDS, Nature, nature
from haproc.pin.materialise import fetch_query, materialised
from haproc.pin.model import Moment, Pinned, Treatment
from tests.integration.engine_calls import apply, rows, table

pytestmark = pytest.mark.spark

BERLIN = Settings(time_zone="Europe/Berlin")
MOMENT = Moment(
    datetime(2026, 3, 1, 23, 30, 0, 123456, UTC),
    7,
    "Europe/Berlin",
    "ann",
    "spark_catalog",
    "default",
)
CLOCK = [
    "current_timestamp",
    "current_timestamp()",
    "now()",
    "`now`()",
    "system.builtin.now()",
    "current_date",
    "current_date()",
    "curdate()",
    "localtimestamp()",
    "unix_timestamp()",
    "current_user",
    "current_user()",
    "user()",
    "session_user()",
    "current_catalog()",
    "current_database()",
    "current_schema()",
    "current_timezone()",
    "CAST('now' AS TIMESTAMP)",
    "TIMESTAMP 'now'",
    "TIMESTAMP_NTZ 'now'",
    "TIMESTAMP_LTZ 'today'",
    "DATE 'tomorrow'",
    "'yesterday'::date",
    "to_date('today')",
    "to_timestamp('now')",
]
RANDOM = ["rand()", "random()", "randn()", "uuid()", "randstr(8)", "uniform(1, 1000000)"]


def statement(sql: str) -> Classified:
    return classify(sql, Context(), Rules.builtin())


def pinned(sql: str) -> Pinned:
    return pin(statement(sql), MOMENT)


async def contents(engine: SparkConnectEngine, name: str) -> list[str]:
    """Return a table's rows as text, in order of their text."""
    session = engine.session("contents")
    return sorted(map(repr, await rows(session, f"SELECT * FROM {name}")))


async def test_functions_of_the_server_are_all_known(engine: SparkConnectEngine) -> None:
    session = engine.session("functions")
    names = [str(row[0]) for row in await rows(session, "SHOW SYSTEM FUNCTIONS")]
    words = [name for name in names if name.isidentifier()]
    assert len(words) > 500
    assert [name for name in words if nature(name) is Nature.UNKNOWN] == []
    keywords = [
        str(row[0]).lower() for row in await rows(session, "SELECT keyword FROM sql_keywords()")
    ]
    assert set(keywords) <= KEYWORDS


async def test_pin_clock_literals_have_the_type_of_their_function(
    engine: SparkConnectEngine,
) -> None:
    session = engine.session("types")
    await session.configure(BERLIN)
    columns = [f"typeof({expression}) AS c{at}" for at, expression in enumerate(CLOCK)]
    result = pinned(f"INSERT INTO t SELECT {', '.join(columns)}")
    assert len(result.replacements) == len(CLOCK)
    before = await rows(session, f"SELECT {', '.join(columns)}")
    assert await rows(session, result.sql.removeprefix("INSERT INTO t ")) == before


async def test_pin_values_give_equal_rows_at_any_time(
    engine: SparkConnectEngine, schema: str
) -> None:
    expressions = [f"CAST({expression} AS STRING)" for expression in [*CLOCK, *RANDOM]]
    columns = ", ".join(f"c{at} STRING" for at in range(len(expressions)))
    row = f"({', '.join(expressions)})"
    for name in ("a", "b"):
        await apply(engine, f"CREATE TABLE {schema}.{name} ({columns}) USING delta")
    for lane, name in enumerate(("a", "b")):
        result = pinned(f"INSERT INTO {schema}.t VALUES {row}, {row}")
        assert result.treatment is Treatment.REPLICATE
        sql = result.sql.replace(f"{schema}.t ", f"{schema}.{name} ", 1)
        await apply(engine, sql, settings=BERLIN, lane=lane)
    first, second = await contents(engine, f"{schema}.a"), await contents(engine, f"{schema}.b")
    assert first == second
    assert len(set(first)) == 2, "random values differ from row to row"
    session = engine.session("row")
    [values] = await rows(session, f"SELECT * FROM {schema}.a LIMIT 1")
    shown = dict(zip(CLOCK, values, strict=False))
    assert shown["now()"] == shown["TIMESTAMP 'now'"] == "2026-03-02 00:30:00.123456"
    assert shown["current_date"] == shown["to_date('today')"] == "2026-03-02"
    assert shown["unix_timestamp()"] == "1772407800"
    assert shown["current_user"] == "ann"


async def test_pin_changes_with_the_clock_give_equal_tables(
    engine: SparkConnectEngine, schema: str
) -> None:
    statements = [
        "INSERT INTO {t} SELECT id, now(), current_date FROM range(5)",
        "UPDATE {t} SET b = current_timestamp, c = DATE 'tomorrow' WHERE a < 3",
        "MERGE INTO {t} USING (SELECT 4L AS a UNION ALL SELECT 9L) s ON {t}.a = s.a "
        "WHEN MATCHED THEN UPDATE SET b = TIMESTAMP 'today' "
        "WHEN NOT MATCHED THEN INSERT (a, b, c) VALUES (s.a, now(), current_date())",
        "DELETE FROM {t} WHERE c > current_date AND a = 1",
    ]
    for name in ("a", "b"):
        await apply(
            engine, f"CREATE TABLE {schema}.{name} (a BIGINT, b TIMESTAMP, c DATE) USING delta"
        )
        for sql in statements:
            result = pinned(sql.format(t=f"{schema}.{name}"))
            assert result.treatment is Treatment.REPLICATE, result.reasons
            await apply(engine, result.sql, settings=BERLIN)
    first = await contents(engine, f"{schema}.a")
    assert len(first) == 5
    assert first == await contents(engine, f"{schema}.b")


MATERIALISED = [
    ("INSERT INTO {t} ", "SELECT id AS a, uuid() AS b, rand() AS c FROM range(20)"),
    (
        "INSERT INTO {t} ",
        "SELECT id, 'x' || randstr(4), sum(CAST(id AS DOUBLE)) FROM range(20) GROUP BY id LIMIT 5",
    ),
    ("INSERT INTO {t} (c, a, b) ", "SELECT rand(3), 1L, 'it''s \\n \\\\ ☃' FROM range(3)"),
    ("INSERT INTO {t} BY NAME ", "SELECT uuid() AS b, 7L AS a, CAST('NaN' AS DOUBLE) AS c"),
    ("WITH w AS (SELECT 5L AS x) INSERT INTO {t} ", "SELECT x, uuid(), NULL FROM w"),
    ("INSERT OVERWRITE {t} ", "SELECT id, uuid(), -0.0D FROM range(4)"),
    ("INSERT INTO {t} ", "SELECT id, uuid(), rand() FROM range(5) WHERE id < 0"),
]


async def replicate_rows(engine: SparkConnectEngine, result: Pinned) -> str:
    """Run a statement's query once and return the statement that holds its rows."""
    assert result.source is not None
    session = engine.session("materialise")
    await session.configure(BERLIN)
    columns = await session.columns(result.source.query)
    fetched = await table(session, fetch_query(result.source.query, columns))
    return materialised(result.source, fetched, columns)


async def test_materialised_statements_give_equal_tables(
    engine: SparkConnectEngine, schema: str
) -> None:
    for name in ("a", "b"):
        await apply(
            engine, f"CREATE TABLE {schema}.{name} (a BIGINT, b STRING, c DOUBLE) USING delta"
        )
    for head, query in MATERIALISED:
        result = pinned(head.format(t=f"{schema}.a") + query)
        assert result.treatment is Treatment.MATERIALISE
        sql = await replicate_rows(engine, result)
        assert pinned(sql).treatment is Treatment.REPLICATE
        await apply(engine, sql, settings=BERLIN)
        await apply(engine, sql.replace(f"{schema}.a ", f"{schema}.b ", 1), settings=Settings())
    first = await contents(engine, f"{schema}.a")
    assert len(first) == 4, "the overwrite left its own rows, the empty query added none"
    assert first == await contents(engine, f"{schema}.b")


EVERY_TYPE = """SELECT id, CAST(id AS TINYINT) AS b, CAST(1.5 AS DECIMAL(38,10)) AS c, 1.1F AS f,
    '\\u0000 ''x''' AS s, X'00FF' AS x, id = 1 AS t, DATE '0001-01-01' AS d,
    TIMESTAMP '9999-12-31 22:00:00.000001' AS ts, TIMESTAMP_NTZ '2026-03-29 02:30:00' AS n,
    INTERVAL '1-2' YEAR TO MONTH AS ym, INTERVAL '1 2' DAY TO HOUR AS dh,
    array(1, NULL) AS l, map('k', array(DATE '2026-01-01')) AS m,
    named_struct('a', 1, 'b c', named_struct('u', TIMESTAMP '2026-01-01 00:00:00')) AS st,
    CAST(array() AS ARRAY<STRING>) AS e, CAST(NULL AS INT) AS nothing, uuid() AS u
    FROM range(2)"""


async def test_materialised_query_keeps_every_type_and_value(engine: SparkConnectEngine) -> None:
    result = pinned(f"INSERT INTO t {EVERY_TYPE}")
    sql = (await replicate_rows(engine, result)).removeprefix("INSERT INTO t ")
    session = engine.session("materialise")
    columns = await session.columns(EVERY_TYPE)
    assert [(c.name, c.type_text) for c in await session.columns(sql)] == [
        (c.name, c.type_text) for c in columns
    ]
    text = ", ".join(
        f"hex({c.name})" if c.name == "x" else f"CAST({c.name} AS STRING)"
        for c in columns
        if c.name != "u"
    )
    before = await rows(session, f"SELECT {text} FROM ({EVERY_TYPE})")
    assert await rows(session, f"SELECT {text} FROM ({sql})") == before


async def test_materialised_table_as_select_keeps_names_and_types(
    engine: SparkConnectEngine, schema: str
) -> None:
    types = []
    for name in ("a", "b"):
        # Delta stores no intervals and no names with spaces.
        query = f"SELECT id, c, ts, m, l, rand() AS r FROM ({EVERY_TYPE})"
        result = pinned(f"CREATE TABLE {schema}.{name} USING delta AS {query}")
        await apply(engine, await replicate_rows(engine, result), settings=BERLIN)
        types.append(await engine.session("types").columns(f"SELECT * FROM {schema}.{name}"))
    assert types[0] == types[1]
    assert [c.name for c in types[0]] == ["id", "c", "ts", "m", "l", "r"]
