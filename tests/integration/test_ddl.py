"""Tests of DDL whose expressions are computed later, and of session statements, on a service."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeAlias

import pytest

from haproc.engine.connect import SparkConnectEngine
from haproc.engine.interface import Settings
from haproc.failure import RequestError
from haproc.ring.spark import LocalSpark
from haproc.route.model import Request, SentSql
from tests.integration.conftest import address_of
from tests.integration.engine_calls import rows
from tests.integration.one_cluster import one_cluster

pytestmark = pytest.mark.spark

Send: TypeAlias = Callable[..., Coroutine[Any, Any, None]]
REFUSED = {
    "CREATE TABLE x (d DATE DEFAULT current_date) USING delta": "current_date reads the clock",
    "CREATE TABLE x (current_date INT, d DATE DEFAULT current_date) USING delta": "reads the clock",
    "CREATE TABLE x (d DATE, y INT GENERATED ALWAYS AS (year(now()))) USING delta": "now()",
    "CREATE TABLE x (i BIGINT GENERATED ALWAYS AS IDENTITY) USING delta": "IDENTITY",
    "ALTER TABLE t ADD CONSTRAINT c CHECK (d < current_date())": "reads the clock",
    "ALTER TABLE t ADD CONSTRAINT c CHECK (nope > 1)": "UNRESOLVED_COLUMN",
    "CREATE FUNCTION fr() RETURNS DOUBLE RETURN rand()": "rand()",
    "CREATE FUNCTION fr(x STRING) RETURNS TIMESTAMP RETURN x": "time of day",
    "CREATE TABLE x SHALLOW CLONE t": "clone",
    "RESTORE TABLE t TO VERSION AS OF 0": "versions",
    "CREATE TABLE x (d DOUBLE DEFAULT rand()) USING delta": "NON_DETERMINISTIC",
}
OF_SESSION = {
    "CREATE VIEW x AS SELECT * FROM mine": "temporary view",
    "CREATE FUNCTION fm() RETURNS INT RETURN (SELECT max(a) FROM mine)": "temporary view",
    "CREATE TEMPORARY FUNCTION fp() RETURNS TABLE (n INT) RETURN "
    "SELECT TRANSFORM (a) USING 'cat' AS (n INT) FROM mine": "TRANSFORM",
    "CREATE TEMPORARY VIEW bad AS SELECT IDENTIFIER('reflect')('java.lang.System', 'nanoTime')": (
        "reflect"
    ),
}


@pytest.fixture
async def send(spark: LocalSpark, schema: str) -> AsyncIterator[Send]:
    numbers = itertools.count()
    async with one_cluster(address_of(spark)) as (service, _):

        async def send(sql: str, session: str | None = None) -> None:
            name = f"s{next(numbers)}"
            where = None if session else schema
            request = Request(
                name, SentSql(sql), name, schema=where, session_id=session, timeout_s=120
            )
            await service.execute(request)

        await service.enter_session("s1", "anonymous")
        yield send


@pytest.mark.thorough
async def test_deterministic_definitions_are_accepted_and_work(
    send: Send, engine: SparkConnectEngine, schema: str
) -> None:
    for sql in (
        "CREATE TABLE t (current_date DATE, user STRING DEFAULT upper('x -- y'), y INT GENERATED "
        "ALWAYS AS (year(current_date)), n INT DEFAULT 3 + 1) USING delta "
        "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')",
        "ALTER TABLE t ADD CONSTRAINT c CHECK (user <> 'ann' AND current_date > DATE '2020-01-01')",
        "ALTER TABLE t ALTER COLUMN n SET DEFAULT 7",
        "INSERT INTO t (current_date) VALUES (DATE '2026-03-01')",
        "CREATE FUNCTION f(current_date DATE, k INT DEFAULT 2) RETURNS INT "
        "RETURN year(f.current_date) * k",
        "CREATE FUNCTION g(k INT) RETURNS TABLE (y INT, s STRING) "
        "RETURN SELECT y, user FROM t WHERE n > k",
        "CREATE VIEW v AS SELECT y, f(current_date) AS f, now() AS moment FROM t",
        "CREATE TABLE like_t LIKE t",
    ):
        await send(sql)
    session = engine.session("look")
    await session.configure(Settings(schema=schema))  # Spark looks a body's tables up there
    assert await rows(session, f"SELECT y, user, n FROM {schema}.t") == [(2026, "X -- Y", 7)]
    assert await rows(session, f"SELECT y, f FROM {schema}.v") == [(2026, 4052)]
    assert await rows(session, f"SELECT * FROM {schema}.g(6)") == [(2026, "X -- Y")]
    assert await rows(session, f"SELECT * FROM {schema}.like_t") == []


async def test_nondeterministic_definitions_are_refused_and_create_nothing(
    send: Send, engine: SparkConnectEngine, schema: str
) -> None:
    await send("CREATE TABLE t (a INT, d DATE) USING delta")
    await send(f"USE {schema}", "s1")
    await send("CREATE TEMPORARY VIEW mine AS SELECT 1 AS a", "s1")
    await send("CREATE TEMPORARY FUNCTION plus(x INT) RETURNS INT RETURN x + 1", "s1")
    for statements, session in ((REFUSED, None), (OF_SESSION, "s1")):
        for sql, reason in statements.items():
            with pytest.raises(RequestError) as raised:
                await send(sql, session)
            assert reason in str(raised.value), sql
    shown = await rows(engine.session("look"), f"SHOW TABLES IN {schema}")
    assert [row[1] for row in shown] == ["t"]
