"""Tests of settings that only one session has: its queries, its writes' rows, and refusals."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pyspark.sql.connect.functions as F
import pytest

from haproc.engine import arrow
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.statement import SparkPlan, SqlText
from haproc.failure import RequestError
from haproc.node.member import LocalMember
from haproc.replicate.records.operation import Operation, from_record
from haproc.replicate.records.rows import ComputedPlan, QueryWrite
from haproc.ring.spark import LocalSpark
from haproc.route.model import Answer, Request, SentPlan, SentRows, SentSql
from haproc.route.service import RingService
from tests.integration.conftest import address_of
from tests.integration.one_cluster import one_cluster
from tests.unit.recorded_plans import recorded

pytestmark = pytest.mark.spark

NAME = "spark.sql.legacy.castComplexTypesToString.enabled"
TEXT = "CAST(array(1, NULL) AS STRING)"
"""``[1,]`` with that setting, ``[1, null]`` without it."""
OWN, PLAIN = "[1,]", "[1, null]"


class Client:
    """A session over one cluster, in a schema of its own."""

    def __init__(self, service: RingService, member: LocalMember) -> None:
        self.service, self.member = service, member
        self.session = uuid.uuid4().hex

    async def ask(self, statement: str | bytes | SentRows) -> tuple[Answer, str]:
        """Send a statement; return its answer and its id."""
        name = uuid.uuid4().hex
        sent: Any = statement
        if isinstance(statement, str):
            sent = SentSql(statement)
        elif isinstance(statement, bytes):
            sent = SentPlan(statement)
        request = Request(name, sent, name, session_id=self.session, timeout_s=240)
        return await self.service.execute(request), name

    async def values(self, sql: str) -> list[tuple[Any, ...]]:
        answer, _ = await self.ask(sql)
        found = []
        async for chunk in answer.result:
            found += [tuple(row.values()) for row in arrow.rows([chunk.data])]
        return found

    async def write(self, statement: str | bytes | SentRows) -> Operation:
        """Return a write's operation in the log."""
        _, name = await self.ask(statement)
        outcome = self.member.replica.core.outcomes.find(("anonymous", name))
        assert outcome is not None
        (entry,) = await self.member.core.log.read(outcome.offset, records_max=1)
        found = from_record(entry.record)
        assert isinstance(found, Operation)
        assert NAME not in dict(found.settings.confs)
        return found

    async def shown(self, sql: str) -> Any:
        """Return a preview of a write's classification."""
        request = Request(uuid.uuid4().hex, SentSql(sql), "", session_id=self.session)
        return await self.service.shown(request, tree=False)

    async def refusal(self, statement: str | bytes) -> RequestError:
        with pytest.raises(RequestError) as caught:
            await self.ask(statement)
        return caught.value


@pytest.fixture
async def client(
    spark: LocalSpark, engine: SparkConnectEngine, schema: str
) -> AsyncIterator[Client]:
    async with one_cluster(address_of(spark)) as (service, member):
        made = Client(service, member)
        await service.open_session(made.session, "anonymous", [f"USE {schema}"], afresh=False)
        await made.ask("CREATE TABLE t (id BIGINT, s STRING) USING delta")
        yield made


def plan_of(program: Callable[[Any], Any]) -> bytes:
    return bytes(recorded(program).SerializeToString())


@pytest.mark.thorough
async def test_session_setting_holds_for_queries_and_for_the_computed_rows_of_writes(
    client: Client,
) -> None:
    await client.ask(f"SET {NAME} = true")
    assert await client.values(f"SELECT {TEXT}") == [(OWN,)]
    for sql in ("INSERT INTO t VALUES (1, 'x')", f"INSERT INTO t SELECT 1, {TEXT}"):
        preview = await client.shown(sql)
        assert preview["travels"] == "materialise" and NAME in preview["reasons"][0], sql
    for sql in (
        f"INSERT INTO t SELECT 1, {TEXT}",
        f"INSERT INTO t VALUES (2, {TEXT})",
        "INSERT INTO t VALUES (3, current_user())",
        f"CREATE TABLE u USING delta AS SELECT {TEXT} AS s",
        f"INSERT OVERWRITE u SELECT {TEXT} || '!' AS s",
        f"MERGE INTO t USING (SELECT id + 3 AS id, {TEXT} AS s FROM range(2)) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET s = s.s WHEN NOT MATCHED THEN INSERT *",
    ):
        op = await client.write(sql)
        assert isinstance(op.write, QueryWrite | ComputedPlan), sql
        assert op.write.confs == ((NAME, "true"),) and op.insert is None, sql
    assert await client.values("SELECT * FROM t ORDER BY id") == [
        (1, OWN),
        (2, OWN),
        (3, OWN),
        (4, OWN),
    ]
    assert await client.values("SELECT * FROM u") == [(f"{OWN}!",)]
    await client.ask("CREATE TEMPORARY VIEW v AS SELECT explode(array(6, 7)) AS id")
    op = await client.write(f"INSERT INTO t SELECT id, {TEXT} FROM v")
    assert isinstance(op.write, QueryWrite) and op.write.session is not None
    assert op.write.confs == ((NAME, "true"),)
    await client.write("DELETE FROM t WHERE id = 7")
    assert await client.values("SELECT * FROM t WHERE id > 5") == [(6, OWN)]


