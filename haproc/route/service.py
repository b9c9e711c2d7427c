"""Runs clients' requests: classifies each, then runs a query or session statement, or a write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from dmq import LogError
from haproc import tracing
from haproc.audit import note_if_refusal
from haproc.classify.model import Classified, OperationClass, RefusedError, WriteConcern
from haproc.classify.rights import UNBOUNDED, Rights, Role
from haproc.engine.errors import EngineError
from haproc.engine.interface import Session, Settings
from haproc.engine.statement import text_size
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome
from haproc.failure import refused as refusal
from haproc.membership.state import SERVING
from haproc.replicate.agree.revoking import is_final
from haproc.replicate.apply.synchronous import QUEUED
from haproc.replicate.queue.facts import Facts, Revoked
from haproc.replicate.queue.outcomes import Known
from haproc.replicate.records.operation import Operation
from haproc.replicate.writes import WriteAttempt
from haproc.route.answering import answer_of, failed, of_query
from haproc.route.classifying import Understood, as_it_runs, with_bound
from haproc.route.model import Answer, Fit, HaReport, ManyRows, Request, SentRows
from haproc.route.parts import Parts, Resources
from haproc.route.ruling import Ruled
from haproc.route.streams import Running, no_query, refused, timed_out
from haproc.sessions.client import ClientSession

LOOK_S = 1.0
"""How many seconds the other clusters may take to show what became of a write. Chosen."""
_GoOn: TypeAlias = Callable[[Understood, int], Awaitable[tuple[Fit | Answer, WriteConcern]]]
"""Carries out a request that the log does not have; returns the answer, and the write concern that
must be met before the answer is sent."""


class RingService:
    """Implements `haproc.route.model.Service` for one HAProc."""

    def __init__(self, given: Resources) -> None:
        parts = Parts.of(given, self.explained, self._now)
        self._core, self._replica, self._assurance = parts.core, given.replica, given.assurance
        self._defaults, self._reads, self._texts = given.config.defaults, given.reads, given.texts
        self._only_reads: dict[tuple[str, str], bool] = {}
        self._unmade = set[tuple[str, str]]()
        """Requests under way of which the log cannot have an operation yet, by user and id."""
        self.planning, self.sessions = parts.planning, given.sessions
        self._attempts, self._attached = parts.attempts, parts.attached
        self._classifying, self._concerns = parts.classifying, parts.concerns
        self._ruling, self._making = parts.ruling, parts.making
        self._narrowing, self._caching, self._shared = parts.narrowing, parts.caching, parts.shared
        self._session_statements = parts.session_statements
        self.shown = parts.showing(self._understood).shown

    # -- what the doors ask ----------------------------------------------------------------

    async def execute(self, request: Request) -> Answer:
        """See `haproc.route.model.Service`."""
        answer = await self._answered(request, self._run)
        assert isinstance(answer, Answer), "whatever it is, it is run here"
        return answer

    async def decide(self, request: Request) -> Fit | Answer:
        """Do as `execute`, but return a `Fit` if the door may run the request in the session."""
        return await self._answered(request, self._decided)

    async def _answered(self, request: Request, go_on: _GoOn) -> Fit | Answer:
        """Return the answer to a request; ``go_on`` carries it out if the log does not have it."""
        try:
            with self._attached.during(request.key), tracing.request(request.key):
                return await self._in_time(request, go_on)
        except Exception as error:
            if isinstance(error, RequestError):
                note_if_refusal(error)
            if self._only_reads.get(request.key):
                reported = of_query(error, f"statement {request.id}")
                raise reported from (error.__cause__ if reported is error else error)
            raise
        finally:
            self._only_reads.pop(request.key, None)
            self._unmade.discard(request.key)

    async def _in_time(self, request: Request, go_on: _GoOn) -> Fit | Answer:
        since = self._replica.writes.since(request.age_s, request.arrived_s)
        deadline_s = self._now() + request.timeout_s
        try:
            async with asyncio.timeout(request.timeout_s):
                request = await with_bound(request, self._texts)
                answer, concern = await self._found_or_made(request, since, go_on)
                if isinstance(answer, Fit):
                    return answer
                if answer.report.offset is not None:
                    await self._wrote(request)
        except TimeoutError as error:
            unsent = request.age_s == 0 and request.key in self._unmade
            reads = self._only_reads.get(request.key, False)
            outcome = WriteOutcome.NOT_SENT if reads or unsent else WriteOutcome.UNKNOWN
            raise timed_out(request.timeout_s, self._core.me, outcome) from error
        return await self._assured(answer, concern, deadline_s)

    async def _found_or_made(
        self, request: Request, since: int, go_on: _GoOn
    ) -> tuple[Fit | Answer, WriteConcern]:
        """Look the request up in the log; carry it out with ``go_on`` if the log does not have it.

        Returns the answer, and the write concern to meet before it is sent.
        """
        self._check_serving()
        key = request.key
        if (found := self._attempts.newest(*key)) is not None:
            self._only_reads[key] = False
            if request.permit is not None:
                request.permit.rest()
            if found.outcome is None and found.facts.of_session:
                await self._attach_session(request, found.facts)
        known = await self._attempts.known(request)
        if known is None:
            self._unmade.add(key)
            try:
                understood = await self._understood(request)
            except RequestError as error:
                known = await self._attempts.unless_known(request, error)
        if known is not None:
            return answer_of(known, self._core), await self._concerns.again(
                request.write_concern, known.offset
            )
        return await go_on(understood, since)

    async def _wrote(self, request: Request) -> None:
        """Check that this HAProc still owns the request's session, before its write is answered.

        A HAProc that adopted the session during the write has not waited for the write. So the
        session is taken back from it here; when it adopts the session again, it waits for the log's
        end. Raises RequestError, with outcome UNKNOWN, if the store cannot be reached.
        """
        try:
            await self._session_of(request)
        except RequestError as error:
            if error.kind is FailureKind.AVAILABILITY:
                error.outcome = WriteOutcome.UNKNOWN
                raise
            # The session was closed meanwhile: no later read in it can miss the write.

    async def _attach_session(self, request: Request, facts: Facts) -> None:
        """Let the operation's query run in the client's session, also for a repeated request."""
        with suppress(RequestError):  # the session's user reports that it is unknown
            session = await self._session_of(request)
            if session is not None:
                self._attached.attach_session(facts, session)

    async def _understood(self, request: Request) -> Understood:
        """Find the request's session and settings, and classify it. Raises RequestError."""
        session = await self._session_of(request)
        if session is not None and (request.catalog or request.schema):
            raise refusal(
                ErrorClass.SESSION_HAS_SCHEMA,
                "a session has its own catalog and schema",
                "send USE in the session, or leave session_id out",
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

    async def _run(self, understood: Understood, since: int) -> tuple[Answer, WriteConcern]:
        """Carry out a request that the log does not have, by the class of its statement."""
        found = understood.statement.operation_class
        self._only_reads[understood.request.key] = found is OperationClass.QUERY
        if found is OperationClass.QUERY:
            return await self._read(understood, since)
        if found is not OperationClass.SESSION:
            return await self._write(understood, since)
        self._unmade.discard(understood.request.key)
        return await self._session_statements.run_session_statement(understood), WriteConcern.ONE

    async def _decided(
        self, understood: Understood, since: int
    ) -> tuple[Fit | Answer, WriteConcern]:
        """Do as `_run`; but return a `Fit` if the door may run the request itself."""
        found = understood.statement.operation_class
        self._only_reads[understood.request.key] = found is OperationClass.QUERY
        if found is OperationClass.QUERY:
            return await self._readable(understood, since)
        if found is OperationClass.SESSION and not understood.statement.sql:
            ruled = await self._ruling.settled(understood)
            return Fit(ruled.understood.statement.operation_class, ruled.still), WriteConcern.ONE
        return await self._run(understood, since)

    async def _read(self, understood: Understood, since: int) -> tuple[Answer, WriteConcern]:
        """Answer a query: from the cache, by another cluster, or by running it here."""
        known = self._ruling.remembered(understood)
        held = partial(self._caching.held, known.understood, known.still) if known else lambda: None
        narrow = partial(self._narrowing.applied, understood)
        answer = await self._reads.from_cache_or_peer(understood.request, held, narrow)
        if answer is None:
            ruled = await self._ruling.settled(understood)
            if ruled.understood.statement.operation_class is not OperationClass.QUERY:
                return await self._run(ruled.understood, since)
            here = partial(self._query, ruled, self.planning.departures())
            answer = await self._caching.answer(ruled.understood, here, ruled.still)
        self._caching.count(answer)
        return answer, WriteConcern.ONE

    async def _readable(
        self, understood: Understood, since: int
    ) -> tuple[Fit | Answer, WriteConcern]:
        """Wait until the door may run a query in the client's session; then return a `Fit`.

        If a peer or a rule answers the request in another way, returns that answer.
        """
        session, narrowed = understood.session, list[Callable[[], bool]]()

        async def narrow() -> Callable[[], int] | None:
            unchanged = session.unchanged() if session is not None else None
            found = await self._narrowing.applied_in(understood, session)
            if found is not None and unchanged is not None:
                narrowed.append(unchanged)
            return found

        answer = await self._reads.from_cache_or_peer(understood.request, narrow=narrow)
        if answer is not None:
            return answer, WriteConcern.ONE
        ruled = await self._ruling.settled(understood)
        if (found := ruled.understood.statement.operation_class) is not OperationClass.QUERY:
            return await self._run(ruled.understood, since)
        # If the session changed meanwhile, the wait was for all operations: no check is needed.
        still = [*(unchanged for unchanged in narrowed if unchanged()), ruled.still]
        return Fit(found, lambda: all(each() for each in still)), WriteConcern.ONE

    async def query_for_peer(self, request: Request, needed: int) -> Answer:
        """Run a query that a peer forwarded; it is not forwarded again. Raises RequestError."""
        try:
            with tracing.request(request.key):
                async with asyncio.timeout(request.timeout_s):
                    understood = await self._understood(request)
                    self._check_query(understood)
                    self._check_serving()
                    await self._reads.for_peer(needed, request.timeout_s)
                    ruled = await self._ruling.settled(understood)
                    self._check_query(ruled.understood)
                    return await self._query(ruled, self.planning.departures())
        except TimeoutError as error:
            raise timed_out(request.timeout_s, self._core.me, WriteOutcome.NOT_SENT) from error

    def _check_query(self, understood: Understood) -> None:
        if (found := understood.statement.operation_class) is not OperationClass.QUERY:
            raise no_query(self._core.me, found)

    def known_write(self, request_id: str, user: str) -> Known | None:
        """Return this user's newest write with the request id; None if it was not read here."""
        return self._attempts.newest(user, request_id)

    def find_write(self, request_id: str, user: str) -> Callable[[], Awaitable[Answer]] | None:
        """See `haproc.route.model.Service`."""
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
        """See `haproc.route.model.Service`."""
        known, revoking = self.known_write(request_id, user), self._replica.revoking
        return await revoking.revoke(known.offset, "its sender") if known else None

    async def is_final(self, offset: int) -> bool:
        """See `haproc.route.model.Service`."""
        return await is_final(self._core, offset, LOOK_S)

    async def concern_met(self, offset: int, concern: WriteConcern | None) -> bool:
        """See `haproc.route.model.Service`."""
        try:
            async with asyncio.timeout(2 * LOOK_S):
                needed = await self._concerns.again(concern, offset)
                await self._assurance.fulfil(offset, needed, self._now() + LOOK_S)
        except (RequestError, LogError, TimeoutError):
            return False
        return True

    async def open_session(
        self,
        session_id: str,
        user: str,
        statements: Sequence[str],
        *,
        afresh: bool,
        rights: Rights = UNBOUNDED,
    ) -> Mapping[str, str]:
        """See `haproc.route.model.Service`."""
        self._check_serving()
        if afresh:
            session = await self.sessions.begin_afresh(user, session_id)
        else:
            session = await self.sessions.enter(user, session_id, create=True)
        await self._session_statements.begin(session, statements, rights)
        settings = session.settings
        return {
            "catalog": settings.catalog,
            "schema": settings.schema,
            "time_zone": settings.time_zone,
        }

    async def enter_session(self, session_id: str, user: str) -> ClientSession:
        """Return the client's session, begun if there is none; raises RequestError."""
        self._check_serving()
        return await self.sessions.enter(user, session_id, create=True)

    def explained(self, error: EngineError) -> RequestError:
        """Turn an error of this cluster's Spark into a RequestError, with outcome NOT_SENT."""
        return failed(error, self._core, WriteOutcome.NOT_SENT)

    async def close_session(self, session_id: str, user: str) -> None:
        """See `haproc.route.model.Service`."""
        await self.sessions.close(user, session_id)

    def only_reads(self, request: Request) -> bool | None:
        """See `haproc.route.model.Service`."""
        return self._only_reads.get(request.key)

    # -- queries and sessions --------------------------------------------------------------

    async def _query(self, ruled: Ruled, departures: int) -> Answer:
        """Run a query on this cluster.

        ``departures``: how often the cluster had left service when the query was let through;
        raises RequestError if it has left since.
        """
        understood = ruled.understood
        request, session, settings = understood.request, understood.session, understood.settings
        try:
            if session is not None:
                await session.spark.ready()  # which may need the log
            statement, timeout_s = as_it_runs(understood), request.timeout_s
            size = text_size(statement)
            turn = self.planning.turn(request.user, timeout_s, size, departures)
            async with turn as planned:
                spark = await self._spark_session(settings, session, request.user)
                stream = await spark.query(statement, timeout_s=timeout_s, planned=planned)
                result = await Running.begin(stream, self._core.me)
            await ruled.check(result)
        except EngineError as error:
            raise failed(error, self._core, WriteOutcome.NOT_SENT) from error
        # Its tables were read in their state before its first piece came.
        after = self._core.schedule.high
        report = HaReport(self._core.me, OperationClass.QUERY, after_offset=after)
        return Answer(report, result)

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

    async def _write(self, understood: Understood, since: int) -> tuple[Answer, WriteConcern]:
        request, body, began = understood.request, _body(understood.request), self._now()
        _check_writer(request, understood.statement)
        requested = request.write_concern
        concern: WriteConcern | None = None
        self._assurance.check(
            self._concerns.of(requested, understood.statement.write_concern), request.key
        )

        async def make() -> Operation:
            nonlocal concern
            try:
                made = await self._making.operation(understood)
            except EngineError as error:
                raise failed(error, self._core, WriteOutcome.NOT_SENT) from error
            except RefusedError as error:
                raise refused(error) from error
            concern = self._concerns.of(requested, made.statement.write_concern)
            self._assurance.check(concern, request.key)
            operation = replace(made.operation, id=self._attempts.next_id(request), since=since)
            await self._replica.writes.clear(operation, request.timeout_s - (self._now() - began))
            self._unmade.discard(request.key)  # from here on the log may have it
            if (facts := Facts.of(operation)).of_session:
                await self._attach_session(request, facts)
            if body is not None:
                self._attached.attach_rows(operation.key, body)
            return operation

        try:
            attempt = await self._attempts.write(request, make, partial(_logged, request, body))
            if concern is None:
                concern = await self._concerns.again(requested, attempt.offset)
            return answer_of(attempt, self._core), concern
        finally:
            if body is not None:
                body.passed()
                self._attached.request_is_over(body)

    async def _assured(self, answer: Answer, concern: WriteConcern, deadline_s: float) -> Answer:
        """Wait until enough clusters have applied the write for ``concern``; return the answer."""
        report = answer.report
        if report.offset is None:
            return answer
        applied = await self._assurance.fulfil(report.offset, concern, deadline_s)
        if not applied:
            return answer
        outcomes = {
            name: applied.get(name, outcome) if outcome == QUEUED else outcome
            for name, outcome in report.outcomes.items()
        }
        return replace(answer, report=replace(report, outcomes=outcomes))

    async def _session_of(self, request: Request) -> ClientSession | None:
        if request.session_id is None:
            return None
        return await self.sessions.enter(request.user, request.session_id, create=False)

    def _settings(
        self, session: ClientSession | None, catalog: str | None, schema: str | None
    ) -> Settings:
        """Return the settings under which a request runs: the session's, or the ring's defaults.

        ``catalog`` and ``schema``: the request's own, which replace those in the settings.
        """
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
        """True if this HAProc is in a state in which it accepts requests."""
        return self._core.condition.state in SERVING

    def _check_serving(self) -> None:
        if not self.serving:
            raise self._replica.writes.unavailable()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _check_writer(request: Request, statement: Classified) -> None:
    """Raise RequestError if the request's user lacks the role writer."""
    if not request.rights.has(Role.WRITER):
        raise refusal(
            ErrorClass.FORBIDDEN,
            f"the statement ({statement.kind.value}) writes, which needs the role writer",
            "have an operator give the user the role, or send queries only",
        )


def _body(request: Request) -> ManyRows | None:
    sent = request.statement
    return sent.body if isinstance(sent, SentRows) else None


def _logged(request: Request, body: ManyRows | None) -> None:
    """Return the permit, and release the memory of the rows: the log has the write now."""
    if request.permit is not None:
        request.permit.rest()
    if body is not None:
        body.passed()
