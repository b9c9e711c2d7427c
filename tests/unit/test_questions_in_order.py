"""Tests of the order of questions: parts that Spark runs during analysis come before the plan."""

from __future__ import annotations

from typing import Any

import pytest

from haproc import protos
from haproc.classify.model import Classified, Kind, OperationClass, RefusedError, Touched
from haproc.classify.rights import Rights, Role
from haproc.classify.rules import Rule
from haproc.failure import ErrorClass
from haproc.reading.frames import runs_its_input
from haproc.route.plan_questions import input_questions, table_questions
from haproc.route.ruling import _check_refusals

_AGGREGATE = protos.relations.Aggregate
RIGHTS = Rights((Role.READER,), ("spark_catalog.a.*",))


def _table(relation: Any, name: str = "b.t") -> None:
    relation.read.named_table.unparsed_identifier = name


def _pivot(relation: Any, values: int = 0) -> Any:
    aggregate = relation.aggregate
    aggregate.group_type = _AGGREGATE.GROUP_TYPE_PIVOT
    aggregate.pivot.col.unresolved_attribute.unparsed_identifier = "s"
    for each in range(values):
        aggregate.pivot.values.add().integer = each
    return aggregate.input


def _parse(relation: Any, values: int = 0) -> Any:
    relation.parse.schema.string.SetInParent()
    return relation.parse.input


def _crosstab(relation: Any, values: int = 0) -> Any:
    relation.crosstab.col1 = "s"
    return relation.crosstab.input


def _transpose(relation: Any, values: int = 0) -> Any:
    relation.transpose.SetInParent()
    return relation.transpose.input


RUNNING = [_pivot, _parse, _crosstab, _transpose]


def _selected(made: Any) -> Any:
    """Return a plan that selects a column of a relation that ``made`` builds over a table."""
    plan = protos.base.Plan()
    project = plan.root.project
    project.expressions.add().unresolved_attribute.unparsed_identifier = "nope"
    _table(made(project.input))
    return plan


def _kinds(questions: tuple[bytes, ...]) -> list[str]:
    plans = [protos.base.Plan.FromString(each) for each in questions]
    return [plan.root.WhichOneof("rel_type") for plan in plans]


@pytest.mark.parametrize("made", RUNNING)
def test_question_about_an_input_that_spark_runs_comes_first(made: Any) -> None:
    kinds = _kinds(table_questions(_selected(made)))
    assert kinds[0] == "read"
    assert kinds[-1] == "project"


@pytest.mark.parametrize("made", RUNNING)
def test_question_about_an_input_that_spark_runs_below_another_one_comes_first(made: Any) -> None:
    plan = _selected(lambda relation: _crosstab(made(relation)))
    kinds = _kinds(table_questions(plan))
    assert kinds[0] == "read"
    assert kinds[-1] == "project"


def test_question_about_an_expression_of_a_pivot_comes_before_the_pivot() -> None:
    plan = _selected(_pivot)
    text = "(SELECT max(s) FROM b.t)"
    plan.root.project.input.aggregate.pivot.col.expression_string.expression = text
    questions = table_questions(plan)
    (question,) = [each for each in questions[:-1] if text.encode() in each]
    assert _kinds((question,)) == ["project"]


def test_expression_of_a_pivot_keeps_the_dataframes_of_its_subqueries() -> None:
    plan = protos.base.Plan()
    whole = plan.root.with_relations
    _table(_pivot(whole.root))
    whole.root.aggregate.pivot.col.subquery_expression.plan_id = 7
    frame = whole.references.add()
    frame.common.plan_id = 7
    _table(frame, "b.other")
    table_plans = [protos.base.Plan.FromString(each) for each in table_questions(plan)]
    beside = [
        each.root.with_relations for each in table_plans if each.root.HasField("with_relations")
    ]
    assert [each.root.WhichOneof("rel_type") for each in beside] == ["project", "aggregate"]
    assert all(each.references[0].common.plan_id == 7 for each in beside)


def test_pivot_with_given_values_runs_nothing() -> None:
    relation = protos.relations.Relation()
    _table(_pivot(relation, values=2))
    assert not runs_its_input(relation)


def test_questions_about_the_input_of_a_write_leave_out_the_write() -> None:
    plan = protos.base.Plan()
    plan.command.write_operation.table.table_name = "a.t"
    _table(_pivot(plan.command.write_operation.input))
    assert _kinds(input_questions(plan)) == ["read", "project", "aggregate"]


def _statement(*rules: Rule) -> Classified:
    return Classified(
        sql="",
        kind=Kind.SELECT,
        operation_class=OperationClass.QUERY,
        reads=frozenset(),
        writes=frozenset(),
        tables_known=True,
        rule="",
        rules=rules,
    )


def test_part_outside_the_rights_is_refused() -> None:
    touched = Touched(frozenset({"spark_catalog.b.t"}))
    with pytest.raises(RefusedError) as caught:
        _check_refusals(_statement(Rule("rights", rights=RIGHTS)), touched)
    assert caught.value.error_class is ErrorClass.FORBIDDEN


def test_refusing_rule_behind_an_allowing_rule_is_left_for_the_whole_statement() -> None:
    allows = Rule("allows", OperationClass.QUERY, table="spark_catalog.a.*")
    refuses = Rule("refuses", refuse="no", table="spark_catalog.b.*")
    touched = Touched(frozenset({"spark_catalog.b.t"}))
    _check_refusals(_statement(allows, refuses), touched)
    with pytest.raises(RefusedError):
        _check_refusals(_statement(refuses, allows), touched)
