"""Tests of the questions to Spark about plans, and of the reading of its answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyspark.sql.connect.functions as F
import pytest

from haproc import protos
from haproc.reading.frames import SHOWN
from haproc.route.plan_questions import (
    completes_texts,
    condition_questions,
    defined_by,
    empty_rows,
    input_question,
    shape_of,
    table_questions,
    text_question,
    with_text,
)
from tests.unit.recorded_plans import recorded


def relation_of(data: bytes) -> Any:
    return protos.base.Plan.FromString(data).root


def test_input_question_leaves_out_many_rows_and_keeps_their_columns() -> None:
    data = [(n, "x" * 50) for n in range(1_000)]
    plan = recorded(lambda s: s.createDataFrame(data, ["a", "b"]).filter("a > 1").writeTo("t")
                    .append())  # fmt: skip
    assert plan.ByteSize() > 10_000
    question = input_question(plan)
    assert question is not None and len(question) < 2_000
    assert relation_of(question).WhichOneof("rel_type") == "filter"
    assert plan.ByteSize() > 10_000  # the write itself has them still


def shape(program: Any) -> bytes | None:
    question = input_question(recorded(program))
    assert question is not None
    return shape_of(question)


def test_shape_of_rows_written_in_batches_is_the_same() -> None:
    def program(s: Any, first: int) -> Any:
        s.range(first)  # each DataFrame has a number of its own
        return s.createDataFrame([(first, "a")], ["n", "t"]).writeTo("t").append()

    first = shape(lambda s: program(s, 1))
    assert first is not None and first == shape(lambda s: program(s, 2))


@pytest.mark.parametrize(
    "other",
    [
        lambda s: s.createDataFrame([(1, "a")], ["n", "u"]),
        lambda s: s.createDataFrame([(1.5, "a")], ["n", "t"]),
        lambda s: s.createDataFrame([(1, "a")], ["n", "t"]).filter("n > 1"),
    ],
)
def test_shape_of_a_different_plan_differs(other: Any) -> None:
    one = shape(lambda s: s.createDataFrame([(1, "a")], ["n", "t"]).writeTo("t").append())
    assert one != shape(lambda s: other(s).writeTo("t").append())


def test_shape_of_a_plan_whose_column_refers_to_a_step_by_number_is_none() -> None:
    def program(s: Any) -> Any:
        rows = s.createDataFrame([(1, "a")], ["n", "t"])
        return rows.filter(rows["n"] > 1).writeTo("t").append()

    def subquery(s: Any) -> Any:
        most = s.range(1).select(F.max("id")).scalar()
        return s.table("t").filter(F.col("id") > most).writeTo("t").append()

    assert shape(program) is None and shape(subquery) is None


def test_input_question_of_a_catalog_call_is_none() -> None:
    assert input_question(recorded(lambda s: s.catalog.dropTable("t"))) is None


@pytest.mark.parametrize("name", ["overwrite", "replaceWhere"])
def test_condition_question_applies_a_condition_to_the_target(name: str) -> None:
    def program(s: Any) -> Any:
        if name == "overwrite":
            return s.range(1).writeTo("x.t").overwrite(F.col("id") > 3)
        return s.range(1).write.option("ReplaceWhere", "id > 3").insertInto("x.t", overwrite=True)

    (question,) = condition_questions(recorded(program))
    filtered = relation_of(question).filter
    assert filtered.input.read.named_table.unparsed_identifier == "x.t"
    assert filtered.condition.WhichOneof("expr_type") is not None


def merge(s: Any) -> Any:
    return (
        s.table("s")
        .alias("s")
        .mergeInto("t", F.expr("s.id = t.id"))
        .whenMatched(F.expr("s.a = 1"))
        .update({"b": F.expr("uuid()")})
        .whenNotMatched()
        .insert({"id": F.col("id")})
        .whenNotMatchedBySource(F.expr("t.c < now()"))
        .delete()
        .merge()
    )


def test_condition_questions_show_each_expression_of_a_merge_over_its_possible_input() -> None:
    on, matched, missing, surplus = map(relation_of, condition_questions(recorded(merge)))
    assert on.join.left.read.named_table.unparsed_identifier == "t"
    assert [len(each.project.expressions) for each in (matched, missing, surplus)] == [2, 1, 1]
    assert matched.project.input.HasField("join")
    assert missing.project.input.HasField("subquery_alias")
    assert surplus.project.input.read.named_table.unparsed_identifier == "t"


def test_condition_question_uses_the_given_rows_in_place_of_the_source() -> None:
    rows = empty_rows([("id", "bigint"), ("a b", "string")])
    on, *_ = condition_questions(recorded(merge), rows)
    assert relation_of(on).join.right.local_relation.schema == "`id` bigint, `a b` string"


def test_text_with_dataframes_is_explained_and_rewritten_with_them() -> None:
    plan = recorded(lambda s: s.sql("INSERT INTO t SELECT * FROM {d}", d=s.table("u")))
    changed = protos.base.Plan.FromString(with_text(plan, "INSERT INTO t TABLE d"))
    assert (
        changed.command.sql_command.input.with_relations.root.sql.query == "INSERT INTO t TABLE d"
    )
    question = relation_of(text_question(plan, "EXPLAIN EXTENDED x"))
    assert question.with_relations.root.sql.query == "EXPLAIN EXTENDED x"
    assert len(question.with_relations.references) == 1


@pytest.mark.parametrize(
    ("given", "target", "by_name", "completes"),
    [
        ([("a", "string")], [("A", "timestamp")], True, True),
        ([("b", "string")], [("a", "timestamp")], True, False),
        ([("b", "string")], [("a", "timestamp")], False, True),
        ([("a", "date")], [("a", "timestamp")], True, False),
        ([("a", "string")], [("a", "string")], True, False),
        ([("a", "struct<x:string>")], [("a", "struct<x:timestamp_ntz>")], True, True),
        ([], [("a", "timestamp")], False, False),
    ],
)
def test_completes_texts_is_true_if_a_string_is_written_to_a_timestamp(
    given: list[tuple[str, str]], target: list[tuple[str, str]], by_name: bool, completes: bool
) -> None:
    assert completes_texts(given, target, by_name=by_name) is completes


def test_defined_by_returns_the_metadata_keys_of_spark_and_delta_definitions() -> None:
    found = ["comment", "delta.generationExpression", "CURRENT_DEFAULT", "__autoGeneratedAlias"]
    assert defined_by(found) == ["CURRENT_DEFAULT", "delta.generationExpression"]


# -- DataFrames are read, so that rules and rights see their tables


def kinds(program: Callable[[Any], Any]) -> list[str]:
    """Return the relations that are read of a program's plan, by the kinds of their roots."""
    return [relation_of(each).WhichOneof("rel_type") for each in table_questions(recorded(program))]


