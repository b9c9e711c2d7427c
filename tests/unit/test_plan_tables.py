"""Tests of the tables of messages in plans: they are complete, and reject unknown content."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haproc import protos
from haproc.classify.model import RefusedError
from haproc.classify.names import Context
from haproc.classify.plans import (
    catalog,
    commands,
    delta,
    expressions,
    parsing,
    relations,
)
from haproc.classify.plans.classifying import classify_plan
from haproc.classify.plans.commands import read_analysis, read_plan
from haproc.classify.plans.delta import DeltaRelation
from haproc.classify.plans.parsing import Does
from haproc.classify.rules import Rules
from haproc.failure import ErrorClass
from tests.unit.plan_fields import GOLDEN, fields
from tests.unit.recorded_plans import recorded, refused

RELATION = "spark.connect.Relation"


def members(kind: Any, choice: str) -> set[str]:
    return {each.name for each in kind.DESCRIPTOR.oneofs_by_name[choice].fields}


def test_fields_of_plans_equal_the_reviewed_list() -> None:
    assert fields() == GOLDEN.read_text(), (
        "Spark Connect's messages are others: decide about the new fields in "
        "haproc/classify/plans, then run python -m tests.unit.plan_fields"
    )


def test_relations_of_the_protocol_are_all_classified() -> None:
    known = {*relations.READING, *relations.USER_CODE, *relations.REFUSED, *relations.NAMED, "sql"}
    assert members(protos.relations.Relation, "rel_type") == known


def test_commands_of_the_protocol_are_all_classified() -> None:
    known = {*commands.NAMED, *commands.REFUSED}
    assert members(protos.commands.Command, "command_type") == known
    assert not set(commands.NAMED) & set(commands.REFUSED)


def test_catalog_calls_of_the_protocol_are_all_classified() -> None:
    known = {*catalog.READING, *catalog.NAMED}
    assert set(protos.catalog.Catalog.DESCRIPTOR.fields_by_name) == known
    assert not catalog.READING & set(catalog.NAMED)


def test_expressions_of_the_protocol_are_all_classified() -> None:
    naming = {"unresolved_function", "call_function", "expression_string", "extension"}
    code = {"common_inline_user_defined_function", "typed_aggregate_expression"}
    known = {*expressions.COMPUTING, *naming, *code}
    assert members(protos.expressions.Expression, "expr_type") == known


def test_model_commands_of_the_protocol_are_all_classified() -> None:
    commands_of = protos.commands.Command.DESCRIPTOR.fields_by_name["ml_command"].message_type
    names = {each.name for each in commands_of.oneofs_by_name["command"].fields}
    assert names == {*relations.HOLDING, *relations.FILES}


# -- what may do more is found wherever it stands ---------------------------------------------


def bears(descriptor: Any, seen: frozenset[str] = frozenset()) -> bool:
    """Return whether a message can contain a relation; independent of the code under test."""
    if descriptor.full_name == RELATION:
        return True
    if descriptor.full_name in seen:
        return False
    seen |= {descriptor.full_name}
    return any(bears(each.message_type, seen) for each in descriptor.fields if each.message_type)


@cache
def bearing(descriptor: Any) -> list[Any]:
    return [each for each in descriptor.fields if each.message_type and bears(each.message_type)]


def _catalog_call(kind: str) -> Callable[[Any], None]:
    return lambda relation: getattr(relation.catalog, kind).SetInParent()


def _delta(kind: str) -> Callable[[Any], None]:
    def put(relation: Any) -> None:
        message = DeltaRelation()
        getattr(message, kind).SetInParent()
        relation.extension.Pack(message)

    return put


def _sql(text: str) -> Callable[[Any], None]:
    def put(relation: Any) -> None:
        relation.sql.query = text

    return put


def _streaming(relation: Any) -> None:
    relation.read.named_table.unparsed_identifier = "t"
    relation.read.is_streaming = True


def _foreign(relation: Any) -> None:
    relation.extension.type_url = "type.googleapis.com/other.Relation"


WRITES: list[Callable[[Any], None]] = [
    *map(_catalog_call, sorted(catalog.NAMED)),
    *map(_delta, sorted(delta.WRITING)),
    *map(
        _sql, ("DROP TABLE t", "INSERT INTO t VALUES (1)", "SET a.b = 1", "EXECUTE IMMEDIATE 'x'")
    ),
    lambda relation: relation.unknown.SetInParent(),
    lambda relation: relation.Clear(),
    _streaming,
    _foreign,
]


def _grown(draw: Any, message: Any, steps: int) -> Any:
    """Descend from a message through fields that may hold relations; return the last message."""
    while True:
        is_relation = message.DESCRIPTOR.full_name == RELATION
        if is_relation and steps <= 0:
            return message
        steps -= is_relation
        field = draw(st.sampled_from(bearing(message.DESCRIPTOR)))
        inner = getattr(message, field.name)
        message = inner.add() if field.is_repeated else inner
        message.SetInParent()


@st.composite
def plans_that_write(draw: Any) -> Any:
    plan = protos.base.Plan()
    top = plan.root if draw(st.booleans()) else plan.command
    top.SetInParent()
    place = _grown(draw, top, draw(st.integers(1, 6)))
    draw(st.sampled_from(WRITES))(place)
    return plan


@settings(max_examples=500, deadline=None)
@given(plans_that_write())
def test_plan_with_a_write_inside_is_always_refused(plan: Any) -> None:
    with pytest.raises(RefusedError):
        classify_plan(read_plan(plan), Context(), Rules.builtin())
    if plan.WhichOneof("op_type") == "root":
        request = protos.base.AnalyzePlanRequest()
        request.schema.plan.CopyFrom(plan)
        with pytest.raises(RefusedError):
            classify_plan(read_analysis(request), Context(), Rules.builtin())


READABLE = sorted(
    name
    for name in relations.READING - {"with_relations"}
    if any(field.name == name for field in bearing(protos.relations.Relation.DESCRIPTOR))
)


@pytest.mark.parametrize("kind", READABLE)
def test_relation_that_only_computes_is_read_inside_another(kind: str) -> None:
    """Without this, the property above could hold because no plan is ever accepted."""
    plan = protos.base.Plan()
    message = getattr(plan.root.limit.input, kind)
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.full_name == RELATION:
            getattr(message, field.name).read.named_table.unparsed_identifier = "t"
    reading = read_plan(plan)
    assert (reading.does, reading.names) == (Does.QUERIES, {("t",)})


# -- bounds -----------------------------------------------------------------------------------


def compressed(plan: Any) -> Any:
    packed = protos.base.Plan()
    operation = packed.compressed_operation
    inner = getattr(plan, plan.WhichOneof("op_type"))
    operation.data = pa.Codec("zstd").compress(inner.SerializeToString()).to_pybytes()
    operation.op_type = operation.OP_TYPE_RELATION if plan.HasField("root") else 2
    operation.compression_codec = protos.base.COMPRESSION_CODEC_ZSTD
    return packed


def test_compressed_plan_is_read_like_the_original() -> None:
    for program in (
        lambda s: s.table("a.b").collect(),
        lambda s: s.table("a.b").write.saveAsTable("t"),
    ):
        plan = recorded(program)
        assert parsing.opened(compressed(plan)) == plan
        assert read_plan(compressed(plan)) == read_plan(plan)


def test_compressed_plan_that_is_too_large_or_invalid_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = compressed(recorded(lambda s: s.sql("x" * 10_000).collect()))
    monkeypatch.setattr(parsing, "OPENED_BYTES_MAX", 1_000)
    assert refused(read_plan, plan) == ErrorClass.STATEMENT_TOO_COMPLEX
    plan.compressed_operation.data = b"no such thing"
    assert refused(read_plan, plan) == ErrorClass.BAD_REQUEST


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_parse_of_any_bytes_gives_a_message_or_a_refusal(data: bytes) -> None:
    try:
        read_plan(parsing.parse(protos.base.Plan, data))
    except RefusedError as error:
        assert error.error_class.startswith("HAPROC_")
