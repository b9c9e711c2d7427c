"""Why plans that write would differ from cluster to cluster, and their parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyspark.sql.connect.functions as F
import pytest
from pyspark.sql.connect.window import Window
from pyspark.sql.types import IntegerType, StringType, StructType

from haproc import protos
from haproc.classify.plans import relations
from haproc.classify.plans.commands import read_plan
from haproc.classify.plans.delta_messages import DeltaRelation
from haproc.pin import plans
from haproc.pin.plan_parts import inlined, input_of, with_input
from haproc.pin.plans import PlanReasons, plan_reasons
from tests.unit.recorded_plans import recorded, session

Program = Callable[[Any], Any]
WINDOW = Window.partitionBy("c").orderBy("b")
TWO = StructType().add("a", IntegerType()).add("b", StringType())


def of_input(program: Program) -> PlanReasons:
    """Return the reasons of a plan that appends what a program makes of a table."""
    return plan_reasons(recorded(lambda s: program(s.table("t")).writeTo("w").append()))


SAME: list[Program] = [
    lambda t: t,
    lambda t: t.filter((F.col("a") > 1) & F.col("b").isNotNull() | ~F.col("c").isin(1, 2)),
    lambda t: t.select(F.upper("a"), F.lit("x"), F.expr("a + 1 as b"), F.when(F.col("a") > 1, 2)),
    lambda t: t.groupBy("a").agg(F.max("b"), F.count("*"), F.countDistinct("c")),
    lambda t: t.join(t, "a").distinct().orderBy("a").repartition(3),
    lambda t: t.withColumnRenamed("a", "b").fillna(0).dropna().drop("c"),
]


@pytest.mark.parametrize("program", SAME)
def test_plan_that_is_the_same_everywhere_has_no_reasons(program: Program) -> None:
    assert of_input(program) == PlanReasons()


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (lambda t: t.select(F.rand()), "rand()"),
        (lambda t: t.select(F.current_timestamp()), "current_timestamp()"),
        (lambda t: t.select(F.call_function("builtin.uuid")), "builtin.uuid()"),
        (lambda t: t.select(F.expr("now()")), "now()"),
        (lambda t: t.select(F.expr("current_date")), "current_date"),
        (lambda t: t.filter("a > (select max(rand()) from x)"), "rand()"),
        (lambda t: t.select(F.monotonically_increasing_id()), "monotonically_increasing_id()"),
        (lambda t: t.select(F.transform("a", lambda x: x + F.rand())), "rand()"),
        (lambda t: t.select(F.struct(F.array(F.rand()).alias("q"))), "rand()"),
        (lambda t: t.sample(0.5, seed=1), "sample()"),
        (lambda t: t.transpose(), "transpose()"),
        (lambda t: t.dropDuplicates(["a"]), "dropDuplicates()"),
        (lambda t: t.summary(), "summary()"),
        (lambda t: t.select(F.udf(lambda x: x)("a")), "Python"),
        (lambda t: t.mapInPandas(lambda rows: rows, TWO), "Python"),
        (lambda t: t.select(F.current_user()), "current_user()"),
    ],
)
def test_plan_whose_rows_differ_says_why(program: Program, says: str) -> None:
    found = of_input(program)
    assert any(says in reason for reason in found.input.reasons), found
    assert not found.input.dispellable
    assert not found.beside.reasons


@pytest.mark.parametrize(
    "program",
    [
        lambda t: t.orderBy("a").limit(3),
        lambda t: t.groupBy("a").agg(F.sum("b")),
        lambda t: t.select(F.lit("now").cast("timestamp")),
        lambda t: t.fillna("today"),
        lambda t: t.select(F.max("a").over(WINDOW.rowsBetween(-1, 0))),
        lambda t: t.select(F.row_number().over(WINDOW)),
        lambda t: t.select(F.call_udf("mine", "a")),
    ],
)
def test_plan_whose_rows_may_differ_is_for_the_analysis_to_settle(program: Program) -> None:
    found = of_input(program).input
    assert found.reasons
    assert found.dispellable


def test_plan_with_a_function_that_is_not_spark_s_names_it() -> None:
    found = of_input(lambda t: t.select(F.call_udf("mine", "a"), F.expr("yours(a)")))
    assert found.input.unknown == {"mine", "yours"}


def test_plan_that_reads_with_options_may_choose_a_version() -> None:
    plan = recorded(lambda s: s.read.option("versionAsOf", "1").table("t").write.saveAsTable("w"))
    assert plan_reasons(plan).input.reasons


def test_condition_beside_the_rows_has_reasons_of_its_own() -> None:
    plan = recorded(lambda s: s.table("t").writeTo("w").overwrite(F.col("a") > F.rand()))
    found = plan_reasons(plan)
    assert (found.input.reasons, len(found.beside.reasons)) == ((), 1)
    plan = recorded(
        lambda s: s.table("t").mergeInto("w", F.expr("a = rand()")).whenMatched().delete().merge()
    )
    assert len(plan_reasons(plan).beside.reasons) == 1


def test_sql_text_in_a_plan_is_examined() -> None:
    plan = recorded(lambda s: s.sql("select uuid() from t").write.saveAsTable("w"))
    assert plan_reasons(plan).input.reasons


def test_every_relation_that_there_is_is_judged() -> None:
    known = {*relations.READING, *relations.USER_CODE, *relations.TOLD, "sql"}
    judged = {*plans.SAME, *plans.DIFFERENT}
    assert known <= judged
    assert not set(plans.SAME) & set(plans.DIFFERENT)


def merged() -> Any:
    relation = DeltaRelation()
    message = relation.merge_into_table
    scan = DeltaRelation()
    scan.scan.table.table_or_view_name = "w"
    message.target.extension.Pack(scan)
    message.source.read.named_table.unparsed_identifier = "t"
    plan = protos.base.Plan()
    plan.root.extension.Pack(relation)
    return plan


WRITES: list[Any] = [
    recorded(lambda s: s.table("t").write.saveAsTable("w")),
    recorded(lambda s: s.table("t").writeTo("w").append()),
    recorded(lambda s: s.table("t").mergeInto("w", F.expr("x")).whenMatched().delete().merge()),
    merged(),
]


@pytest.mark.parametrize("plan", WRITES)
def test_input_of_a_plan_is_found_and_replaced(plan: Any) -> None:
    before = plan.SerializeToString(deterministic=True)
    assert input_of(plan).read.named_table.unparsed_identifier == "t"
    source = protos.relations.Relation()
    source.read.named_table.unparsed_identifier = "other"
    changed = with_input(plan, source)
    assert input_of(changed).read.named_table.unparsed_identifier == "other"
    assert read_plan(changed).target == read_plan(plan).target
    assert plan.SerializeToString(deterministic=True) == before


def test_input_of_a_plan_without_rows_is_none() -> None:
    for program in (
        lambda s: s.catalog.dropTable("t"),
        lambda s: s.sql("insert into t values (1)"),
    ):
        plan = recorded(program)
        assert input_of(plan) is None
        with pytest.raises(ValueError, match="no place"):
            with_input(plan, protos.relations.Relation())


def sent(rows: int) -> tuple[Any, dict[str, bytes], pa.Table]:
    """Return a plan that writes as many rows, the artifacts that its client sent, and the rows."""
    spark, channel = session()
    table = pa.table({"a": list(range(rows)), "b": ["x" * 90] * rows})
    spark.createDataFrame(table).writeTo("w").append()
    blobs: dict[str, bytes] = {}
    plan, name = None, ""
    for request in channel.requests:
        if isinstance(request, protos.base.ExecutePlanRequest):
            plan = request.plan
        elif isinstance(request, protos.base.AddArtifactsRequest):
            for each in request.batch.artifacts:
                blobs[each.name.removeprefix("cache/")] = each.data.data
            if request.HasField("begin_chunk"):
                name = request.begin_chunk.name.removeprefix("cache/")
                blobs[name] = request.begin_chunk.initial_chunk.data
            blobs[name] = blobs.get(name, b"") + request.chunk.data
    return plan, blobs, table


def test_rows_that_were_sent_before_are_put_into_the_plan() -> None:
    plan, blobs, table = sent(25_000)
    reading = read_plan(plan)
    assert reading.blobs
    assert plan_reasons(plan).input.reasons
    whole = inlined(plan, {name: blobs[name] for name in reading.blobs})
    assert plan_reasons(whole) == PlanReasons()
    assert not read_plan(whole).blobs
    source = input_of(whole).to_df.input
    with pa.ipc.open_stream(source.local_relation.data) as reader:
        assert reader.read_all().to_pylist() == table.to_pylist()
    assert source.common == input_of(plan).to_df.input.common
    with pytest.raises(KeyError):
        inlined(plan, {})


def test_rows_in_several_parts_become_one_stream_with_their_schema() -> None:
    parts = [pa.table({"a": [1, 2]}), pa.table({"a": [3]})]
    blobs = {"s": b"a LONG"}
    for at, part in enumerate(parts):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, part.schema) as writer:
            writer.write_table(part)
        blobs[str(at)] = sink.getvalue().to_pybytes()
    plan = recorded(lambda s: s.range(1).writeTo("w").append())
    cached = plan.command.write_operation_v2.input.chunked_cached_local_relation
    cached.dataHashes.extend(["0", "1"])
    cached.schemaHash = "s"
    local = input_of(inlined(plan, blobs)).local_relation
    with pa.ipc.open_stream(local.data) as reader:
        assert reader.read_all().to_pydict() == {"a": [1, 2, 3]}
    assert local.schema == "a LONG"
    relation = plan.command.write_operation_v2.input
    relation.cached_local_relation.hash = "whole"
    assert input_of(inlined(plan, {"whole": local.SerializeToString()})).local_relation == local


def test_rows_in_the_source_of_a_delta_merge_are_put_into_it() -> None:
    plan = merged()
    source = input_of(plan)
    source.cached_local_relation.hash = "h"
    plan = with_input(plan, source)
    assert read_plan(plan).blobs == {"h"}
    local = protos.relations.LocalRelation(schema="a INT")
    whole = inlined(plan, {"h": local.SerializeToString()})
    assert input_of(whole).local_relation == local