@pytest.mark.thorough
async def test_write_that_rows_cannot_replace_is_refused_until_the_setting_is_reset(
    client: Client,
) -> None:
    await client.write("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    await client.ask(f"SET {NAME} = true")
    for sql in (
        f"UPDATE t SET s = {TEXT}",
        f"DELETE FROM t WHERE s = {TEXT}",
        f"MERGE INTO t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED AND t.s = {TEXT} "
        "THEN DELETE",
        f"INSERT INTO t REPLACE WHERE s <> {TEXT} SELECT 1, 'x'",
        f"CREATE VIEW w AS SELECT {TEXT} AS s",
        f"CREATE TABLE d (id INT, s STRING DEFAULT {TEXT}) USING delta "
        "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')",
        "INSERT INTO t VALUES (3, DEFAULT)",
        f"CREATE FUNCTION f() RETURNS STRING RETURN {TEXT}",
    ):
        error = await client.refusal(sql)
        assert NAME in error.message and f"RESET {NAME}" in error.hint, sql
    for sql in (
        "UPDATE t SET s = 'x', id = id + 1 WHERE id = 2 AND s IN ('b', 'c')",
        "DELETE FROM t WHERE id = 1 OR s IS NULL OR false",
        "CREATE TABLE u (a INT COMMENT 'x', c CHAR(3)) USING delta",
        "ALTER TABLE u ADD COLUMN b STRING",
        "COMMENT ON TABLE u IS 'y'",
        "OPTIMIZE t",
        "VACUUM t",
        "TRUNCATE TABLE u",
        "DROP TABLE u",
    ):
        op = await client.write(sql)
        assert op.write == SqlText(sql), sql
    assert await client.values("SELECT * FROM t") == [(3, "x")]
    await client.ask("SET spark.databricks.delta.vacuum.logging.enabled = true")
    for sql in ("UPDATE t SET s = 'x'", "OPTIMIZE t"):
        error = await client.refusal(sql)
        assert "spark.databricks.delta.vacuum.logging.enabled" in error.message, sql
    await client.ask("RESET")
    op = await client.write(f"UPDATE t SET s = {TEXT}")
    assert isinstance(op.write, SqlText)
    op = await client.write(f"INSERT INTO t SELECT 1, {TEXT}")
    assert isinstance(op.write, SqlText)
    assert await client.values("SELECT s FROM t") == [(PLAIN,), (PLAIN,)]


async def test_setting_with_the_default_value_does_not_change_writes(
    client: Client,
) -> None:
    for value in ("false", "true"):
        await client.ask(f"SET {NAME} = {value}")
    await client.ask(f"SET {NAME} = false")
    op = await client.write(f"INSERT INTO t SELECT 1, {TEXT}")
    assert isinstance(op.write, SqlText)


@pytest.mark.thorough
async def test_plans_of_a_session_with_its_own_setting_have_their_rows_computed_in_it(
    client: Client,
) -> None:
    await client.ask(f"SET {NAME} = true")
    text = F.expr(TEXT).alias("s")
    op = await client.write(plan_of(lambda s: s.range(1).select("id", text).writeTo("t").append()))
    assert isinstance(op.write, ComputedPlan) and op.write.confs == ((NAME, "true"),)
    op = await client.write(
        plan_of(
            lambda s: (
                s.range(2)
                .select("id", text)
                .alias("s")
                .mergeInto("t", F.expr("s.id = t.id"))
                .whenMatched()
                .updateAll()
                .whenNotMatched()
                .insertAll()
                .merge()
            )
        )
    )
    assert isinstance(op.write, ComputedPlan)
    sent = plan_of(lambda s: s.createDataFrame([(9, "x")], ["id", "s"]).writeTo("t").append())
    assert isinstance((await client.write(sent)).write, SparkPlan)
    error = await client.refusal(
        plan_of(
            lambda s: (
                s.range(2)
                .alias("s")
                .mergeInto("t", F.expr("s.id = t.id"))
                .whenMatched(F.expr(f"t.s = {TEXT}"))
                .delete()
                .merge()
            )
        )
    )
    assert NAME in error.message
    assert await client.values("SELECT * FROM t ORDER BY id") == [(0, OWN), (1, OWN), (9, "x")]