def test_dataframe_that_spark_only_analyzes_is_read_as_a_whole() -> None:
    assert kinds(lambda s: s.table("v").filter("a > 1").join(s.table("w"), "a").collect()) == [
        "join"
    ]
    assert kinds(lambda s: s.table("v").write.saveAsTable("t")) == ["read"]


def test_dataframe_that_spark_computes_during_analysis_is_read_below_that_step() -> None:
    assert kinds(lambda s: s.table("v").summary().collect()) == ["read"]
    over = kinds(lambda s: s.table("v").select("a").summary().join(s.table("w"), "a").collect())
    assert sorted(over) == ["join", "project"]
    assert kinds(lambda s: s.range(3).select(F.lit(1)).collect()) == ["project"]


def test_expressions_of_a_computed_step_are_read_over_its_input() -> None:
    """An expression may have a subquery, or a function that reads a table."""
    secret = F.expr("(SELECT max(a) FROM secret.x)")
    sampled = kinds(lambda s: s.table("v").sampleBy(secret, {1: 1.0}, 1).collect())
    assert sorted(sampled) == ["project", "read"]
    turned = kinds(lambda s: s.table("v").transpose(secret).summary().collect())
    assert sorted(turned) == ["project", "read"]


def test_hidden_relation_with_expressions_always_has_one_input() -> None:
    """`table_questions` reads them over it; one with others would stop the door."""
    relation, expression = protos.relations.Relation, protos.expressions.Expression

    def bears(message: Any, seen: frozenset[str]) -> bool:
        if message.full_name == expression.DESCRIPTOR.full_name:
            return True
        if message.full_name in seen | {relation.DESCRIPTOR.full_name}:
            return False
        inside = [each.message_type for each in message.fields if each.message_type is not None]
        return any(bears(each, seen | {message.full_name}) for each in inside)

    hidden = {
        each.name: each.message_type
        for each in relation.DESCRIPTOR.oneofs_by_name["rel_type"].fields
        if each.name not in SHOWN and bears(each.message_type, frozenset())
    }
    assert set(hidden) >= {"transpose", "sample_by"}
    assert all("input" in each.fields_by_name for each in hidden.values()), hidden


def test_dataframe_inside_a_text_is_read_only_if_the_text_does_not_show_it() -> None:
    text = "INSERT INTO t SELECT * FROM {df}"
    assert kinds(lambda s: s.sql(text, df=s.table("v"))) == []
    assert kinds(lambda s: s.sql(text, df=s.table("v").summary())) == ["read"]
