"""Tests of statements that change a session: concurrent, repeated, and when Spark is lost."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from haproc.classify.classifier import decided
from haproc.classify.model import Classified, Kind, OperationClass, Recognised, Touched
from haproc.classify.names import Context
from haproc.classify.rules import Rule, Rules
from haproc.engine.interface import Settings
from haproc.engine.statement import SqlText
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome
from haproc.reading.summary import Touches
from haproc.route import session_statements
from haproc.route.classifying import Classifying
from haproc.route.offload import Inline
from haproc.route.readings import Readings
from haproc.route.ruling import Ruling
from haproc.route.session_statements import SessionStatements, leaves_something
from haproc.sessions.client import REQUESTS_REMEMBERED, BeginningIds, ClientSession
from haproc.sessions.journal import SqlEntry
from tests.unit import session_rig
from tests.unit.test_classify import classified as of_text

KINDS = {"USE": Kind.USE, "CACHE": Kind.CACHE, "CREATE TEMPORARY VIEW": Kind.TEMPORARY_VIEW}


async def nothing(*_: Any) -> None:
    pass


def classified(sql: str) -> Classified:
    """Return a statement's class as Spark's parser determines it, or the recorded one."""
    kind = next((kind for begins, kind in KINDS.items() if sql.startswith(f"{begins} ")), None)
    if kind is None:
        return of_text(sql)
    return decided(Recognised(kind), sql, Context(), Rules.builtin())


READINGS = cast(Readings, SimpleNamespace(of_session=nothing, epoch=int))
SETS = "SET spark.sql.shuffle.partitions=3"


def statements_of(
    member: session_rig.Member, readings: Readings = READINGS, *, same: bool = True
) -> SessionStatements:
    """Return a runner of session statements; ``same``: no name is redefined meanwhile."""
    core = SimpleNamespace(
        timeouts=SimpleNamespace(statement_s=10.0),
        me="a",
        health=SimpleNamespace(suspect=lambda message: None),
        schedule=SimpleNamespace(low=0, unfinished=lambda: iter(())),
        log_state=SimpleNamespace(definitions=SimpleNamespace(unchanged=lambda names, since: same)),
    )

    async def text(sql: str, *_: Any, **__: Any) -> Classified:
        return classified(sql)

    classifying = cast(Classifying, SimpleNamespace(text=text))
    return SessionStatements(
        cast(Any, core),
        member.sessions,
        classifying,
        Ruling(cast(Any, core), readings, Inline()),
        session_rig.DEFAULTS,
    )


def given(session: ClientSession) -> Settings:
    """Return the settings in force in Spark."""
    assert isinstance(session.spark, session_rig.FakeSpark)
    return session.spark.given


async def use(member: session_rig.Member, schema: str, request_id: str) -> str:
    """Return the session's schema after a USE."""
    session = await member.sessions.enter("ada", "s1", create=True)
    sql = f"USE {schema}"
    await statements_of(member)._change(session, classified(sql), SqlText(sql), request_id)
    return session.settings.schema


async def test_use_is_not_acknowledged_if_spark_is_lost_right_after_it() -> None:
    member = session_rig.Ring().member()
    member.engine.lost_behind["USE prod"] = 3
    with pytest.raises(RequestError) as raised:
        await use(member, "prod", "r1")
    assert raised.value.kind is FailureKind.AVAILABILITY
    assert await use(member, "prod", "r1") == "prod"  # the client asks again: it is lost once more
    session = await member.sessions.enter("ada", "s1", create=False)
    assert (await session.spark.settings()).schema == "prod"


async def test_late_copy_of_a_use_undoes_no_later_change() -> None:
    ring = session_rig.Ring()
    a, b = ring.member("a"), ring.member("b")
    await a.sessions.enter("ada", "s1", create=True)
    assert await use(b, "staging", "r1") == "staging"  # a is frozen, and has r1 in its socket
    assert await use(b, "staging", "r2") == "staging"  # changes nothing, and is known all the same
    for number in range(REQUESTS_REMEMBERED - 3):
        await use(b, f"other{number}", f"o{number}")
    assert await use(b, "prod", "r3") == "prod"
    for late in ("r1", "r2"):
        assert await use(a, "staging", late) == "prod"
    assert len((await a.sessions.enter("ada", "s1", create=False)).entries) == 1


