"""Statements that change a client's session: run in it, and its settings read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from haproc.classify.model import Classified, Kind, OperationClass, RefusedError
from haproc.classify.rules import WRITING_KINDS
from haproc.engine.errors import EngineError
from haproc.engine.interface import Settings
from haproc.engine.statement import SqlText, Statement
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome
from haproc.replicate.member.core import Core
from haproc.route.analysis import Analysis
from haproc.route.answering import failed
from haproc.route.classifying import Classifying, Understood, as_it_runs
from haproc.route.failing import refused
from haproc.route.model import Answer, HaReport
from haproc.route.sessions import ClientSession, Sessions, settings_after
from haproc.route.streams import Collected
from haproc.route.views import changes_temporary, rows_of, temporary_views


class SessionStatements:
    """See the module. Methods raise RequestError."""

    def __init__(
        self,
        core: Core,
        sessions: Sessions,
        classifying: Classifying,
        analysis: Analysis,
        defaults: Settings,
    ) -> None:
        self._core = core
        self._sessions = sessions
        self._classifying = classifying
        self._analysis = analysis
        self._defaults = defaults

    async def replay(self, session: ClientSession, journal: Sequence[str]) -> None:
        """Run a journal in a session that was just opened."""
        await self._configure(session)
        for text in journal:
            found = await self._classifying.text(text, session.settings, session.user)
            statement = await self.owned(found, session)
            if statement.operation_class is not OperationClass.SESSION:
                await self._sessions.close(session.id, session.user)
                raise RequestError(
                    FailureKind.REFUSED,
                    f"{statement.kind.value} is no session statement",
                    error_class=ErrorClass.NOT_A_SESSION_STATEMENT,
                    hint="a session's journal holds USE, SET, RESET, temporary views and the like",
                )
            await self._change(session, statement, SqlText(statement.sql))

    async def run(self, asked: Understood) -> Answer:
        """Run one that a client sent."""
        session, statement = asked.session, asked.statement
        if session is None:
            raise RequestError(
                FailureKind.REFUSED,
                f"{statement.kind.value} changes a session, and the request names none",
                error_class=ErrorClass.SESSION_REQUIRED,
                hint="open a session and send its session_id",
            )
        chunks = await self._change(session, statement, as_it_runs(asked))
        return Answer(HaReport(self._core.me, OperationClass.SESSION), Collected(chunks))

    async def owned(self, statement: Classified, session: ClientSession | None) -> Classified:
        """Return the statement as the session's own if it changes a temporary view of it."""
        is_write = statement.kind in WRITING_KINDS and statement.bare
        if session is None or not session.holds_temporaries or not is_write:
            return statement
        try:
            names = await temporary_views(session.spark, self._core.timeouts.statement_s)
            own = changes_temporary(statement, names)
        except EngineError as error:
            raise failed(error, self._core, WriteOutcome.NOT_SENT, session) from error
        except RefusedError as error:
            raise refused(error) from error
        return replace(statement, operation_class=OperationClass.SESSION) if own else statement

    async def _change(
        self, session: ClientSession, statement: Classified, runs: Statement
    ) -> list[bytes]:
        """Run a session statement and learn what the session is like afterwards."""
        timeout_s = self._core.timeouts.statement_s
        # Before it runs, for it may have run whatever becomes of the answer. CACHE TABLE x AS …
        # makes a temporary view, too.
        session.holds_temporaries |= statement.kind in (Kind.TEMPORARY_VIEW, Kind.CACHE)
        try:
            await self._analysis.confirm_session_statement(statement, session)
            stream = await session.spark.query(runs, timeout_s=timeout_s)
            chunks = [chunk.data async for chunk in stream]
            found = await session.spark.settings()
        except EngineError as error:
            raise failed(error, self._core, WriteOutcome.REJECTED, session) from error
        except RefusedError as error:
            raise refused(error) from error
        rows = await rows_of(Collected(chunks)) if statement.kind is Kind.SET else []
        session.settings = settings_after(
            session.settings, found, statement.kind, statement.sql, rows, self._defaults
        )
        if statement.kind is Kind.RESET:
            await self._configure(session)  # it took back HAProc's own settings, too
        return chunks

    async def _configure(self, session: ClientSession) -> None:
        """Give the session the settings that it is known to have."""
        try:
            await session.spark.configure(session.settings)
        except EngineError as error:
            raise failed(error, self._core, WriteOutcome.NOT_SENT, session) from error
