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
"""The bytes that begin a progress report in an answer: field 18, a message."""
_REPORT_BYTES_MAX = 1 << 16
"""The largest message that is searched for a progress report; larger ones are rows."""
OVERTAKEN_MAX: Final = 8
"""For each statement that runs when a small one begins, so many others may be answered before it.
Reading the storage id takes the driver several times as long as a literal. Chosen."""
OVERTAKEN_S_MAX: Final = 60.0
"""The longest time for which late small statements, one after another, may be overtaken. Chosen."""
FRESH_S: Final = 6.0
"""The highest age of a progress report that shows a working driver: there is one every two seconds
for a statement whose answer is read. Chosen."""
OLD_S: Final = 60.0
"""The highest age of a report of running tasks: for a statement without a reader no report comes,
with or without tasks. Thirty reports; chosen, not measured."""
LEFT_S_MAX: Final = 600.0
"""The longest time for which the tasks of an abandoned statement hold their cores. Chosen."""


class Phase(Enum):
    """The progress of a statement on the driver."""

    PLANNED = auto()
    """The statement's tasks run."""
    ROWS = auto()
    """Rows of the statement's result have arrived."""
    ENDED = auto()
    """The server has reported that the statement has ended."""


Planned = Callable[[Phase], None]
"""Receives a statement's phases, each at most once; ENDED only for an abandoned statement."""


class StatementReport:
    """What HAProc knows of one statement's progress in Spark. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float], planned: Planned | None = None) -> None:
        self._planned = planned
        self._phase: Phase | None = None
        self.inflight = 0
        self.has_begun = False
        """True if the statement's tasks were reported, or rows arrived: an interrupt reaches it
        now."""
        self._queued = False
        self._clock = clock
        self._reported_at = clock()

    @property
    def has_tasks(self) -> bool:
        """True if the statement's tasks ran at the last report, which is not older than OLD_S."""
        return self.inflight > 0 and self._clock() - self._reported_at <= OLD_S

    @property
    def is_queued(self) -> bool:
        """True if a report of the last seconds shows a statement with tasks, of which none runs."""
        return self._queued and self._clock() - self._reported_at <= FRESH_S

    def receive(self, response: Any) -> None:
        """Read one message of the statement's answer: a progress report, or rows."""
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
        """Read one message of the answer from its bytes, which no other code parses."""
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
    """All statements of HAProc that run on one cluster now. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reports: set[StatementReport] = set()
        self._left_at: float | None = None
        self._answered = 0
        self._late_since: float | None = None

    def begin(self, planned: Planned | None = None) -> StatementReport:
        """Add a statement that begins now; remove it with `end`."""
        report = StatementReport(self._clock, planned)
        self._reports.add(report)
        return report

    def end(self, report: StatementReport, *, answered: bool, left: bool = False) -> None:
        """Remove a statement: it has ended, or nobody waits for it any more.

        ``answered``: its client has the whole answer. ``left``: the statement was given up, and its
        tasks may still run.
        """
        self._answered += answered
        self._reports.discard(report)
        if left and report.has_tasks:
            self._left_at = self._clock()

    def wait(self) -> Wait:
        """Return a new `Wait` for a small statement, before that is sent."""
        return Wait(self)


class Wait:
    """The time from the sending of a small statement to its answer.

    ``report``: the statement's own progress.
    """

    def __init__(self, tasks: Tasks) -> None:
        self.report = StatementReport(tasks._clock)
        self._tasks = tasks
        self._began_at = tasks._clock()
        self._answered = tasks._answered
        self._answered_max = tasks._answered + OVERTAKEN_MAX * (len(tasks._reports) + 1)

    def is_excused(self) -> bool:
        """True if HAProc's other statements explain why there is no answer since the last call."""
        return self._is_queued() or self._is_overtaken()

    @property
    def is_held(self) -> bool:
        """True if the small statement waits for cores that abandoned statements may still hold."""
        left_at = self._tasks._left_at
        if left_at is None or self._tasks._clock() - left_at > LEFT_S_MAX:
            return False
        return self.report.is_queued

    def is_over(self, *, answered: bool) -> None:
        """End the wait; ``answered``: the statement's answer came.

        If it did not come, the next small statement has only the rest of this one's time.
        """
        tasks = self._tasks
        if answered:
            tasks._late_since = None
            if tasks._left_at is not None and tasks._left_at < self._began_at:
                tasks._left_at = None
        elif tasks._late_since is None:
            tasks._late_since = self._began_at

    def _is_queued(self) -> bool:
        """True if the small statement waits for cores that other statements of HAProc use."""
        return self.report.is_queued and any(other.has_tasks for other in self._tasks._reports)

    def _is_overtaken(self) -> bool:
        """True if other statements were answered since the last call.

        False if there were too many of them, or if this lasts too long.
        """
        tasks = self._tasks
        answered, self._answered = self._answered, tasks._answered
        since = self._began_at if tasks._late_since is None else tasks._late_since
        in_time = tasks._clock() - since <= OVERTAKEN_S_MAX
        return in_time and answered < self._answered <= self._answered_max
