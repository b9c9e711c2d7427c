"""Appends a client's write to the log; finds its rows, its session and its write concern."""

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
    """Asks the log for the offset of its end; simultaneous requests share one call.

    A request gets only the answer of a call that began after the request came.
    """

    def __init__(self, call: Callable[[], Awaitable[int]]) -> None:
        self._call = call
        self._current: asyncio.Task[int] | None = None
        self._next: asyncio.Task[int] | None = None

    async def read_log_end(self) -> int:
        """Ask the log for its end after this moment; return it. Raises the errors of the log."""
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
    """Fetch the error of a task that no request waits for any more.

    Otherwise asyncio would write the error to the program's log.
    """
    if not task.cancelled():
        task.exception()


# The state of this cluster when it looks up definitions for a write, as offsets of the log.


@dataclass(frozen=True, slots=True)
class Ground:
    """How far this cluster had applied the log when it began to look up tables for a write.

    ``low``: all records below this offset were applied. ``definitions``: the number of changed
    definitions (of tables, views, functions) that were applied until then.
    """

    core: Core
    low: int
    definitions: int

    @classmethod
    def now(cls, core: Core) -> Ground:
        """Return a `Ground` with what this cluster has applied now."""
        return cls(core, core.schedule.low, core.watermarks.definitions_applied)

    def below(self, names: frozenset[str]) -> int:
        """Return the offset below which a lookup that just ended saw all changes of ``names``.

        If any definition changed during the lookup, it may have seen the earlier one: this is
        ``low``.
        """
        if self.core.watermarks.definitions_applied != self.definitions:
            return self.low
        return max(self.low, applied_to(self.core, names)())


def applied_to(core: Core, names: frozenset[str]) -> Callable[[], int]:
    """Return a function for the offset below which redefinitions of ``names`` are applied here.

    The function returns the present offset at each call.
    """
    schedule = core.schedule
    if ANYTHING in names:
        return lambda: schedule.low
    return lambda: schedule.applied_of(names)


_Key: TypeAlias = tuple[str, str]


class AttachedResources:
    """Keeps the rows and the session of a request ready for its operation, until that has ended.

    The request may end first: its timeout is over, and the operation still waits in the queue.

    Keys are (user, id) of operations, unless stated otherwise.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._rows: dict[_Key, ManyRows] = {}
        self._sessions: set[_Key] = set()
        self._followed: set[_Key] = set()
        self._requests: Counter[_Key] = Counter()

    def attach_rows(self, key: _Key, body: ManyRows) -> None:
        """Let the operation ``key``, which will be in the log soon, take its rows from ``body``."""
        if key in self._rows:
            return  # a further attempt: the same request, the same rows
        body.hold()
        self._rows[key] = body
        self._replica.computing.attach_rows(key, body)

    def request_is_over(self, body: ManyRows) -> None:
        """Detach ``body`` from its operations, as its request has ended.

        An operation that the log has, and that has not ended, keeps it until its end.
        """
        for key in [key for key, attached in self._rows.items() if attached is body]:
            self._when_over(key, self._take_back)

    def attach_session(self, facts: Facts, session: ClientSession) -> None:
        """Let an operation's query run in the client's session, if that may have objects it needs.

        The session stays attached as long as a request for the operation is handled here
        (`during`).
        """
        if _may_hold(session, facts):
            self._sessions.add(facts.key)
            self._replica.computing.attach_session(facts.key, session.spark, session.unchanged())

    @contextmanager
    def during(self, request: _Key) -> Iterator[None]:
        """Keep sessions attached while requests of one user and id are handled here.

        After the last of these requests they are detached, or later when their operation has ended.
        ``request``: the user and the request's id; its retry ids are the ids of its operations.
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
    """True if the session may hold a temporary object that the operation's query needs.

    ``facts``: what is known of the operation.
    """
    if (ref := facts.session) is not None:
        return (ref.begun, ref.entries) == (session.begun, session.next_ordinal)
    return session.holds_temporaries


