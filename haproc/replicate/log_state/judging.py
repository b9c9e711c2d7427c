"""Whether an operation of the log is to be applied, by what it rests on and by its request id.

A stale one is never shown to the window, so the two rules go together, in this order. The same on
every cluster, and for whoever reads that part of the log again later.
"""

from __future__ import annotations

from enum import Enum, auto

from haproc.replicate.log_state.definitions import Definitions
from haproc.replicate.log_state.idempotency_window import (
    IdempotencyWindow,
    Sighting,
    WindowTooSmallError,
)
from haproc.replicate.records.operation import Operation


class RecordJudgement(Enum):
    """What an operation is at its place in the log."""

    NEW = auto()
    STALE = auto()
    REPEATED = auto()
    EXPIRED = auto()


_OF_SIGHTING = {
    Sighting.NEW: RecordJudgement.NEW,
    Sighting.REPEATED: RecordJudgement.REPEATED,
    Sighting.EXPIRED: RecordJudgement.EXPIRED,
}


class Judge:
    """See the module. It is shown every operation, with rising offsets."""

    def __init__(self, window: IdempotencyWindow, definitions: Definitions) -> None:
        self._window = window
        self._definitions = definitions

    def judge(
        self, offset: int, op: Operation, passed_window: int | None = None
    ) -> RecordJudgement:
        """Take in an operation; raises WindowTooSmallError where it cannot be known.

        ``passed_window``: it was passed already, by somebody with so wide a window, so that nothing
        hangs on it but what is told.
        """
        if self._stale(offset, op, passed=passed_window is not None):
            return RecordJudgement.STALE
        window = op.window if op.since is not None else None
        if window is not None and passed_window is not None:
            window = min(window, passed_window)
        return _OF_SIGHTING[
            self._window.see(offset, op.id, op.since, window, user=op.user, own_id=op.own_id)
        ]

    def _stale(self, offset: int, op: Operation, *, passed: bool) -> bool:
        definitions = self._definitions
        stale = definitions.stale(offset, op)
        definitions.note(offset, op)
        if stale is not None:
            return stale
        if not passed:
            raise WindowTooSmallError(
                f"whether what the record at offset {offset} rests on changed before it cannot be "
                f"known: what was defined from offset {op.analyzed_to} on is needed, and the log "
                f"began at {definitions.known_from} when this HAProc was started"
            )
        self._window.unsure(offset, op.id, op.user)
        return True
