"""The outcomes of operations on this cluster, the requests that await them, and failures."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from haproc.audit import FIELDS
from haproc.backoff import Backoff
from haproc.engine.errors import EngineError
from haproc.engine.interface import Applied
from haproc.replicate.queue.facts import Facts
from haproc.replicate.records.control import Skip
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import ApplicationFailure
from haproc.spark_error import Details


@dataclass(slots=True)
class Trouble:
    """The failed attempts of a unit (a statement of one or more operations).

    ``apart``: its operations must run one by one from now on.
    """

    offsets: tuple[int, ...]
    attempts: int = 0
    error: str = ""
    apart: bool = False
    since_s: float = 0.0
    """The time of the unit's first failure, by the loop's clock."""
    poked: asyncio.Event = field(default_factory=asyncio.Event)
    _rests: Backoff | None = None

    @property
    def version(self) -> int:
        """The offset that names the unit: that of its last operation."""
        return self.offsets[-1]

    async def pause(self, seconds: float) -> bool:
        """Wait before the next attempt; True if the wait was ended early (``poked``)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.poked.wait()
        poked = self.poked.is_set()
        self.poked.clear()
        return poked

    def rest_s(self, first_s: float, longest_s: float) -> float:
        """Return how long to pause now that this cluster has voted that the unit fails here.

        ``first_s`` and ``longest_s``: the first such pause, and the longest one.
        """
        self._rests = self._rests or Backoff(first_s, longest_s)
        return self._rests.pause_s()

    def retry(self) -> None:
        """Let the unit run at once, as an operator asks; its operations run one by one."""
        self.attempts, self.apart = 0, len(self.offsets) > 1
        self.poked.set()


class Troubles:
    """The operations that keep failing on this cluster, and those that an operator wants skipped.

    After an environment or availability error a unit is tried again, without end. After some
    attempts the cluster counts as stuck at it. An operator may have the unit tried at once, split
    (a combined statement), or skipped.
    """

    def __init__(self, stuck_after_attempts: int) -> None:
        self._stuck_after_attempts = stuck_after_attempts
        self._troubles: dict[int, Trouble] = {}
        self._skips: dict[int, Skip] = {}

    def failed(
        self, offsets: tuple[int, ...], error: EngineError, *, counts: bool = True
    ) -> Trouble:
        """Note a failed attempt of a unit; return all its failures.

        ``counts``: False if the attempt never reached the cluster; then it is not counted.
        """
        now_s = asyncio.get_running_loop().time()
        trouble = self._troubles.setdefault(offsets[-1], Trouble(offsets, since_s=now_s))
        trouble.attempts += counts
        trouble.error = f"{error.error_class or error.kind}: {error.message}"
        return trouble

    def stands(self, offset: int, error: str) -> Trouble:
        """Note that an earlier incarnation voted that the operation cannot be applied here."""
        now_s = asyncio.get_running_loop().time()
        attempts = self._stuck_after_attempts
        new = Trouble((offset,), attempts, error, since_s=now_s)
        return self._troubles.setdefault(offset, new)

    def over(self, offsets: tuple[int, ...], *, apart: bool = False) -> bool:
        """Forget the failures of a unit that has an outcome or was split; True if there were any.

        ``apart``: True if it was split.
        """
        if self._skips and not apart:
            for offset in offsets:
                self._skips.pop(offset, None)
        return self._troubles.pop(offsets[-1], None) is not None

    def skip(self, skip: Skip) -> None:
        """Note a ``skip`` record: this cluster is to skip the operation."""
        self._skips[skip.offset] = skip
        if trouble := self.of(skip.offset):
            trouble.poked.set()

    def of(self, offset: int) -> Trouble | None:
        """Return the failures of the unit that an operation belongs to; None if it had none."""
        return next((t for t in self._troubles.values() if offset in t.offsets), None)

    def skip_wanted(self, offsets: Iterable[int]) -> bool:
        """True if an operator wants any of these operations skipped."""
        return bool(self._skips) and any(offset in self._skips for offset in offsets)

    def stuck(self) -> Trouble | None:
        """Return the first unit that failed so often that the cluster counts as stuck; or None."""
        hard = [t for t in self._troubles.values() if t.attempts >= self._stuck_after_attempts]
        return min(hard, key=lambda trouble: trouble.version, default=None)


# The outcome of each operation on this cluster, and the requests that await it.
#
# Kept for the operations of the request-id window: a client that retries, here or after a restart,
# gets the outcome of the first attempt.


class OutcomeStatus(StrEnum):
    """An operation's fate on this cluster."""

    APPLIED = "applied"
    FAILED = "failed"
    """It ran and had an application error."""
    REJECTED = "rejected"
    """The ring or its origin rejected it; it never ran here, or had no effect."""
    EXPIRED = "expired"
    """It came too late for the idempotency window, and was passed over."""
    STALE = "stale"
    """A definition that it rests on may have changed before its place in the log. Every cluster
    passes over it, and it does not count as an attempt of its request."""
    SKIPPED = "skipped"
    """An operator had it skipped on this cluster. No client receives this as its outcome."""


