"""Tests of rules by table: they apply to the tables that a catalog call reports on."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from haproc.classify.bounds import Bounds
from haproc.classify.model import Kind, Touched, WriteConcern
from haproc.classify.names import Context
from haproc.classify.rules import Rule, parse_rules
from haproc.engine.interface import Settings
from haproc.failure import ErrorClass, RequestError
from haproc.reading.names import expression_classes
from haproc.reading.summary import touches
from haproc.reading.tree import Node, Reading, read
from haproc.route.classifying import Classifying
from haproc.route.model import Request, SentPlan, SentSql
from haproc.route.offload import Inline
from tests.unit.made_readings import node
from tests.unit.operations import insert, update
from tests.unit.recorded_plans import recorded as plan_of
from tests.unit.test_ruling import REFUSE, ring


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of names of schemas apart
@pytest.mark.parametrize(
    ("call", "refused"),
    [
        (lambda c: c.listColumns("t", "secret"), True),
        (lambda c: c.listColumns("secret.t"), True),
        (lambda c: c.getTable("spark_catalog.secret.t"), True),
        (lambda c: c.tableExists("secret.t"), True),
        (lambda c: c.isCached("secret.t"), True),
        (lambda c: c.getTable("t"), False),
        (lambda c: c.tableExists("t", "s"), False),
        (lambda c: c.listTables("secret"), False),
        (lambda c: c.databaseExists("secret"), False),
    ],
)
async def test_catalog_call_that_reports_on_a_table_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Any], Any], refused: bool
) -> None:
    async with ring(tmp_path, monkeypatch, REFUSE) as (_, a, _s):
        plan = plan_of(lambda s: call(s.catalog)).SerializeToString()
        request = Request("r", SentPlan(plan), "f")
        with pytest.raises(RequestError, match="secret") if refused else contextlib.nullcontext():
            await a.service.decide(request)


@pytest.mark.parametrize(
    ("place", "pattern", "touched"),
    [
        (["s"], "T | u", Touched(frozenset({"spark_catalog.s.t", "spark_catalog.s.u"}), False)),
        ([], "t", Touched(frozenset({"spark_catalog.here.t"}), False)),
        (["other", "s"], "t*", Touched(frozenset(), False, frozenset({"other.s"}))),
        (None, "t", Touched(frozenset(), False, frozenset({""}))),
    ],
)
def test_show_table_extended_touches_the_tables_that_it_reports_on(
    place: list[str] | None, pattern: str, touched: Touched
) -> None:
    namespace = node("Another")
    if place is not None:
        namespace = node("UnresolvedNamespace", multipartIdentifier=place)
    shown = node("ShowTablesExtended", namespace=namespace, pattern=pattern)
    reading = read(json.dumps({"parsed": shown, "analyzed": shown}), "SHOW TABLE EXTENDED")
    assert touches(reading, Context(schema="here")).touched == touched


def test_show_table_extended_of_a_partition_touches_its_table() -> None:
    table_ = node("UnresolvedTable", multipartIdentifier=["s", "t"])
    shown = node("ShowTablePartition", table=table_)
    reading = read(json.dumps({"parsed": shown, "analyzed": shown}), "SHOW TABLE EXTENDED")
    assert touches(reading, Context()).touched.tables == {"spark_catalog.s.t"}


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        ("spark_catalog.secret.*", True),
        ("spark_catalog.s?cret.t", True),
        ("*.t", True),
        ("spark_catalog.[rst]ecret.t", True),
        ("spark_catalog.secret2.*", False),
        ("spark_catalog.sec", True),  # in doubt
        ("other.*", False),
    ],
)
def test_refusing_rule_fits_a_schema_whose_tables_may_match(pattern: str, fits: bool) -> None:
    rule = Rule("r", refuse="no", table=pattern)
    shown = Touched(known=False, schemas=frozenset({"spark_catalog.secret"}))
    assert rule.fits(Kind.SHOW, shown) is fits
    assert rule.fits(Kind.SHOW, replace(shown, schemas=frozenset({""})))
    assert not rule.fits(Kind.SHOW, replace(shown, schemas=frozenset()))


async def test_ddl_without_computed_parts_is_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ring(tmp_path, monkeypatch, "- {user: nobody, refuse: nothing}") as (_, a, spark):
        understood = await a.service._understood(Request("r", SentSql("DROP TABLE t"), "f"))
        assert (await a.service._making.operation(understood)).operation.writes
        assert spark.looks == 1


async def test_forwarded_query_times_out_while_spark_parses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ring(tmp_path, monkeypatch, REFUSE) as (_, a, _s):
        monkeypatch.setattr(a.service._classifying, "_recognised", lambda *_: asyncio.sleep(60))
        request = Request("r", SentSql("SELECT update FROM t"), "f", timeout_s=0.1)
        with pytest.raises(RequestError) as caught:
            await a.service.query_for_peer(request, 0)
        assert caught.value.error_class == ErrorClass.TIMEOUT


async def test_statement_is_parsed_without_the_sessions_own_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a setting that keeps Spark from parsing can be reset."""
    async with ring(tmp_path, monkeypatch, REFUSE) as (_, a, spark):
        own = Settings(schema="s", confs=(("spark.sql.analyzer.maxIterations", "2"),))
        await a.service._classifying.text("RESET", own, "ann")
        assert spark.settings_ == Settings()


def test_expression_classes_include_those_that_the_analyzer_computes() -> None:
    computed = Node("Project", more=[Node("Upper", type="STRING")])
    reading = Reading("x", Node("Project"), Node("LocalRelation"), computed=(computed,))
    assert expression_classes(reading) == {"upper"}


async def test_concern_by_expression_is_the_same_for_a_retry() -> None:
    rules = parse_rules("rules: [{expression: pythonudf, write_concern: all}]")

    def nobody(*_: Any) -> Any:
        raise AssertionError("it is not parsed")

    classifying = Classifying(Inline(), rules, Bounds(), nobody, nobody)
    assert await classifying.concern_of(insert("x", "t")) is None
    assert await classifying.concern_of(update("x", "t")) is WriteConcern.ALL
