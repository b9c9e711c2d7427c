"""Tests of plans that write, from the request to the table, on a real Spark."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pyspark.sql.connect.functions as F
import pytest
from pyspark.sql.connect.window import Window
from pyspark.sql.types import LongType, StructType

from haproc.classify.model import Kind, OperationClass
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.interface import Settings, TransactionMarker
from haproc.engine.statement import SparkPlan
from haproc.failure import ErrorClass, FailureKind, RequestError
from haproc.node.member import LocalMember
from haproc.replicate.apply.doubts import about
from haproc.replicate.queue.outcomes import Known
from haproc.replicate.records.operation import Operation, from_record
from haproc.replicate.records.rows import ComputedPlan, SessionRef
from haproc.ring.spark import LocalSpark
from haproc.route.model import Answer, Request, SentPlan, SentSql
from haproc.route.service import RingService
from tests.integration.conftest import address_of
from tests.integration.engine_calls import apply, rows
from tests.integration.one_cluster import one_cluster
from tests.unit.recorded_plans import recorded

pytestmark = pytest.mark.spark

Program = Callable[[Any], Any]
TABLES = (
    "CREATE TABLE t (id BIGINT, name STRING) USING delta",
    "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (9, 'c')",
    "CREATE TABLE u (id BIGINT, name STRING, d DOUBLE, ts TIMESTAMP) USING delta",
    "CREATE VIEW v AS SELECT id, name FROM t",
    "CREATE FUNCTION plus(x BIGINT) RETURNS BIGINT RETURN x + 1",
    "CREATE TABLE days (id BIGINT, current_date DATE) USING delta",
    "CREATE FUNCTION other(x BIGINT) RETURNS STRING RETURN IDENTIFIER('uuid')()",
)


def plan_of(program: Program) -> bytes:
    return bytes(recorded(program).SerializeToString())


class Ring:
    """One cluster, a schema of its own, and programs that write into it."""

    def __init__(self, service: RingService, member: LocalMember, schema: str) -> None:
        self.service, self.member, self.schema = service, member, schema

    async def write(self, program: Program, request_id: str = "") -> Answer:
        name = request_id or uuid.uuid4().hex
        plan = SentPlan(plan_of(program))
        return await self.service.execute(
            Request(name, plan, name, schema=self.schema, timeout_s=240)
        )

    async def operation(self, program: Program) -> Operation:
        name = uuid.uuid4().hex
        await self.write(program, name)
        found = self.member.replica.core.outcomes.find(("anonymous", name))
        assert found is not None
        return await self.at(found)

    async def at(self, outcome: Known) -> Operation:
        """Return an operation as the log has it."""
        entries = await self.member.core.log.read(outcome.offset, records_max=1)
        found = from_record(entries[0].record)
        assert isinstance(found, Operation)
        return found

    async def refusal(self, program: Program) -> RequestError:
        with pytest.raises(RequestError) as caught:
            await self.write(program)
        return caught.value


@pytest.fixture
async def ring(spark: LocalSpark, engine: SparkConnectEngine, schema: str) -> AsyncIterator[Ring]:
    for sql in TABLES:
        await apply(engine, sql, settings=Settings(schema=schema))
    async with one_cluster(address_of(spark)) as (service, member):
        yield Ring(service, member, schema)


AS_IT_STANDS: dict[str, Program] = {
    "rows": lambda s: s.createDataFrame([(5, "x")], ["id", "name"]).write.insertInto("t"),
    "many rows": lambda s: s.createDataFrame(
        [(n, "x" * 20) for n in range(500)], ["id", "name"]
    ).writeTo("t").append(),
    "a table": lambda s: s.table("t").filter("id > 1").write.format("delta").mode(
        "append"
    ).saveAsTable("t"),
    "sql": lambda s: s.sql("SELECT id, name FROM t WHERE id < 5").writeTo("t").append(),
    "a join": lambda s: s.table("t").alias("a").join(s.table("t").alias("b"), F.expr("a.id = b.id"))
    .select("a.id", "b.name").writeTo("t").append(),
    "a sum of integers": lambda s: s.table("t").groupBy("name").agg(F.sum("id").alias("id"))
    .writeTo("t").append(),
    "a function of the ring's": lambda s: s.table("t").withColumn("id", F.expr("plus(id)"))
    .writeTo("t").append(),
    "a number of each row in a total order": lambda s: s.table("t").withColumn(
        "id", F.row_number().over(Window.partitionBy("name").orderBy("id")).cast("bigint")
    ).writeTo("t").append(),
    "a total limit": lambda s: s.table("t").orderBy("id", "name").limit(2).writeTo("t").append(),
    "over all": lambda s: s.range(3).select("id", F.lit("x").alias("name")).write.insertInto(
        "t", overwrite=True
    ),
    "over some": lambda s: s.range(3).select("id", F.lit("x").alias("name")).writeTo(
        "t"
    ).overwrite(F.col("id") < 3),
    "over partitions": lambda s: s.table("t").writeTo("t").overwritePartitions(),
    "a merge": lambda s: s.range(3).withColumn("name", F.lit("m")).alias("s").mergeInto(
        "t", F.expr("s.id = t.id")
    ).whenMatched(F.expr("t.id > 0")).update({"name": F.concat("t.name", F.lit("!"))})
    .whenNotMatched().insert({"id": F.col("s.id"), "name": F.col("s.name")})
    .whenNotMatchedBySource(F.expr("t.id > 5")).delete().merge(),
}  # fmt: skip


@pytest.mark.thorough
async def test_plan_that_is_deterministic_is_replicated_unchanged(ring: Ring) -> None:
    target = f"spark_catalog.{ring.schema}.t"
    for name, program in AS_IT_STANDS.items():
        op = await ring.operation(program)
        assert isinstance(op.write, SparkPlan), name
        assert (op.operation_class, op.writes) == (OperationClass.ASYNCHRONOUS, {target}), name
        assert op.tables_known and op.redefines == frozenset(), name
        assert target in op.rests_on, name


def appending(query: Program) -> Program:
    return lambda s: query(s).writeTo("t").append()


UDF = F.udf(lambda value: value, LongType())
AFTER_2020 = F.col("current_date") > F.lit("2020-01-01")
SEEN: dict[str, Program] = {
    "a view": appending(lambda s: s.table("v")),
    "a column called like a function": appending(
        lambda s: s.table("days").filter(AFTER_2020).select("id", F.lit("x").alias("name"))
    ),
    "such a column in a condition": lambda s: s.range(3).select(
        "id", F.lit("2026-01-01").cast("date").alias("current_date")
    ).writeTo("days").overwrite(AFTER_2020),
    "such a column in a merge": lambda s: s.table("days").alias("s").mergeInto(
        "days", F.expr("s.id = days.id AND days.current_date > s.current_date")
    ).whenMatched(F.expr("days.current_date > '2020-01-01'")).delete().merge(),
    "rows without duplicates": appending(lambda s: s.table("t").distinct().dropDuplicates()),
    "what is observed": appending(lambda s: s.table("t").observe("o", F.max("id").alias("m"))),
    "rows in a text": appending(lambda s: s.sql("SELECT * FROM VALUES (7L, 'x') AS q(id, name)")),
    "many in a text": appending(lambda s: s.sql("SELECT id, 'x' AS name FROM range(0, 3)")),
    "a whole moment": appending(lambda s: s.table("u").filter("ts > '2020-01-01'").select(
        "id", "name"
    )),
    "a pivot": appending(lambda s: s.table("t").groupBy("id").pivot("name", ["a"]).agg(
        F.max("name")
    ).toDF("id", "name")),
}  # fmt: skip


@pytest.mark.thorough
async def test_plan_with_harmless_names_views_and_literals_is_replicated_unchanged(
    ring: Ring,
) -> None:
    for name, program in SEEN.items():
        op = await ring.operation(program)
        assert isinstance(op.write, SparkPlan), name


DIFFERS: dict[str, Program] = {
    "a function by both": lambda s: s.table("t").withColumn("name", F.expr("uuid()")),
    "a sum of floats": lambda s: s.table("u").groupBy("name").agg(
        F.sum("d").cast("bigint").alias("id")
    ),
    "any rows": lambda s: s.table("t").limit(1),
    "any row of each": lambda s: s.table("t").dropDuplicates(["name"]),
    "a sample": lambda s: s.table("t").sample(0.5, seed=1),
    "a function whose body differs": lambda s: s.table("t").withColumn(
        "name", F.expr("other(id)")
    ),
    "a text that becomes a moment": lambda s: s.table("t").withColumn(
        "name", F.expr("string(try_cast(name AS TIMESTAMP))")
    ),
    "the clock": lambda s: s.table("t").withColumn("name", F.current_timestamp().cast("string")),
    "the clock without parentheses": lambda s: s.table("t").filter(AFTER_2020),
    "a literal that is read by the clock": lambda s: s.table("t").withColumn(
        "name", F.expr("string(DATE 'today')")
    ),
    "a text that is read by the clock": lambda s: s.table("u").filter("ts < 'now'").select(
        "id", "name"
    ),
    "rows that are computed in a text": lambda s: s.sql(
        "SELECT * FROM VALUES (unix_timestamp(), 'x') AS q(id, name)"
    ),
    "a name that is computed": lambda s: s.table("t").withColumn(
        "name", F.expr("string(IDENTIFIER(IF(current_date() > '2020-01-01', 'id', 'name')))")
    ),
    "where rows lie": lambda s: s.table("t").withColumn("id", F.monotonically_increasing_id()),
    "what is computed while it is read": lambda s: s.table("t").groupBy().count().transpose()
    .select(F.lit(1).cast("bigint").alias("id"), F.lit("x").alias("name")),
    "what is random": lambda s: s.table("t").withColumn("id", (F.rand(1) * 9).cast("bigint")),
}  # fmt: skip


@pytest.mark.thorough
async def test_plan_with_a_nondeterministic_input_has_its_rows_computed_once(
    ring: Ring, engine: SparkConnectEngine
) -> None:
    for name, program in DIFFERS.items():
        op = await ring.operation(appending(program))
        assert isinstance(op.write, ComputedPlan) and op.write.session is None, name
        assert op.kind is Kind.INSERT, name
    found = await rows(engine.session("c"), f"SELECT count(*) >= 15 FROM {ring.schema}.t")
    assert found == [(True,)]


async def test_plan_that_runs_code_outside_sql_is_refused(ring: Ring) -> None:
    hidden = F.expr("IDENTIFIER('ref' || 'lect')('java.lang.System', 'getenv', 'HOME')")
    error = await ring.refusal(appending(lambda s: s.table("t").withColumn("name", hidden)))
    assert error.kind is FailureKind.REFUSED


@pytest.mark.thorough
async def test_sql_that_creates_a_view_over_dataframes_is_refused(ring: Ring) -> None:
    text = "CREATE VIEW w AS SELECT * FROM {frame}"
    error = await ring.refusal(lambda s: s.sql(text, frame=s.table("t")))
    assert error.error_class == "INVALID_TEMP_OBJ_REFERENCE"  # as Spark says by itself


@pytest.mark.thorough
async def test_merge_with_a_nondeterministic_source_merges_rows_that_are_computed_once(
    ring: Ring, engine: SparkConnectEngine
) -> None:
    def program(s: Any) -> Any:
        source = s.range(3).withColumn("name", F.expr("uuid()")).alias("s")
        return source.mergeInto("t", F.expr("s.id = t.id")).whenNotMatched().insertAll().merge()

    op = await ring.operation(program)
    assert (op.kind, isinstance(op.write, ComputedPlan)) == (Kind.MERGE, True)
    sql = f"SELECT id FROM {ring.schema}.t WHERE length(name) = 36"
    assert await rows(engine.session("c"), sql) == [(0,)]


OUTSIDE_ITS_INPUT: dict[str, Program] = {
    "a condition": lambda s: s.range(1).select("id", F.lit("x").alias("name")).writeTo("t")
    .overwrite(F.expr("name = uuid()")),
    "the clock": lambda s: s.range(1).select("id", F.lit("x").alias("name")).writeTo("t")
    .overwrite(AFTER_2020),
    "a literal that is read by the clock": lambda s: s.range(1).select(
        "id", F.lit("x").alias("name")
    ).writeTo("t").overwrite(F.expr("name < DATE 'today'")),
    "the clock in a merge": lambda s: s.range(1).alias("s").mergeInto(
        "t", F.expr("s.id = t.id")
    ).whenMatched(AFTER_2020).delete().merge(),
    "a place of rows": lambda s: s.range(1).alias("s").mergeInto("t", F.expr("s.id = t.id"))
    .whenMatched().update({"id": F.monotonically_increasing_id()}).merge(),
    "a text": lambda s: s.range(1).select("id", F.lit("x").alias("name")).write.format("delta")
    .mode("overwrite").option("replaceWhere", "name = uuid()").saveAsTable("t"),
    "a value of a merge": lambda s: s.range(1).alias("s").mergeInto("t", F.expr("s.id = t.id"))
    .whenMatched().update({"name": F.expr("uuid()")}).merge(),
    "a text that would be read by the clock": lambda s: s.table("t").select(
        "id", "name", F.lit(1.0), "name"
    ).write.insertInto("u"),
    "a column that is generated": lambda s: s.range(1).select(
        F.col("id").alias("id", metadata={"delta.generationExpression": "hash(uuid())"})
    ).writeTo("n").using("delta").create(),
}  # fmt: skip


@pytest.mark.thorough
async def test_plan_that_is_nondeterministic_outside_its_input_is_refused(ring: Ring) -> None:
    for name, program in OUTSIDE_ITS_INPUT.items():
        error = await ring.refusal(program)
        assert error.kind is FailureKind.REFUSED, name
        assert error.error_class == ErrorClass.NONDETERMINISTIC, name


CREATES: dict[str, Program] = {
    "saveAsTable": lambda s: s.range(3).write.format("delta").mode("append").saveAsTable("n"),
    "saveAsTable once": lambda s: s.range(3).write.format("delta").saveAsTable("n"),
    "create": lambda s: s.range(3).withColumn("p", F.col("id") % 2).writeTo("n").using("delta")
    .partitionedBy(F.col("p")).tableProperty("a.b", "c").create(),
    "createOrReplace": lambda s: s.range(3).writeTo("n").using("delta").createOrReplace(),
    "partitioned": lambda s: s.range(3).withColumn("p", F.col("id") % 2).write.format("delta")
    .partitionBy("p").saveAsTable("n"),
}  # fmt: skip


@pytest.mark.thorough
async def test_plan_that_creates_a_table_is_synchronous_and_defines_it(
    ring: Ring, engine: SparkConnectEngine
) -> None:
    target = frozenset({f"spark_catalog.{ring.schema}.n"})
    for name, program in CREATES.items():
        op = await ring.operation(program)
        assert op.kind is Kind.CREATE_TABLE_AS, name
        assert op.operation_class is OperationClass.SYNCHRONOUS, name
        assert (op.writes, op.redefines) == (target, target), name
        found = await rows(engine.session("c"), f"SELECT count(*) FROM {ring.schema}.n")
        assert found == [(3,)], name
        await apply(engine, f"DROP TABLE {ring.schema}.n")


@pytest.mark.thorough
async def test_save_into_a_new_table_is_synchronous_and_a_second_save_is_an_insert(
    ring: Ring,
) -> None:
    append = CREATES["saveAsTable"]
    assert (await ring.operation(append)).operation_class is OperationClass.SYNCHRONOUS
    second = await ring.operation(append)
    assert (second.kind, second.operation_class) == (Kind.INSERT, OperationClass.ASYNCHRONOUS)


NAMESPACE = f"made_{uuid.uuid4().hex[:12]}"
COLUMNS = StructType().add("a", LongType())
DEFINED = StructType().add("a", LongType(), metadata={"delta.generationExpression": "hash(uuid())"})
CATALOG: Sequence[tuple[Kind, Program]] = (
    (Kind.CREATE_TABLE, lambda s: s.catalog.createTable("n", schema=COLUMNS, source="delta")),
    (Kind.DROP_TABLE, lambda s: s.catalog.dropTable("n")),
    (Kind.CREATE_NAMESPACE, lambda s: s.catalog.createDatabase(NAMESPACE)),
    (Kind.DROP_NAMESPACE, lambda s: s.catalog.dropDatabase(NAMESPACE)),
)


@pytest.mark.thorough
async def test_catalog_call_that_writes_is_synchronous(
    ring: Ring, engine: SparkConnectEngine
) -> None:
    for kind, program in CATALOG:
        op = await ring.operation(program)
        assert (op.kind, op.operation_class) == (kind, OperationClass.SYNCHRONOUS)
        named = about(op)
        assert named and (named[0].name in op.writes or NAMESPACE in named[0].name)
    error = await ring.refusal(lambda s: s.catalog.createTable("n", schema=DEFINED))
    assert error.error_class == ErrorClass.NONDETERMINISTIC


async def test_plan_that_is_wrong_fails_with_sparks_error_and_appends_nothing_to_the_log(
    ring: Ring,
) -> None:
    end = ring.member.replica.core.schedule.high
    error = await ring.refusal(lambda s: s.table("t").select("nothing").writeTo("t").append())
    assert error.kind is FailureKind.APPLICATION
    assert error.error_class.startswith("UNRESOLVED_COLUMN")
    assert ring.member.replica.core.schedule.high == end


async def test_plan_that_is_sent_twice_is_applied_once(
    ring: Ring, engine: SparkConnectEngine
) -> None:
    for _ in range(2):
        await ring.write(AS_IT_STANDS["rows"], "once")
    found = await rows(engine.session("c"), f"SELECT count(*) FROM {ring.schema}.t WHERE id = 5")
    assert found == [(1,)]


@pytest.mark.thorough
async def test_sql_over_dataframes_is_replicated_or_computed_like_other_statements(
    ring: Ring, engine: SparkConnectEngine
) -> None:
    text = "INSERT INTO t SELECT id, CAST(current_date() AS STRING) FROM {frame} WHERE id < 3"
    op = await ring.operation(lambda s: s.sql(text, frame=s.table("t")))
    assert isinstance(op.write, SparkPlan)
    assert (op.kind, op.reads) == (Kind.INSERT, op.writes)
    found = await rows(engine.session("c"), f"SELECT count(*) FROM {ring.schema}.t WHERE id < 3")
    assert found == [(4,)]
    op = await ring.operation(lambda s: s.sql(text, frame=s.table("t").sample(0.5)))
    assert isinstance(op.write, ComputedPlan) and op.kind is Kind.INSERT
    op = await ring.operation(
        lambda s: s.sql(text, frame=s.table("t").filter("name < string(DATE 'today')"))
    )
    assert isinstance(op.write, ComputedPlan) and op.write.session is None
    merged = "MERGE INTO t USING {frame} s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = 'm'"
    op = await ring.operation(lambda s: s.sql(merged, frame=s.range(2)))
    assert op.kind is Kind.MERGE
    op = await ring.operation(lambda s: s.sql(merged, frame=s.range(2).sample(0.5)))
    assert isinstance(op.write, ComputedPlan) and op.kind is Kind.MERGE


@pytest.mark.thorough
async def test_plan_over_temporary_views_or_code_of_its_session_is_computed_in_that_session(
    ring: Ring, engine: SparkConnectEngine
) -> None:
    session = await ring.service.enter_session("s", "anonymous")
    await ring.service.execute(Request("use", SentSql(f"USE {ring.schema}"), "use", session_id="s"))
    view = SentSql("CREATE TEMPORARY VIEW u AS SELECT 1L AS id, 'x' AS name")
    await ring.service.execute(Request("view", view, "view", session_id="s"))
    assert session.holds_temporaries
    for name, program in (
        ("hidden", lambda s: s.table("u").select("id", "name").writeTo("t").append()),
        ("only there", lambda s: s.sql("SELECT * FROM u").writeTo("t").append()),
        ("code", lambda s: s.table("t").limit(1).select(UDF("id"), F.lit("y").alias("name"))
         .toDF("id", "name").writeTo("t").append()),
    ):  # fmt: skip
        plan = SentPlan(plan_of(program))
        await ring.service.execute(Request(name, plan, name, session_id="s"))
        outcome = ring.member.replica.core.outcomes.find(("anonymous", name))
        assert outcome is not None
        write = (await ring.at(outcome)).write
        assert isinstance(write, ComputedPlan)
        assert write.session == SessionRef("anonymous", "s", 2, session.begun) and session.begun
    sql = f"SELECT count(*) FROM {ring.schema}.t WHERE name = 'x'"
    found = await rows(engine.session("c"), sql)
    assert found == [(2,)]
    plan = SentPlan(plan_of(lambda s: s.table("t").writeTo("t").append()))
    answer = await ring.service.execute(Request("same", plan, "same", session_id="s"))
    assert answer.report.offset is not None


MARKED = AS_IT_STANDS | {
    "a save over all": lambda s: s.range(3).select("id", F.lit("x").alias("name")).write.format(
        "delta"
    ).mode("overwrite").saveAsTable("t"),
    "replace": lambda s: s.range(3).select("id", F.lit("x").alias("name")).writeTo("t")
    .using("delta").createOrReplace(),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("guarded", [True, False])
async def test_plan_stores_its_transaction_marker_and_a_guarded_plan_is_applied_once(
    engine: SparkConnectEngine, schema: str, guarded: bool
) -> None:
    settings = Settings(schema=schema)
    for sql in (*TABLES[:2], TABLES[4]):
        await apply(engine, sql, settings=settings)
    for version, (name, program) in enumerate(MARKED.items(), 7):
        plan, mark = (
            SparkPlan(plan_of(program)),
            TransactionMarker("ring", version, guarded=guarded),
        )
        found = []
        for _ in range(1 + guarded):
            await engine.lane(0).apply(plan, settings, mark, timeout_s=60)
            found.append(await rows(engine.session("c"), f"DESCRIBE HISTORY {schema}.t LIMIT 1"))
        offsets = await engine.offsets_applied([f"{schema}.t"], "ring")
        assert offsets == {f"{schema}.t": version}, name
        assert found[0] == found[-1], name
