"""Tests of rules by table: they apply to the tables that Spark's analysis finds in a statement."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from haproc import protos
from haproc.classify.model import Kind, OperationClass, RefusedError, WriteConcern
from haproc.classify.names import Context
from haproc.classify.plans.delta import DeltaCommand
from haproc.classify.rules import parse_rules
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.statement import SparkPlan, SqlText
from haproc.failure import RequestError
from haproc.reading.summary import explained, touches
from haproc.replicate.queue.facts import Facts
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus
from haproc.replicate.records.operation import Operation, from_record
from haproc.replicate.writes import WriteAttempt
from haproc.route.classifying import Understood
from haproc.route.model import Fit, Request, SentPlan, SentSql
from haproc.route.ruling import Ruled
from tests.readings.golden import recorded
from tests.unit import test_reads_between_doors as between
from tests.unit.made_readings import files, reading_json, table, view
from tests.unit.recorded_plans import recorded as plan_of
from tests.unit.test_cache_doors import ExplainingSpark, cached
from tests.unit.test_reads_between_doors import HAProc, Pair, Reads, pair

SECRET = "spark_catalog.secret.x"
OPEN = reading_json(table("spark_catalog.default.t"))
VIEW = reading_json(view("spark_catalog.default.v", table(SECRET)))
REFUSE = "- {table: spark_catalog.secret.*, refuse: secret}"
INSERT = "INSERT INTO t SELECT * FROM u"
"""The statement has a recorded reading."""


@dataclass
class ReadingSpark(ExplainingSpark):
    """A Spark whose reading of a text with `v` is the view's; the others are recorded."""

    texts: list[str] = field(default_factory=list)
    meanwhile: Callable[[], None] = lambda: None
    epoch: int = 0

    async def ready(self) -> None: ...

    async def reading(self, statement: SqlText | SparkPlan, **given: Any) -> str:
        self.looks += 1
        if isinstance(statement, SparkPlan):
            self.texts.append("a plan")
            return reading_json(view("spark_catalog.default.v", table(SECRET)))
        self.texts.append(statement.sql)
        self.meanwhile()
        if statement.sql.startswith(("INSERT", "UPDATE", "CREATE", "DROP")):
            return recorded(statement.sql).data
        if "wrong" in statement.sql:
            raise EngineError(ErrorKind.APPLICATION, "no such table")
        return (
            reading_json(files())
            if "csv" in statement.sql
            else VIEW
            if " v" in statement.sql
            else OPEN
        )


@contextlib.asynccontextmanager
async def ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: str, wait_s: float = 5.0
) -> AsyncIterator[tuple[Pair, HAProc, ReadingSpark]]:
    monkeypatch.setattr(between, "Spark", ReadingSpark)
    found = parse_rules(f"rules:\n{rules}")
    monkeypatch.setattr(between, "Rules", SimpleNamespace(builtin=lambda: found))
    async with pair(tmp_path, Reads(wait_s=wait_s)) as both:
        spark = both.a.spark
        assert isinstance(spark, ReadingSpark)
        yield both, both.a, spark


Begin: TypeAlias = Callable[..., AbstractAsyncContextManager[tuple[Pair, HAProc, ReadingSpark]]]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Begin:
    """Return a function that begins a ring with these rules."""
    folders = count()

    def begun(rules: str, wait_s: float = 5.0) -> Any:
        return ring(tmp_path / str(next(folders)), monkeypatch, rules, wait_s)

    return begun


def error_of(answer: dict[str, Any]) -> str:
    """Return the error class of an answer, or its final state."""
    return str(answer.get("error_class") or answer["status"]["state"])


async def test_query_of_a_view_over_a_refused_table_is_refused(begin: Begin) -> None:
    async with begin(REFUSE) as (both, a, spark):
        answer = await both.ask(a, "SELECT * FROM v")
        assert error_of(answer) == "HAPROC_REFUSED_BY_RULE", answer
        assert error_of(await both.ask(a, "SELECT * FROM t")) == "SUCCEEDED"
        assert spark.queries == ["SELECT * FROM t"]


