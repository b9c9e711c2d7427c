"""What a client caches in Spark (CACHE TABLE) changes nobody's rows and no write's outcome."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import aclosing

import pyarrow as pa
import pytest

from haproc.ring.spark import LocalSpark
from haproc.route.model import Request, SentSql
from haproc.route.service import RingService
from tests.integration.conftest import address_of
from tests.integration.one_cluster import one_cluster

pytestmark = pytest.mark.spark
SESSION = "caches"
NUMBERS = itertools.count()


@pytest.fixture
async def service(spark: LocalSpark) -> AsyncIterator[RingService]:
    async with one_cluster(address_of(spark)) as (service, _):
        await service.open_session(SESSION, "eve", [], afresh=False)
        yield service
        await ask(service, "CLEAR CACHE", SESSION)


async def ask(
    service: RingService, sql: str, session: str | None = None
) -> list[dict[str, object]]:
    """Run a statement, in eve's session or as somebody else."""
    request = Request(
        f"r{next(NUMBERS)}",
        SentSql(sql),
        sql,
        "eve" if session else "ann",
        session_id=session,
        timeout_s=120,
    )
    answer = await service.execute(request)
    rows: list[dict[str, object]] = []
    async with aclosing(answer.result) as result:
        async for chunk in result:
            rows += pa.ipc.open_stream(chunk.data).read_all().to_pylist()
    return rows


async def test_insert_behind_whose_commit_a_cached_query_fails_is_applied_once(
    service: RingService, schema: str
) -> None:
    """Spark plans the cached query anew behind the commit, and tells its error as the INSERT's."""
    table = f"{schema}.t"
    await ask(service, f"CREATE TABLE {table} (k INT, p STRING) USING delta PARTITIONED BY (p)")
    await ask(service, f"INSERT INTO {table} VALUES (1, '1')")
    await ask(
        service, f"CACHE TABLE mine AS SELECT * FROM {table} WHERE CAST(p AS INT) > 0", SESSION
    )
    inserts = [f"INSERT INTO {table} VALUES ({k}, '{p}')" for k, p in enumerate("23x4", 10)]
    await asyncio.gather(*(ask(service, each) for each in inserts))
    held = await ask(service, f"SELECT k, count(*) AS times FROM {table} GROUP BY k ORDER BY k")
    assert [(row["k"], row["times"]) for row in held] == [(k, 1) for k in (1, 10, 11, 12, 13)]


async def test_cached_table_that_is_made_anew_shows_nothing_of_before(
    service: RingService, schema: str
) -> None:
    made = f"{schema}_made"
    for value in (1, None):
        await ask(service, f"CREATE SCHEMA {made}")
        await ask(service, f"CREATE TABLE {made}.c (k INT) USING delta")
        if value is not None:
            await ask(service, f"INSERT INTO {made}.c VALUES ({value})")
            await ask(service, f"CACHE TABLE {made}.c", SESSION)
            assert await ask(service, f"SELECT k FROM {made}.c") == [{"k": value}]
        else:
            assert await ask(service, f"SELECT k FROM {made}.c") == []
        await ask(service, f"DROP SCHEMA {made} CASCADE")
