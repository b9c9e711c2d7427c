"""The name under which a merge's conditions reach the source columns, from the source's plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyspark.sql.connect.functions as F
import pytest

from haproc.classify.names import Context
from haproc.engine.placeholder import placeholder
from haproc.pin.plan_parts import Called, called
from tests.unit.recorded_plans import recorded

CONTEXT = Context("cat", "db")
S = Called("s")
S_BUT_N = Called("s", (), frozenset({"n"}))


def found(make: Callable[[Any], Any]) -> Called | None:
    return called(recorded(lambda s: make(s).collect()).root, CONTEXT)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda s: s.range(3).alias("s"), S),
        (lambda s: s.table("x").alias("a").alias("s"), S),
        (lambda s: s.table("View"), Called("View", ("cat", "db"))),
        (lambda s: s.table("d.`x y`"), Called("x y", ("cat", "d"))),
        (lambda s: s.table("c.d.x").filter("a > 1"), Called("x", ("c", "d"))),
        (lambda s: s.range(3).alias("s").filter(F.rand() >= 0), S),
        (lambda s: s.range(3).alias("s").sort("id").limit(1).offset(1), S),
        (lambda s: s.range(3).alias("s").distinct().repartition(2).repartition("id"), S),
        (lambda s: s.range(3).alias("s").hint("broadcast").drop("id").sample(0.5), S),
        (lambda s: s.range(3).alias("s").withColumn("N", F.rand()), S_BUT_N),
        (lambda s: s.range(3).alias("s").withColumnRenamed("id", "n"), S_BUT_N),
        (lambda s: s.range(3).alias("s").select("id", "s.id", "*"), S),
        (
            lambda s: s.range(3).alias("s").select("id", F.rand().alias("n"), F.rand()),
            S_BUT_N,
        ),
        (lambda s: s.range(3).alias("s").select("s.a.b"), None),
        (lambda s: s.range(3), None),
        (lambda s: s.range(3).alias("s").toDF("n"), None),
        (lambda s: s.range(3).alias("s").groupBy("id").count(), None),
        (lambda s: s.range(3).alias("a").crossJoin(s.range(3).alias("b")), None),
        (lambda s: s.table("delta.`/x`"), None),
        (lambda s: s.read.parquet("/x"), None),
    ],
)
def test_source_name_is_kept_through_operators_that_pass_columns_on(
    make: Callable[[Any], Any], expected: Called | None
) -> None:
    assert found(make) == expected


def test_columns_computed_after_the_alias_get_no_qualifier() -> None:
    """Spark would not resolve s.n either; and if a column s had a field n, it would take that."""
    subquery = Called("s", ("c", "d"), frozenset({"n", "gone"})).over(placeholder(), ["id", "N"])
    (alias,) = subquery.with_columns.aliases
    assert list(alias.name) == ["N"]
    assert alias.expr.unresolved_attribute.unparsed_identifier == "`N`"
    named = subquery.with_columns.input.subquery_alias
    assert (named.alias, list(named.qualifier), named.input) == ("s", ["c", "d"], placeholder())
    assert S_BUT_N.over(placeholder(), ["id"]).HasField("subquery_alias")