async def test_query_that_the_executing_cluster_refuses_by_a_rule_is_refused(begin: Begin) -> None:
    async with begin(REFUSE, wait_s=0.2) as (both, a, spark):
        both.b.spark.go.clear()  # so it lags, and forwards what is to be fresh
        await both.ask(a, "INSERT INTO t VALUES (1)")
        fresh = {"consistency": "linearizable"}
        assert error_of(await both.ask(both.b, "SELECT * FROM t", **fresh)) == "SUCCEEDED"
        assert error_of(await both.ask(both.b, "SELECT * FROM v", **fresh)) == (
            "HAPROC_REFUSED_BY_RULE"
        )
        assert spark.queries == ["SELECT * FROM t"]
        both.b.spark.go.set()


async def test_query_is_analyzed_once_until_a_definition_changes(begin: Begin) -> None:
    async with begin(REFUSE) as (both, a, spark):
        for _ in range(3):
            assert error_of(await both.ask(a, "SELECT * FROM t")) == "SUCCEEDED"
        assert spark.looks == 1
        a.core.watermarks.defined()
        await both.ask(a, "SELECT * FROM t")
        assert spark.looks == 2


async def test_statement_is_refused_by_a_rule_on_its_expressions(begin: Begin) -> None:
    rules = "- {expression: AttributeRef*, refuse: nobody looks}"
    async with begin(rules) as (both, a, _):
        for sql in ("SELECT * FROM t", INSERT):
            assert error_of(await both.ask(a, sql)) == "HAPROC_REFUSED_BY_RULE"
        assert error_of(await both.ask(a, "INSERT INTO t VALUES (1)")) == "SUCCEEDED"


@pytest.mark.parametrize(
    "rules",
    [
        "- {user: bob, table: spark_catalog.secret.*, refuse: secret}",
        "- {kind: insert, table: spark_catalog.secret.*, refuse: secret}",
        "- {kind: select, cache: false}\n- {table: spark_catalog.secret.*, refuse: secret}",
        "- {table: spark_catalog.secret.*, write_concern: all}",
    ],
    ids=["of another", "of another kind", "behind one that decides", "of writes"],
)
async def test_query_without_a_deciding_rule_by_table_is_not_analyzed(
    begin: Begin, rules: str
) -> None:
    async with begin(rules) as (both, a, spark):
        assert error_of(await both.ask(a, "SELECT * FROM v")) == "SUCCEEDED"
        assert spark.looks == 0


async def test_query_whose_tables_spark_does_not_show_is_refused_by_a_refusing_rule(
    begin: Begin,
) -> None:
    async with begin(REFUSE) as (both, a, spark):
        answer = await both.ask(a, "SELECT * FROM csv_reader")
        assert error_of(answer) == "HAPROC_REFUSED_BY_RULE"
        assert error_of(await both.ask(a, "SELECT wrong")) not in (
            "SUCCEEDED",
            "HAPROC_REFUSED_BY_RULE",
        )
        assert spark.queries == []


async def test_explained_query_is_analyzed_for_its_tables(begin: Begin) -> None:
    async with begin(REFUSE) as (both, a, spark):
        assert error_of(await both.ask(a, "EXPLAIN EXTENDED SELECT * FROM v")) == (
            "HAPROC_REFUSED_BY_RULE"
        )
        assert error_of(await both.ask(a, "EXPLAIN SELECT * FROM t")) == "SUCCEEDED"
        assert spark.texts == ["SELECT * FROM v", "SELECT * FROM t"]


async def test_reading_of_a_query_is_not_used_for_describe_or_explain(begin: Begin) -> None:
    async with begin(REFUSE) as (both, a, spark):
        for text in ("DESCRIBE v", "EXPLAIN SELECT * FROM v"):
            understood = await a.service._understood(Request("r", SentSql(text), "f"))
            readings = a.service._making.readings
            await readings.query(SqlText(text), understood.settings, "")  # whatever that comes to
            looks = spark.looks
            assert error_of(await both.ask(a, text)) == "HAPROC_REFUSED_BY_RULE"
            assert spark.looks == looks + 1


