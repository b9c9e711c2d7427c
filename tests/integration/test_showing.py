"""Test of the preview of a statement by a HAProc with a real Spark."""

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


async def preview(
    service: RingService, sql: str, schema: str, *, tree: bool = False
) -> dict[str, Any]:
    request = Request(uuid.uuid4().hex, SentSql(sql), "", user="ann", schema=schema)
    return dict(await service.shown(request, tree=tree))


async def test_preview_shows_the_class_and_changes_of_statements_and_runs_nothing(
    spark: LocalSpark, engine: SparkConnectEngine, schema: str
) -> None:
    own = engine.session("own")
    await rows(own, f"CREATE TABLE {schema}.t (a INT, current_date DATE) USING delta")
    async with one_cluster(address_of(spark)) as (service, member):
        before = member.replica.core.schedule.high
        column = await preview(service, "DELETE FROM t WHERE current_date > '2026-01-01'", schema)
        assert (column["travels"], column["replaced"]) == ("replicate", [])
        sql = "UPDATE t SET a = 1 WHERE a = year(now())"
        moved = await preview(service, sql, schema, tree=True)
        (replaced,) = moved["replaced"]
        assert sql[replaced["start"] : replaced["end"]] == replaced["text"] == "now()"
        assert moved["becomes"] == sql.replace("now()", replaced["literal"])
        assert any(line.split()[0] == "Year" for line in moved["tree"])
        computed = await preview(service, "INSERT INTO t SELECT rand() * 9, NULL", schema)
        assert computed["travels"] == "materialise" and "rand()" in computed["reasons"][0]
        sql = "CREATE TABLE u (a INT, b INT GENERATED ALWAYS AS (hash(current_user()))) USING delta"
        refused = await preview(service, sql, schema)
        assert refused["kind"] == "create_table" and "current_user" in refused["refused"]["reason"]
        assert (await preview(service, "ADD JAR '/a.jar'", schema))["refused"]["hint"]
        query = await preview(service, "SELECT a, uuid() FROM t", schema)
        assert (query["class"], query["same_everywhere"]) == ("query", False)
        literal = await preview(service, "INSERT INTO t VALUES (1, NULL)", schema)
        assert literal["combinable"]["rows"] == 1
        with pytest.raises(RequestError, match="nothing_there"):
            await preview(service, "DELETE FROM nothing_there", schema)
        assert member.replica.core.schedule.high == before
    assert await rows(own, f"SELECT * FROM {schema}.t") == []
