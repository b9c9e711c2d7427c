"""The log read once more, from a place in the past on: what counts, and how it ended.

Two positions: control records are heard ahead, up to an end of the log, then operations are judged
up to where every cluster is. Values in, values out; `haproc.replicate.archive.pages` reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from dmq import Entry
from haproc.replicate.archive.fates import Fates
from haproc.replicate.log_state.claims import Claims
from haproc.replicate.log_state.definitions import Definitions, records_needed
from haproc.replicate.log_state.idempotency_window import IdempotencyWindow, WindowTooSmallError
from haproc.replicate.log_state.judging import Judge, RecordJudgement
from haproc.replicate.records import fence
from haproc.replicate.records.fence import Fence
from haproc.replicate.records.operation import Operation, from_record

_OPERATION = "operation"


def known_from(position: int, window_records: int) -> int:
    """Return where reading has to begin to judge what stands at a place."""
    return max(0, position - records_needed(window_records))


class Account:
    """See the module. ``begin``: from where on it is told what counts.

    ``read_from``: the first record that it is shown; ``claims``: what is known of those before.
    """

    def __init__(
        self, begin: int, read_from: int, window_records: int, claims: Iterable[tuple[str, int]]
    ) -> None:
        self.begin = begin
        self.position = read_from
        self.heard_to = read_from
        self.last_told = begin - 1
        """The newest operation that was told."""
        self._definitions = Definitions(window_records)
        self._definitions.begin(read_from)
        self._judge = Judge(IdempotencyWindow(window_records), self._definitions)
        self._window_records = window_records
        self.fates = Fates(begin, Claims(claims))

    def hear(self, entries: Iterable[Entry]) -> None:
        """Take in the control records among what stands there; those heard before are passed."""
        for entry in entries:
            if entry.offset < self.heard_to:
                continue
            if not entry.record.kind.startswith(_OPERATION):
                self.fates.hear(entry.offset, from_record(entry.record))
            self.heard_to = entry.offset + 1

    def take(self, entry: Entry) -> Operation | None:
        """Take in what stands at ``position`` or next behind it; return an operation that counts.

        None for all else: control records, copies of a request, and what every cluster passes over.
        """
        self.position = entry.offset + 1
        if not entry.record.kind.startswith((_OPERATION, fence.KIND)):
            return None
        op = from_record(entry.record)
        if isinstance(op, Fence):
            self._definitions.note(entry.offset, op)
            return None
        assert isinstance(op, Operation)
        try:
            judgement = self._judge.judge(entry.offset, op, self._window_records)
        except WindowTooSmallError:
            judgement = (
                RecordJudgement.NEW
            )  # the log began too late to tell: rather told than left out
        return op if judgement is RecordJudgement.NEW and entry.offset >= self.begin else None

    def told(self, offset: int) -> None:
        """An operation was told, and is not told again."""
        self.last_told = offset

    def go_on_from(self, offset: int) -> None:
        """What stands below this place is dealt with; `take` is shown next what stands there."""
        self.begin, self.position = max(self.begin, offset), offset
        self.fates.forget(self.begin)

    def stands_at(self, offset: int) -> bool:
        """Whether it can go on from there: nothing that would be told lies up to its position."""
        return self.last_told < offset <= self.position