@pytest.mark.parametrize("many", [2, REQUESTS_REMEMBERED + 5])
async def test_beginning_that_failed_in_the_middle_continues_where_it_was(many: int) -> None:
    member = session_rig.Ring().member()
    begin_with = [f"USE s{number}" for number in range(many)]
    member.engine.lost_behind[begin_with[-1]] = 2

    async def put() -> str:
        session = await member.sessions.enter("ada", "s1", create=True)
        await statements_of(member).begin(session, begin_with)
        return session.settings.schema

    with pytest.raises(RequestError):
        await put()
    assert await put() == f"s{many - 1}"
    (spark,) = member.engine.made
    ran = [sql for _, _, sql in (each.partition(": ") for each in spark.ran)]
    assert ran == begin_with[-1:]  # in the session that was made anew
    assert await put() == f"s{many - 1}"
    begin_with = ["USE other", *begin_with, "USE more"]
    assert await put() == f"s{many - 1}"  # it has begun with others
    await use(member, "mine", "r1")
    assert await put() == "mine"


async def test_query_of_a_setting_is_answered_at_each_repetition_and_adds_no_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = session_rig.Ring().member()
    session = await member.sessions.enter("ada", "s1", create=True)
    await use(member, "prod", "r1")
    statements, shown = statements_of(member), [b"key, value"]

    async def chunks(*_: Any) -> list[bytes]:
        return shown

    async def rows(*_: Any) -> list[Any]:
        return []

    monkeypatch.setattr(SessionStatements, "_chunks", chunks)
    monkeypatch.setattr(session_statements, "rows_of", rows)
    monkeypatch.setattr(session_statements, "settings_after", lambda *_: session.settings)
    for sql in ("SET spark.sql.shuffle.partitions", "SET -v", "SET"):
        for _ in range(2):
            returned = await statements._change(session, classified(sql), SqlText(sql), sql[-3:])
            assert returned == shown
    (step,) = session.entries
    assert step.request_ids == ("r1",)
    await statements._change(session, classified(SETS), SqlText(SETS), "r2")
    assert session.entries[0].request_ids == ("r1", "r2")


async def test_use_that_changes_nothing_adds_no_entry() -> None:
    member = session_rig.Ring().member()
    session = await member.sessions.enter("ada", "s1", create=True)
    await member.sessions.record(session, SqlEntry("CREATE TEMPORARY VIEW v AS SELECT 1"), "v")
    for number in range(3):
        await use(member, "default", f"r{number}")
    assert len(session.entries) == 1


