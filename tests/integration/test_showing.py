"""What would become of a statement, told by a HAProc with a real Spark."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from haproc.engine.connect import SparkConnectEngine
from haproc.failure import RequestError
from haproc.ring.spark import LocalSpark
from haproc.route.model import Request, SentSql
from haproc.route.service import RingService
from tests.integration.conftest import address_of
from tests.integration.engine_calls import rows
from tests.integration.one_cluster import one_cluster

pytestmark = pytest.mark.spark


async def told(
    service: RingService, sql: str, schema: str, *, tree: bool = False
) -> dict[str, Any]:
    asked = Request(uuid.uuid4().hex, SentSql(sql), "", user="ann", schema=schema)
    return dict(await service.shown(asked, tree=tree))


async def test_ring_tells_what_would_become_of_statements(
    spark: LocalSpark, engine: SparkConnectEngine, schema: str
) -> None:
    own = engine.session("own")
    await rows(own, f"CREATE TABLE {schema}.t (a INT, current_date DATE) USING delta")
    async with one_cluster(address_of(spark)) as (service, member):
        before = member.replica.core.schedule.high
        column = await told(service, "DELETE FROM t WHERE current_date > '2026-01-01'", schema)
        assert (column["travels"], column["replaced"]) == ("replicate", [])
        sql = "UPDATE t SET a = 1 WHERE a = year(now())"
        moved = await told(service, sql, schema, tree=True)
        (replaced,) = moved["replaced"]
        assert sql[replaced["start"] : replaced["end"]] == replaced["text"] == "now()"
        assert moved["becomes"] == sql.replace("now()", replaced["literal"])
        assert any(line.split()[0] == "Year" for line in moved["tree"])
        computed = await told(service, "INSERT INTO t SELECT rand() * 9, NULL", schema)
        assert computed["travels"] == "materialise" and "rand()" in computed["reasons"][0]
        sql = "CREATE TABLE u (a INT, b INT GENERATED ALWAYS AS (hash(current_user()))) USING delta"
        refused = await told(service, sql, schema)
        assert refused["kind"] == "create_table" and "current_user" in refused["refused"]["reason"]
        assert (await told(service, "ADD JAR '/a.jar'", schema))["refused"]["hint"]
        query = await told(service, "SELECT a, uuid() FROM t", schema)
        assert (query["class"], query["same_everywhere"]) == ("query", False)
        literal = await told(service, "INSERT INTO t VALUES (1, NULL)", schema)
        assert literal["combinable"]["rows"] == 1
        with pytest.raises(RequestError, match="nothing_there"):
            await told(service, "DELETE FROM nothing_there", schema)
        assert member.replica.core.schedule.high == before
    assert await rows(own, f"SELECT * FROM {schema}.t") == []
