"""Tests of the reading of plans that contain Delta's own relations and commands."""

from __future__ import annotations

from typing import Any

import pytest

from haproc import protos
from haproc.classify.model import Kind
from haproc.classify.plans import delta
from haproc.classify.plans.commands import read_plan
from haproc.classify.plans.delta import DeltaCommand, DeltaRelation
from haproc.classify.plans.parsing import Does
from haproc.failure import ErrorClass
from tests.unit.recorded_plans import refused


def relation_plan(message: Any) -> Any:
    plan = protos.base.Plan()
    plan.root.extension.Pack(message)
    return plan


def command_plan(message: Any) -> Any:
    plan = protos.base.Plan()
    plan.command.extension.Pack(message)
    return plan


def scan(name: str = "a.b") -> Any:
    relation = DeltaRelation()
    relation.scan.table.table_or_view_name = name
    return relation


def change(kind: str) -> Any:
    relation = DeltaRelation()
    message = getattr(relation, kind)
    message.target.subquery_alias.alias = "t"
    message.target.subquery_alias.input.extension.Pack(scan("c.d"))
    message.condition.expression_string.expression = "a > rand()"
    if kind == "merge_into_table":
        message.source.read.named_table.unparsed_identifier = "s"
    return relation


@pytest.mark.parametrize(
    ("kind", "means"),
    [
        ("delete_from_table", Kind.DELETE),
        ("update_table", Kind.UPDATE),
        ("merge_into_table", Kind.MERGE),
    ],
)
def test_read_plan_of_a_delta_change_returns_target_and_expressions(kind: str, means: Kind) -> None:
    reading = read_plan(relation_plan(change(kind)))
    assert (reading.does, reading.kind, reading.target) == (Does.WRITES, means, ("c", "d"))
    assert reading.expressions == ("a > rand()",)
    assert reading.names == ({("s",)} if means is Kind.MERGE else frozenset())


@pytest.mark.parametrize("kind", sorted(delta.WRITING))
def test_read_plan_of_a_delta_change_inside_a_query_is_refused(kind: str) -> None:
    relation = DeltaRelation()
    getattr(relation, kind).SetInParent()
    plan = protos.base.Plan()
    plan.root.limit.input.extension.Pack(relation)
    assert refused(read_plan, plan) == ErrorClass.NESTED_WRITE


def test_read_plan_that_reads_a_delta_table_is_a_query() -> None:
    reading = read_plan(relation_plan(scan()))
    assert (reading.does, reading.names) == (Does.QUERIES, {("a", "b")})


def test_read_plan_of_a_delta_table_by_path_returns_the_path() -> None:
    relation = DeltaRelation()
    relation.scan.table.path.path = "/x"
    assert read_plan(relation_plan(relation)).paths == {"/x"}


def test_read_plan_of_a_delta_restore_is_refused_like_its_sql() -> None:
    relation = DeltaRelation()
    relation.restore_table.table.table_or_view_name = "a"
    relation.restore_table.version = 1
    assert refused(read_plan, relation_plan(relation)) == ErrorClass.NONDETERMINISTIC


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("vacuum_table", Kind.VACUUM),
        ("upgrade_table_protocol", Kind.ALTER_TABLE),
        ("generate", Kind.OTHER_DDL),
    ],
)
def test_read_plan_of_a_delta_command_returns_its_table(name: str, means: Kind) -> None:
    command = DeltaCommand()
    getattr(command, name).table.table_or_view_name = "a.b"
    reading = read_plan(command_plan(command))
    assert (reading.does, reading.kind, reading.target) == (Does.WRITES, means, ("a", "b"))
    getattr(command, name).table.path.path = "/x"
    getattr(command, name).table.ClearField("table_or_view_name")
    assert refused(read_plan, command_plan(command)) == ErrorClass.PATH


def test_read_plan_that_creates_a_delta_table_returns_its_parts() -> None:
    command = DeltaCommand()
    create = command.create_delta_table
    create.table_name = "a.b"
    create.columns.add(name="c", generated_always_as="upper(d)")
    create.properties["delta.appendOnly"] = "true"
    reading = read_plan(command_plan(command))
    assert (reading.kind, reading.target) == (Kind.CREATE_TABLE, ("a", "b"))
    assert reading.expressions == ("upper(d)",)
    create.properties["delta.setTransactionRetentionDuration"] = "1 day"
    assert refused(read_plan, command_plan(command)) == ErrorClass.OPTION


def test_read_plan_with_a_foreign_extension_is_refused() -> None:
    plan = protos.base.Plan()
    plan.root.extension.type_url = "type.googleapis.com/other.Relation"
    assert refused(read_plan, plan) == ErrorClass.PLAN_UNKNOWN


def test_messages_of_delta_are_all_classified() -> None:
    assert set(DeltaRelation.DESCRIPTOR.fields_by_name) == {*delta.READING, *delta.WRITING}
    assert set(DeltaCommand.DESCRIPTOR.fields_by_name) == {*delta.COMMANDS}
