"""Brings a client's write into the log, with its resources and its write concern."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from dmq import LogError, TrimmedError
from haproc.classify.model import WriteConcern
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome, log_unavailable
from haproc.replicate.agree.assurance import Assurance
from haproc.replicate.log_state.definitions import ANYTHING, reach
from haproc.replicate.member.core import Core
from haproc.replicate.queue.facts import Facts
from haproc.replicate.queue.outcomes import Known, OperationOutcome, OutcomeStatus
from haproc.replicate.records.operation import Operation
from haproc.replicate.replica import Replica
from haproc.replicate.writes import WriteAttempt
from haproc.route.classifying import Classifying
from haproc.route.model import ManyRows, Request, may_be_made_again, retry_ids
from haproc.sessions.client import ClientSession


class LogEnd:
    """Reads the log's end after a request for it; simultaneous requests share a call.

    A call answers only requests that came before it began.
    """

    def __init__(self, call: Callable[[], Awaitable[int]]) -> None:
        self._call = call
        self._current: asyncio.Task[int] | None = None
        self._next: asyncio.Task[int] | None = None

    async def read_log_end(self) -> int:
        """Return the log's end as of a moment after this call; raises the errors of the call."""
        if self._next is None:
            self._next = asyncio.create_task(self._run(self._current))
            self._next.add_done_callback(retrieve_error)
        # Several requests wait for the same call: it goes on when one of them is cancelled.
        return await asyncio.shield(self._next)

    async def _run(self, before: asyncio.Task[int] | None) -> int:
        if before is not None:
            await asyncio.wait([before])
        self._current, self._next = self._next, None
        return await self._call()


def retrieve_error(task: asyncio.Task[Any]) -> None:
    """Retrieve an error that no request waits for any more: asyncio would log it otherwise."""
    if not task.cancelled():
        task.exception()


# The state of this cluster when it looks up definitions for a write, as offsets of the log.


@dataclass(frozen=True, slots=True)
class Ground:
    """This cluster's state before a lookup. ``low``: all records below were applied then.

    ``definitions``: the number of definitions that had changed on this cluster until then.
    """

    core: Core
    low: int
    definitions: int

    @classmethod
    def now(cls, core: Core) -> Ground:
        """Return this cluster's present state."""
        return cls(core, core.schedule.low, core.watermarks.definitions_applied)

    def below(self, names: frozenset[str]) -> int:
        """Return, after a lookup, the offset below which redefinitions of the names were applied.

        If a definition changed during the lookup, the lookup may have found the earlier one.
        """
        if self.core.watermarks.definitions_applied != self.definitions:
            return self.low
        return max(self.low, applied_to(self.core, names)())


def applied_to(core: Core, names: frozenset[str]) -> Callable[[], int]:
    """Return a function for the offset below which redefinitions of these names are applied."""
    schedule = core.schedule
    if ANYTHING in names:
        return lambda: schedule.low
    return lambda: schedule.applied_of(names)


_Key: TypeAlias = tuple[str, str]


class AttachedResources:
    """Attaches a request's resources to its operation, until the operation has ended.

    The resources are the rows of the request, and its client's session. The request may end first:
    its time is over, and the operation still waits for its turn.

    Keys are those of operations, unless stated otherwise.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._rows: dict[_Key, ManyRows] = {}
        self._sessions: set[_Key] = set()
        self._followed: set[_Key] = set()
        self._requests: Counter[_Key] = Counter()

    def attach_rows(self, key: _Key, body: ManyRows) -> None:
        """Let an operation that is about to enter the log take its rows from a body."""
        if key in self._rows:
            return  # a further attempt: the same request, the same rows
        body.hold()
        self._rows[key] = body
        self._replica.computing.attach_rows(key, body)

    def request_is_over(self, body: ManyRows) -> None:
        """Detach a body from its operations: now, or when an operation in the log has ended."""
        for key in [key for key, attached in self._rows.items() if attached is body]:
            self._when_over(key, self._take_back)

    def attach_session(self, facts: Facts, session: ClientSession) -> None:
        """Let an operation's query run in the client's session, if it may need the session.

        The session stays attached while a request for the operation is handled here, see `during`.
        """
        if _may_hold(session, facts):
            self._sessions.add(facts.key)
            self._replica.computing.attach_session(facts.key, session.spark, session.unchanged())

    @contextmanager
    def during(self, request: _Key) -> Iterator[None]:
        """Detach sessions after the last of equal requests, or when their operation has ended.

        ``request``: the request's user and id, from which the ids of its operations follow.
        """
        self._requests[request] += 1
        try:
            yield
        finally:
            self._requests[request] -= 1
            if not self._requests[request]:
                del self._requests[request]
                user, request_id = request
                ids = retry_ids(request_id) if self._sessions else ()
                for key in [(user, each) for each in ids]:
                    if key in self._sessions and key not in self._followed:
                        self._when_over(key, self._take_session_back)

    def _when_over(self, key: _Key, take_back: Callable[[_Key], None]) -> None:
        known = self._replica.core.outcomes.find(key)
        if known is None or known.outcome is not None:
            take_back(key)
        else:
            self._followed.add(key)
            self._replica.core.tasks.spawn(self._follow(key, take_back))

    async def _follow(self, key: _Key, take_back: Callable[[_Key], None]) -> None:
        known = self._replica.core.outcomes.find(key)
        try:
            if known is not None:
                with suppress(RequestError):
                    await self._replica.writes.settled(known)
        finally:
            self._followed.discard(key)
            take_back(key)

    def _take_back(self, key: _Key) -> None:
        if (body := self._rows.pop(key, None)) is not None:
            self._replica.computing.detach_rows(key)
            body.release()

    def _take_session_back(self, key: _Key) -> None:
        self._sessions.discard(key)
        self._replica.computing.detach_session(key)


def _may_hold(session: ClientSession, facts: Facts) -> bool:
    """True if a session may hold an object that an operation's query needs."""
    if (ref := facts.session) is not None:
        return (ref.begun, ref.entries) == (session.begun, session.next_ordinal)
    return session.holds_temporaries


