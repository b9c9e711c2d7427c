"""Runs statements that change a client's session, and reads the session's settings back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from haproc.classify.model import Classified, Kind, OperationClass, RefusedError
from haproc.classify.names import joined
from haproc.classify.rights import UNBOUNDED, Rights
from haproc.classify.rules import WRITING_KINDS
from haproc.classify.session_settings import assigned
from haproc.classify.tokens import TokenKind, tokenize
from haproc.engine.arrow import rows
from haproc.engine.confs import POOL, parts_of
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import ResultStream, Session, Settings
from haproc.engine.statement import SqlText, Statement
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome
from haproc.failure import refused as refusal
from haproc.pin.sqltypes import quote_name
from haproc.replicate.member.core import Core
from haproc.route.answering import failed
from haproc.route.classifying import Classifying, Understood, as_it_runs
from haproc.route.model import Answer, HaReport, Request, SentSql
from haproc.route.ruling import Ruling, defined_anew
from haproc.route.streams import Collected, refused
from haproc.sessions.client import BeginningIds, ClientSession, left_by
from haproc.sessions.journal import SettingsEntry, settings_after
from haproc.sessions.sessions import Sessions

# A session's temporary views, and small results read as plain values.


_MEANS_EITHER = frozenset({Kind.DROP_VIEW, Kind.DROP_TABLE, Kind.ALTER_VIEW, Kind.ALTER_TABLE})


def changes_temporary(statement: Classified, temporary: frozenset[str]) -> bool:
    """True if a statement drops or alters only temporary views of its session.

    ``temporary``: the names of these views. If a name can mean a temporary view, Spark takes that
    one. Any other write to such a name would do something else on the other clusters, which do not
    have the view: raises RefusedError.
    """
    hidden = {table for table in statement.bare if last_part(table) in temporary}
    if hidden and statement.kind not in _MEANS_EITHER:
        name = last_part(min(hidden))
        raise RefusedError(
            ErrorClass.TEMPORARY_VIEW,
            f"{name} is a temporary view of this session, which the other clusters do not have",
            f"write the schema in front of {name} to mean a table or a permanent view",
        )
    return bool(hidden)


async def temporary_views(session: Session, timeout_s: float) -> frozenset[str]:
    """Return the names of the temporary views in a Spark session, in lower case."""
    try:
        views = await rows_of(await session.query(SqlText("SHOW VIEWS"), timeout_s=timeout_s))
    except EngineError as error:
        if error.kind is ErrorKind.APPLICATION:  # the catalog cannot list views
            return frozenset()
        raise
    return frozenset(joined([str(view[1])]) for view in views if view[2])


def last_part(table: str) -> str:
    """Return a table's name without its catalog and schema."""
    return joined(parts_of(table)[-1:])


async def rows_of(result: ResultStream) -> list[tuple[object, ...]]:
    """Read a small result to its end; return its rows as Python values."""
    async with aclosing(result):
        chunks = [chunk.data async for chunk in result]
    return [tuple(row.values()) for row in rows(chunks)]


_SETTINGS = frozenset({Kind.USE, Kind.SET, Kind.RESET})
"""Kinds of statements that change nothing but settings, which are plain values."""
_QUERY = frozenset({"AS", "SELECT", "FROM", "VALUES", "WITH", "MAP", "REDUCE"})