@pytest.mark.parametrize(
    "sql", ["DROP VIEW IF EXISTS v", "DROP TABLE v", "ALTER VIEW v AS SELECT 2"]
)
async def test_statement_whose_temporary_view_is_gone_changes_no_table_of_the_ring(
    sql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    views, ran = {"v"}, list[str]()

    async def temporary_views(*_: Any) -> frozenset[str]:
        await asyncio.sleep(0)
        return frozenset(views)

    async def run(_: Any, session: Any, statement: Classified, *__: Any) -> list[bytes]:
        await asyncio.sleep(0.01)
        ran.append(statement.sql)
        views.clear()
        return []

    monkeypatch.setattr(session_statements, "temporary_views", temporary_views)
    monkeypatch.setattr(SessionStatements, "_run", run)
    member = session_rig.Ring().member()
    session = await member.sessions.enter("ada", "s1", create=True)
    session.holds_temporaries = True
    statements = statements_of(member)

    async def client() -> None:
        own = await statements.owned(classified(sql), session)
        assert own.operation_class is OperationClass.SESSION
        await statements._change(session, own, cast(Any, None), "")

    first, second = await asyncio.gather(client(), client(), return_exceptions=True)
    assert first is None and ran == [sql]
    assert isinstance(second, RequestError)
    assert (second.kind, second.outcome) == (FailureKind.AVAILABILITY, WriteOutcome.NOT_SENT)


async def test_session_is_not_rebuilt_if_a_name_changed_its_meaning_before_the_statement_ran(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing ran in it: to rebuild it would lose its cached tables for nothing."""

    async def no_views(*_: Any) -> frozenset[str]:
        return frozenset()

    monkeypatch.setattr(session_statements, "temporary_views", no_views)
    member = session_rig.Ring().member()
    session = await member.sessions.enter("ada", "s1", create=True)
    await session.spark.settings()
    sql = "DROP VIEW v"
    with pytest.raises(RequestError) as raised:
        await statements_of(member)._change(session, classified(sql), SqlText(sql), "r1")
    assert raised.value.outcome is WriteOutcome.NOT_SENT
    assert session.spark.stands


VIEW = "CREATE TEMPORARY VIEW v AS SELECT * FROM u"


@pytest.mark.parametrize("sql", [VIEW, "CACHE TABLE u", "CACHE TABLE v AS SELECT * FROM u"])
@pytest.mark.parametrize("same", [True, False])
async def test_effect_of_a_statement_is_undone_if_its_names_were_redefined(
    sql: str, same: bool
) -> None:
    """The rules were applied to the meaning that a name had before the statement ran."""
    member = session_rig.Ring().member()
    session = await member.sessions.enter("ada", "s1", create=True)

    async def of_session(*_: Any) -> Touches:
        return Touches(Touched(frozenset({"spark_catalog.default.u"})))

    epochs = itertools.count()
    readings = cast(Readings, SimpleNamespace(of_session=of_session, epoch=lambda: next(epochs)))
    statement = replace(classified(sql), rules=(Rule("r", refuse="no", table="*.secret"),))
    change = statements_of(member, readings, same=same)._change
    if same:
        await change(session, statement, SqlText(sql), "r1")
        assert len(session.entries) == leaves_something(statement.kind, sql)
        assert session.spark.stands
        return
    with pytest.raises(RequestError) as raised:
        await change(session, statement, SqlText(sql), "r1")
    assert raised.value.error_class == ErrorClass.NOT_FRESH
    assert not session.entries and not session.spark.stands
    assert not session.has_recorded("r1")


async def test_effect_of_a_statement_is_undone_if_another_one_changed_the_session_before() -> None:
    member = session_rig.Ring().member()
    session = await member.sessions.enter("ada", "s1", create=True)

    async def of_session(*_: Any) -> Touches:
        async with member.sessions.changing(session):  # by another statement
            return Touches(Touched())

    readings = cast(Readings, SimpleNamespace(of_session=of_session, epoch=int))
    statement = replace(classified(VIEW), rules=(Rule("r", refuse="no", table="*.secret"),))
    with pytest.raises(RequestError) as raised:
        await statements_of(member, readings)._change(session, statement, SqlText(VIEW), "r1")
    assert raised.value.error_class == ErrorClass.NOT_FRESH


async def test_view_that_an_earlier_beginning_dropped_still_counts_as_the_sessions_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the journal this step has run, also if the name has another meaning now."""
    begin_with = ["CREATE TEMPORARY VIEW v AS SELECT 1", "DROP VIEW v", "USE prod"]
    views = {"v"}

    async def temporary_views(*_: Any) -> frozenset[str]:
        return frozenset(views)

    monkeypatch.setattr(session_statements, "temporary_views", temporary_views)
    member = session_rig.Ring().member()
    session = await member.sessions.enter("ada", "s1", create=True)
    statements = statements_of(member)
    ids = BeginningIds.of(begin_with)
    for number, sql in enumerate(begin_with[:2]):
        await statements._change(session, classified(sql), SqlText(sql), ids.of_number(number))
    views.clear()
    monkeypatch.setattr(ClientSession, "begun_with", lambda *_: 1)  # its last answer was lost
    await statements.begin(session, begin_with)
    assert session.settings.schema == "prod"
