"""Decides if a late small statement shows that its cluster is down, or only that it is busy.

A small statement may be late because the cluster is busy. This is no fault of the cluster while
other statements of HAProc use the cores that it waits for: the server reports every two seconds the
number of tasks of each running statement. The same holds while other statements of HAProc are
answered: a driver that plans hundreds of them at once has work before any task runs. But an
answered statement may not have used the storage, and each statement gets its share of a busy
cluster. So a statement that is overtaken too often, or for too long, is late for another reason.
The same holds if nothing else runs, is answered, or is reported: then the executors are gone, their
storage hangs, or the driver does.

An abandoned statement can hold its cores for minutes more: tasks notice an interrupt only now and
then (Spark 4.2.1: between two batches of rows of a join), and no report lists them any more. They
have surely ended when a later small statement is answered.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final

from haproc import protos, wire

_RESPONSE = protos.base.ExecutePlanResponse
_REPORT_TAG = b"\x92\x01"
"""Field 18, a message: the bytes of a progress report in an answer."""
_REPORT_BYTES_MAX = 1 << 16
"""Larger answers are rows: they are not searched."""
OVERTAKEN_MAX: Final = 8
"""For each statement that runs when one begins, so many others may be answered before that one.
Reading the storage id takes the driver several times as long as a literal. Chosen."""
OVERTAKEN_S_MAX: Final = 60.0
"""The longest time in which late statements, one after another, may be overtaken. Chosen."""
FRESH_S: Final = 6.0
"""The age of a recent report: a read statement is reported every two seconds. Chosen."""
OLD_S: Final = 60.0
"""The age up to which a report counts. A statement without a reader is not reported, with or
without tasks. Thirty reports; chosen, not measured."""
LEFT_S_MAX: Final = 600.0
"""The longest time for which tasks that were given up hold their cores. Chosen."""


class Phase(Enum):
    """The progress of a statement on the driver."""

    PLANNED = auto()
    """Its tasks run."""
    ROWS = auto()
    """Rows of it have arrived."""
    ENDED = auto()
    """The server has reported its end."""


Planned = Callable[[Phase], None]
"""Receives a statement's phases, each at most once; ENDED only if the statement was abandoned."""


class StatementReport:
    """The known facts about one statement. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float], planned: Planned | None = None) -> None:
        self._planned = planned
        self._phase: Phase | None = None
        self.inflight = 0
        self.has_begun = False
        """True if its tasks were reported, or rows arrived: an interrupt reaches it now."""
        self._queued = False
        self._clock = clock
        self._reported_at = clock()

    @property
    def has_tasks(self) -> bool:
        """True if tasks of it ran at the last report, and the report is not too old."""
        return self.inflight > 0 and self._clock() - self._reported_at <= OLD_S

    @property
    def is_queued(self) -> bool:
        """True if it waits for its tasks: the driver works, because it reports."""
        return self._queued and self._clock() - self._reported_at <= FRESH_S

    def receive(self, response: Any) -> None:
        """Take in one message of the statement's answer."""
        if response.HasField("execution_progress"):
            progress, self._reported_at = response.execution_progress, self._clock()
            self.inflight = progress.num_inflight_tasks
            self._queued = not self.inflight and any(not stage.done for stage in progress.stages)
            self.has_begun |= self.inflight > 0 or self._queued
            if progress.stages and self._phase is None:
                self._announce(Phase.PLANNED)
        elif response.HasField("arrow_batch"):
            self._has_rows()

    def receive_bytes(self, response: bytes) -> None:
        """Take in one message that no other code parses."""
        if len(response) > _REPORT_BYTES_MAX:
            self._has_rows()
        elif self._planned is not None or _REPORT_TAG in response:
            try:
                self.receive(wire.parsed(_RESPONSE, response))
            except ValueError:
                return

    def _has_rows(self) -> None:
        self.has_begun = True
        self._announce(Phase.ROWS)
        self._planned = None  # no phase follows

    def _announce(self, phase: Phase) -> None:
        self._phase = phase
        if self._planned is not None:
            self._planned(phase)


class Tasks:
    """The statements of HAProc that run on one cluster. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reports: set[StatementReport] = set()
        self._left_at: float | None = None
        self._answered = 0
        self._late_since: float | None = None

    def begin(self, planned: Planned | None = None) -> StatementReport:
        """Add a statement; it counts until `end`."""
        report = StatementReport(self._clock, planned)
        self._reports.add(report)
        return report

    def end(self, report: StatementReport, *, answered: bool, left: bool = False) -> None:
        """Remove a statement. ``answered``: its client has its answer; ``left``: given up."""
        self._answered += answered
        self._reports.discard(report)
        if left and report.has_tasks:
            self._left_at = self._clock()

    def wait(self) -> Wait:
        """Begin to wait for a small statement, before it is sent."""
        return Wait(self)


class Wait:
    """The wait of one small statement for its answer; ``report``: its own reports."""

    def __init__(self, tasks: Tasks) -> None:
        self.report = StatementReport(tasks._clock)
        self._tasks = tasks
        self._began_at = tasks._clock()
        self._answered = tasks._answered
        self._answered_max = tasks._answered + OVERTAKEN_MAX * (len(tasks._reports) + 1)

    def is_excused(self) -> bool:
        """True if the cluster has been busy with other statements of HAProc since the last call."""
        return self._is_queued() or self._is_overtaken()

    @property
    def is_held(self) -> bool:
        """True if it waits for cores that abandoned statements may hold."""
        left_at = self._tasks._left_at
        if left_at is None or self._tasks._clock() - left_at > LEFT_S_MAX:
            return False
        return self.report.is_queued

    def is_over(self, *, answered: bool) -> None:
        """End the wait. Unless it was answered, the next one has only the rest of its time."""
        tasks = self._tasks
        if answered:
            tasks._late_since = None
            if tasks._left_at is not None and tasks._left_at < self._began_at:
                tasks._left_at = None
        elif tasks._late_since is None:
            tasks._late_since = self._began_at

    def _is_queued(self) -> bool:
        """True if it waits for cores that other statements use."""
        return self.report.is_queued and any(other.has_tasks for other in self._tasks._reports)

    def _is_overtaken(self) -> bool:
        """True if other statements were answered; not too many, and not for too long."""
        tasks = self._tasks
        answered, self._answered = self._answered, tasks._answered
        since = self._began_at if tasks._late_since is None else tasks._late_since
        in_time = tasks._clock() - since <= OVERTAKEN_S_MAX
        return in_time and answered < self._answered <= self._answered_max
