"""Tests of the parsing of deeply nested messages: as if nothing limited their depth."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haproc import protos
from haproc.wire import DEPTH_MAX, MalformedError, TooDeepError, parsed

Relation = protos.relations.Relation
Expression = protos.expressions.Expression
STEPS = ("limit", "filter", "left", "right", "with", "calls", "references", "window")


def expression(depth: int, width: int) -> Any:
    made = Expression()
    made.literal.long = 300
    for _ in range(depth):
        outer = Expression()
        call = outer.unresolved_function
        call.function_name = "f"
        for at in range(width):
            call.arguments.add().literal.integer = at
        call.arguments.add().CopyFrom(made)
        call.arguments.add().literal.string = "behind"
        made = outer
    return made


def step(inner: Any, kind: str, width: int) -> Any:
    """Return a relation over another one."""
    outer = Relation()
    outer.common.plan_id = width
    if kind == "limit":
        outer.limit.input.CopyFrom(inner)
        outer.limit.limit = width
    elif kind == "filter":
        outer.filter.input.CopyFrom(inner)
        outer.filter.condition.CopyFrom(expression(width, 2))
    elif kind in ("left", "right"):
        for side in ("left", "right"):
            getattr(outer.join, side).range.end = width
        getattr(outer.join, kind).CopyFrom(inner)
    elif kind == "with":
        outer.with_columns.input.CopyFrom(inner)
        for at in range(width):
            alias = outer.with_columns.aliases.add(name=[f"c{at}"])
            alias.expr.CopyFrom(expression(width, 1))
    elif kind == "calls":
        outer.project.input.CopyFrom(inner)
        outer.project.expressions.add().CopyFrom(expression(40, 1))
    elif kind == "references":
        outer.with_relations.root.sql.query = "select 1"
        outer.with_relations.root.sql.named_arguments["x"].CopyFrom(expression(width, 1))
        for _ in range(width):
            outer.with_relations.references.add().range.end = width
        outer.with_relations.references.add().CopyFrom(inner)
    else:
        outer.sort.input.CopyFrom(inner)
        outer.sort.order.add().child.window.window_function.CopyFrom(expression(width, 0))
    return outer


def built(steps: list[tuple[str, int]]) -> Any:
    made = Relation()
    made.range.end = 7
    for kind, width in steps:
        made = step(made, kind, width)
    return made


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 4)), max_size=150))
@settings(max_examples=60, deadline=None)
def test_deep_message_is_parsed_as_it_was_made(steps: list[tuple[str, int]]) -> None:
    made = built(steps)
    data = made.SerializeToString(deterministic=True)
    found = parsed(Relation, data)
    assert found == made and found.SerializeToString(deterministic=True) == data


def test_message_beyond_the_depth_limit_is_refused() -> None:
    deepest = built([("limit", 1)] * (DEPTH_MAX // 2 - 1)).SerializeToString()
    assert parsed(Relation, deepest).SerializeToString() == deepest
    with pytest.raises(TooDeepError):
        parsed(Relation, deepest, depth_max=DEPTH_MAX // 2)
    with pytest.raises(TooDeepError):
        parsed(Relation, field(8, field(1, field(8, field(1, deepest)))))


@pytest.mark.parametrize("ends", [1, 60, 400, 900])
def test_deep_message_that_is_cut_off_is_refused(ends: int) -> None:
    data = built([("limit", 1)] * 120).SerializeToString()
    with pytest.raises(MalformedError):
        parsed(Relation, data[:ends])


def test_deep_message_that_occurs_twice_in_a_field_is_refused() -> None:
    """Upb would merge both; of fields that exclude each other it would take the last one."""
    deep = built([("limit", 1)] * 80).SerializeToString()
    limit, filtered = field(8, field(1, deep)), field(4, field(1, deep))
    assert parsed(Relation, limit) and parsed(Relation, filtered)
    for both in (limit + limit, limit + filtered, filtered + limit, limit + filtered + limit):
        with pytest.raises(MalformedError):
            parsed(Relation, both)
    assert parsed(Relation, limit + b"\xfa\x7f\x01x").ByteSize() == len(limit) + 4


def test_deep_values_of_maps_are_parsed_under_their_keys() -> None:
    made = built([("limit", 1)] * 20)
    for _ in range(4):
        outer = Relation()
        for name, depth in (("a", 80), ("", 0), ("ü", 30)):
            outer.with_relations.root.sql.named_arguments[name].CopyFrom(expression(depth, 1))
        outer.with_relations.references.add().CopyFrom(made)
        made = outer
    assert parsed(Relation, made.SerializeToString()) == made


def test_deep_values_under_the_same_key_are_refused() -> None:
    """Of several entries the last one would count."""
    entries = [
        field(4, field(1, b"x") + field(2, expression(depth, 0).SerializeToString()))
        for depth in (80, 0)
    ]
    assert all(parsed(Relation, field(10, each)).sql.named_arguments["x"] for each in entries)
    with pytest.raises(MalformedError):
        parsed(Relation, field(10, b"".join(entries)))


def test_messages_parsed_by_upb_alone_keep_their_depth_limit() -> None:
    """No limit is lifted for the process."""
    deep = built([("limit", 1)] * 80)
    assert parsed(Relation, deep.SerializeToString()) == deep
    with pytest.raises(Exception, match="MaxDepth"):
        Relation.FromString(deep.SerializeToString())


def field(number: int, data: bytes) -> bytes:
    length = len(data)
    encoded = bytearray([number << 3 | 2])
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes(encoded) + bytes([length]) + data
