"""Runs clients' requests: classify, then a query, a session statement, or a write for the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from haproc.classify.classifier import classify
from haproc.classify.model import Classified, Kind, OperationClass, RefusedError, WriteConcern
from haproc.classify.names import Context, parts_of
from haproc.classify.rules import WRITING_KINDS, Rules
from haproc.config.shares import Shares
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Column, Engine, Session, Settings
from haproc.engine.statement import ArrowRows, SqlText
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome
from haproc.membership.state import SERVING
from haproc.pin.sqltypes import quote_name
from haproc.replicate.agree.assurance import Assurance
from haproc.replicate.apply.synchronous import QUEUED
from haproc.replicate.queue.outcomes import Known
from haproc.replicate.records.operation import Operation
from haproc.replicate.replica import Attempt, Replica, now_ms
from haproc.route.analysis import Analysis
from haproc.route.answering import answer_of, refused, timed_out
from haproc.route.attempts import Attempts
from haproc.route.making import Making, of_session
from haproc.route.model import Answer, HaReport, Request, RowsRequest
from haproc.route.offload import Inline, Texts
from haproc.route.reads import Reads
from haproc.route.results import Collected, Running, request_error
from haproc.route.sessions import (
    ClientSession,
    Sessions,
    SharedSessions,
    settings_after,
    unknown,
)
from haproc.route.views import changes_temporary, rows_of, temporary_views

SHARED_SESSIONS_MAX = 64
"""Spark sessions kept for requests without a session of their own, one per catalog and schema."""
SESSION_LOST = "SESSION_LOST"


class RingService:
    """Implements `haproc.route.interface.Service` for one HAProc."""

    def __init__(
        self,
        replica: Replica,
        engine: Engine,
        rules: Rules,
        *,
        assurance: Assurance,
        defaults: Settings,
        fanout_parallel: bool,
        reads: Reads,
        sessions: Shares | None = None,
        texts: Texts | None = None,
    ) -> None:
        self._replica = replica
        self._core = replica.core
        self._engine = engine
        self._rules = rules
        self._assurance = assurance
        self._defaults = defaults
        self._reads = reads
        self._texts = texts or Inline()
        self._only_reads: dict[tuple[str, str], bool] = {}
        self._attempts = Attempts(replica)
        core = self._core
        analysis = Analysis(
            engine,
            lambda: core.definitions_applied,
            self._now,
            core.timeouts.statement_s,
            self._texts,
        )
        self._making = Making(
            core.me,
            analysis,
            self._texts,
            self._classify,
            self._attempts.ground,
            fanout_parallel=fanout_parallel,
        )
        self._shared = SharedSessions(engine.session, SHARED_SESSIONS_MAX)
        shares = sessions or Shares(self._core.limits.sessions_max)
        self.sessions = Sessions(engine.session, defaults, shares)

    # -- what the doors ask ----------------------------------------------------------------

    async def execute(self, request: Request) -> Answer:
        """See Service."""
        since = self._replica.since(request.age_s, request.arrived_s)
        deadline_s = self._now() + request.timeout_s
        try:
            async with asyncio.timeout(request.timeout_s):
                answer, concern = await self._execute(request, since)
        except TimeoutError as error:
            raise timed_out(request.timeout_s, self._core.me) from error
        finally:
            self._only_reads.pop((request.user, request.id), None)
        return await self._assured(answer, concern, deadline_s)

    async def _execute(self, request: Request, since: int) -> tuple[Answer, WriteConcern]:
        """Return the answer, and which clusters are to have applied it before it is given."""
        self._check_serving()
        key = (request.user, request.id)
        if (found := self._core.outcomes.find(key)) is not None:
            self._only_reads[key] = False
            if found.outcome is None and of_session(found.operation):
                self._lend(request)
        known = await self._attempts.known(request)
        if known is None:
            try:
                session, settings, statement = await self._read(request)
                statement = await self._for_session(statement, session)
            except RequestError as error:
                known = await self._attempts.unless_known(request, error)
        if known is not None:
            return answer_of(known, self._core), await self._concern_again(request, known)
        self._only_reads[key] = statement.operation_class is OperationClass.QUERY
        concern = self._concern(request, statement)
        return await self._run(request, statement, settings, session, since), concern

    def _lend(self, request: Request) -> None:
        """Let a write that rests on the client's session be computed in it, also by a retry."""
        with suppress(RequestError):  # whoever needs the session says that it is not known
            session = self._session_of(request)
            if session is not None and session.holds_temporaries:
                self._replica.computing.lend((request.user, request.id), session.spark)

    async def _read(self, request: Request) -> tuple[ClientSession | None, Settings, Classified]:
        """Return the request's session, the settings it runs under, and what its statement is."""
        session = self._session_of(request)
        if session is not None and (request.catalog or request.schema):
            raise RequestError(
                FailureKind.REFUSED,
                "a session has its own catalog and schema",
                error_class=ErrorClass.SESSION_HAS_SCHEMA,
                hint="send USE in the session, or leave session_id out",
            )
        settings = self._settings(session, request.catalog, request.schema)
        text, override = request.statement, request.operation_class
        statement = await self._classify(text, settings, request.user, override)
        return session, settings, statement

    async def _run(
        self,
        request: Request,
        statement: Classified,
        settings: Settings,
        session: ClientSession | None,
        since: int,
    ) -> Answer:
        match statement.operation_class:
            case OperationClass.QUERY:
                answer = await self._reads.elsewhere(request)
                return answer or await self._query(request, statement, settings, session)
            case OperationClass.SESSION:
                return await self._session_statement(request, statement, session)
            case _:
                return await self._write(request, statement, settings, session, since)

    async def query_for_peer(self, request: Request, needed: int) -> Answer:
        """Run a query that a peer forwarded, here and nowhere else; raises RequestError."""
        settings = self._settings(None, request.catalog, request.schema)
        statement = await self._classify(
            request.statement, settings, request.user, request.operation_class
        )
        if statement.operation_class is not OperationClass.QUERY:
            raise RequestError(
                FailureKind.REFUSED,
                f"cluster {self._core.me} takes the statement for {statement.operation_class}, not "
                "for a query",
                error_class=ErrorClass.NO_QUERY,
                hint="the HAProcs' rules differ: restart those that have not read them",
            )
        try:
            async with asyncio.timeout(request.timeout_s):
                self._check_serving()
                await self._reads.for_peer(needed, request.timeout_s)
                return await self._query(request, statement, settings, None)
        except TimeoutError as error:
            raise timed_out(request.timeout_s, self._core.me) from error

    def find_write(self, request_id: str, user: str) -> Awaitable[Answer] | None:
        """See Service."""
        known = self._core.outcomes.find((user, request_id))
        return None if known is None else self._settled(known)

    async def _settled(self, known: Known) -> Answer:
        timeout_s = self._core.timeouts.statement_s
        try:
            async with asyncio.timeout(timeout_s):
                outcome = await self._replica.settled(known)
        except TimeoutError as error:
            raise timed_out(timeout_s, self._core.me) from error
        return answer_of(Attempt(known.operation, known.offset, outcome), self._core)

    async def append_rows(self, request: RowsRequest) -> Answer:
        """See Service."""
        since = self._replica.since(request.age_s, request.arrived_s)
        deadline_s = self._now() + request.timeout_s
        try:
            async with asyncio.timeout(request.timeout_s):
                answer, concern = await self._append_rows(request, since)
        except TimeoutError as error:
            raise timed_out(request.timeout_s, self._core.me) from error
        return await self._assured(answer, concern, deadline_s)

    async def _append_rows(self, request: RowsRequest, since: int) -> tuple[Answer, WriteConcern]:
        self._check_serving()
        settings = self._settings(None, request.catalog, request.schema)
        known = await self._attempts.known(request)
        if known is None:
            try:
                statement = self._insert_into(request.table, settings, request.user)
            except RequestError as error:
                known = await self._attempts.unless_known(request, error)
        if known is not None:
            return answer_of(known, self._core), await self._concern_again(request, known)
        concern = self._concern(request, statement)
        self._assurance.check(concern, (request.user, request.id))
        (name,) = statement.writes

        async def make() -> Operation:
            rows = await request.fit(await self._columns(name))
            return Operation(
                id=request.id,
                operation_class=OperationClass.ASYNCHRONOUS,
                kind=Kind.ROWS,
                origin=self._core.me,
                fingerprint=request.fingerprint,
                write=ArrowRows(request.table, rows),
                settings=settings,
                user=request.user,
                writes=statement.writes,
                created_ms=now_ms(),
                since=since,
            )

        return answer_of(await self._attempts.write(request, make), self._core), concern

    async def _columns(self, name: str) -> Sequence[Column]:
        try:
            return await self._engine.table_columns(name)
        except EngineError as error:
            raise self._failed(error, WriteOutcome.NOT_SENT) from error

    async def open_session(
        self, session_id: str, user: str, statements: Sequence[str]
    ) -> Mapping[str, str]:
        """See Service."""
        self._check_serving()
        session = await self.sessions.open(session_id, user, self._now())
        await self._configure(session)
        for text in statements:
            statement = await self._classify(text, session.settings, user, None)
            statement = await self._for_session(statement, session)
            if statement.operation_class is not OperationClass.SESSION:
                await self.sessions.close(session_id, user)
                raise RequestError(
                    FailureKind.REFUSED,
                    f"{statement.kind.value} is no session statement",
                    error_class=ErrorClass.NOT_A_SESSION_STATEMENT,
                    hint="a session's journal holds USE, SET, RESET, temporary views and the like",
                )
            await self._change_session(session, statement)
        settings = session.settings
        return {
            "catalog": settings.catalog,
            "schema": settings.schema,
            "time_zone": settings.time_zone,
        }

    async def close_session(self, session_id: str, user: str) -> None:
        """See Service."""
        await self.sessions.close(session_id, user)

    def only_reads(self, request: Request) -> bool | None:
        """See Service."""
        return self._only_reads.get((request.user, request.id))

    # -- queries and sessions --------------------------------------------------------------

    async def _query(
        self,
        request: Request,
        statement: Classified,
        settings: Settings,
        session: ClientSession | None,
    ) -> Answer:
        try:
            spark = await self._spark_session(settings, session)
            await self._making.analysis.confirm_query(statement, settings, session, request.user)
            stream = await spark.query(SqlText(statement.sql), timeout_s=request.timeout_s)
            result = await Running.begin(stream, self._core.me)
        except EngineError as error:
            raise self._failed(error, WriteOutcome.NOT_SENT, session) from error
        except RefusedError as error:
            raise refused(error) from error
        # Its tables were read as they stood before its first piece came.
        after = self._core.schedule.high
        report = HaReport(self._core.me, OperationClass.QUERY, after_offset=after)
        return Answer(report, result)

    async def _session_statement(
        self, request: Request, statement: Classified, session: ClientSession | None
    ) -> Answer:
        if session is None:
            raise RequestError(
                FailureKind.REFUSED,
                f"{statement.kind.value} changes a session, and the request names none",
                error_class=ErrorClass.SESSION_REQUIRED,
                hint="open a session and send its session_id",
            )
        chunks = await self._change_session(session, statement)
        return Answer(HaReport(self._core.me, OperationClass.SESSION), Collected(chunks))

    async def _change_session(self, session: ClientSession, statement: Classified) -> list[bytes]:
        """Run a session statement and learn what the session is like afterwards."""
        timeout_s = self._core.timeouts.statement_s
        # Before it runs, for it may have run whatever becomes of the answer. CACHE TABLE x AS …
        # makes a temporary view, too.
        session.holds_temporaries |= statement.kind in (Kind.TEMPORARY_VIEW, Kind.CACHE)
        try:
            await self._making.analysis.confirm_session_statement(statement, session)
            stream = await session.spark.query(SqlText(statement.sql), timeout_s=timeout_s)
            chunks = [chunk.data async for chunk in stream]
            found = await session.spark.settings()
        except EngineError as error:
            raise self._failed(error, WriteOutcome.REJECTED, session) from error
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
            raise self._failed(error, WriteOutcome.NOT_SENT, session) from error

    async def _for_session(
        self, statement: Classified, session: ClientSession | None
    ) -> Classified:
        """Return the statement as the session's own if it changes a temporary view of it."""
        is_write = statement.kind in WRITING_KINDS and statement.bare
        if session is None or not session.holds_temporaries or not is_write:
            return statement
        names = await self._temporary_views(session)
        try:
            own = changes_temporary(statement, names)
        except RefusedError as error:
            raise refused(error) from error
        return replace(statement, operation_class=OperationClass.SESSION) if own else statement

    async def _temporary_views(self, session: ClientSession) -> frozenset[str]:
        try:
            return await temporary_views(session.spark, self._core.timeouts.statement_s)
        except EngineError as error:
            raise self._failed(error, WriteOutcome.NOT_SENT, session) from error

    async def _spark_session(self, settings: Settings, session: ClientSession | None) -> Session:
        if session is not None:
            return session.spark
        spark = await self._shared.get(settings, self._core.exclusive_applied, self._now())
        await spark.configure(settings)
        return spark

    # -- writes ----------------------------------------------------------------------------

    async def _write(
        self,
        request: Request,
        statement: Classified,
        settings: Settings,
        session: ClientSession | None,
        since: int,
    ) -> Answer:
        self._assurance.check(self._concern(request, statement), (request.user, request.id))

        async def make() -> Operation:
            try:
                operation = await self._making.operation(request, statement, settings, session)
            except EngineError as error:
                raise self._failed(error, WriteOutcome.NOT_SENT, session) from error
            except RefusedError as error:
                raise refused(error) from error
            if of_session(operation):
                self._lend(request)
            return replace(operation, since=since)

        return answer_of(await self._attempts.write(request, make), self._core)

    def _concern(
        self, request: Request | RowsRequest, statement: Classified | None
    ) -> WriteConcern:
        """Return what the request asks for, or the configuration; a rule may ask for more."""
        asked = request.write_concern or self._assurance.default
        return asked.at_least(statement.write_concern if statement is not None else None)

    async def _concern_again(self, request: Request | RowsRequest, known: Attempt) -> WriteConcern:
        """Return the same for one that the log has already, whatever may be said of it by now."""
        op, statement = known.operation, None
        with suppress(RequestError):
            if isinstance(op.write, ArrowRows):
                statement = self._insert_into(op.write.table, op.settings, op.user)
            else:
                text, override = op.write.sql, op.operation_class
                statement = await self._classify(text, op.settings, op.user, override)
        return self._concern(request, statement)

    async def _assured(self, answer: Answer, concern: WriteConcern, deadline_s: float) -> Answer:
        """Return the answer once the clusters have the write that the concern asks for."""
        report = answer.report
        if report.offset is None:
            return answer
        applied = await self._assurance.fulfil(report.offset, concern, deadline_s)
        outcomes = {
            name: applied.get(name, told) if told == QUEUED else told
            for name, told in report.outcomes.items()
        }
        return replace(answer, report=replace(report, outcomes=outcomes))

    # -- what can be wrong -----------------------------------------------------------------

    def _session_of(self, request: Request) -> ClientSession | None:
        if request.session_id is None:
            return None
        return self.sessions.get(request.session_id, request.user, self._now())

    def _settings(
        self, session: ClientSession | None, catalog: str | None, schema: str | None
    ) -> Settings:
        """Return the settings that a request runs under; its own catalog and schema come first."""
        settings = session.settings if session is not None else self._defaults
        if catalog is None and schema is None:
            return settings
        return replace(
            settings,
            catalog=catalog or settings.catalog,
            schema=schema or ("default" if catalog else settings.schema),
        )

    async def _classify(
        self, text: str, settings: Settings, user: str, override: OperationClass | None
    ) -> Classified:
        context = Context(settings.catalog, settings.schema, user)
        values = (text, context, self._rules, override, self._core.limits.bounds)
        try:
            return await self._texts.run(user, len(text), classify, *values)
        except RefusedError as error:
            raise refused(error) from error

    def _insert_into(self, table: str, settings: Settings, user: str) -> Classified:
        """Classify rows for a table: the rules see them as the INSERT that they are."""
        parts = parts_of(table)
        if parts is None:
            raise RequestError(
                FailureKind.REFUSED,
                f"{table!r} is no table name",
                error_class=ErrorClass.TABLE_NAME,
                hint="write [catalog.][schema.]name, with backquotes where a part needs them",
            )
        name = ".".join(quote_name(part) for part in parts)
        context = Context(settings.catalog, settings.schema, user)
        try:
            return classify(f"INSERT INTO {name} VALUES (1)", context, self._rules)
        except RefusedError as error:
            raise refused(error) from error

    def _check_serving(self) -> None:
        if self._core.state not in SERVING:
            raise self._replica.unavailable()

    def _failed(
        self, error: EngineError, outcome: WriteOutcome, session: ClientSession | None = None
    ) -> RequestError:
        if error.error_class == SESSION_LOST and session is not None:
            return unknown(session.id)
        failed = request_error(error, self._core.me, outcome)
        if error.kind is ErrorKind.AVAILABILITY or failed.error_class == ErrorClass.UNKNOWN_ERROR:
            self._core.health.suspect(error.message)
        return failed

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