@dataclass(frozen=True, slots=True)
class OperationOutcome:
    """An operation's outcome on this cluster. ``clusters``: the outcomes of a synchronous operation
    on other clusters.

    ``assumed``: known only from traces: it ended before a restart, or was in doubt after a crash
    and was found applied. It is not compared with other clusters' outcomes.
    """

    status: OutcomeStatus
    applied: Applied = field(default_factory=Applied)
    failure: ApplicationFailure | None = None
    clusters: Mapping[str, str] = field(default_factory=dict)
    assumed: bool = False


LOG: Final = logging.getLogger("haproc.operations")
"""The logger of one line at DEBUG for each operation that ends here. It is separate, so that
no other logger has to be at DEBUG."""
RESULTS_BYTES_MAX: Final = 16 << 20
"""The most bytes of all outcomes' results and messages. Beyond it the oldest keep only their status
and number of rows. Chosen: 256 bytes for each request of the idempotency window."""
_NO_ROOM: Final = "its message is not remembered any more"
DONE_BEFORE = OperationOutcome(OutcomeStatus.APPLIED, assumed=True)
"""The outcome of an operation that an earlier incarnation finished."""
EXPIRED = OperationOutcome(OutcomeStatus.EXPIRED, assumed=True)
STALE = OperationOutcome(OutcomeStatus.STALE, assumed=True)


@dataclass(slots=True)
class Known:
    """What this HAProc knows of an operation that it has read from the log."""

    offset: int
    facts: Facts
    outcome: OperationOutcome | None = None
    newest: int = 0
    """The offset of the newest record of the same request, which may be repeated."""
    resolved_ms: int | None = None
    """The Unix time in ms when the outcome was known here; None if an earlier process knew it."""
    awaited: asyncio.Event | None = None
    """Set when the outcome is known. The first request that waits for it creates this event."""


