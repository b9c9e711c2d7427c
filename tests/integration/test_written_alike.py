"""Tests that judged statements give equal tables at different times in different sessions."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from haproc import protos
from haproc.classify.model import RefusedError
from haproc.config.sections import Limits
from haproc.config.shares import Shares
from haproc.engine import placeholder
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.interface import Session, Settings
from haproc.engine.pieces import MAKE_SCHEMA, begin, drop, go_on, staging_name
from haproc.engine.placeholder import restored, sql_with_rows, with_rows, with_table
from haproc.engine.session import SparkSession
from haproc.engine.statement import SparkPlan, SqlText
from haproc.engine.table import columns_of
from haproc.pin.literals import Moment, Treatment
from haproc.reading.judge import Judged
from haproc.replicate.apply.materialise import ComputedRows, materialise
from haproc.ring.spark import LocalSpark
from haproc.route.classifying import Asker
from haproc.route.offload import Inline
from haproc.route.planning import Planning
from haproc.route.readings import Readings
from haproc.route.shared_sessions import ReadingSessions
from tests.integration.engine_calls import apply, rows
from tests.readings.classified import classified_by

pytestmark = [pytest.mark.spark, pytest.mark.thorough]

BERLIN = Settings(time_zone="Europe/Berlin")


@pytest.fixture(scope="module")
def spark(mortal_spark: LocalSpark) -> LocalSpark:
    """A server of its own: these statements need more memory than the shared one has left."""
    return mortal_spark


MOMENT = Moment(
    datetime(2026, 3, 1, 23, 30, 0, 123456, UTC),
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


async def judged(engine: SparkConnectEngine, sql: str) -> Judged:
    """Return the verdict on a statement at that moment."""
    planning = Planning(Shares(1), Shares(1))
    sessions = ReadingSessions(engine, lambda: 0, time.monotonic)
    readings = Readings(sessions, lambda: 0, Inline(), planning, 60)
    statement = await classified_by(readings, sql, BERLIN)
    return await readings.judged(statement, Asker(BERLIN, None, MOMENT.user), MOMENT)


async def contents(engine: SparkConnectEngine, name: str) -> list[str]:
    """Return a table's rows as text, in order of their text."""
    session = engine.session("contents")
    return sorted(map(repr, await rows(session, f"SELECT * FROM {name}")))


async def test_literals_for_clock_functions_have_the_type_of_their_function(
    engine: SparkConnectEngine, schema: str
) -> None:
    session = engine.session("types")
    await session.configure(BERLIN)
    columns = [f"typeof({expression}) AS c{at}" for at, expression in enumerate(CLOCK)]
    texts = ", ".join(f"c{at} STRING" for at in range(len(CLOCK)))
    await apply(engine, f"CREATE TABLE {schema}.t ({texts}) USING delta")
    head = f"INSERT INTO {schema}.t "
    result = await judged(engine, f"{head}SELECT {', '.join(columns)}")
    assert result.treatment is Treatment.REPLICATE
    query = result.sql.removeprefix(head)
    assert not any(name in query for name in ("now", "current_date", "today", "user()"))
    before = await rows(session, f"SELECT {', '.join(columns)}")
    assert await rows(session, query) == before


@pytest.mark.thorough
async def test_inserted_clock_values_give_equal_rows_at_any_time(
    engine: SparkConnectEngine, schema: str
) -> None:
    expressions = [f"CAST({expression} AS STRING)" for expression in CLOCK]
    columns = ", ".join(f"c{at} STRING" for at in range(len(expressions)))
    row = f"({', '.join(expressions)})"
    for name in ("a", "b"):
        await apply(engine, f"CREATE TABLE {schema}.{name} ({columns}) USING delta")
    for lane, name in enumerate(("a", "b")):
        result = await judged(engine, f"INSERT INTO {schema}.{name} VALUES {row}, {row}")
        assert result.treatment is Treatment.REPLICATE and result.moved
        await apply(engine, result.sql, settings=BERLIN, lane=lane)
    first, second = await contents(engine, f"{schema}.a"), await contents(engine, f"{schema}.b")
    assert first == second
    session = engine.session("row")
    [values] = await rows(session, f"SELECT * FROM {schema}.a LIMIT 1")
    shown = dict(zip(CLOCK, values, strict=False))
    assert shown["now()"] == shown["TIMESTAMP 'now'"] == "2026-03-02 00:30:00.123456"
    assert shown["current_date"] == shown["to_date('today')"] == "2026-03-02"
    assert shown["unix_timestamp()"] == "1772407800"
    assert shown["current_user"] == "ann"


