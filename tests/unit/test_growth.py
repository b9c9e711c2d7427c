"""Reading a statement or a plan takes time in proportion to its length.

Work is counted, not time: the calls that classifying and pinning make. For a text of twice and four
times the length, the work may grow by steps, but not faster than the text.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache, reduce
from types import FrameType
from typing import Any

import pyspark.sql.connect.functions as F
import pytest

from haproc import protos
from haproc.classify.classifier import classify
from haproc.classify.model import RefusedError
from haproc.classify.names import Context
from haproc.classify.plans.classifying import classify_plan
from haproc.classify.plans.commands import read_plan
from haproc.classify.plans.parsing import opened, parse
from haproc.classify.rules import Rules
from haproc.classify.tokens import LexicalError, tokenize
from haproc.pin.literals import Moment
from haproc.pin.parameters import bind, expand_rows, parse_parameters
from haproc.pin.plan_parts import input_of, with_input
from haproc.route.plan_questions import condition_questions, input_question
from haproc.route.plans import hidden_of
from tests.unit.recorded_plans import recorded

MOMENT = Moment(datetime(2026, 3, 1, tzinfo=UTC), "UTC", "ann", "spark_catalog", "default")
SHORT = 45
GROWTH_MAX = 2.3
"""The work added by the second doubling, divided by that of the first."""


NOW, NOW_AND_NOW, PROPERTY = "'now'", "'now' ", "'a#' 'b'"


def listed(item: str, count: int) -> str:
    return ", ".join(item.replace("#", str(number)) for number in range(count))


TEXTS: dict[str, Callable[[int], str]] = {
    "in": lambda n: f"SELECT * FROM t WHERE a IN ({listed('#', n)})",
    "delete_in": lambda n: f"DELETE FROM t WHERE a IN ({listed('#', n)})",
    "unions": lambda n: (
        "INSERT INTO t SELECT 0, current_date" + " UNION ALL SELECT 0, current_date" * n
    ),
    "values": lambda n: f"INSERT INTO t VALUES {listed('(#, current_date)', n)}",
    "plain_values": lambda n: f"INSERT INTO t VALUES {listed('(#, NULL)', n)}",
    "users": lambda n: f"INSERT INTO t SELECT {listed('current_user', n)} FROM u",
    "assignments": lambda n: f"UPDATE t SET {listed('a# = user', n)}",
    "dates": lambda n: f"UPDATE t SET {listed('a# = current_date', n)}",
    "same_names": lambda n: f"UPDATE t SET {listed('user = user', n)}",
    "aliases": lambda n: f"INSERT INTO t SELECT {listed('current_date AS user', n)} FROM u",
    "merge": lambda n: (
        "MERGE INTO t USING u ON t.a = u.a WHEN NOT MATCHED THEN "
        f"INSERT ({listed('user', n)}) VALUES ({listed('current_date', n)})"
    ),
    "calls": lambda n: f"INSERT INTO t SELECT {listed('upper(a#)', n)} FROM u",
    "unknown_functions": lambda n: f"INSERT INTO t SELECT {listed('f#(a)', n)} FROM u",
    "extracts": lambda n: f"INSERT INTO t SELECT {listed('extract(YEAR FROM user)', n)} FROM u",
    "strings": lambda n: f"INSERT INTO t SELECT {listed(NOW, n)} FROM u",
    "adjacent": lambda n: f"INSERT INTO t SELECT {NOW_AND_NOW * n} FROM u",
    "lambdas": lambda n: f"INSERT INTO t VALUES {listed('(transform(array(1), x -> x))', n)}",
    "lists": lambda n: f"INSERT INTO t SELECT {listed('listagg(a, b)', n)} FROM u",
    "defaults": lambda n: f"CREATE TABLE t ({listed('c# INT DEFAULT #', n)}) USING delta",
    "no_defaults": lambda n: f"CREATE TABLE t (a INT {'DEFAULT ' * n}) USING delta",
    "options": lambda n: f"ALTER TABLE t SET TBLPROPERTIES ({listed(PROPERTY, n)})",
    "columns": lambda n: f"INSERT INTO t ({listed('c#', n)}) SELECT 1",
    "common_tables": lambda n: f"WITH {listed('c# AS (SELECT 1)', n)} SELECT * FROM c0",
    "qualified": lambda n: f"SELECT {listed('a.b#', n)} FROM t",
    "case": lambda n: f"UPDATE t SET a = CASE {'WHEN a = 1 THEN user ' * n} END",
    "comments": lambda n: f"UPDATE t SET a = 1 {'/* user */ ' * n}",
    "cut_comment": lambda n: "UPDATE t SET a = 1 " + "/* */ /*" * n,
    "cut_strings": lambda n: "UPDATE t SET a = " + "''" * n + "'",
    "variables": lambda n: "SELECT '" + "${" * n + "'",
    "hints": lambda n: "SELECT " + "/*+ " * n + "*/ " * n + "1",
    "explains": lambda n: "EXPLAIN " * n + "SELECT 1",
}


def work(action: Callable[[int], object], length: int) -> int:
    """Return how many functions, Python's own included, an action calls for that length."""
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event.endswith("call")

    gc.disable()  # it would end what earlier tests left, and that is work, too
    sys.setprofile(count)
    try:
        action(length)
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def read(sql: str) -> None:
    """Classify a statement, as it is done before it is logged."""
    with contextlib.suppress(RefusedError):
        classify(sql, Context(), Rules.builtin())