class SessionStatements:
    """Runs statements that change a client's session, such as USE, SET and temporary views.

    Methods raise RequestError.
    """

    def __init__(
        self,
        core: Core,
        sessions: Sessions,
        classifying: Classifying,
        ruling: Ruling,
        defaults: Settings,
    ) -> None:
        self._core = core
        self._sessions = sessions
        self._classifying = classifying
        self._ruling = ruling
        self._defaults = defaults

    async def begin(
        self, session: ClientSession, statements: Sequence[str], rights: Rights = UNBOUNDED
    ) -> None:
        """Run the statements with which a client's session begins, unless they have run already.

        If an earlier attempt ended in the middle, only the remaining ones run.
        """
        ids = BeginningIds.of(statements)
        begun = session.begun_with(ids)
        if begun is None:
            return
        for number, text in enumerate(statements[begun:], begun):
            found = await self._classifying.text(
                text, session.settings, session.user, rights=rights
            )
            statement = await self.owned(found, session, ids.of_number(number))
            if statement.operation_class is not OperationClass.SESSION:
                await self._sessions.close(session.user, session.id)
                raise refusal(
                    ErrorClass.NOT_A_SESSION_STATEMENT,
                    f"{statement.kind.value} is no session statement",
                    "a session's journal holds USE, SET, RESET, temporary views and the like",
                )
            await self._change(session, statement, SqlText(statement.sql), ids.of_number(number))

    async def run_session_statement(self, understood: Understood) -> Answer:
        """Run a statement that a client sent to change its session; return the answer."""
        session, statement = understood.session, understood.statement
        if session is None:
            raise refusal(
                ErrorClass.SESSION_REQUIRED,
                f"{statement.kind.value} changes a session, and the request names none",
                "open a session and send its session_id",
            )
        chunks = await self._change(
            session, statement, as_it_runs(understood), understood.request.id
        )
        return Answer(HaReport(self._core.me, OperationClass.SESSION), Collected(chunks))

    async def unless_set_already(
        self, request: Request, session: ClientSession | None, error: RequestError
    ) -> Request:
        """Let a client set a reserved setting to the value that it already has.

        If the request does that, returns a request that only reads the setting. For any other
        request raises ``error``, with which it was refused.
        """
        sent = request.statement
        reserved = error.error_class == ErrorClass.RESERVED_SETTING
        assignment = assigned(sent.text) if reserved and isinstance(sent, SentSql) else None
        if session is None or assignment is None:
            raise error
        key, value = assignment
        question = SqlText(f"SET {quote_name(key)}")
        try:
            found = await rows_of(Collected(await self._chunks(session, question)))
        except EngineError as failure:
            raise failed(failure, self._core, WriteOutcome.NOT_SENT) from failure
        if found != [(key, value)]:
            raise error
        return replace(request, statement=SentSql(question.sql))

    async def owned(
        self, statement: Classified, session: ClientSession | None, request_id: str = ""
    ) -> Classified:
        """Return the statement; its class becomes SESSION if it changes only a temporary view.

        So does a request that the session has recorded: a repeated DROP must not drop a permanent
        view of the same name.
        """
        if session is not None and session.has_recorded(request_id):
            return replace(statement, operation_class=OperationClass.SESSION)
        is_write = statement.kind in WRITING_KINDS and statement.bare
        if session is None or not session.holds_temporaries or not is_write:
            return statement
        try:
            own = await self._is_own(statement, session)
        except EngineError as error:
            raise failed(error, self._core, WriteOutcome.NOT_SENT) from error
        except RefusedError as error:
            raise refused(error) from error
        return replace(statement, operation_class=OperationClass.SESSION) if own else statement

    async def _is_own(self, statement: Classified, session: ClientSession) -> bool:
        names = await temporary_views(session.spark, self._core.timeouts.statement_s)
        return changes_temporary(statement, names)

    async def _change(
        self, session: ClientSession, statement: Classified, runs: Statement, request_id: str
    ) -> list[bytes]:
        """Run a session statement once, and record its effect in the journal; return its result."""
        # Set before it runs: it may take effect even if it fails.
        session.holds_temporaries |= statement.kind not in _SETTINGS
        try:
            if session.has_recorded(request_id):
                return []  # a retry, perhaps on another cluster than the one that ran it
            statement, still = await self._ruling.of_session(statement, session)
            async with self._sessions.changing(session):
                if session.has_recorded(request_id):
                    return []
                if statement.kind not in WRITING_KINDS or await self._is_own(statement, session):
                    return await self._run(session, statement, runs, request_id, still)
            raise _gone_meanwhile()
        except EngineError as error:
            raise failed(error, self._core, WriteOutcome.REJECTED) from error
        except RefusedError as error:
            raise refused(error) from error

    async def _run(
        self,
        session: ClientSession,
        statement: Classified,
        runs: Statement,
        request_id: str,
        still: Callable[[], bool],
    ) -> list[bytes]:
        """Run a session statement, and record its effect in the journal, if it has one to record.

        `Sessions.changing` says what happens after an error. ``still``: see `Ruling.of_session`.
        """
        if statement.kind in _SETTINGS:
            async with session.settling:
                return await self._set(session, statement, runs, request_id)
        run = partial(self._chunks, session, runs)
        assert isinstance(runs, SqlText)
        if not leaves_something(statement.kind, runs.sql):
            chunks = await run()
            if not still():
                raise defined_anew()
            return chunks
        look = partial(left_by, session, runs.sql, self._core.timeouts.statement_s)
        chunks, entry = await session.leaving(run, look)
        if not still():
            raise defined_anew()
        await self._sessions.record(session, entry, request_id)
        return chunks

    async def _set(
        self, session: ClientSession, statement: Classified, runs: Statement, request_id: str
    ) -> list[bytes]:
        chunks, found = await session.setting(partial(self._chunks, session, runs))
        shown = await rows_of(Collected(chunks)) if statement.kind is Kind.SET else []
        settings = settings_after(
            session.settings, found, statement.kind, statement.sql, shown, self._defaults
        )
        if statement.kind is Kind.RESET or POOL in dict(settings.confs):
            await session.spark.configure(settings)  # HAProc's own settings are in force again
        is_known = not request_id or _only_looks(statement) or not session.ends_in_settings
        if settings != session.settings or not is_known:  # so that a late retry is recognised
            await self._sessions.record(session, SettingsEntry(settings), request_id)
        return chunks

    async def _chunks(self, session: ClientSession, runs: Statement) -> list[bytes]:
        stream = await session.spark.query(runs, timeout_s=self._core.timeouts.statement_s)
        return [chunk.data async for chunk in stream]


def _only_looks(statement: Classified) -> bool:
    """True if a SET only shows values, and sets nothing."""
    if statement.kind is not Kind.SET or "=" in statement.sql:
        return False
    words = [token.upper for token in tokenize(statement.sql) if token.kind is TokenKind.WORD]
    return words[1:3] != ["TIME", "ZONE"]


def _gone_meanwhile() -> RequestError:
    """Return the error for a DROP or ALTER whose temporary view is gone when it is to run.

    Another statement of the session dropped the view first, so the name means another object now.
    """
    return RequestError(
        FailureKind.AVAILABILITY,
        "another statement of the session dropped the temporary view before this one ran",
        error_class=ErrorClass.AVAILABILITY,
        outcome=WriteOutcome.NOT_SENT,
        hint="ask again: the name means the ring's table or view now, if there is one",
    )


def leaves_something(kind: Kind, sql: str) -> bool:
    """True if a session statement must run again when its session is rebuilt.

    CACHE alone need not; but CACHE TABLE x AS … makes a temporary view, too.
    """
    if kind is not Kind.CACHE:
        return True
    words = [token.upper for token in tokenize(sql) if token.kind is TokenKind.WORD]
    return words[0] == "CACHE" and not _QUERY.isdisjoint(words[2:])
