"""What of a DataFrame is read, so that rules and rights see its tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyspark.sql.connect.functions as F

from haproc import protos
from haproc.reading.frames import SHOWN
from haproc.route.plan_questions import table_questions
from tests.unit.recorded_plans import recorded as plan_of


def kinds(program: Callable[[Any], Any]) -> list[str]:
    """Return the relations that are read of a program's plan, by the kinds of their roots."""
    found = []
    for each in table_questions(plan_of(program)):
        found.append(protos.base.Plan.FromString(each).root.WhichOneof("rel_type"))
    return found


def test_dataframe_that_spark_only_analyzes_is_read_as_a_whole() -> None:
    assert kinds(lambda s: s.table("v").filter("a > 1").join(s.table("w"), "a").collect()) == [
        "join"
    ]
    assert kinds(lambda s: s.table("v").write.saveAsTable("t")) == ["read"]


def test_dataframe_that_spark_computes_is_read_below_what_it_computes() -> None:
    assert kinds(lambda s: s.table("v").summary().collect()) == ["read"]
    over = kinds(lambda s: s.table("v").select("a").summary().join(s.table("w"), "a").collect())
    assert sorted(over) == ["join", "project"]
    assert kinds(lambda s: s.range(3).select(F.lit(1)).collect()) == ["project"]


def test_expressions_of_what_spark_computes_are_read_over_its_input() -> None:
    """An expression may have a subquery, or a function that reads a table."""
    secret = F.expr("(SELECT max(a) FROM secret.x)")
    sampled = kinds(lambda s: s.table("v").sampleBy(secret, {1: 1.0}, 1).collect())
    assert sorted(sampled) == ["project", "read"]
    turned = kinds(lambda s: s.table("v").transpose(secret).summary().collect())
    assert sorted(turned) == ["project", "read"]


def test_every_hidden_relation_with_expressions_has_one_input() -> None:
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


def test_dataframe_that_comes_with_a_text_is_read_where_that_does_not_show_it() -> None:
    text = "INSERT INTO t SELECT * FROM {df}"
    assert kinds(lambda s: s.sql(text, df=s.table("v"))) == []
    assert kinds(lambda s: s.sql(text, df=s.table("v").summary())) == ["read"]