def grows_with_its_length(action: Callable[[int], object]) -> None:
    action(SHORT)  # what is computed once only is not counted
    first, second, third = (work(action, SHORT << step) for step in range(3))
    assert third - second <= GROWTH_MAX * max(second - first, SHORT), (first, second, third)


@pytest.mark.parametrize("name", TEXTS)
def test_work_on_a_longer_text_grows_no_faster_than_the_text(name: str) -> None:
    grows_with_its_length(lambda count: read(TEXTS[name](count)))


def over(count: int, first: Any, step: Callable[[Any, int], Any]) -> Any:
    return reduce(step, range(count), first)


PLANS: dict[str, Callable[[Any, int], object]] = {
    "steps": lambda s, n: over(n, s.table("t"), lambda d, at: d.filter(F.col("a") > at)).collect(),
    "columns": lambda s, n: over(
        n, s.table("t"), lambda d, at: d.withColumn(f"c{at}", F.upper("b"))
    ).write.insertInto("u"),
    "values": lambda s, n: (
        s.table("t").select(*(F.upper(f"a{at}") for at in range(n))).writeTo("u").append()
    ),
    "nested": lambda s, n: s.table("t").select(
        *(over(20, F.col("a"), lambda e, at: F.concat(e, F.lit("x"))) for _ in range(n))
    ).writeTo("u").append(),
    "unions": lambda s, n: over(
        n, s.table("t"), lambda d, at: d.union(s.table(f"t{at}"))
    ).writeTo("u").append(),
    "texts": lambda s, n: (
        s.table("t").select(*(F.expr(f"upper(a{at})") for at in range(n))).writeTo("u").append()
    ),
    "statements": lambda s, n: over(
        n, s.table("t"), lambda d, at: d.union(s.sql(f"SELECT * FROM t{at}"))
    ).writeTo("u").append(),
    "a_statement_with_frames": lambda s, n: s.sql(
        "SELECT * FROM " + ", ".join(f"{{d{at}}}" for at in range(n)),
        **{f"d{at}": s.table(f"t{at}") for at in range(n)},
    ).collect(),
    "rows": lambda s, n: s.createDataFrame([(at, "x") for at in range(n)], ["a", "b"])
    .writeTo("u").append(),
    "clauses": lambda s, n: over(
        n,
        s.table("t").alias("s").mergeInto("u", F.expr("s.a = u.a")),
        lambda m, at: m.whenMatched(F.col("s.a") == at).update({"b": F.lit(at)}),
    ).merge(),
    "condition": lambda s, n: s.table("t").writeTo("u").overwrite(
        F.col("a").isin(*range(n))
    ),
    "unknown_functions": lambda s, n: s.table("t").select(
        *(F.call_function(f"f{at}", F.col("a")) for at in range(n))
    ).writeTo("u").append(),
}  # fmt: skip


def read_a_plan(data: bytes) -> None:
    """Process a plan as it is done before it is logged, without the requests to Spark."""
    with contextlib.suppress(RefusedError):
        plan = opened(parse(protos.base.Plan, data))
        classify_plan(read_plan(plan), Context(), Rules.builtin())
        hidden_of(plan)
        input_question(plan)
        list(condition_questions(plan))
        if (source := input_of(plan)) is not None:
            with_input(plan, source)


@pytest.mark.parametrize("name", PLANS)
def test_work_on_a_larger_plan_grows_no_faster_than_the_plan(name: str) -> None:
    @cache
    def data(count: int) -> bytes:
        return bytes(recorded(lambda s: PLANS[name](s, count)).SerializeToString())

    for step in range(3):
        data(SHORT << step)
    grows_with_its_length(lambda count: read_a_plan(data(count)))


def test_work_on_more_parameters_grows_no_faster_than_their_number() -> None:
    def parameters(count: int) -> list[dict[str, object]]:
        return [{"name": f"p{at}", "value": "1", "type": "INT"} for at in range(count)]

    def bound(count: int) -> None:
        bind(f"SELECT {listed(':p#', count)}", parse_parameters(parameters(count)))

    def expanded(count: int) -> None:
        rows = [parse_parameters([{"value": str(at)}]) for at in range(count)]
        expand_rows("INSERT INTO t VALUES (?)", rows)

    grows_with_its_length(bound)
    grows_with_its_length(expanded)


def test_tokenize_of_a_million_open_comments_raises_an_error() -> None:
    with pytest.raises(LexicalError):
        list(tokenize("/*" * 1_000_000 + "*/"))