async def test_cached_answer_is_given_only_if_the_rules_allow_caching(begin: Begin) -> None:
    rules = "- {table: spark_catalog.secret.*, cache: false}\n- {name: dash, cache: true}"
    async with begin(rules) as (both, a, spark):
        for hit in (False, True):
            assert (await cached(both, a, "SELECT name FROM t") or {})["hit"] is hit
        for _ in range(2):
            assert await cached(both, a, "SELECT name FROM v") is None
        assert len(spark.queries) == 3
        assert spark.looks == 2  # one reading tells the rules, and what the answer rests on


async def test_write_that_reads_a_refused_table_is_refused_and_not_in_the_log(begin: Begin) -> None:
    rules = "- {table: spark_catalog.default.u, refuse: secret}"
    async with begin(rules) as (both, a, _):
        assert error_of(await both.ask(a, INSERT)) == "HAPROC_REFUSED_BY_RULE"
        assert error_of(await both.ask(a, "INSERT INTO u VALUES (1)")) == "HAPROC_REFUSED_BY_RULE"
        assert error_of(await both.ask(a, "INSERT INTO t VALUES (1)")) == "SUCCEEDED"
        entries = [from_record(each.record) for each in await a.core.log.read(0)]
        assert len([each for each in entries if isinstance(each, Operation)]) == 1