class Concerns:
    """The write concerns of requests: their own, the configured one, and those of rules.

    ``asks_for_more``: True if any rule asks for a write concern.
    """

    def __init__(
        self,
        assurance: Assurance,
        attempts: Attempts,
        classifying: Classifying,
        *,
        asks_for_more: bool,
    ) -> None:
        self._assurance = assurance
        self._attempts = attempts
        self._classifying = classifying
        self._asks_for_more = asks_for_more

    def of(self, requested: WriteConcern | None, least: WriteConcern | None) -> WriteConcern:
        """Return the request's write concern, or the configured one; a rule's if that is more."""
        return (requested or self._assurance.default).at_least(least)

    async def again(self, requested: WriteConcern | None, offset: int) -> WriteConcern:
        """Return the write concern of a write in the log, even if it would be refused now."""
        least = None
        operation = await self._attempts.operation(offset) if self._asks_for_more else None
        if operation is not None:
            with suppress(RequestError):
                least = await self._classifying.concern_of(operation)
        return self.of(requested, least)


ATTEMPTS_MAX: Final = 8
"""Chosen: if a few clients keep redefining one object, one of them succeeds at each attempt."""
PAUSE_S: Final = 0.1
"""The longest random pause after the first stale attempt; it grows, so that attempts spread."""

Make: TypeAlias = Callable[[], Awaitable[Operation]]


