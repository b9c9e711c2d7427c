"""Tests of the applied offset that a query shows, by the tables that Spark's analysis names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from haproc import protos
from haproc.classify.model import Classified, Kind, OperationClass
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Settings
from haproc.engine.statement import SparkPlan, SqlText
from haproc.reading.judge import JudgedQuery, judge_query
from haproc.reading.tree import Facts
from haproc.replicate.log_state.definitions import Definitions
from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.queue.units import BatchLimits
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.progress import Progress
from haproc.route.caching import Narrowing
from haproc.route.classifying import Understood
from haproc.route.model import Request, SentPlan, SentSql
from haproc.route.readings import ANY_MOMENT, on_reading
from tests.unit.made_readings import files, reading_json, table, view
from tests.unit.operations import ddl, insert, table_as, table_ddl, unknown_tables

X = "spark_catalog.s.x"
Y = "spark_catalog.s.y"
SLOW = "spark_catalog.s.slow"
OF_VIEW = reading_json(view("spark_catalog.s.v", table(X)))
OF_FILES = reading_json(files())


def reading(*tables: str) -> str:
    """Return the reading of a query of these tables."""
    return reading_json(
        *(table(each, "parquet" if each.endswith(".v") else "delta") for each in tables)
    )


class Cluster:
    """A cluster that has read some records, and its Spark's reading of one query."""

    def __init__(self, reading_text: str = "") -> None:
        self.schedule = Schedule("a", Progress(), 0, BatchLimits())
        self.definitions = Definitions(1_000)
        self.reading_text = reading_text
        self.analyzed = 0
        self.watermarks = SimpleNamespace(definitions_applied=0)
        self.meanwhile: Callable[[], None] = lambda: None
        core: Any = SimpleNamespace(
            schedule=self.schedule,
            log_state=SimpleNamespace(definitions=self.definitions),
            watermarks=self.watermarks,
        )
        self.narrowing = Narrowing(core, self)  # type: ignore[arg-type]

    # -- stands for haproc.route.readings

    async def query(
        self, statement: SqlText | SparkPlan, settings: Settings, user: str
    ) -> JudgedQuery:
        self.analyzed += 1
        if not self.reading_text:
            raise EngineError(ErrorKind.APPLICATION, "no such table")
        self.meanwhile()
        return on_reading(self.reading_text, "", judge_query, Facts(), ANY_MOMENT)

    # -- the log

    def read(self, *operations: Operation) -> None:
        for op in operations:
            offset = self.schedule.read_to
            self.definitions.note(offset, op)
            self.schedule.enter_operation(offset, op)

    def find_bound(self, session: Any = None) -> Callable[[], int] | None:
        """Return a function that computes the offset below which the query shows everything."""
        sql = "SELECT …"
        tables = frozenset[str]()
        statement = Classified(
            sql, Kind.SELECT, OperationClass.QUERY, tables, tables, True, "default"
        )
        understood = Understood(Request("r", SentSql(sql), "", "u"), session, Settings(), statement)
        return asyncio.run(self.narrowing.applied(understood))

    def applied(self) -> int | None:
        """Return that offset now; None if it is not known."""
        bound = self.find_bound()
        return None if bound is None else bound()


def slow() -> Operation:
    return table_as("slow", Y, SLOW, origin="b")


def test_query_does_not_wait_for_a_table_being_computed_that_it_does_not_read() -> None:
    cluster = Cluster(reading(X))
    cluster.read(insert("0", X))
    cluster.read(slow())
    assert cluster.applied() == 0
    (unit,) = cluster.schedule.take(4)
    cluster.schedule.complete(unit)
    cluster.schedule.release(unit)
    assert cluster.schedule.low == 1
    assert cluster.applied() == 2


def test_query_waits_for_the_first_operation_that_may_change_one_of_its_tables() -> None:
    cluster = Cluster(reading(X, Y))
    cluster.read(slow(), insert("1", Y), insert("2", X))
    assert cluster.applied() == 1


@pytest.mark.parametrize(
    ("exclusive", "applied"),
    [(ddl("z", "b"), 1), (table_ddl("z", Y, "b"), 1), (unknown_tables("1"), 0)],
    ids=["DDL", "DDL of a table", "may define anything anew"],
)
def test_query_waits_for_an_exclusive_operation_on_any_tables(
    exclusive: Operation, applied: int
) -> None:
    cluster = Cluster(reading(X))
    cluster.read(slow(), exclusive)
    assert cluster.applied() == applied


@pytest.mark.parametrize(
    "plan",
    [reading("spark_catalog.s.v"), OF_FILES, reading("other.s.x"), ""],
    ids=["no Delta", "files", "another catalog", "Spark refuses it"],
)
def test_query_of_more_than_plain_tables_waits_for_everything(plan: str) -> None:
    cluster = Cluster(plan)
    cluster.read(slow())
    assert cluster.applied() is None


