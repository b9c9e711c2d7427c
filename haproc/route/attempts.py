"""Brings a client's write into the log: looked for first, made, and made again where that helps.

In this order, for every door and every kind of write:

1. *Is it known?* Whatever else is to be said of a request, an operation of its user and id in the
   log comes first: the answer is that operation's outcome, whatever the tables are like by now.
2. *Make it*: whatever is looked up for it (columns, views, the analysis) is looked up where this
   cluster is, which is cheap. If that fails for good, it may only be because
   this cluster lags. So it waits until everything is applied that the log held at that moment, and
   looks again: for the id, and at the tables. Only then a failure is final.
3. *Append it.* If it turns out to be stale (`replicate.log_state.definitions`), it is made again.

Where the log cannot be asked, a request that is sent for the first time is told its error: nobody
can have applied it. A retry is told that its outcome is unknown.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from dmq import LogError, TrimmedError
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome, log_unavailable
from haproc.replicate.log_state.definitions import reach
from haproc.replicate.queue.facts import Facts
from haproc.replicate.queue.outcomes import Known, OperationOutcome, OutcomeStatus
from haproc.replicate.records.operation import Operation, from_record
from haproc.replicate.replica import Replica
from haproc.replicate.writes import WriteAttempt
from haproc.route.ground import Ground, applied_to
from haproc.route.log_end import LogEnd
from haproc.route.model import Request
from haproc.route.retry_ids import may_be_made_again, retry_ids

ATTEMPTS_MAX: Final = 8
"""Chosen: of a few that define the same thing all the time, one gets through at each attempt."""
PAUSE_S: Final = 0.1
"""After n stale attempts, up to n times that: those who define the same thing at the same time must
not go on in step."""

Make: TypeAlias = Callable[[], Awaitable[Operation]]


class Attempts:
    """See the module. The caller keeps the request's deadline."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._core = replica.core
        self._log_end = LogEnd(replica.read_end)

    async def known(self, request: Request) -> WriteAttempt | None:
        """Return the operation that the log has of this request already.

        None if none was read here so far, or if it may be made again. Raises RequestError.
        """
        found: WriteAttempt | None = None
        for each in retry_ids(request.id):
            key = (request.user, each)
            found = await self._replica.writes.repeated(key, request.fingerprint)
            if found is None or not _again(found.outcome):
                break
        return found

    def newest(self, user: str, request_id: str) -> Known | None:
        """Return the operation of a request that counts by now, if one was read here."""
        newest: Known | None = None
        for each in retry_ids(request_id):
            if (known := self._core.outcomes.find((user, each))) is None:
                break
            newest = known
        return newest

    def next_id(self, request: Request) -> str:
        """Return the id under which a request's write is to be made now, see `route.retry_ids`."""
        found = request.id
        for found in retry_ids(request.id):
            known = self._core.outcomes.find((request.user, found))
            if known is None or not _again(known.outcome):
                break
        return found

    async def unless_known(self, request: Request, error: RequestError) -> WriteAttempt:
        """Return the operation of a request that would be refused, if the log has it; else raise.

        For what is refused by its words alone, wherever the tables stand.
        """
        if not _is_final(error):
            raise _of_attempt(request, error)
        await self._read(await self._end_after(request, error))
        found = await self.known(request)
        if found is None:
            raise error
        return found

    async def write(self, request: Request, make: Make) -> WriteAttempt:
        """Return the operation that counts, with its outcome here.

        ``make`` raises RequestError; it is called again if that may come to something else.
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
            submitted = self._replica.writes.submit(
                operation, request.timeout_s, request.place.rest if request.place else None
            )
            del operation  # may be large, and whoever runs it reads it from the log
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

        None if it is gone: what is trimmed was applied by every cluster.
        """
        try:
            entries = await self._core.own_log.read(offset, records_max=1)
        except TrimmedError:
            return None
        message = from_record(entries[0].record)
        assert isinstance(message, Operation)
        return message

    async def ground(self, names: frozenset[str] = frozenset()) -> Ground:
        """Return what stands here, for what is to be looked up now of tables of these names.

        It is near enough to the log's end for the operation to find its place in time.
        """
        core = self._core
        far = reach(core.limits.window_records) // 2
        await self._replica.applied(core.watermarks.log_end - far, applied_to(core, names))
        return Ground.now(core)

    async def _end_after(self, request: Request, refusal: RequestError) -> int:
        """Return an end that the log had after the request came."""
        try:
            async with asyncio.timeout(self._core.timeouts.append_s):
                return await self._log_end.read()
        except (LogError, TimeoutError) as error:
            if request.age_s == 0:
                raise refusal from error
            raise _log_away(error, WriteOutcome.UNKNOWN) from error

    async def _read(self, end: int) -> None:
        """Wait until the log is read up to there."""
        append_s = self._core.timeouts.append_s
        if not await self._replica.admission.heard_up_to(end, append_s):
            raise RequestError(
                FailureKind.AVAILABILITY,
                f"cluster {self._core.me} has not read the log to its end: whether it holds the "
                "request already is not known",
                error_class=ErrorClass.NOT_FRESH,
                outcome=WriteOutcome.UNKNOWN,
                hint="ask the next HAProc with the same request_id",
            )


def _again(outcome: OperationOutcome | None) -> bool:
    """Whether a write had no effect and never will, and may be made again."""
    if outcome is None or outcome.status is not OutcomeStatus.REJECTED:
        return False
    return may_be_made_again(outcome.failure)


def _is_final(error: RequestError) -> bool:
    """Whether the client would take the request for one that is over."""
    return error.kind is not FailureKind.AVAILABILITY


def _of_attempt(request: Request, error: RequestError) -> RequestError:
    """Return what is told of what stood in the way: the log may have an earlier attempt."""
    if request.age_s > 0 and error.outcome is WriteOutcome.NOT_SENT:
        error.outcome = WriteOutcome.UNKNOWN
    return error


def _log_away(error: Exception, outcome: WriteOutcome) -> RequestError:
    hint = "ask the next HAProc with the same request_id"
    return log_unavailable("the log did not tell its end", error, hint, outcome)
