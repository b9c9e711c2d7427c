"""Plans of the promised depth pass all steps of a write before it is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyspark.sql.connect.functions as F
import pytest

from haproc import protos
from haproc.classify.model import RefusedError
from haproc.classify.plans import parsing
from haproc.classify.plans.commands import read_plan
from haproc.engine.placeholder import placeholder, plan_of_query, rests_on_handles, with_rows
from haproc.failure import ErrorClass
from haproc.pin.plan_parts import inlined, input_of
from haproc.route.plan_questions import (
    condition_questions,
    empty_rows,
    input_question,
    shape_of,
    text_question,
    with_text,
)
from haproc.route.plans import computed, hidden_of
from tests.unit.recorded_plans import recorded

STEPS = 190
"""The depth that docs/guide/pyspark.md promises."""
ROWS = empty_rows([("c1", "bigint")])


def deepened(message: Any, count: int) -> Any:
    """Replace each column or table ``deep`` by so many nested calls or steps.

    For many of these, PySpark's own client fails at the fiftieth level.
    """
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else (value,):
            kind = each.DESCRIPTOR.name
            if kind == "Expression" and each.unresolved_attribute.unparsed_identifier == "deep":
                each.CopyFrom(calls(count))
            elif kind == "Relation" and each.read.named_table.unparsed_identifier == "deep":
                each.CopyFrom(steps(count))
            else:
                deepened(each, count)
    return message


def calls(count: int) -> Any:
    built = protos.expressions.Expression()
    built.literal.integer = 1
    for _ in range(count):
        outer = protos.expressions.Expression()
        outer.unresolved_function.function_name = "abs"
        outer.unresolved_function.arguments.add().CopyFrom(built)
        built = outer
    return built


def steps(count: int) -> Any:
    built = protos.relations.Relation()
    built.range.end = 7
    for _ in range(count):
        outer = protos.relations.Relation()
        outer.limit.input.CopyFrom(built)
        built = outer
    return built


DEEP = F.col("deep")


def merge(frame: Any, value: Any) -> Any:
    built = frame.mergeInto("t", F.col("a") == F.col("b")).whenMatched().update({"b": value})
    return built.whenNotMatched(value > 1).insert({"b": value}).merge()


WRITES: dict[str, Callable[[Any], Any]] = {
    "saveAsTable": lambda s: s.table("deep").write.saveAsTable("t"),
    "insertInto": lambda s: s.table("deep").write.insertInto("t"),
    "writeTo": lambda s: s.table("deep").writeTo("t").append(),
    "overwrite": lambda s: s.range(3).writeTo("t").overwrite(DEEP),
    "calls": lambda s: s.range(3).select(DEEP.alias("x")).writeTo("t").append(),
    "merge": lambda s: merge(s.table("deep"), F.lit(1)),
    "merge of deep values": lambda s: merge(s.range(3), DEEP),
    "merge under a name": lambda s: merge(s.table("deep").alias("s"), F.lit(1)),
    "frames": lambda s: s.sql("INSERT INTO t SELECT * FROM {f}", f=s.table("deep")),
}


def sent_by(name: str, count: int) -> bytes:
    plan = recorded(WRITES[name])
    return bytes(deepened(plan, count).SerializeToString())


def passes(plan: Any) -> None:
    """Process the messages of a plan as those of a write are processed."""
    read_plan(plan)
    hidden_of(plan)
    inlined(plan, {})
    if plan.command.HasField("sql_command"):
        shape_of(text_question(plan, "SELECT 1"))
        parsing.parse(protos.base.Plan, with_text(plan, "SELECT 1"))
        return
    questions = (input_question(plan), *condition_questions(plan), *condition_questions(plan, ROWS))
    for question in questions:
        assert question is not None
        shape_of(question)
    built = computed(plan, None, placeholder())
    plan_of_query(built.query)
    assert not rests_on_handles(built.query)
    filled = parsing.parse(protos.base.Plan, with_rows(built.template, b"rows"))
    assert b"rows" in input_of(filled).SerializeToString()


@pytest.mark.parametrize("name", WRITES)
def test_write_of_the_promised_depth_is_read_in_every_form(name: str) -> None:
    sent = sent_by(name, STEPS)
    passes(parsing.parse(protos.base.Plan, sent))


@pytest.mark.parametrize("name", WRITES)
def test_write_deeper_than_the_limit_is_refused_with_a_message(name: str) -> None:
    sent = sent_by(name, STEPS + 15)
    with pytest.raises(RefusedError, match="nested more than 400 messages") as caught:
        parsing.parse(protos.base.Plan, sent)
    assert caught.value.error_class == ErrorClass.STATEMENT_TOO_COMPLEX