class Concerns:
    """Finds the write concern of a write: the request's, or that of an operator's rule if higher.

    A request without one has the configured one. ``asks_for_more``: True if any operator's rule
    asks for a write concern.
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
        """Return the higher of two write concerns.

        These are ``requested`` (the configured one if None), and ``least``, which a rule asks for.
        """
        return (requested or self._assurance.default).at_least(least)

    async def again(self, requested: WriteConcern | None, offset: int) -> WriteConcern:
        """Return the write concern for a repeated request whose write the log has at ``offset``.

        It is found even if the rules would refuse the write now.
        """
        least = None
        operation = await self._attempts.operation(offset) if self._asks_for_more else None
        if operation is not None:
            with suppress(RequestError):
                least = await self._classifying.concern_of(operation)
        return self.of(requested, least)


ATTEMPTS_MAX: Final = 8
"""The most attempts to append a write that becomes stale each time. Chosen: if a few clients keep
redefining one object, one of them succeeds at each attempt."""
PAUSE_S: Final = 0.1
"""The longest random pause after the first stale attempt. It grows with each attempt, so that
clients do not try again at the same time."""

Make: TypeAlias = Callable[[], Awaitable[Operation]]


class Attempts:
    """Appends a client's write to the log.

    The order is the same for every door and every kind of write:

    1. *Is it known?* If the log has an operation of the same user and id, its outcome is the
       answer, whatever the tables are like now.
    2. *Make the operation.* This cluster looks up what the write needs (columns, views, the
       analysis). If that ends with another error than an availability error, the reason may be that
       this cluster lags. So HAProc asks the log for its end. The client gets the error only if the
       cluster had applied everything below that end before the lookup began. Otherwise HAProc
       waits until it has, and tries again from 1.
    3. *Append the operation.* If it proves stale (`replicate.log_state.definitions`), it is made
       again.

    If the log cannot be asked for its end then, the client gets the error of step 2 if it sent the
    request for the first time: no cluster can have applied the request. For a retry the client
    gets an availability error.

    The caller enforces the request's timeout.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._core = replica.core
        self._log_end = LogEnd(replica.read_end)

    async def known(self, request: Request) -> WriteAttempt | None:
        """Find the request's operation among the records read so far; return it with its outcome.

        None if there is none, or if it was rejected in a way that allows a new operation under the
        next retry id. Raises RequestError.
        """
        found: WriteAttempt | None = None
        for each in retry_ids(request.id):
            key = (request.user, each)
            found = await self._replica.writes.repeated(key, request.fingerprint)
            if found is None or not _again(found.outcome):
                break
        return found

    def newest(self, user: str, request_id: str) -> Known | None:
        """Return the newest operation with one of a request's retry ids.

        None if there is none among the records that this HAProc has read.
        """
        newest: Known | None = None
        for each in retry_ids(request_id):
            if (known := self._core.outcomes.find((user, each))) is None:
                break
            newest = known
        return newest

    def next_id(self, request: Request) -> str:
        """Return the first of the request's retry ids that is free for a new operation.

        `haproc.route.model` explains these ids.
        """
        found = request.id
        for found in retry_ids(request.id):
            known = self._core.outcomes.find((request.user, found))
            if known is None or not _again(known.outcome):
                break
        return found

    async def unless_known(self, request: Request, error: RequestError) -> WriteAttempt:
        """Return the operation of a request that is refused now, if the log has it.

        Otherwise raises ``error``, the reason of the refusal. For a request that is refused by its
        text alone. The log is read to its end first.
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
        """Append a request's write, unless the log has it; return the operation and its outcome.

        ``make`` makes the operation, or raises RequestError; it is called again if the cluster was
        behind or the operation became stale. ``logged`` is called each time the log has an
        operation. The outcome is that on this cluster. Raises RequestError, also after ATTEMPTS_MAX
        stale attempts.
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
        """Read the operation at ``offset`` from the log.

        None if its record was deleted from the log, which is done only when every cluster has
        applied it.
        """
        try:
            return await self._core.own_log.operation(offset)
        except TrimmedError:
            return None

    async def ground(self, names: frozenset[str] = frozenset()) -> Ground:
        """Return the `Ground` for a lookup of the tables ``names``.

        First waits until this cluster is near the log's end: an operation whose lookup is too old
        is stale.
        """
        core = self._core
        far = reach(core.limits.window_records) // 2
        await self._replica.applied(core.watermarks.log_end - far, applied_to(core, names))
        return Ground.now(core)

    async def _end_after(self, request: Request, refusal: RequestError) -> int:
        """Ask the log for its end; if it cannot be reached, raise an error for the client.

        That is ``refusal`` if the request was sent for the first time, else an availability error.
        """
        try:
            async with asyncio.timeout(self._core.timeouts.append_s):
                return await self._log_end.read_log_end()
        except (LogError, TimeoutError) as error:
            if request.age_s == 0:
                raise refusal from error
            hint = "ask the next HAProc with the same request_id"
            raise log_unavailable("the log did not report its end", error, hint) from error

    async def _read(self, end: int) -> None:
        """Wait until this HAProc has read the log up to ``end``.

        Raises RequestError if that takes longer than an append may take.
        """
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
    """True if a write was rejected, and the request may be made again under its next retry id."""
    if outcome is None or outcome.status is not OutcomeStatus.REJECTED:
        return False
    return may_be_made_again(outcome.failure)


def _is_final(error: RequestError) -> bool:
    """True if the client should not try another HAProc: any error but an availability error."""
    return error.kind is not FailureKind.AVAILABILITY


def _of_attempt(request: Request, error: RequestError) -> RequestError:
    """Return the error; for a retry, its outcome NOT_SENT becomes UNKNOWN.

    The log may have an operation of an earlier attempt of the request.
    """
    if request.age_s > 0 and error.outcome is WriteOutcome.NOT_SENT:
        error.outcome = WriteOutcome.UNKNOWN
    return error