class Attempts:
    """Brings a client's write into the log.

    The order is the same for every door and every kind of write:

    1. *Is it known?* If the log has an operation of the same user and id, its outcome is the
       answer, whatever the tables are like now.
    2. *Make it.* This cluster looks up what the write needs (columns, views, the analysis). A final
       failure may only mean that this cluster lags. So it waits until it has applied all records
       that the log held then, and tries again from 1. Only then a failure is final.
    3. *Append it.* If it proves stale (`replicate.log_state.definitions`), it is made again.

    If the log cannot be reached, a request that is sent for the first time gets the log's error: no
    cluster can have applied it. A retry gets an unknown outcome.

    The caller enforces the request's timeout.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._core = replica.core
        self._log_end = LogEnd(replica.read_end)

    async def known(self, request: Request) -> WriteAttempt | None:
        """Return the request's operation, read from the log here, with its outcome.

        None if no such operation was read here, or if it may be made again. Raises RequestError.
        """
        found: WriteAttempt | None = None
        for each in retry_ids(request.id):
            key = (request.user, each)
            found = await self._replica.writes.repeated(key, request.fingerprint)
            if found is None or not _again(found.outcome):
                break
        return found

    def newest(self, user: str, request_id: str) -> Known | None:
        """Return the newest operation under a request's retry ids that was read here, or None."""
        newest: Known | None = None
        for each in retry_ids(request_id):
            if (known := self._core.outcomes.find((user, each))) is None:
                break
            newest = known
        return newest

    def next_id(self, request: Request) -> str:
        """Return the retry id of a request's next write; `route.model` explains these ids."""
        found = request.id
        for found in retry_ids(request.id):
            known = self._core.outcomes.find((request.user, found))
            if known is None or not _again(known.outcome):
                break
        return found

    async def unless_known(self, request: Request, error: RequestError) -> WriteAttempt:
        """Return the operation of a refused request, if the log has it; else raise ``error``.

        For a request that is refused by its text alone, whatever the tables hold.
        """
        if not _is_final(error):
            raise _of_attempt(request, error)
        await self._read(await self._end_after(request, error))
        found = await self.known(request)
        if found is None:
            raise error
        return found

    async def write(
        self, request: Request, make: Make, logged: Callable[[], None] = lambda: None
    ) -> WriteAttempt:
        """Return the operation that counts, with its outcome here.

        ``make`` raises RequestError; it is called again if the result may be another one.
        ``logged`` is called each time an operation is in the log.
        """
        needed: int | None = None
        for attempt in range(1, ATTEMPTS_MAX + 1):
            looked_at = self._core.schedule.low
            try:
                operation = await make()
            except RequestError as error:
                if not _is_final(error):
                    raise _of_attempt(request, error) from error.__cause__
                if needed is None:
                    needed = await self._end_after(request, error)
                    await self._replica.applied(needed)
                if (found := await self.known(request)) is not None:
                    return found
                if looked_at >= needed:
                    raise
                continue
            made_as, facts, rests_on = operation.id, Facts.of(operation), operation.rests_on
            submitted = self._replica.writes.submit(operation, request.timeout_s, logged)
            del operation  # may be large; the applier reads it from the log
            offset, outcome = await submitted
            if _again(outcome) and self.next_id(request) != made_as:
                continue
            if outcome.status is not OutcomeStatus.STALE:
                return WriteAttempt(facts, offset, outcome)
            await self._replica.applied(offset + 1, applied_to(self._core, rests_on))
            await asyncio.sleep(random.uniform(0, attempt * PAUSE_S))
        raise RequestError(
            FailureKind.AVAILABILITY,
            f"what the write rests on was defined anew {ATTEMPTS_MAX} times between the look at it "
            "and its place in the order",
            error_class=ErrorClass.REDEFINED,
            outcome=WriteOutcome.NOT_SENT,
            hint="ask again with the same request_id when there is less DDL on its tables",
        )

    async def operation(self, offset: int) -> Operation | None:
        """Return the operation that the log has at an offset.

        None if its record was trimmed: then every cluster has applied it.
        """
        try:
            return await self._core.own_log.operation(offset)
        except TrimmedError:
            return None

    async def ground(self, names: frozenset[str] = frozenset()) -> Ground:
        """Return the ground for a lookup of tables of these names.

        Waits until this cluster is near the log's end, so that the operation can be in time.
        """
        core = self._core
        far = reach(core.limits.window_records) // 2
        await self._replica.applied(core.watermarks.log_end - far, applied_to(core, names))
        return Ground.now(core)

    async def _end_after(self, request: Request, refusal: RequestError) -> int:
        """Return the log's end as of a moment after the request came."""
        try:
            async with asyncio.timeout(self._core.timeouts.append_s):
                return await self._log_end.read_log_end()
        except (LogError, TimeoutError) as error:
            if request.age_s == 0:
                raise refusal from error
            hint = "ask the next HAProc with the same request_id"
            raise log_unavailable("the log did not report its end", error, hint) from error

    async def _read(self, end: int) -> None:
        """Wait until the log is read up to ``end``; raises RequestError."""
        append_s = self._core.timeouts.append_s
        if not await self._replica.admission.wait_read_to(end, append_s):
            raise RequestError(
                FailureKind.AVAILABILITY,
                f"cluster {self._core.me} has not read the log to its end: whether it holds the "
                "request already is not known",
                error_class=ErrorClass.NOT_FRESH,
                outcome=WriteOutcome.UNKNOWN,
                hint="ask the next HAProc with the same request_id",
            )


def _again(outcome: OperationOutcome | None) -> bool:
    """True if a write had no effect and never will have one, so it may be made again."""
    if outcome is None or outcome.status is not OutcomeStatus.REJECTED:
        return False
    return may_be_made_again(outcome.failure)


def _is_final(error: RequestError) -> bool:
    """True if the error ends the request for its client."""
    return error.kind is not FailureKind.AVAILABILITY


def _of_attempt(request: Request, error: RequestError) -> RequestError:
    """Return the error with the outcome that the client gets.

    The outcome of a retry is unknown: the log may have an earlier attempt of the request.
    """
    if request.age_s > 0 and error.outcome is WriteOutcome.NOT_SENT:
        error.outcome = WriteOutcome.UNKNOWN
    return error
