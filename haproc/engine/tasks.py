"""Which statements have tasks on the cluster's executors, as the server's reports tell.

Every running statement is told of every two seconds. A small statement that has none of its tasks
run while others of ours have all the cores is late because the cluster is busy: that says nothing
against the cluster. Where nothing of ours runs, it is late for another reason: the executors are
gone, or their storage hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from google.protobuf.message import DecodeError

from haproc import protos

_RESPONSE = protos.base.ExecutePlanResponse
_REPORT_TAG = b"\x92\x01"
"""Field 18, a message: how a report's answer has it among its bytes."""
_REPORT_BYTES_MAX = 1 << 16
"""Larger answers are rows: they are not searched."""
OLD_S: Final = 60.0
"""A report counts for so long: nobody hears of a statement whose client has stopped reading, be its
tasks gone or not. Thirty reports; chosen, not measured."""


class Report:
    """What is known of one statement. ``clock`` tells seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.inflight = 0
        self.queued = False
        self._clock = clock
        self._heard_at = clock()

    @property
    def has_tasks(self) -> bool:
        """Whether tasks of it ran when it was heard of, not long ago."""
        return self.inflight > 0 and self._clock() - self._heard_at <= OLD_S

    def hear(self, response: Any) -> None:
        """Take in one message of the statement's answer."""
        if response.HasField("execution_progress"):
            told, self._heard_at = response.execution_progress, self._clock()
            self.inflight = told.num_inflight_tasks
            self.queued = not self.inflight and any(not stage.done for stage in told.stages)

    def hear_bytes(self, response: bytes) -> None:
        """Take in one message that nobody else reads."""
        if len(response) <= _REPORT_BYTES_MAX and _REPORT_TAG in response:
            try:
                self.hear(_RESPONSE.FromString(response))
            except DecodeError:
                return


class Tasks:
    """The statements that run on one cluster for us. ``clock`` tells seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._reports: set[Report] = set()

    @contextmanager
    def statement(self) -> Iterator[Report]:
        """Count a statement for as long as its answer is read."""
        report = Report(self._clock)
        self._reports.add(report)
        try:
            yield report
        finally:
            self._reports.discard(report)

    def keep_waiting(self, report: Report) -> bool:
        """Whether a statement of this report waits for cores that others of ours use."""
        return report.queued and any(other.has_tasks for other in self._reports)