@pytest.mark.thorough
async def test_changes_with_clock_values_give_equal_tables(
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
            result = await judged(engine, sql.format(t=f"{schema}.{name}"))
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


async def rows_of(
    engine: SparkConnectEngine, query: str, limits: Limits | None = None
) -> tuple[ComputedRows, list[bytes]]:
    """Run a query once; return its computed rows, and their parts."""
    kept: list[bytes] = []

    async def keep(number: int, part: bytes) -> int:
        kept.append(part)
        return number

    @asynccontextmanager
    async def stage() -> AsyncIterator[tuple[str, Session]]:
        number = uuid.uuid4().int % 10**9
        yield staging_name(number, number, 0), engine.session("staged")

    session = engine.session("materialise")
    await session.configure(BERLIN)
    found = await materialise(SqlText(query), session, stage, keep, limits or Limits(), 60)
    return found, kept or [found.rows]


async def replicate_rows(
    engine: SparkConnectEngine, result: Judged, *heads: str
) -> list[SparkPlan]:
    """Run a statement's query once and return statements that write its rows, one for each head."""
    assert result.cut is not None
    found, (rows,) = await rows_of(engine, result.cut.query)
    plans = (sql_with_rows(head, found.schema) for head in heads or (result.cut.head,))
    return [SparkPlan(with_rows(plan, rows)) for plan in plans]


async def test_materialised_statements_give_equal_tables(
    engine: SparkConnectEngine, schema: str
) -> None:
    for name in ("a", "b"):
        await apply(
            engine, f"CREATE TABLE {schema}.{name} (a BIGINT, b STRING, c DOUBLE) USING delta"
        )
    for head, query in MATERIALISED:
        result = await judged(engine, head.format(t=f"{schema}.a") + query)
        assert result.treatment is Treatment.MATERIALISE
        assert result.cut is not None
        other = result.cut.head.replace(f"{schema}.a ", f"{schema}.b ", 1)
        first, second = await replicate_rows(engine, result, result.cut.head, other)
        await apply(engine, first, settings=BERLIN)
        await apply(engine, second, settings=Settings())
    rows_of_a = await contents(engine, f"{schema}.a")
    assert len(rows_of_a) == 4, "the overwrite left its own rows, the empty query added none"
    assert rows_of_a == await contents(engine, f"{schema}.b")


EVERY_TYPE = """SELECT id, CAST(id AS TINYINT) AS b, CAST(1.5 AS DECIMAL(38,10)) AS c, 1.1F AS f,
    '\\u0000 ''x''' AS s, X'00FF' AS x, id = 1 AS t, DATE '0001-01-01' AS d,
    TIMESTAMP '9999-12-31 22:00:00.000001' AS ts, TIMESTAMP_NTZ '2026-03-29 02:30:00' AS n,
    INTERVAL '1-2' YEAR TO MONTH AS ym, INTERVAL '1 2' DAY TO HOUR AS dh,
    array(1, NULL) AS l, map('k', array(DATE '2026-01-01')) AS m,
    named_struct('a', 1, 'b c', named_struct('u', TIMESTAMP '2026-01-01 00:00:00')) AS st,
    CAST(array() AS ARRAY<STRING>) AS e, CAST(NULL AS INT) AS nothing, uuid() AS u,
    parse_json('{"a": 1.50}') AS v, named_struct('a', 1, 'a', 2) AS du, NULL AS nil,
    array(NULL) AS nils, INTERVAL '7' MONTH AS mo, 'a' COLLATE UTF8_LCASE AS co
    FROM range(2)"""


NAMES = "id b c f s x t d ts n ym dh l m st e nothing v du nil nils mo co"
TEXTS = [f"hex({name})" if name == "x" else f"CAST({name} AS STRING)" for name in NAMES.split(" ")]


async def check_restored(
    session: SparkSession, query: str, schema: bytes, fill: Callable[[bytes], bytes]
) -> None:
    """Compare rows that went through the log with the query's own, in types and in values."""
    columns = await session.columns(query)
    plan = protos.base.Plan(root=restored(schema, [c.name for c in columns]))
    filled = SparkPlan(fill(plan.SerializeToString()))
    found = protos.data_types.DataType.FromString(await session.schema(filled))
    assert [(c.name, c.type_text) for c in columns_of(found)] == [
        (c.name, c.type_text) for c in columns
    ]
    shown = protos.base.Plan()
    shown.root.project.input.CopyFrom(protos.base.Plan.FromString(filled.plan).root)
    for text in TEXTS:
        shown.root.project.expressions.add().expression_string.expression = text
    given = await rows(session, SparkPlan(shown.SerializeToString()))
    expected = await rows(session, f"SELECT {', '.join(TEXTS)} FROM ({query})")
    assert sorted(map(repr, given)) == sorted(map(repr, expected))


async def test_materialised_query_keeps_all_types_and_values(engine: SparkConnectEngine) -> None:
    found, (stream,) = await rows_of(engine, EVERY_TYPE)
    session = engine.session("materialise")
    await check_restored(session, EVERY_TYPE, found.schema, lambda p: with_rows(p, stream))


@pytest.mark.parametrize("few", [placeholder.FEW, 0], ids=["rows", "lists of rows"])
async def test_materialised_parts_are_gathered_with_all_types_and_values(
    engine: SparkConnectEngine, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placeholder, "FEW", few)
    query = EVERY_TYPE.replace("range(2)", "range(0, 5, 1, 1)")
    if few == 0:  # intervals of months go as they are, whatever their number
        query = query.replace("INTERVAL '1-2' YEAR TO MONTH", "1").replace(
            "INTERVAL '7' MONTH", "7"
        )
    found, parts = await rows_of(engine, query, Limits(part_rows_max=2))
    assert (len(parts), found.count, found.parts) == (3, 5, (0, 1, 2))
    await check_restored(
        engine.session("materialise"), query, found.schema, lambda p: with_table(p, found.table)
    )
    await apply(engine, drop(found.table))
    table = staging_name(0, 0, uuid.uuid4().int)
    await apply(engine, MAKE_SCHEMA)
    for number, part in enumerate(parts):
        plan = (go_on if number else begin)(table, part)
        assert (b"inline" in plan.plan) == (few == 0)
        await apply(engine, plan)
    assert table in await engine.staged()
    session = engine.session("materialise")
    await check_restored(session, query, found.schema, lambda p: with_table(p, table))
    await apply(engine, drop(table))
    assert table not in await engine.staged()


WIDE = "repeat('x', 1000 * 1000)"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "query",
    [
        f"SELECT {WIDE} AS s, id FROM range(0, 150, 1, 3)",
        f"SELECT array({WIDE}) AS a FROM range(0, 90, 1, 1)",
        f"SELECT map(id, CAST({WIDE} AS BINARY)) AS m FROM range(0, 30, 1, 1)",
        "SELECT id FROM range(0, 210000, 1, 7)",
    ],
)
async def test_large_materialised_result_is_read_whole_in_pieces(
    engine: SparkConnectEngine, query: str
) -> None:
    found, parts = await rows_of(engine, query)
    assert found.table and found.count == sum(len(table_of(part)) for part in parts)
    (expected,) = await rows(engine.session("materialise"), f"SELECT count(*) FROM ({query})")
    assert found.count == expected[0]
    await apply(engine, drop(found.table))


