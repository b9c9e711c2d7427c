"""Statements that change a session, two at a time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from haproc.classify.model import Classified, OperationClass
from haproc.failure import FailureKind, RequestError, WriteOutcome
from haproc.route import session_statements
from haproc.route.analysis import Analysis
from haproc.route.classifying import Classifying
from haproc.route.session_statements import SessionStatements
from tests.unit import session_rig
from tests.unit.test_classify import classified


@pytest.mark.parametrize(
    "sql", ["DROP VIEW IF EXISTS v", "DROP TABLE v", "ALTER VIEW v AS SELECT 2"]
)
async def test_statement_that_finds_its_temporary_view_gone_changes_nothing_of_the_rings(
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

    async def confirmed(*_: Any) -> None:
        return None

    monkeypatch.setattr(session_statements, "temporary_views", temporary_views)
    monkeypatch.setattr(SessionStatements, "_run", run)
    member = session_rig.Ring().member()
    session = await member.sessions.enter("ada", "s1", create=True)
    session.holds_temporaries = True
    core = SimpleNamespace(timeouts=SimpleNamespace(statement_s=10.0), me="a")
    analysis = SimpleNamespace(confirm_session_statement=confirmed)
    statements = SessionStatements(
        cast(Any, core),
        member.sessions,
        cast(Classifying, None),
        cast(Analysis, analysis),
        session_rig.DEFAULTS,
    )

    async def client() -> None:
        own = await statements.owned(classified(sql), session)
        assert own.operation_class is OperationClass.SESSION
        await statements._change(session, own, cast(Any, None), "")

    first, second = await asyncio.gather(client(), client(), return_exceptions=True)
    assert first is None and ran == [sql]
    assert isinstance(second, RequestError)
    assert (second.kind, second.outcome) == (FailureKind.AVAILABILITY, WriteOutcome.NOT_SENT)