async def test_write_gets_budget_and_concern_by_the_tables_that_it_reads(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = "- {table: '*.u', apply_budget_s: 9, write_concern: majority}"
    async with begin(rules) as (_, a, _):
        made: list[Operation] = []

        async def write(request: Request, make: Any, logged: Any) -> WriteAttempt:
            if request.id == "r":
                made.append(await make())
            return WriteAttempt(Facts.of(made[0]), 7, OperationOutcome(OutcomeStatus.APPLIED))

        async def operation(offset: int) -> Operation:
            return made[0]

        monkeypatch.setattr(a.service._attempts, "write", write)
        monkeypatch.setattr(a.service._attempts, "operation", operation)
        for each in ("r", "known to the log"):
            understood = await a.service._understood(Request(each, SentSql(INSERT), "f"))
            _, concern = await a.service._write(understood, 0)
            assert concern is WriteConcern.MAJORITY
        assert made[0].apply_budget_s == 9


async def test_write_gets_its_class_by_the_tables_that_it_reads(begin: Begin) -> None:
    rules = "- {table: '*.u', class: synchronous_parallel}"
    async with begin(rules) as (_, a, _):
        understood = await a.service._understood(Request("r", SentSql(INSERT), "f"))
        assert understood.statement.operation_class is OperationClass.ASYNCHRONOUS
        made = await a.service._making.operation(understood)
        assert made.operation.operation_class is OperationClass.SYNCHRONOUS_PARALLEL


async def test_query_that_a_rule_by_table_makes_synchronous_becomes_a_write(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = "- {kind: select, table: spark_catalog.secret.*, class: synchronous}"
    async with begin(rules) as (both, a, spark):
        written = []

        async def write(understood: Understood, since: int) -> Any:
            written.append(understood.statement)
            raise EngineError(ErrorKind.APPLICATION, "as far as that")

        monkeypatch.setattr(a.service, "_write", write)
        await both.ask(a, "SELECT * FROM v")
        await both.ask(a, "SELECT * FROM t")
        assert [each.operation_class for each in written] == [OperationClass.SYNCHRONOUS]
        assert spark.queries == ["SELECT * FROM t"]


async def test_query_whose_names_changed_while_it_started_is_not_answered(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with begin(REFUSE) as (both, a, spark):
        definitions = a.core.log_state.definitions
        spark.meanwhile = a.core.watermarks.defined
        assert error_of(await both.ask(a, "SELECT * FROM t")) == "SUCCEEDED"  # of other names
        monkeypatch.setattr(definitions, "unchanged", lambda names, since: False)
        assert error_of(await both.ask(a, "SELECT * FROM t")) == "HAPROC_NOT_FRESH"


async def test_query_is_not_answered_while_its_names_are_being_redefined(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with begin(REFUSE) as (both, a, _):
        op = SimpleNamespace()
        running = SimpleNamespace(running=True, op=op)
        monkeypatch.setattr(a.core.schedule, "unfinished", lambda: iter([running]))
        for op.kind, defined, state in (
            (Kind.CREATE_VIEW, frozenset({"spark_catalog.default.t"}), "HAPROC_NOT_FRESH"),
            (Kind.UNKNOWN, None, "HAPROC_NOT_FRESH"),
            (Kind.CREATE_VIEW, frozenset({"spark_catalog.default.other"}), "SUCCEEDED"),
            (Kind.INSERT, frozenset({"spark_catalog.default.t"}), "SUCCEEDED"),  # new columns
        ):
            monkeypatch.setattr(
                "haproc.route.ruling.redefined", lambda op, defined=defined: defined
            )
            assert error_of(await both.ask(a, "SELECT * FROM t")) == state


async def test_session_cannot_create_a_view_of_a_refused_table(begin: Begin) -> None:
    text = "CREATE TEMPORARY VIEW v AS SELECT * FROM t"
    rules = "- {table: spark_catalog.default.t, refuse: secret}"
    async with begin(rules) as (both, a, spark):
        url = a.config.url(a.config.cluster("a").listen) + "/api/ha/sessions/s"
        async with both.http.put(url, json={"statements": [text]}) as response:
            assert "HAPROC_REFUSED_BY_RULE" in await response.text()
        assert spark.queries == []
        assert spark.looks == 2  # the parser, and the analyzer


FUNCTION = "CREATE FUNCTION g() RETURNS INT RETURN (SELECT max(a) FROM t)"


async def test_function_is_refused_by_the_tables_that_its_body_reads(begin: Begin) -> None:
    async with begin(REFUSE) as (_, a, _s):
        understood = await a.service._understood(Request("r", SentSql(FUNCTION), "f"))
        made = await a.service._making.operation(understood)
        assert not made.operation.tables_known  # who calls it is not told apart
        assert made.operation.reads == {"spark_catalog.default.t"}
    rules = "- {table: spark_catalog.default.t, refuse: secret}"
    async with begin(rules) as (both, a, _):
        assert error_of(await both.ask(a, FUNCTION)) == "HAPROC_REFUSED_BY_RULE"


async def test_schema_is_created_despite_refused_tables_and_a_cascading_drop_is_refused(
    begin: Begin,
) -> None:
    async with begin(REFUSE) as (both, a, _):
        understood = await a.service._understood(Request("r", SentSql("CREATE SCHEMA s"), "f"))
        assert (
            await a.service._making.operation(understood)
        ).operation.kind is Kind.CREATE_NAMESPACE
        assert error_of(await both.ask(a, "DROP SCHEMA s CASCADE")) == "HAPROC_REFUSED_BY_RULE"


async def test_plan_is_refused_by_the_tables_that_its_dataframes_read(begin: Begin) -> None:
    async with begin(REFUSE) as (_, a, spark):
        plan = plan_of(lambda s: s.table("v").summary().collect()).SerializeToString()
        request = Request("r", SentPlan(plan), "f")
        with pytest.raises(RequestError) as caught:
            await a.service.decide(request)
        assert caught.value.error_class == "HAPROC_REFUSED_BY_RULE"
        assert spark.looks == 1


async def test_cached_answer_is_not_given_if_its_names_changed_while_the_query_waited(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = "- {table: spark_catalog.secret.*, refuse: secret}\n- {name: dash, cache: true}"
    async with begin(rules) as (both, a, _):
        for hit in (False, True):
            assert (await cached(both, a, "SELECT name FROM t") or {})["hit"] is hit
        remembered = a.service._ruling.remembered
        monkeypatch.setattr(
            a.service._ruling,
            "remembered",
            lambda understood: replace(
                remembered(understood) or Ruled(understood), still=lambda: False
            ),
        )
        answer = await both.ask(a, "SELECT name FROM t")
        assert error_of(answer) == "HAPROC_NOT_FRESH"


@pytest.mark.parametrize(
    "program",
    [
        lambda s: s.createDataFrame([(1,)], "a long").writeTo("t").append(),
        lambda s: s.createDataFrame([(1,)], "a long").write.insertInto("t"),
    ],
)
async def test_rules_apply_to_an_append_of_rows_that_is_not_analyzed(
    begin: Begin, program: Callable[[Any], Any]
) -> None:
    request = Request("r", SentPlan(plan_of(program).SerializeToString()), "f")
    async with begin("- {table: '*.t', class: synchronous}") as (_, a, _s):
        made = await a.service._making.operation(await a.service._understood(request))
        assert made.operation.operation_class is OperationClass.SYNCHRONOUS
    async with begin("- {table: '*.t', refuse: secret}") as (_, a, _s):
        with pytest.raises(RefusedError, match="secret"):
            await a.service._making.operation(await a.service._understood(request))


async def test_clone_is_refused_by_the_table_that_it_names(begin: Begin) -> None:
    command, plan = DeltaCommand(), protos.base.Plan()
    command.clone_table.table.table_or_view_name = "secret.x"
    command.clone_table.target = "t"
    plan.command.extension.Pack(command)
    request = Request("r", SentPlan(plan.SerializeToString()), "f")
    async with begin(REFUSE) as (_, a, _s):
        with pytest.raises(RefusedError, match="secret"):
            await a.service._making.operation(await a.service._understood(request))


async def test_catalog_call_is_refused_by_the_table_that_it_names(begin: Begin) -> None:
    async with begin("- {table: '*.t', refuse: secret}") as (_, a, _s):
        plan = plan_of(lambda s: s.catalog.cacheTable("t")).SerializeToString()
        with pytest.raises(RequestError) as caught:
            await a.service.decide(Request("r", SentPlan(plan), "f"))
        assert caught.value.error_class == "HAPROC_REFUSED_BY_RULE"


async def test_plan_that_changes_its_session_is_valid_until_the_session_changes_otherwise(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with begin("- {table: '*.other', refuse: no}") as (_, a, _s):
        await a.service.open_session("s", "ann", [], afresh=True)
        plan = plan_of(lambda s: s.table("t").createTempView("x")).SerializeToString()
        request = Request("r", SentPlan(plan), "f", "ann", session_id="s")
        fit = await a.service.decide(request)
        assert isinstance(fit, Fit)
        session = await a.service.enter_session("s", "ann")
        async with a.service.sessions.changing(session):
            assert fit.still()
            monkeypatch.setattr(
                a.core.log_state.definitions, "unchanged", lambda names, since: False
            )
            a.core.watermarks.defined()
            assert not fit.still()
            monkeypatch.undo()
            assert fit.still()
        async with a.service.sessions.changing(session):
            assert not fit.still()


# -- what a statement touches


@pytest.mark.parametrize(
    ("sql", "inner"),
    [
        ("EXPLAIN SELECT 1", "SELECT 1"),
        ("EXPLAIN  EXTENDED (SELECT 1)", "(SELECT 1)"),
        ("DESC QUERY SELECT 1", "SELECT 1"),
        ("DESCRIBE WITH c AS (SELECT 1) SELECT * FROM c", "WITH c AS (SELECT 1) SELECT * FROM c"),
        ("EXPLAIN", ""),
    ],
)
def test_explained_returns_the_inner_statement(sql: str, inner: str) -> None:
    assert explained(sql) == inner


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SHOW TBLPROPERTIES s.t ('x')", {"spark_catalog.s.t"}),
        ("DESCRIBE DETAIL s.t", {"spark_catalog.s.t"}),
        ("CREATE OR REPLACE TEMP VIEW v AS SELECT * FROM t", {"spark_catalog.default.t"}),
        ("CACHE TABLE v AS SELECT * FROM t", {"spark_catalog.default.t"}),
        (INSERT, {"spark_catalog.default.t", "spark_catalog.default.u"}),
    ],
)
def test_touches_contains_the_tables_that_a_statement_reads_and_writes(
    sql: str, tables: set[str]
) -> None:
    found = touches(recorded(sql).reading(sql), Context())
    assert (found.touched.tables, found.touched.known) == (set(tables), True)


def test_touches_of_a_function_or_a_described_query_contains_the_part_to_analyze() -> None:
    sql = "CREATE TEMPORARY FUNCTION f(a INT) RETURNS INT RETURN a + 1"
    assert touches(recorded(sql).reading(sql), Context()).function is not None
    sql = "DESCRIBE QUERY SELECT * FROM t"
    assert touches(recorded(sql).reading(sql), Context()).inner == "SELECT * FROM t"