def table_of(part: bytes) -> pa.Table:
    with pa.ipc.open_stream(part) as reader:
        return reader.read_all()


async def test_materialised_rows_that_no_table_can_store_are_one_part_or_refused(
    engine: SparkConnectEngine,
) -> None:
    query = "SELECT make_interval(1, 2, 0, id) AS i FROM range(3)"
    found, _ = await rows_of(engine, query)
    assert found.count == 3 and not found.table
    with pytest.raises(RefusedError) as caught:
        await rows_of(engine, query, Limits(part_rows_max=2))
    assert caught.value.error_class == "HAPROC_CANNOT_MATERIALISE"


async def test_materialised_rows_above_the_limit_are_refused(engine: SparkConnectEngine) -> None:
    with pytest.raises(RefusedError) as caught:
        await rows_of(
            engine, "SELECT id FROM range(1000)", Limits(part_rows_max=9, staged_bytes_max=100)
        )
    assert caught.value.error_class == "HAPROC_TOO_LARGE_TO_MATERIALISE"


async def test_materialised_create_table_as_keeps_names_and_types(
    engine: SparkConnectEngine, schema: str
) -> None:
    types = []
    await apply(
        engine, f"CREATE TABLE {schema}.c (c CHAR(3), v VARCHAR(4) COMMENT 'x') USING delta"
    )
    for name in ("a", "b", "direct"):
        # Delta stores no intervals and no names with spaces.
        query = f"SELECT id, c, ts, m, l, v, rand() AS r FROM ({EVERY_TYPE})"
        query += f" CROSS JOIN (SELECT c AS ch, v AS vc FROM {schema}.c)"
        query = query.replace("rand() AS r", "ch, vc, rand() AS r")
        sql = f"CREATE TABLE {schema}.{name} USING delta AS {query}"
        plans = (
            [SqlText(sql)]
            if name == "direct"
            else await replicate_rows(engine, await judged(engine, sql))
        )
        await apply(engine, plans[0], settings=BERLIN)
        session = engine.session("types")
        types.append(await rows(session, f"DESCRIBE TABLE {schema}.{name}"))
    assert types[0] == types[1] == types[2]
    assert [c[0] for c in types[0]] == ["id", "c", "ts", "m", "l", "v", "ch", "vc", "r"]
