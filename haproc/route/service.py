"""Runs clients' requests: classify, then a query, a session statement, or a write for the log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from dmq import LogError
from haproc.classify.model import OperationClass, RefusedError, WriteConcern
from haproc.classify.rules import Rules
from haproc.config.model import Config
from haproc.config.shares import Shares
from haproc.engine.confs import pool_of
from haproc.engine.errors import EngineError
from haproc.engine.interface import Engine, Session, Settings
from haproc.engine.statement import text_size
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome
from haproc.membership.state import SERVING
from haproc.replicate.agree.assurance import Assurance
from haproc.replicate.agree.revoking import is_final
from haproc.replicate.apply.synchronous import QUEUED
from haproc.replicate.queue.facts import Facts, Revoked
from haproc.replicate.queue.outcomes import Known
from haproc.replicate.records.operation import Operation
from haproc.replicate.replica import Replica
from haproc.replicate.writes import WriteAttempt
from haproc.route.answering import answer_of, failed, of_query
from haproc.route.attempts import AttachedResources, Attempts, Concerns
from haproc.route.caching import Caching, Counts, Narrowing, NoCounts, Repeatable
from haproc.route.classifying import Classifying, Understood, as_it_runs, with_bound
from haproc.route.making import Making, Showing
from haproc.route.model import Answer, HaReport, ManyRows, Request, SentRows
from haproc.route.offload import Inline, Texts
from haproc.route.planning import Planning
from haproc.route.readings import Readings
from haproc.route.reads import Reads
from haproc.route.ruling import Ruled, Ruling
from haproc.route.session_statements import SessionStatements
from haproc.route.shared_sessions import ReadingSessions, SharedSessions
from haproc.route.streams import Collected, Running, no_query, refused, timed_out
from haproc.sessions.client import ClientSession
from haproc.sessions.sessions import Sessions

LOOK_S = 1.0
"""How long it may take to find out how a write stands in the ring. Chosen."""
SHARED_SESSIONS_MAX = 16
"""Spark sessions of each user for requests without one, by catalog and schema."""


class RingService:
    """Implements `haproc.route.model.Service` for one HAProc."""

    def __init__(
        self,
        config: Config,
        replica: Replica,
        engine: Engine,
        rules: Rules,
        assurance: Assurance,
        reads: Reads,
        sessions: Sessions,
        texts: Texts | None = None,
        counts: Counts | None = None,
    ) -> None:
        self._replica = replica
        self._core = core = replica.core
        self._assurance = assurance
        self._defaults = defaults = config.defaults
        self._reads = reads
        self._texts = texts or Inline()
        self._only_reads: dict[tuple[str, str], bool] = {}
        self._unmade = set[tuple[str, str]]()
        """Requests under way that have done nothing yet: the log can have nothing of theirs."""
        self._attempts = Attempts(replica)
        self._attached = AttachedResources(replica)
        limits = config.limits
        self.planning = Planning(
            Shares.of(limits.planned_max, config),
            Shares.of(limits.large_statements_max, config),
            wait_s=limits.statement_queue_s,
            departures=lambda: core.condition.departures,
            unavailable=replica.writes.unavailable,
        )
        core.health.on_answer = self.planning.probed
        core.health.on_gone = self.planning.driver_is_gone
        core.condition.on_departure = self.planning.cluster_left

        def epoch() -> int:
            return core.watermarks.definitions_applied

        reading = ReadingSessions(engine, epoch, self._now)
        timeout_s = core.timeouts.statement_s
        readings = Readings(reading, epoch, self._texts, self.planning, timeout_s)
        self._classifying = Classifying(
            self._texts, rules, core.limits.bounds, readings.recognised, self.explained
        )
        self._concerns = Concerns(
            assurance, self._attempts, self._classifying, asks_for_more=rules.ask_for_concern
        )
        self._ruling = Ruling(core, readings, self._texts)
        self._making = Making(
            core,
            engine,
            readings,
            self._texts,
            self._classifying,
            self._attempts.ground,
            sessions.get_blob,
            replica.foresee,
            self._ruling,
            fanout_parallel=config.fanout_parallel,
        )
        self.shown = Showing(core, self._texts, self._understood, readings, self._ruling).shown
        self._narrowing = Narrowing(core, readings)
        repeatable = Repeatable(core, readings)
        self._caching = Caching(core, config.cache, repeatable, counts or NoCounts())
        self._shared = SharedSessions(
            lambda key, user: engine.session(key, pool=pool_of(user)), SHARED_SESSIONS_MAX
        )
        self.sessions = sessions
        values = self._classifying, self._ruling, defaults
        self._session_statements = SessionStatements(core, sessions, *values)

    # -- what the doors ask ----------------------------------------------------------------

    async def execute(self, request: Request) -> Answer:
        """See Service."""
        try:
            with self._attached.during(request.key):
                return await self._answer(request)
        except Exception as error:
            if self._only_reads.get(request.key):
                told = of_query(error, f"statement {request.id}")
                raise told from (error.__cause__ if told is error else error)
            raise
        finally:
            self._only_reads.pop(request.key, None)
            self._unmade.discard(request.key)

    async def _answer(self, request: Request) -> Answer:
        since = self._replica.writes.since(request.age_s, request.arrived_s)
        deadline_s = self._now() + request.timeout_s
        try:
            async with asyncio.timeout(request.timeout_s):
                request = await with_bound(request, self._texts)
                answer, concern = await self._execute(request, since)
                if answer.report.offset is not None:
                    await self._wrote(request)
        except TimeoutError as error:
            unsent = request.age_s == 0 and request.key in self._unmade
            reads = self._only_reads.get(request.key, False)
            outcome = WriteOutcome.NOT_SENT if reads or unsent else WriteOutcome.UNKNOWN
            raise timed_out(request.timeout_s, self._core.me, outcome) from error
        return await self._assured(answer, concern, deadline_s)

    async def _execute(self, request: Request, since: int) -> tuple[Answer, WriteConcern]:
        """Return the answer, and which clusters are to have applied it before it is given."""
        self._check_serving()
        key = request.key
        if (found := self._attempts.newest(*key)) is not None:
            self._only_reads[key] = False
            if request.place is not None:
                request.place.rest()
            if found.outcome is None and found.facts.of_session:
                await self._attach_session(request, found.facts)
        known = await self._attempts.known(request)
        if known is None:
            self._unmade.add(key)
            try:
                asked = await self._understood(request)
            except RequestError as error:
                known = await self._attempts.unless_known(request, error)
        if known is not None:
            return answer_of(known, self._core), await self._concerns.again(
                request.write_concern, known.offset
            )
        return await self._run(asked, since)

    async def _wrote(self, request: Request) -> None:
        """Have the request's session here, before its write is told.

        Whoever took the session over while the write was under way has not waited for it: being
        replaced, it waits for the log's end once more before it shows anything.
        """
        try:
            await self._session_of(request)
        except RequestError as error:
            if error.kind is FailureKind.AVAILABILITY:
                error.outcome = WriteOutcome.UNKNOWN
                raise
            # It was closed meanwhile: nothing will be shown in it.

    async def _attach_session(self, request: Request, facts: Facts) -> None:
        """Let a write that rests on the client's session be computed in it, also by a retry."""
        with suppress(RequestError):  # whoever needs the session says that it is not known
            session = await self._session_of(request)
            if session is not None:
                self._attached.attach_session(facts, session)

    async def _understood(self, request: Request) -> Understood:
        """Return the request with its session, settings, and what its statement is."""
        session = await self._session_of(request)
        if session is not None and (request.catalog or request.schema):
            raise RequestError(
                FailureKind.REFUSED,
                "a session has its own catalog and schema",
                error_class=ErrorClass.SESSION_HAS_SCHEMA,
                hint="send USE in the session, or leave session_id out",
            )
        settings = self._settings(session, request.catalog, request.schema)
        try:
            request = await self._classifying.with_read(request)
            statement = await self._classifying.request(request, settings)
        except RequestError as error:
            request = await self._session_statements.unless_set_already(request, session, error)
            statement = await self._classifying.request(request, settings)
        statement = await self._session_statements.owned(statement, session, request.id)
        return Understood(request, session, settings, statement)

    async def _run(self, asked: Understood, since: int) -> tuple[Answer, WriteConcern]:
        """Return what `_execute` does for a request that the log does not have."""
        request, found = asked.request, asked.statement.operation_class
        self._only_reads[request.key] = found is OperationClass.QUERY
        if found is OperationClass.QUERY:
            return await (self._relayed if request.relayed else self._read)(asked, since)
        if found is not OperationClass.SESSION:
            return await self._write(asked, since)
        if request.relayed and not asked.statement.sql:
            return self._fit(await self._ruling.settled(asked)), WriteConcern.ONE
        self._unmade.discard(request.key)
        return await self._session_statements.run(asked), WriteConcern.ONE

    async def _read(self, asked: Understood, since: int) -> tuple[Answer, WriteConcern]:
        """Answer a query from what is kept, by another cluster, or by running it."""
        known = self._ruling.remembered(asked)
        held = partial(self._caching.held, known.asked, known.still) if known else lambda: None
        narrow = partial(self._narrowing.applied, asked)
        answer = await self._reads.elsewhere(asked.request, held, narrow)
        if answer is None:
            ruled = await self._ruling.settled(asked)
            if ruled.asked.statement.operation_class is not OperationClass.QUERY:
                return await self._run(ruled.asked, since)
            here = partial(self._query, ruled, self.planning.departures())
            answer = await self._caching.answer(ruled.asked, here, ruled.still)
        self._caching.count(answer)
        return answer, WriteConcern.ONE

    async def _relayed(self, asked: Understood, since: int) -> tuple[Answer, WriteConcern]:
        """Return once a query may run that whoever sent it runs in its session."""
        session, narrowed = asked.session, list[Callable[[], bool]]()

        async def narrow() -> Callable[[], int] | None:
            unchanged = session.unchanged() if session is not None else None
            found = await self._narrowing.applied(asked)
            if found is not None and unchanged is not None:
                narrowed.append(unchanged)
            return found

        answer = await self._reads.elsewhere(asked.request, narrow=narrow)
        if answer is None:
            ruled = await self._ruling.settled(asked)
            if ruled.asked.statement.operation_class is not OperationClass.QUERY:
                return await self._run(ruled.asked, since)
            # Where it was changed meanwhile, everything was waited for.
            still = [*(unchanged for unchanged in narrowed if unchanged()), ruled.still]
            answer = self._fit(replace(ruled, still=lambda: all(each() for each in still)))
        return answer, WriteConcern.ONE

    async def query_for_peer(self, request: Request, needed: int) -> Answer:
        """Run a query that a peer forwarded, here and nowhere else; raises RequestError."""
        try:
            async with asyncio.timeout(request.timeout_s):
                asked = await self._understood(request)
                self._check_query(asked)
                self._check_serving()
                await self._reads.for_peer(needed, request.timeout_s)
                ruled = await self._ruling.settled(asked)
                self._check_query(ruled.asked)
                return await self._query(ruled, self.planning.departures())
        except TimeoutError as error:
            raise timed_out(request.timeout_s, self._core.me, WriteOutcome.NOT_SENT) from error

    def _check_query(self, asked: Understood) -> None:
        if (found := asked.statement.operation_class) is not OperationClass.QUERY:
            raise no_query(self._core.me, found)

    def known_write(self, request_id: str, user: str) -> Known | None:
        """Return this user's write, as far as this HAProc has read of it in the log."""
        return self._attempts.newest(user, request_id)

    def find_write(self, request_id: str, user: str) -> Callable[[], Awaitable[Answer]] | None:
        """See Service."""
        known = self.known_write(request_id, user)
        return None if known is None else partial(self._settled, known)

    async def _settled(self, known: Known) -> Answer:
        timeout_s = self._core.timeouts.statement_s
        try:
            async with asyncio.timeout(timeout_s):
                outcome = await self._replica.writes.settled(known)
        except TimeoutError as error:
            raise timed_out(timeout_s, self._core.me) from error
        return answer_of(WriteAttempt(known.facts, known.offset, outcome), self._core)

    async def revoke(self, request_id: str, user: str) -> Revoked | None:
        """See Service."""
        known, revoking = self.known_write(request_id, user), self._replica.revoking
        return await revoking.revoke(known.offset, "its sender") if known else None

    async def is_final(self, offset: int) -> bool:
        """See Service."""
        return await is_final(self._core, offset, LOOK_S)

    async def concern_met(self, offset: int, concern: WriteConcern | None) -> bool:
        """See Service."""
        try:
            async with asyncio.timeout(2 * LOOK_S):
                needed = await self._concerns.again(concern, offset)
                await self._assurance.fulfil(offset, needed, self._now() + LOOK_S)
        except (RequestError, LogError, TimeoutError):
            return False
        return True

    async def open_session(
        self, session_id: str, user: str, statements: Sequence[str], *, afresh: bool
    ) -> Mapping[str, str]:
        """See Service."""
        self._check_serving()
        if afresh:
            session = await self.sessions.begin_afresh(user, session_id)
        else:
            session = await self.sessions.enter(user, session_id, create=True)
        await self._session_statements.begin(session, statements)
        settings = session.settings
        return {
            "catalog": settings.catalog,
            "schema": settings.schema,
            "time_zone": settings.time_zone,
        }

    async def enter_session(self, session_id: str, user: str) -> ClientSession:
        """Return the client's session, made if there is none; raises RequestError."""
        self._check_serving()
        return await self.sessions.enter(user, session_id, create=True)

    def explained(self, error: EngineError) -> RequestError:
        """Return what a client is told of its own call's failure in the session behind it."""
        return failed(error, self._core, WriteOutcome.NOT_SENT)

    async def close_session(self, session_id: str, user: str) -> None:
        """See Service."""
        await self.sessions.close(user, session_id)

    def only_reads(self, request: Request) -> bool | None:
        """See Service."""
        return self._only_reads.get(request.key)

    # -- queries and sessions --------------------------------------------------------------

    async def _query(self, ruled: Ruled, departures: int) -> Answer:
        """Run a query here, unless the cluster has left service since that many times."""
        asked = ruled.asked
        request, session, settings = asked.request, asked.session, asked.settings
        try:
            if session is not None:
                await session.spark.ready()  # which may need the log
            statement, timeout_s = as_it_runs(asked), request.timeout_s
            size = text_size(statement)
            turn = self.planning.turn(request.user, timeout_s, size, departures)
            async with turn as planned:
                spark = await self._spark_session(settings, session, request.user)
                stream = await spark.query(statement, timeout_s=timeout_s, planned=planned)
                result = await Running.begin(stream, self._core.me)
            await ruled.check(result)
        except EngineError as error:
            raise failed(error, self._core, WriteOutcome.NOT_SENT) from error
        # Its tables were read as they stood before its first piece came.
        after = self._core.schedule.high
        report = HaReport(self._core.me, OperationClass.QUERY, after_offset=after)
        return Answer(report, result)

    def _fit(self, ruled: Ruled) -> Answer:
        """Answer for what whoever sent it runs in its session, where Spark guards it."""
        found, after = ruled.asked.statement.operation_class, self._core.schedule.high
        report = HaReport(self._core.me, found, after_offset=after)
        return Answer(report, Collected(()), still=ruled.still)

    async def _spark_session(
        self, settings: Settings, session: ClientSession | None, user: str
    ) -> Session:
        if session is not None:
            return session.spark
        spark = await self._shared.get(
            settings, self._core.watermarks.exclusive_applied, self._now(), user
        )
        await spark.configure(settings)
        return spark

    # -- writes ----------------------------------------------------------------------------

    async def _write(self, asked: Understood, since: int) -> tuple[Answer, WriteConcern]:
        request, body, began = asked.request, _body(asked.request), self._now()
        asks = request.write_concern
        concern: WriteConcern | None = None
        self._assurance.check(self._concerns.of(asks, asked.statement.write_concern), request.key)

        async def make() -> Operation:
            nonlocal concern
            try:
                made = await self._making.operation(asked)
            except EngineError as error:
                raise failed(error, self._core, WriteOutcome.NOT_SENT) from error
            except RefusedError as error:
                raise refused(error) from error
            concern = self._concerns.of(asks, made.statement.write_concern)
            self._assurance.check(concern, request.key)
            operation = replace(made.operation, id=self._attempts.next_id(request), since=since)
            await self._replica.writes.clear(operation, request.timeout_s - (self._now() - began))
            self._unmade.discard(request.key)  # from now on the log may have it
            if (facts := Facts.of(operation)).of_session:
                await self._attach_session(request, facts)
            if body is not None:
                self._attached.attach_rows(operation.key, body)
            return operation

        try:
            attempt = await self._attempts.write(request, make)
            if concern is None:
                concern = await self._concerns.again(asks, attempt.offset)
            return answer_of(attempt, self._core), concern
        finally:
            if body is not None:
                self._attached.request_is_over(body)

    async def _assured(self, answer: Answer, concern: WriteConcern, deadline_s: float) -> Answer:
        """Return the answer once the clusters have the write that the concern asks for."""
        report = answer.report
        if report.offset is None:
            return answer
        applied = await self._assurance.fulfil(report.offset, concern, deadline_s)
        if not applied:
            return answer
        outcomes = {
            name: applied.get(name, told) if told == QUEUED else told
            for name, told in report.outcomes.items()
        }
        return replace(answer, report=replace(report, outcomes=outcomes))

    async def _session_of(self, request: Request) -> ClientSession | None:
        if request.session_id is None:
            return None
        return await self.sessions.enter(request.user, request.session_id, create=False)

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

    @property
    def serving(self) -> bool:
        """Whether requests are taken."""
        return self._core.condition.state in SERVING

    def _check_serving(self) -> None:
        if not self.serving:
            raise self._replica.writes.unavailable()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _body(request: Request) -> ManyRows | None:
    """Return the rows of a request that brings more than one record holds."""
    sent = request.statement
    if isinstance(sent, SentRows) and not isinstance(sent.stream, bytes):
        return sent.stream
    return None
