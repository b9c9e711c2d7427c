"""Reads the log from the cursor on, and passes each record to the part that handles it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from dmq import Entry, TrimmedError
from haproc.replicate.agree.poison_rejection import PoisonRejection
from haproc.replicate.log_state.definitions import records_needed
from haproc.replicate.log_state.idempotency_window import IdempotencyWindow, Judge, RecordJudgement
from haproc.replicate.member.core import Core
from haproc.replicate.queue.outcomes import (
    EXPIRED,
    STALE,
    OperationOutcome,
    OutcomeStatus,
)
from haproc.replicate.queue.units import MARKER, left_in_log
from haproc.replicate.records.control import (
    Abandon,
    Check,
    Copy,
    FailureVote,
    FateMessage,
    Fence,
    Revoke,
    Roster,
    Verify,
    VoteWithdrawal,
)
from haproc.replicate.records.operation import (
    OPERATION,
    Claim,
    Decision,
    DecisionKind,
    FailureReport,
    Filler,
    Operation,
    from_record,
)
from haproc.replicate.records.rows import ApplicationFailure, Computed, Part, Passed, Rows

logger = logging.getLogger(__name__)

Control: TypeAlias = (
    Decision
    | Computed
    | FailureReport
    | Claim
    | Check
    | Roster
    | FateMessage
    | Fence
    | Copy
    | Filler
)
"""The messages that are no operations, and pass to the part that they concern."""

WAIT_S = 30.0
"""The longest wait for new records. Then the log is read anyway: a wake-up may have been lost."""


class Reader:
    """Reads the log from the cursor on, and passes each record to its handler.

    It reads ahead of the applied operations, up to a limit. At the limit it reads on for control
    records only: the decision for which all operations wait may be far ahead in the log.

    ``on_failure`` receives other clusters' reports of application errors; ``on_check`` skips,
    verifications and checksums with their offsets, at least once; ``on_roster`` changes of the
    members. ``on_undecided`` receives a synchronous operation of this origin that an earlier
    process ran here, if no decision was read so far. ``on_copy`` receives `Copy` records; it
    returns True if this cluster must stop when it reaches the record.
    """

    def __init__(
        self,
        core: Core,
        on_failure: Callable[[FailureReport], None],
        on_check: Callable[[int, Check], None],
        on_roster: Callable[[int, Roster], None],
        poison_rejection: PoisonRejection,
        on_undecided: Callable[[int, Operation], None],
        on_copy: Callable[[int, Copy], bool],
    ) -> None:
        self._core = core
        self._on_undecided = on_undecided
        self._on_copy = on_copy
        self._poison_rejection = poison_rejection
        self._on_failure = on_failure
        self._on_check = on_check
        self._on_roster = on_roster
        self._window = IdempotencyWindow(core.limits.window_records)
        self._judge = Judge(self._window, core.log_state.definitions)
        self._page: deque[Entry] = deque()
        """Entries that were read from the log, and wait until the queue has room for them."""
        self.unfinished: dict[int, str] = {}
        """By offset, the ids of synchronous operations that came from this cluster and have no
        decision yet."""

    async def rebuild(self, low: int) -> None:
        """Read the log below the cursor ``low`` again: request ids, outcomes, definitions.

        As far back as the idempotency window needs it; nothing is applied.
        """
        core = self._core
        # No record is noted twice: an earlier operation would then see a later definition.
        log_start = await core.own_log.reaching(core.log.start)
        start = max(log_start, low - records_needed(core.limits.window_records))
        begin = max(log_start, self._window.begins(low))
        core.log_state.definitions.begin(start)
        self._poison_rejection.begin(low, begin)
        while start < low:
            try:
                entries = await core.own_log.read_log(start)
            except TrimmedError:
                # The log was trimmed meanwhile: go on from its new start.
                start = await core.own_log.reaching(core.log.start)
                if start > low:
                    raise
                begin = max(begin, start)
                core.log_state.definitions.begin(start)
                self._poison_rejection.begin(low, begin)
                continue
            for entry in entries:
                if entry.offset < low:
                    self._remember(entry, begin)
            if not entries:
                break
            start = entries[-1].offset + 1
        self._window.knows_from(begin)

    def _remember(self, entry: Entry, begin: int) -> None:
        offset, message = entry.offset, from_record(entry.record)
        if isinstance(message, Fence):
            self._core.log_state.definitions.note(offset, message)
        elif offset < begin:
            # Below the window an operation only shows whether later operations are stale.
            if isinstance(message, Operation):
                self._core.log_state.definitions.note(offset, message)
        elif not isinstance(message, Operation):
            self._control(offset, message)
        elif self._is_new(offset, message, self._core.limits.window_records):
            self._core.outcomes.admit(offset, message)
            # An earlier copy of the request may be below `begin`: then the outcome is unknown.
            if message.since < begin:
                self._core.outcomes.resolve(offset, EXPIRED)
            else:
                self._core.outcomes.presume(offset)
            self._note_own(offset, message)

    def _is_new(self, offset: int, op: Operation, window_max: int | None = None) -> bool:
        """True if clusters apply the operation: it is not stale, repeated or expired.

        The result is the same on every cluster. ``window_max`` is given for operations below the
        cursor: there the result matters only for answers to clients.
        """
        core = self._core
        core.log_state.past.note(offset, op.created_ms)
        judgement = self._judge.judge(offset, op, window_max)
        if judgement is RecordJudgement.STALE:
            logger.info("offset %d: what it rests on changed before its place", offset)
            core.outcomes.pass_over(offset, op, STALE)
        elif judgement is RecordJudgement.REPEATED:
            logger.info("offset %d repeats an earlier request", offset)
            core.outcomes.repeated(offset, op)
        elif judgement is RecordJudgement.EXPIRED:
            logger.info("offset %d came too late: it may be a repetition", offset)
            core.outcomes.admit(offset, op)
            core.outcomes.resolve(offset, EXPIRED)
        return judgement is RecordJudgement.NEW

    @property
    def known_from(self) -> int:
        """The offset from which on this HAProc knows all request ids in the log."""
        return self._window.known_from

    async def run(self) -> None:
        """Read the log for ever; raises LogError if it cannot be followed."""
        while True:
            await self._step()

    async def _step(self) -> None:
        core = self._core
        if self.full:
            await self._look_ahead()
            return
        position = core.schedule.read_to
        if not self._page:
            self._page.extend(await core.own_log.read_log(position))
        if not self._page:
            await self._wait(position, WAIT_S)
            return
        while self._page and not self.full:
            self.see(self._page.popleft())
        core.news.changed()
        if core.schedule.pending == 0:
            core.store.soon()

    async def _wait(self, position: int, timeout_s: float) -> None:
        await self._core.own_log.reaching(partial(self._core.log.wait, position, timeout_s))

    @property
    def full(self) -> bool:
        """True if the queue has no room: an operation must be applied before more are read."""
        schedule, limits = self._core.schedule, self._core.limits
        if schedule.read_to < schedule.needs:
            return False
        return (
            schedule.pending >= limits.look_ahead_records_max
            or schedule.pending_bytes >= limits.look_ahead_bytes_max
        )

    async def _look_ahead(self) -> None:
        """Read the next control records beyond the place where the queue has no room."""
        core = self._core
        position = core.watermarks.known_to
        entries = await core.own_log.read_log(position)
        for entry in entries:
            if entry.record.kind == OPERATION:
                continue  # it is read when there is room for it
            message = from_record(entry.record)
            assert not isinstance(message, Operation)
            self._control(entry.offset, message)
        if entries:
            core.watermarks.looked_ahead(entries[-1].offset + 1)
            core.news.changed()
        else:
            await self._wait(position, core.timeouts.retry_first_s)

    def see(self, entry: Entry) -> None:
        """Handle the next entry of the log; an operation enters the queue if it must be applied."""
        core, offset = self._core, entry.offset
        message = from_record(entry.record)
        if not isinstance(message, Operation):
            if isinstance(message, Verify) or (
                isinstance(message, Copy) and self._on_copy(offset, message)
            ):
                core.schedule.enter_operation(offset, MARKER)
            if isinstance(message, Fence):
                core.log_state.definitions.note(offset, message)
            core.schedule.passed(offset)
            self._control(offset, message)
            return
        core.log_state.written.note(offset, message)
        if not self._is_new(offset, message):
            core.schedule.passed(offset)
            return
        core.outcomes.admit(offset, message)
        self._note_own(offset, message)
        if not core.schedule.enter_operation(offset, left_in_log(message)):
            if core.log_state.decisions.get(offset) is DecisionKind.REJECT:
                why = core.log_state.decisions.failure(offset)
                core.outcomes.resolve(offset, OperationOutcome(OutcomeStatus.REJECTED, failure=why))
            elif core.troubles.skip_wanted((offset,)):
                core.outcomes.resolve(offset, OperationOutcome(OutcomeStatus.SKIPPED))
            else:
                core.outcomes.presume(offset)
            self._poison_rejection.done_before(offset)
            if offset in self.unfinished:
                self._on_undecided(offset, message)

    def _note_own(self, offset: int, operation: Operation) -> None:
        own = operation.synchronous and operation.origin == self._core.me
        if own and self._core.log_state.decisions.get(offset) is None:
            self.unfinished[offset] = operation.id

    def _control(self, offset: int, message: Control) -> None:
        core = self._core
        core.log_state.peer_success.record(message)
        match message:
            case Decision():
                self._decided(offset, message)
            case Rows() | Passed():
                self._computed(offset, message)
            case FailureReport() if message.cluster == core.me and message.epoch < core.notes.born:
                logger.info("offset %d: a report about tables that were rebuilt since", offset)
            case FailureReport() if core.log_state.claims.void(
                offset, message.cluster, message.epoch
            ) and not self._was_stored(message):
                logger.info("offset %d: a report of a replaced process", offset)
            case FailureReport() if message.cluster == (core.notes.was(message.offset) or core.me):
                outcome = OperationOutcome(OutcomeStatus.FAILED, failure=message.failure)
                if message.offset < core.schedule.read_to:
                    core.outcomes.resolve(message.offset, outcome)
                else:  # the queue has no room for its operation yet
                    core.outcomes.note_early(message.offset, outcome)
            case FailureReport():
                self._on_failure(message)
            case Claim():
                core.own_log.claimed(offset, message)
            case Roster():
                self._poison_rejection.members_changed(offset, message)
                self._on_roster(offset, message)
            case FailureVote() | VoteWithdrawal() | Abandon() | Revoke():
                self._poison_rejection.handle_fate_message(offset, message)
                self.unfinished = {
                    o: each
                    for o, each in self.unfinished.items()
                    if core.log_state.decisions.get(o) is None
                }
            case Filler() | Part() | Fence() | Copy():
                pass  # a later record uses the parts; `see` handles the other kinds
            case _:
                self._on_check(offset, message)

    def _was_stored(self, report: FailureReport) -> bool:
        """True if a report by a replaced process of this cluster is still valid for this cluster.

        It is if the stored progress has the operation in ``judging``: the old process stored its
        progress in time, and only its report came too late.
        """
        core = self._core
        known = core.outcomes.at(report.offset)
        return (
            report.cluster == core.me
            and report.offset in core.notes.judging
            and known is not None
            and (known.outcome is None or known.outcome.assumed)
        )

    def _decided(self, offset: int, decision: Decision) -> None:
        core = self._core
        if core.log_state.claims.void(offset, decision.by, decision.epoch):
            logger.info("offset %d: a decision of a replaced process", offset)
            return
        self._settle(decision.offset, decision.verdict, decision.failure)

    def _computed(self, place: int, message: Rows | Passed) -> None:
        core, offset = self._core, message.offset
        if core.log_state.claims.void(place, message.by, message.epoch):
            logger.info("offset %d: rows of a replaced process", place)
        elif isinstance(message, Passed):
            core.log_state.computations.see_passed(place, message)
        elif core.log_state.computations.see(place, message):
            if message.failure is not None:
                self._settle(offset, DecisionKind.REJECT, message.failure)
            else:
                core.schedule.provide(offset)
        core.news.changed()

    def _settle(
        self, offset: int, verdict: DecisionKind, failure: ApplicationFailure | None
    ) -> None:
        """Use the decision on the operation at ``offset``, if it is the first one."""
        core = self._core
        if not core.log_state.decisions.see(offset, verdict, failure):
            return
        self.unfinished.pop(offset, None)
        core.schedule.decide(offset, verdict)
        if verdict is DecisionKind.REJECT:
            core.outcomes.resolve(offset, OperationOutcome(OutcomeStatus.REJECTED, failure=failure))
        core.news.changed()
