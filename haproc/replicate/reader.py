"""Reads the log from the cursor on, and hands each message to whom it concerns.

Reads ahead of what is applied, within limits. Where the limit is reached, it goes on looking for
control records only: the decision that everything waits for may be far behind in the queue.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from dmq import Entry
from haproc.replicate.agree.giving_up import GivingUp
from haproc.replicate.heard.definitions import records_needed
from haproc.replicate.heard.window import Sighting, Window, WindowTooSmallError
from haproc.replicate.member.core import Core
from haproc.replicate.queue.outcomes import DONE_BEFORE, EXPIRED, STALE, Outcome, Status
from haproc.replicate.queue.units import MARKER
from haproc.replicate.records.contents import Check, Verify
from haproc.replicate.records.failures import Failure
from haproc.replicate.records.members import Roster
from haproc.replicate.records.operation import (
    Claim,
    Decision,
    FailureReport,
    Filler,
    Operation,
    Verdict,
    from_record,
)
from haproc.replicate.records.rows import Computed, Passed, Rows
from haproc.replicate.records.words import Abandon, Able, Unable, Word

logger = logging.getLogger(__name__)

Control: TypeAlias = Decision | Computed | FailureReport | Claim | Check | Roster | Word | Filler
"""What is no operation."""

WAIT_S = 30.0
"""How long one wait for news may last; it only bounds how late a lost wake-up is noticed."""


class Reader:
    """See the module. ``on_failure`` hears of other clusters' application errors.

    ``on_check`` hears of skips and verifications, with their offsets, at least once; ``on_roster``
    of who the ring's members are.
    """

    def __init__(
        self,
        core: Core,
        on_failure: Callable[[FailureReport], None],
        on_check: Callable[[int, Check], None],
        on_roster: Callable[[int, Roster], None],
        giving_up: GivingUp,
    ) -> None:
        self._core = core
        self._giving_up = giving_up
        self._on_failure = on_failure
        self._on_check = on_check
        self._on_roster = on_roster
        self._window = Window(core.limits.window_records)
        self.unfinished: dict[int, Operation] = {}
        """Synchronous operations of this origin without a decision so far."""

    async def rebuild(self, low: int) -> None:
        """Read what is applied already: its request ids and outcomes, and what it defined."""
        core = self._core
        # No record is taken in twice: a later definition would overtake an earlier operation.
        log_start = await core.own_log.reaching(core.log.start)
        start = max(log_start, low - records_needed(core.limits.window_records))
        begin = max(log_start, self._window.begins(low))
        core.heard.definitions.begin(start)
        self._giving_up.begin(low, begin)
        while start < low:
            entries = await core.own_log.read(start)
            for entry in entries:
                if entry.offset < low:
                    self._remember(entry, begin)
            if not entries:
                break
            start = entries[-1].offset + 1
        self._window.knows_from(begin)

    def _remember(self, entry: Entry, begin: int) -> None:
        offset, message = entry.offset, from_record(entry.record)
        if offset < begin:
            # It is needed only to tell whether what follows is stale.
            if isinstance(message, Operation):
                self._core.heard.definitions.note(offset, message)
        elif not isinstance(message, Operation):
            self._control(offset, message)
        elif self._is_new(offset, message, self._core.limits.window_records):
            self._core.outcomes.admit(offset, message)
            # If its first copy may stand before what is read here, nobody knows what became of it.
            unclear = message.since is not None and message.since < begin
            self._core.outcomes.resolve(offset, EXPIRED if unclear else DONE_BEFORE)
            self._note_own(offset, message)

    def _is_new(self, offset: int, op: Operation, window_max: int | None = None) -> bool:
        """Whether it is to be applied, by what it rests on and by its request id.

        The same on every cluster. ``window_max`` if it was passed already, so that nothing hangs on
        it but what is told.
        """
        core = self._core
        core.heard.past.note(offset, op.created_ms)
        if self._is_stale(offset, op, passed=window_max is not None):
            logger.info("offset %d: what it rests on changed before its place", offset)
            core.outcomes.pass_over(offset, op, STALE)
            return False
        window = op.window if op.since is not None else None
        if window is not None and window_max is not None:
            window = min(window, window_max)
        sighting = self._window.see(offset, op.id, op.since, window, user=op.user, own_id=op.own_id)
        if sighting is Sighting.REPEATED:
            logger.info("offset %d repeats an earlier request", offset)
            core.outcomes.repeated(offset, op)
        elif sighting is Sighting.EXPIRED:
            logger.info("offset %d came too late: it may be a repetition", offset)
            core.outcomes.admit(offset, op)
            core.outcomes.resolve(offset, EXPIRED)
        return sighting is Sighting.NEW

    def _is_stale(self, offset: int, op: Operation, *, passed: bool) -> bool:
        definitions = self._core.heard.definitions
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

    @property
    def known_from(self) -> int:
        """The offset from which on request ids are known."""
        return self._window.known_from

    async def run(self) -> None:
        """Follow the log until cancelled; raises LogError where it cannot be followed."""
        while True:
            await self._step()

    async def _step(self) -> None:
        core = self._core
        if self._full():
            await self._look_ahead()
            return
        position = core.schedule.read_to
        entries = await core.own_log.read(position)
        for entry in entries:
            self.see(entry)
            if self._full():
                break
        if entries:
            core.news.changed()
            if core.schedule.pending == 0:
                core.store.soon()
        else:
            await self._wait(position, WAIT_S)

    async def _wait(self, position: int, timeout_s: float) -> None:
        await self._core.own_log.reaching(partial(self._core.log.wait, position, timeout_s))

    def _full(self) -> bool:
        schedule, limits = self._core.schedule, self._core.limits
        if schedule.read_to < schedule.needs:
            return False
        return (
            schedule.pending >= limits.look_ahead_records_max
            or schedule.pending_bytes >= limits.look_ahead_bytes_max
        )

    async def _look_ahead(self) -> None:
        """Read on for control records only, until there is room again."""
        core = self._core
        position = core.watermarks.heard_to
        entries = await core.own_log.read(position)
        for entry in entries:
            message = from_record(entry.record)
            if not isinstance(message, Operation):
                self._control(entry.offset, message)
        if entries:
            core.watermarks.looked_ahead(entries[-1].offset + 1)
            core.news.changed()
        else:
            await self._wait(position, core.timeouts.retry_first_s)

    def see(self, entry: Entry) -> None:
        """Take in one entry at its place in the order."""
        core, offset = self._core, entry.offset
        message = from_record(entry.record)
        if not isinstance(message, Operation):
            if isinstance(message, Verify):
                core.schedule.add(offset, MARKER)
            core.schedule.passed(offset)
            self._control(offset, message)
            return
        if not self._is_new(offset, message):
            core.schedule.passed(offset)
            return
        core.outcomes.admit(offset, message)
        self._note_own(offset, message)
        if not core.schedule.add(offset, message):
            rejected = core.heard.verdicts.get(offset) is Verdict.REJECT
            why = core.heard.verdicts.failure(offset)
            outcome = Outcome(Status.REJECTED, failure=why) if rejected else DONE_BEFORE
            core.outcomes.resolve(offset, outcome)
            self._giving_up.done_before(offset)

    def _note_own(self, offset: int, operation: Operation) -> None:
        own = operation.synchronous and operation.origin == self._core.me
        if own and self._core.heard.verdicts.get(offset) is None:
            self.unfinished[offset] = operation

    def _control(self, offset: int, message: Control) -> None:
        core = self._core
        match message:
            case Decision():
                self._decided(offset, message)
            case Rows() | Passed():
                self._computed(offset, message)
            case FailureReport() if message.cluster == core.me and message.epoch < core.notes.born:
                logger.info("offset %d: a report about tables that were rebuilt since", offset)
            case FailureReport() if core.heard.claims.void(
                offset, message.cluster, message.epoch
            ) and not self._was_stored(message):
                logger.info("offset %d: a report of a replaced process", offset)
            case FailureReport() if message.cluster == core.me:
                core.outcomes.resolve(
                    message.offset, Outcome(Status.FAILED, failure=message.failure)
                )
            case FailureReport():
                self._on_failure(message)
            case Claim():
                core.own_log.claimed(offset, message)
            case Roster():
                self._giving_up.members_changed(offset, message)
                self._on_roster(offset, message)
            case Unable() | Able() | Abandon():
                self._giving_up.read(offset, message)
                self.unfinished = {
                    o: op for o, op in self.unfinished.items() if core.heard.verdicts.get(o) is None
                }
            case Filler():
                pass
            case _:
                self._on_check(offset, message)

    def _was_stored(self, report: FailureReport) -> bool:
        """Whether this cluster goes by the outcome that a replaced process of its own reports.

        It does if the stored progress has it as not judged yet: that process stored it just before
        it was too late, but what it reported was.
        """
        core = self._core
        known = core.outcomes.at(report.offset)
        return (
            report.cluster == core.me
            and report.offset in core.notes.judging
            and known is not None
            and known.outcome is not None
            and known.outcome.assumed
        )

    def _decided(self, offset: int, decision: Decision) -> None:
        core = self._core
        if core.heard.claims.void(offset, decision.by, decision.epoch):
            logger.info("offset %d: a decision of a replaced process", offset)
            return
        self._settle(decision.offset, decision.verdict, decision.failure)

    def _computed(self, place: int, message: Computed) -> None:
        core, offset = self._core, message.offset
        if core.heard.claims.void(place, message.by, message.epoch):
            logger.info("offset %d: rows of a replaced process", place)
        elif isinstance(message, Passed):
            core.heard.computations.see_passed(place, message)
        elif core.heard.computations.see(place, message):
            if message.failure is not None:
                self._settle(offset, Verdict.REJECT, message.failure)
            else:
                core.schedule.provide(offset)
        core.news.changed()

    def _settle(self, offset: int, verdict: Verdict, failure: Failure | None) -> None:
        """Note an operation's fate, if nothing has settled it before."""
        core = self._core
        if not core.heard.verdicts.see(offset, verdict, failure):
            return
        self.unfinished.pop(offset, None)
        core.schedule.decide(offset, verdict)
        if verdict is Verdict.REJECT:
            core.outcomes.resolve(offset, Outcome(Status.REJECTED, failure=failure))
        core.news.changed()
