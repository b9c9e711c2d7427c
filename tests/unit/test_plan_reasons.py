"""Tests of the hidden content of plans that write, and of the parts of such plans."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyspark.sql.connect.functions as F
import pytest

from haproc import protos
from haproc.classify.model import RefusedError
from haproc.classify.plans import delta, relations
from haproc.classify.plans.commands import read_plan
from haproc.classify.plans.delta import DeltaRelation
from haproc.pin.plan_parts import inlined, input_of, with_input
from haproc.reading import frames
from haproc.route.plans import hidden_of
from tests.unit.recorded_plans import Program, recorded, session


def of_input(program: Program) -> tuple[str, ...]:
    """Return the reasons hidden from the reading of an append of a table changed by the program."""
    return hidden_of(recorded(lambda s: program(s.table("t")).writeTo("w").append()))[0]


@pytest.mark.parametrize(
    "program",
    [
        lambda t: t,
        lambda t: t.filter(F.col("b").isNotNull() | ~F.col("c").isin(1, 2)).select(F.rand()),
        lambda t: t.groupBy("a").agg(F.max("b")).join(t, "a").distinct().orderBy("a").limit(2),
        lambda t: t.withColumnRenamed("a", "b").fillna(0).dropna().drop("c").sample(0.5),
        lambda t: t.dropDuplicates(["a"]).select(F.udf(lambda x: x)("a")),
        lambda t: t.filter("d > DATE '2026-01-01' AND values > 1 AND range < 3"),
        lambda t: t.select(
            F.expr("sum(a) OVER (ORDER BY b RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING)")
        ),
        lambda t: t.filter("a IN (SELECT id FROM range(0, 5))"),
        lambda t: t.filter("a IN (SELECT * FROM VALUES (1), (2))"),
        lambda t: t.select(F.expr("IDENTIFIER('rand')()"), F.expr("current_date")),
    ],
)
def test_expression_that_the_reading_shows_is_no_hidden_reason(program: Program) -> None:
    assert of_input(program) == ()


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (lambda t: t.transpose(), "transpose()"),
        (lambda t: t.summary(), "summary()"),
        (lambda t: t.sampleBy("a", {1: 0.5}), "sampleBy()"),
        (lambda t: t.filter("d < DATE 'today'"), "DATE 'today' is read by the clock"),
        (lambda t: t.select(F.expr("timestamp'12:30'")), "timestamp'12:30' is read by the clock"),
        (lambda t: t.filter("a IN (SELECT * FROM VALUES (unix_timestamp()))"), "rows are computed"),
        (
            lambda t: t.filter("a IN (SELECT id FROM `range`(unix_date(now())))"),
            "rows are computed",
        ),
        (lambda t: t.filter("a IN (SELECT id FROM RANGE (rand()))"), "rows are computed"),
        (lambda t: t.select(F.expr("identifier('a' || user())")), "a name is computed"),
        (lambda t: t.filter("a > ${spark.a}"), "in place of ${…}"),
    ],
)
def test_value_that_spark_computes_during_analysis_is_a_hidden_reason(
    program: Program, says: str
) -> None:
    assert any(says in reason for reason in of_input(program))


def test_plan_that_reads_with_options_has_a_hidden_reason() -> None:
    plan = recorded(lambda s: s.read.option("versionAsOf", "1").table("t").write.saveAsTable("w"))
    assert hidden_of(plan)[0]


def test_hidden_reasons_of_the_rows_and_beside_the_rows_are_separate() -> None:
    for condition in ("d = DATE 'now'", "a IN (SELECT * FROM VALUES (now()))"):

        def program(s: Any, condition: str = condition) -> Any:
            return s.table("t").writeTo("w").overwrite(F.expr(condition))

        plan = recorded(program)
        of_rows, beside = hidden_of(plan)
        assert (of_rows, len(beside)) == ((), 1)
    plan = recorded(
        lambda s: s.table("t").mergeInto("w", F.expr("a = rand()")).whenMatched().delete().merge()
    )
    assert hidden_of(plan) == ((), ())  # the questions show it


def test_value_computed_beside_the_rows_without_a_question_is_a_hidden_reason() -> None:
    plan = recorded(
        lambda s: s.table("t").writeTo("w").partitionedBy(F.partitioning.years("d")).create()
    )
    assert hidden_of(plan)[1]


def test_argument_that_is_no_literal_is_a_hidden_reason_as_it_may_compute_a_name() -> None:
    text = "SELECT * FROM IDENTIFIER(:n)"
    for argument, is_hidden in ((F.lit("t"), False), (F.concat(F.lit("t"), F.user()), True)):
        relation = protos.relations.Relation()
        relation.sql.query = text
        relation.sql.named_arguments["n"].CopyFrom(argument.to_plan(session()[0].client))
        assert bool(frames.hidden_in(relation)) is is_hidden


def test_range_of_a_computed_value_is_a_hidden_reason() -> None:
    for argument, is_hidden in ((F.lit(5), False), (F.unix_timestamp(), True)):
        relation = protos.relations.Relation()
        called = relation.unresolved_table_valued_function
        called.function_name = "range"
        called.arguments.add().CopyFrom(argument.to_plan(session()[0].client))
        assert bool(frames.hidden_in(relation)) is is_hidden


def test_text_with_very_many_subqueries_is_a_hidden_reason() -> None:
    text = "a IN (SELECT id FROM range(1))"
    assert of_input(lambda t: t.filter(" OR ".join([text] * 9))) == ()
    assert of_input(lambda t: t.filter(" OR ".join([text] * 99)))


def test_relations_of_the_protocol_are_all_judged_or_refused() -> None:
    fields = protos.relations.Relation.DESCRIPTOR.oneofs_by_name["rel_type"].fields
    accepted = {each.name for each in fields} - {"unknown", *relations.REFUSED}
    assert {*relations.READING, *relations.USER_CODE, *relations.NAMED, "sql"} == accepted
    of_words = {"transpose", "summary", "describe", "cov", "corr"}
    own = {relations.COMPUTED_RANGE, delta.VERSIONS}
    assert {*frames.SHOWN, *frames._WORDS, *of_words} - own == accepted
    assert not frames.SHOWN & {*frames._WORDS, *of_words}
    with pytest.raises(RefusedError):
        hidden_of(protos.base.Plan(root=protos.relations.Relation(unknown={})))


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
    """Return a plan that writes so many rows, the artifacts of its client, and the rows."""
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


def test_rows_sent_before_their_plan_are_put_into_it() -> None:
    plan, blobs, table = sent(25_000)
    reading = read_plan(plan)
    assert reading.blobs
    assert hidden_of(plan)[0]
    whole = inlined(plan, {name: blobs[name] for name in reading.blobs})
    assert hidden_of(whole) == ((), ())
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


def test_rows_sent_for_the_source_of_a_delta_merge_are_put_into_it() -> None:
    plan = merged()
    source = input_of(plan)
    source.cached_local_relation.hash = "h"
    plan = with_input(plan, source)
    assert read_plan(plan).blobs == {"h"}
    local = protos.relations.LocalRelation(schema="a INT")
    whole = inlined(plan, {"h": local.SerializeToString()})
    assert input_of(whole).local_relation == local