def test_query_in_a_session_waits_for_everything() -> None:
    cluster = Cluster(reading(X))
    cluster.read(slow())
    assert cluster.find_bound(session=object()) is None
    assert cluster.analyzed == 0


@pytest.mark.parametrize(
    ("plan", "name"), [(reading(X), X), (OF_VIEW, "spark_catalog.s.v")], ids=["table", "view"]
)
def test_query_whose_table_or_view_may_become_another_one_waits_for_everything(
    plan: str, name: str
) -> None:
    cluster = Cluster(plan)
    cluster.read(slow())
    assert cluster.applied() == 1
    cluster.read(table_ddl("1", name, "a"))
    assert cluster.applied() == cluster.schedule.low == 0


def test_query_waits_for_everything_if_its_table_is_redefined_after_the_analysis() -> None:
    cluster = Cluster(reading(X))
    cluster.read(slow())
    bound = cluster.find_bound()
    assert bound is not None
    assert bound() == 1
    cluster.read(table_as("1", Y, X, origin="b"))
    assert bound() == cluster.schedule.low == 0


def test_query_waits_for_everything_if_a_definition_changes_during_the_analysis() -> None:
    cluster = Cluster(reading(X))
    cluster.read(slow())

    def defined() -> None:
        cluster.watermarks.definitions_applied += 1

    cluster.meanwhile = defined
    assert cluster.applied() is None


# -- in a client's session ---------------------------------------------------------------------


class OfSession(Cluster):
    """A cluster whose query arrives as a plan, and is run in its client's session."""

    def __init__(self, plan: str, query: Any = None, *also: str) -> None:
        super().__init__(plan)
        self.sent = query if query is not None else table_plan()
        self.reads = frozenset({X, *also})
        self.session: Any = SimpleNamespace(
            holds_temporaries=False, handles=set(), changes=0, unchanged=self._unchanged
        )

    def _unchanged(self) -> Callable[[], bool]:
        now = self.session.changes
        return lambda: bool(self.session.changes == now)

    def find_bound(self, session: Any = None) -> Callable[[], int] | None:
        statement = Classified(
            "", Kind.SELECT, OperationClass.QUERY, self.reads, frozenset(), True, "default"
        )
        sent = SentPlan(self.sent.SerializeToString())
        request = Request("r", sent, "", "u", session_id="s")
        understood = Understood(request, self.session, Settings(), statement)
        return asyncio.run(self.narrowing.applied_in(understood, self.session))


def table_plan() -> Any:
    plan = protos.base.Plan()
    plan.root.read.named_table.unparsed_identifier = X
    return plan


def shown(plan: Any) -> Any:
    over = protos.base.Plan()
    over.root.show_string.input.CopyFrom(plan.root)
    return over


def counted(plan: Any) -> Any:
    over = protos.base.Plan()
    over.root.crosstab.input.CopyFrom(plan.root)
    return over


def over_text(sql: str) -> Any:
    plan = protos.base.Plan()
    plan.root.limit.input.sql.query = sql
    return plan


def beside(cluster: OfSession) -> OfSession:
    """Let the cluster read that a table is computed that the query does not read."""
    cluster.read(slow())
    return cluster


@pytest.mark.parametrize("query", [table_plan(), shown(table_plan()), over_text("SELECT a FROM x")])
def test_plan_in_a_session_waits_for_its_own_tables_only(query: Any) -> None:
    assert beside(OfSession(reading(X), query)).applied() == 1


@pytest.mark.parametrize(
    "query",
    [
        counted(table_plan()),
        over_text("SHOW TABLES"),
        over_text("DESCRIBE x"),
        protos.base.Plan(),
    ],
)
def test_plan_that_spark_runs_during_its_analysis_waits_for_everything(query: Any) -> None:
    assert beside(OfSession(reading(X), query)).applied() is None


def test_plan_that_reads_more_than_its_analysis_shows_waits_for_everything() -> None:
    assert beside(OfSession(reading(X), None, Y)).applied() is None


def test_query_of_a_session_with_temporary_objects_waits_for_everything() -> None:
    for what in ({"holds_temporaries": True}, {"handles": {"checkpoint"}}):
        cluster = beside(OfSession(reading(X)))
        vars(cluster.session).update(what)
        assert cluster.applied() is None


def test_query_of_a_session_that_changes_meanwhile_waits_for_everything() -> None:
    cluster = beside(OfSession(reading(X)))
    bound = cluster.find_bound()
    assert bound is not None and bound() == 1
    cluster.session.changes += 1
    assert bound() == 0
