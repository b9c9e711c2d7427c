"""This member's access to the log: calls are repeated until the log answers.

A process acts for its cluster from its *claim* on, until the log has a later claim on the cluster.
A call that finds such a claim never returns, so a replaced process does nothing more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from dmq import Cursor, Entry, FencedError, Log, LogUnavailableError, TrimmedError
from haproc.backoff import Backoff
from haproc.config.model import Timeouts
from haproc.replicate.log_state.members import Claims
from haproc.replicate.member.condition import Identity, MemberCondition
from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.records.operation import (
    Claim,
    Decision,
    DecisionKind,
    FailureReport,
    Message,
    Operation,
    from_record,
    to_record,
)
from haproc.replicate.records.progress import Progress, from_cursor, to_cursor
from haproc.replicate.records.rows import ApplicationFailure

T = TypeVar("T")
_SEEN_PROBES: Final = 2
"""A heartbeat says that the log answers if its last answer is at most so many probe intervals
old."""
_LOST_PROBES: Final = 4
"""The log is lost after so many probe intervals without an answer. More than _SEEN_PROBES: so a
peer's report is about a later moment, and its heartbeat has the time of a probe to arrive."""
PAGE_RECORDS: Final = 4096


class OwnLog:
    """Reads and writes the log for this process, and knows the claims on its cluster."""

    def __init__(
        self,
        log: Log,
        identity: Identity,
        timeouts: Timeouts,
        condition: MemberCondition,
        claims: Claims,
        schedule: Schedule,
    ) -> None:
        self._log = log
        self._identity = identity
        self._timeouts = timeouts
        self._condition = condition
        self._claims = claims
        self._schedule = schedule
        self._reached_at = asyncio.get_running_loop().time()
        self._application = identity.ring
        self._epoch = -1
        self._claims_read_to = 0
        self._storing = asyncio.Lock()
        """Held while the cursor is stored, so that `change` overwrites nothing newer."""

    # -- reaching the log ------------------------------------------------------------------

    async def once(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call the log once, and note if it answered; return the result; raises LogError."""
        try:
            result = await call()
        except LogUnavailableError as error:
            self._condition.log_failed(error)
            raise
        self._reached_at = asyncio.get_running_loop().time()
        return result

    async def reaching(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call the log again and again until it answers; return the result.

        Raises every error but LogUnavailableError. An answer to a read does not show that the log
        accepts writes: `append` and `commit` do.
        """
        pauses = Backoff(self._timeouts.retry_first_s, self._timeouts.retry_max_s)
        while True:
            try:
                return await self.once(call)
            except LogUnavailableError:
                await asyncio.sleep(pauses.pause_s())

    async def read_log(self, start: int, records_max: int = PAGE_RECORDS) -> list[Entry]:
        """Return the next entries of the log, from an offset on.

        Repeats the call until the log answers. Raises TrimmedError if they are gone; if a later
        process has taken over, never returns instead.
        """
        try:
            return await self.reaching(partial(self._log.read, start, records_max=records_max))
        except TrimmedError:
            await self.unless_replaced()
            raise

    async def operation(self, offset: int) -> Operation:
        """Read the operation at an offset, and return it.

        Raises TrimmedError, as `read_log` does.
        """
        (entry,) = await self.read_log(offset, records_max=1)
        message = from_record(entry.record)
        assert isinstance(message, Operation)
        return message

    @property
    def seen(self) -> bool:
        """True if the log answered a moment ago, as heartbeats report it."""
        return self._silent_s() <= _SEEN_PROBES * self._timeouts.probe_interval_s

    @property
    def lost(self) -> bool:
        """True if the log cannot be reached, and has not answered for _LOST_PROBES probes.

        The log is asked for its end at every probe. So a peer that sees the log now asked it after
        it began to fail here. If only writes fail, it is not lost: a cut line stops reads, too.
        """
        lost = self._silent_s() > _LOST_PROBES * self._timeouts.probe_interval_s
        return lost and not self._condition.now.log_up

    def _silent_s(self) -> float:
        return asyncio.get_running_loop().time() - self._reached_at

    # -- the claim on the cluster ----------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The offset of this process's claim on the cluster; -1 before it has one."""
        return self._epoch

    @property
    def application(self) -> str:
        """The application id in this ring's transaction markers: the ring's name and the log's id.

        A new log begins at offset 0 again, so its markers must differ from those of the old log.
        """
        return self._application

    async def claim(self) -> None:
        """Take over the cluster by a claim in the log.

        Later records of earlier processes are void.
        """
        identity = await self.reaching(self._log.identity)
        self._application = f"{self._identity.ring}.{identity[:12]}"
        claim = Claim(self._identity.cluster, self._identity.incarnation)
        self._epoch = await self.append(claim)

    def claimed(self, offset: int, claim: Claim) -> None:
        """Note a claim that was read from the log, on any cluster.

        If it is a later one on this cluster, by another incarnation, this process is FENCED.
        """
        self._claims.see(offset, claim.cluster)
        mine = claim.incarnation == self._identity.incarnation
        if claim.cluster == self._identity.cluster and not mine and offset > self._epoch:
            self._condition.replaced(f"incarnation {claim.incarnation}")

    async def still_mine(self) -> None:
        """Ask the log, and return only if it has no later claim on the cluster.

        If it has one, never return, because this process was replaced. Each lane calls it for each
        new session, see `haproc.engine.lane`.
        """
        end = await self.reaching(self._log.end)
        position = max(self._epoch + 1, self._schedule.read_to, self._claims_read_to)
        while position < end and (entries := await self.read_log(position)):
            for entry in entries:
                message = from_record(entry.record) if entry.record.kind == "claim" else None
                if isinstance(message, Claim):
                    self.claimed(entry.offset, message)
            position = entries[-1].offset + 1
        self._claims_read_to = max(self._claims_read_to, position)
        if self._condition.now.fenced_by is not None:
            await _for_ever()

    async def unless_replaced(self) -> Cursor | None:
        """Return the stored cursor; if a later process has stored it, never return.

        For calls that may come long after the later claim: the claim may be so far back that it is
        not read any more, or it may be trimmed.
        """
        cursor = await self.reaching(lambda: self._log.load_cursor(self._identity.cluster))
        if cursor is not None and cursor.epoch > self._epoch:
            self._condition.replaced(f"the incarnation of offset {cursor.epoch}")
            await _for_ever()
        return cursor

    # -- writing to the log ----------------------------------------------------------------

    async def append(self, *messages: Message) -> int:
        """Append control records; return the offset of the first one.

        Tries until the log has accepted them: then they are durable. A record may be appended
        twice, which is harmless.
        """
        records = [to_record(message) for message in messages]
        offsets = await self.reaching(lambda: self._log.append(records))
        self._condition.log_answered()
        return offsets[0]

    async def append_once(self, message: Message) -> int:
        """Append one record; return its offset when it is durable.

        Raises LogError, or TimeoutError; then the log may have the record, or not.
        """
        async with asyncio.timeout(self._timeouts.append_s):
            appending = self._log.append([to_record(message)])
            # Large rows: the record is a copy of them, and the log makes another one.
            del message
            (offset,) = await appending
        return offset

    async def decide(
        self,
        offset: int,
        operation_id: str,
        verdict: DecisionKind,
        failure: ApplicationFailure | None = None,
    ) -> None:
        """Append a decision on a synchronous operation; only the first one in the log is valid."""
        me = self._identity.cluster
        await self.append(Decision(offset, operation_id, verdict, me, self._epoch, failure))

    async def report(self, offset: int, failure: ApplicationFailure) -> None:
        """Append an ``outcome`` record: the operation had an application error on this cluster."""
        await self.append(FailureReport(offset, self._identity.cluster, self._epoch, failure))

    async def commit(self, progress: Callable[[], Progress]) -> None:
        """Store the cursor with the progress that ``progress`` returns when it is stored."""
        async with self._storing:
            await self.reaching(lambda: self._commit(progress()))
        self._condition.log_answered()

    async def change(self, change: Callable[[Progress], Progress]) -> None:
        """Read the stored progress, and store what ``change`` makes of it."""
        async with self._storing:
            cursor = await self.unless_replaced()
            changed = change(Progress() if cursor is None else from_cursor(cursor))
            await self.reaching(lambda: self._commit(changed))
        self._condition.log_answered()

    async def _commit(self, progress: Progress) -> None:
        cursor = to_cursor(progress, self._epoch)
        try:
            await self._log.commit_cursor(self._identity.cluster, cursor)
        except FencedError as error:
            self._condition.replaced(str(error))
            await _for_ever()  # nothing may follow


async def _for_ever() -> None:
    await asyncio.get_running_loop().create_future()