class Outcomes:
    """Outcomes by request and by offset, as far as the idempotency window reaches.

    A request is known by its user and its id (`Operation.key`).
    """

    def __init__(self, window_records: int, unix_ms: Callable[[], int] = lambda: 0) -> None:
        self._unix_ms = unix_ms
        self._window_records = window_records
        self._by_key: dict[tuple[str, str], Known] = {}
        self._by_offset: dict[int, Known] = {}
        self._order: deque[tuple[int, Known]] = deque()
        self._arrivals: dict[tuple[str, str] | int, asyncio.Event] = {}
        self._weights: OrderedDict[int, int] = OrderedDict()
        self._bytes = 0
        self._early: dict[int, OperationOutcome] = {}
        """Outcomes that were read from the log before their operations, by offset."""
        self._presumed: list[int] | None = []
        """Operations that earlier processes finished with an outcome that is not known yet.
        None after `presumed_applied`."""

    def admit(self, offset: int, operation: Operation) -> Known:
        """Note an operation when it is read from the log for the first time."""
        known = Known(offset, Facts.of(operation), newest=offset)
        self._by_key[operation.key] = known
        self._note(known)
        if (early := self._early.pop(offset, None)) is not None:
            self.resolve(offset, early)
        return known

    def pass_over(self, offset: int, operation: Operation, outcome: OperationOutcome) -> None:
        """Note an operation that is no attempt of its request: it is found only by its offset."""
        self._note(Known(offset, Facts.of(operation), outcome, newest=offset))

    def note_early(self, offset: int, outcome: OperationOutcome) -> None:
        """Note the outcome of an operation that is read only later; it has this outcome then."""
        self._early[offset] = outcome

    def _note(self, known: Known) -> None:
        self._by_offset[known.offset] = known
        self._order.append((known.offset, known))
        self._forget(known.offset - self._window_records)
        for waited_for in (known.facts.key, known.offset):
            if arrival := self._arrivals.pop(waited_for, None):
                arrival.set()

    def repeated(self, offset: int, operation: Operation) -> None:
        """Note a repeated operation record: its request stays known while the window has it."""
        known = self._by_key[operation.key]
        known.newest = offset
        self._order.append((offset, known))
        self._forget(offset - self._window_records)

    def _forget(self, below: int) -> None:
        while self._order and self._order[0][0] < below:
            offset, old = self._order[0]
            if old.newest == offset:
                if old.outcome is None:
                    break
                del self._by_offset[old.offset]
                self._bytes -= self._weights.pop(old.offset, 0)
                if self._by_key.get(old.facts.key) is old:
                    del self._by_key[old.facts.key]
            self._order.popleft()

    def resolve(self, offset: int, outcome: OperationOutcome) -> None:
        """Note the outcome of an operation that was read; a later call corrects an earlier one."""
        known = self._by_offset.get(offset)
        if known is None:
            return
        if known.outcome is None and not outcome.assumed:
            known.resolved_ms = self._unix_ms()
            if LOG.isEnabledFor(logging.DEBUG):
                _log_end(known, outcome, known.resolved_ms)
        known.outcome = outcome
        self._weigh(offset, outcome)
        if known.awaited is not None:
            known.awaited.set()

    def presume(self, offset: int) -> None:
        """Note an operation that an earlier incarnation finished.

        It may have been rejected by a record that this process has not read yet: its outcome is
        unknown until `presumed_applied`.
        """
        if self._presumed is not None:
            self._presumed.append(offset)
        elif (known := self._by_offset.get(offset)) is not None and known.outcome is None:
            self.resolve(offset, DONE_BEFORE)

    def presumed_applied(self) -> None:
        """Set the outcome of presumed operations to applied, unless the log showed another one."""
        presumed, self._presumed = self._presumed or [], None
        for offset in presumed:
            if (known := self._by_offset.get(offset)) is not None and known.outcome is None:
                self.resolve(offset, DONE_BEFORE)

    def _weigh(self, offset: int, outcome: OperationOutcome) -> None:
        self._bytes -= self._weights.pop(offset, 0)
        if weight := _weight(outcome):
            self._weights[offset] = weight
            self._bytes += weight
        while self._bytes > RESULTS_BYTES_MAX and len(self._weights) > 1:
            oldest, weight = self._weights.popitem(last=False)
            self._bytes -= weight
            known = self._by_offset[oldest]
            assert known.outcome is not None
            known.outcome = _in_short(known.outcome)

    def latencies(self, start: int, end: int) -> dict[int, int]:
        """Return the time from each operation's creation to its outcome here, in ms, by offset.

        Only for operations that this process ran and still knows.
        """
        found = {}
        for offset in range(start, end):
            known = self._by_offset.get(offset)
            if known is not None and known.resolved_ms is not None and known.facts.created_ms:
                found[offset] = max(0, known.resolved_ms - known.facts.created_ms)
        return found

    def newest(self, count: int) -> list[Known]:
        """Return the operations among the ``count`` newest operation records, the newest first."""
        records = itertools.islice(reversed(self._order), count)
        return [known for offset, known in records if offset == known.offset]

    def find(self, key: tuple[str, str]) -> Known | None:
        """Return the operation of this user and request id; None if the window has none."""
        return self._by_key.get(key)

    def at(self, offset: int) -> Known | None:
        """Return the operation at this offset; None if the window has none."""
        return self._by_offset.get(offset)

    async def arrival(self, key: tuple[str, str], offset: int | None) -> Known:
        """Wait until an operation of this request has been read from the log, and return it.

        If the record at ``offset`` is no attempt of the request, return that one when it is read.
        """
        while (known := self._by_key.get(key) or self._at(offset)) is None:
            await self._arrivals.setdefault(key, asyncio.Event()).wait()
        return known

    async def arrival_at(self, offset: int) -> Known:
        """Wait until the operation at an offset has been read from the log, and return it."""
        while (known := self._by_offset.get(offset)) is None:
            await self._arrivals.setdefault(offset, asyncio.Event()).wait()
        return known

    def _at(self, offset: int | None) -> Known | None:
        return None if offset is None else self._by_offset.get(offset)

    async def outcome(self, known: Known) -> OperationOutcome:
        """Wait until the outcome of the operation is known, and return it."""
        while known.outcome is None:
            known.awaited = known.awaited or asyncio.Event()
            await known.awaited.wait()
        return known.outcome


def _log_end(known: Known, outcome: OperationOutcome, ended_ms: int) -> None:
    """Write a line about an operation that ended here to the program's log: names and figures."""
    facts, failure = known.facts, outcome.failure
    latency_s = max(0, ended_ms - facts.created_ms) / 1000 if facts.created_ms else 0.0
    fields = {
        "offset": known.offset,
        "request_id": facts.id,
        "user": facts.user,
        "origin": facts.origin,
        "kind": facts.kind.value,
        "operation_class": facts.operation_class.value,
        "form": facts.form.value,
        "tables": len(facts.writes),
        "outcome": outcome.status.value,
        "error_class": failure.error_class if failure is not None else None,
        "latency_s": latency_s,
    }
    LOG.debug(
        "offset %d: %s of %s is %s after %.3f s, request %r",
        *(known.offset, facts.kind.value, facts.user, outcome.status.value, latency_s, facts.id),
        extra={FIELDS: fields},
    )


def _weight(outcome: OperationOutcome) -> int:
    """Return the size in bytes of an outcome's results and messages."""
    failure = outcome.failure
    weight = 0 if failure is None else len(failure.message) + failure.details.weight
    applied = outcome.applied
    return sum(map(len, applied.chunks)) + sum(map(len, applied.observed)) + weight


def _in_short(outcome: OperationOutcome) -> OperationOutcome:
    """Return an outcome without its texts and results: its status and its number of rows."""
    failure = outcome.failure
    return replace(
        outcome,
        applied=Applied(affected_rows=outcome.applied.affected_rows),
        failure=failure
        and replace(failure, message=_NO_ROOM, details=Details(failure.details.java_classes)),
    )
