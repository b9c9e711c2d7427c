"""Tests of AnalyzePlan requests."""

from __future__ import annotations

from typing import Any

import pytest

from haproc import protos
from haproc.classify.model import Kind
from haproc.classify.names import Context
from haproc.classify.plans import commands
from haproc.classify.plans.classifying import classify_plan
from haproc.classify.plans.commands import read_analysis
from haproc.classify.plans.parsing import Does
from haproc.classify.rules import Rules
from haproc.doors.connect.execute import _opened
from haproc.doors.connect.messages import plans_of
from haproc.failure import ErrorClass
from tests.unit.recorded_plans import recorded, refused


def analysis_request(kind: str, relation: Any) -> Any:
    request = protos.base.AnalyzePlanRequest()
    message = getattr(request, kind)
    message.SetInParent()
    for place in commands.EXPLAINED.get(kind, ()):
        target = getattr(message, place)
        (target if place == "relation" else target.root).CopyFrom(relation)
    return request


@pytest.mark.parametrize("kind", sorted(commands.EXPLAINED))
def test_read_analysis_of_a_plan_that_writes_is_refused_for_every_kind_of_question(
    kind: str,
) -> None:
    dropped = recorded(lambda s: s.catalog.dropTable("t")).root
    nested = protos.relations.Relation()
    nested.limit.input.CopyFrom(dropped)
    for relation in (dropped, nested):
        assert refused(read_analysis, analysis_request(kind, relation)) == ErrorClass.NESTED_WRITE
    text = recorded(lambda s: s.sql("execute immediate 'drop table t'").collect()).root
    # It is refused whatever Spark makes of the text.
    reading = read_analysis(analysis_request(kind, text))
    assert refused(classify_plan, reading, Context(), Rules.builtin()) == ErrorClass.NESTED_WRITE


@pytest.mark.parametrize("kind", sorted(commands.EXPLAINED))
def test_read_analysis_of_a_query_returns_the_names_that_it_reads(kind: str) -> None:
    reading = read_analysis(
        analysis_request(kind, recorded(lambda s: s.table("a.b").collect()).root)
    )
    assert (reading.does, reading.names) == (Does.QUERIES, {("a", "b")})
    assert reading.kind is (Kind.CACHE if kind in ("persist", "unpersist") else Kind.EXPLAIN)


@pytest.mark.parametrize("kind", sorted(commands.PLAIN))
def test_read_analysis_without_a_plan_is_a_query(kind: str) -> None:
    assert read_analysis(analysis_request(kind, None)).does is Does.QUERIES


def test_read_analysis_of_a_command_is_refused() -> None:
    request = protos.base.AnalyzePlanRequest()
    request.schema.plan.CopyFrom(recorded(lambda s: s.range(1).write.saveAsTable("t")))
    assert refused(read_analysis, request) == ErrorClass.NESTED_WRITE


def test_questions_of_the_protocol_are_all_classified() -> None:
    questions = protos.base.AnalyzePlanRequest.DESCRIPTOR.oneofs_by_name["analyze"].fields
    assert {each.name for each in questions} == {*commands.EXPLAINED, *commands.PLAIN}


def test_dataframe_returned_by_create_table_is_replaced_by_a_read_of_its_table() -> None:
    made = recorded(lambda s: s.catalog.createTable("a.t", source="delta")).root
    below = recorded(lambda s: s.table("x").filter("id > 1").collect()).root
    below.filter.input.CopyFrom(made)
    for relation in (made, below):
        request = protos.base.AnalyzePlanRequest()
        request.schema.plan.root.CopyFrom(relation)
        sent, (plan,) = plans_of(request.SerializeToString())
        found = protos.base.AnalyzePlanRequest.FromString(sent).schema.plan
        assert found == protos.base.Plan.FromString(plan)
        table = found.root if found.root.HasField("read") else found.root.filter.input
        assert table.read.named_table.unparsed_identifier == "a.t"


def test_execution_over_a_dataframe_of_create_table_reads_its_table() -> None:
    plan = recorded(lambda s: s.table("x").filter("id > 1").collect())
    made = recorded(lambda s: s.catalog.createTable("a.t", source="delta"))
    plan.root.filter.input.CopyFrom(made.root)
    packed, _, reading = _opened(plan.SerializeToString(), 1000)
    found = protos.base.Plan.FromString(packed).root.filter.input
    assert found.read.named_table.unparsed_identifier == "a.t"
    assert reading.does is Does.QUERIES
    sent, _, reading = _opened(made.SerializeToString(), 1000)
    assert (protos.base.Plan.FromString(sent), reading.does) == (made, Does.WRITES)
