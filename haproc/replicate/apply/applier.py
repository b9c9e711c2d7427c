"""Applies the units (statements) that the schedule gives out, on the lanes of this cluster.

For each unit: store its intent if it has one; run it, again after each environment or availability
error; give its outcome to the waiting request; store the progress; release the units behind it. If
a combined statement has an application error, it is split: each half runs as one statement, and so
on, down to the operation that fails. So each operation has its own outcome.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from haproc import tracing
from haproc.classify.model import Kind
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Applied, Lane, TransactionMarker
from haproc.engine.statement import ArrowRows
from haproc.membership.state import Cause, Divergence
from haproc.replicate.agree.donating import Donor
from haproc.replicate.agree.poison_rejection import PoisonRejection
from haproc.replicate.agree.under_way import Interrupted
from haproc.replicate.apply.computing import Computing
from haproc.replicate.apply.doubts import Doubts
from haproc.replicate.apply.synchronous import FollowUp, Synchronous
from haproc.replicate.log_state.definitions import NOTHING, redefined
from haproc.replicate.member.core import Core
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus, Trouble
from haproc.replicate.queue.units import MARKER, Intent, Unit
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import ApplicationFailure

logger = logging.getLogger(__name__)

_FOUND_APPLIED: Final = OperationOutcome(OutcomeStatus.APPLIED, assumed=True)
"""The outcome of a unit if the tables show that an earlier attempt committed it."""


class Applier:
    """Runs the units of the schedule. ``on_outcome`` is called for every operation that ran here.

    ``on_marker`` is awaited at the place of a `MARKER`, while no other statement runs; ``donor``
    knows the files that other clusters copy.
    """

    def __init__(
        self,
        core: Core,
        lanes: Sequence[Lane],
        synchronous: Synchronous,
        computing: Computing,
        poison_rejection: PoisonRejection,
        on_outcome: Callable[[int, Operation, OperationOutcome], None],
        on_marker: Callable[[int], Awaitable[None]],
        donor: Donor,
    ) -> None:
        self._core = core
        self._all_lanes = tuple(lanes)
        self._lanes = list(lanes)
        self._stopping = False
        self._synchronous = synchronous
        self._computing = computing
        self._poison_rejection = poison_rejection
        self.doubts = Doubts(core)
        self._on_outcome = on_outcome
        self._on_marker = on_marker
        self._donor = donor

    @property
    def idle(self) -> bool:
        """True if no statement runs."""
        return len(self._lanes) == len(self._all_lanes)

    @property
    def stopping(self) -> bool:
        """True if no more units are started."""
        return self._stopping

    async def stop(self) -> None:
        """Start no more units, and wait until no statement runs."""
        self._stopping = True
        await self._core.news.until(lambda: self.idle)

    async def run_forever(self) -> None:
        """Start units whenever one may start, until cancelled."""
        core = self._core
        while True:
            await core.news.startable()
            if self._stopping or not core.condition.may_apply:
                continue
            for unit in core.schedule.take(len(self._lanes)):
                core.tasks.spawn(self._run(unit, self._lanes.pop()))
            if core.schedule.composing.tried:
                core.news.changed()  # more may start, after a turn of the event loop
            self._computing.look()

    async def _run(self, unit: Unit, lane: Lane) -> None:
        try:
            await self._run_unit(unit, lane)
            await self._computing.over(unit, lane)
        finally:
            self._lanes.append(lane)
            self._core.news.changed()

    async def _run_unit(self, unit: Unit, lane: Lane) -> None:
        core = self._core
        if unit.operations[0] is MARKER:
            await self._on_marker(unit.offsets[0])
            await self._done(unit)
            return
        await self._wait_for_copies(unit)
        if unit.intent is Intent.ALONE and not unit.in_doubt:
            await self._note(unit)
        if unit.intent is not Intent.NONE:
            await core.store()
            await core.trace(Step.INTENT_AFTER)
        with tracing.applying((op.key for op in unit.operations), unit.offsets):
            outcome = await self._execute(unit, lane)
        await core.trace(Step.APPLY_AFTER)
        apart = outcome is None or (
            outcome.status is OutcomeStatus.FAILED and len(unit.operations) > 1
        )
        skipped = outcome is not None and outcome.status is OutcomeStatus.SKIPPED
        if skipped:
            await self._skipped(unit)
        if core.troubles.over(unit.offsets, apart=apart):
            core.update_stuck()
        if outcome is None or apart:
            how = "one by one" if outcome is None else "in halves"
            logger.info("offsets %d..%d run %s", unit.offsets[0], unit.offsets[-1], how)
            # Without an outcome one operation is to be passed over or at fault: so each runs alone.
            core.schedule.split(unit, singles=outcome is None)
            await core.store()  # without the intent
            core.schedule.split_stored(unit)
            return
        follow_up: FollowUp | None = None
        if not skipped and self._decides(unit):
            outcome, follow_up = await self._synchronous.concluded(
                unit.offsets[0], unit.operations[0], outcome
            )
        elif outcome.status is OutcomeStatus.FAILED:
            await self._report(unit, outcome)
        outcome = self._computing.counted(unit, outcome)
        core.on_applied(outcome.status.value, len(unit.operations))
        if unit.intent is Intent.ALONE or any(redefined(op) != NOTHING for op in unit.operations):
            core.watermarks.defined()
            for op in unit.operations:
                self.doubts.redefined(op)
        if outcome.status is OutcomeStatus.APPLIED and self._passed_over(unit):
            self._poison_rejection.applied(unit.offsets)
        if unit.intent is Intent.ALONE:
            core.watermarks.applied_exclusive()
            # A Spark session keeps what it has looked up, so the lanes get new sessions after DDL.
            # The lane that ran the DDL knows its effect, except on objects that the DDL did not
            # name: after DROP SCHEMA the session still has the schema's functions.
            for each in self._all_lanes:
                if each is not lane or not unit.operations[0].named:
                    each.renew()
            core.tasks.spawn(lane.prepare())  # it is the next one to be taken
        for offset, op in zip(unit.offsets, unit.operations, strict=True):
            self._on_outcome(offset, op, outcome)
        if unit.intent is Intent.ALONE:
            # The tables may not show a later process that it was applied. So clients are answered
            # when the progress is durable: what is in doubt after a crash was not acknowledged.
            await self._done(unit)
            self._answer_requests(unit, outcome, follow_up)
        else:
            self._answer_requests(unit, outcome, follow_up)
            await self._done(unit)

    def _answer_requests(
        self, unit: Unit, outcome: OperationOutcome, follow_up: FollowUp | None
    ) -> None:
        """Give the outcome to the waiting requests: now, or at the end of ``follow_up``."""
        if follow_up is not None:
            self._core.tasks.spawn(follow_up())
            return
        if len(unit.operations) == 1:
            self._core.outcomes.resolve(unit.version, outcome)
            return
        shares: dict[int | None, OperationOutcome] = {}  # thousands, and mostly alike
        for offset, op in zip(unit.offsets, unit.operations, strict=True):
            rows = op.insert.rows if op.insert else None
            share = shares.setdefault(
                rows, OperationOutcome(outcome.status, Applied(affected_rows=rows))
            )
            self._core.outcomes.resolve(offset, share)

    async def _done(self, unit: Unit) -> None:
        """Store that the unit is done; then operations that wait for it may start."""
        self._core.schedule.complete(unit)
        self._core.news.moved()  # a query that waits to see it needs no stored progress
        await self._core.store()
        self._core.schedule.release(unit)
        await self._core.trace(Step.CURSOR_AFTER)

    async def _skipped(self, unit: Unit) -> None:
        """Mark the cluster as DIVERGED, because an operator had it skip the operation."""
        core, offset = self._core, unit.offsets[0]
        logger.warning("offset %d is skipped here", offset)
        core.diverge(Divergence(offset, Cause.SKIPPED, applies=True))
        if self._decides(unit):
            await self._synchronous.hand_over(offset, unit.operations[0])

    def _decides(self, unit: Unit) -> bool:
        op = unit.operations[0]
        undecided = self._core.log_state.decisions.get(unit.offsets[0]) is None
        return op.synchronous and op.origin == self._core.me and undecided

    async def _report(self, unit: Unit, outcome: OperationOutcome) -> None:
        """Append an application error to the log, before operations behind it may start."""
        if outcome.failure is None:
            return
        offset = unit.offsets[0]
        await self._core.own_log.report(offset, outcome.failure)

    async def _wait_for_copies(self, unit: Unit) -> None:
        """Wait until no copy needs the files that the unit deletes; do not let the peers wait."""
        offset, op = unit.offsets[0], unit.operations[0]
        if self._donor.holds(op):
            if self._decides(unit):
                await self._synchronous.hand_over(offset, op)
            await self._donor.free(op)

    async def _execute(self, unit: Unit, lane: Lane) -> OperationOutcome | None:
        """Run the unit, again if necessary, until it has an outcome; None: it must be split."""
        core, op = self._core, unit.operations[0]
        doubt, tables_show = unit.in_doubt, partial(self.doubts.tables_show, unit)
        # Guarded: Delta itself skips a write that the table has already. Only INSERTs become
        # slower by it. So the first attempt of INSERTs is not guarded: fences and the tables'
        # transaction markers are enough.
        insert = op.kind in (Kind.INSERT, Kind.ROWS) and not unit.composed
        plain = insert and unit.intent is not Intent.ALONE and not core.guard_always
        pauses = core.backoff()
        if unit.apart or (doubt and not self._passed_over(unit)):
            if await self._committed_after_all(unit, lane):
                return _FOUND_APPLIED
            if unit.apart:
                return None
        while not self._passed_over(unit):
            await core.condition.allowed()
            tried = tables_show if doubt else None
            may_run = await self._poison_rejection.may_run(unit.version, op, tried)
            if not may_run or not core.condition.may_apply:
                continue
            if op.insert is None and not isinstance(op.write, ArrowRows):
                await tables_show()  # asked early: during a long statement a cluster may not answer
            marker = TransactionMarker(
                core.own_log.application, unit.version, guarded=doubt or not plain
            )
            try:
                async with self._poison_rejection.interruptible(unit.offsets, op, tables_show):
                    write = await self._computing.write(unit, lane)
                    await core.trace(Step.APPLY_BEFORE)
                    applied = await lane.apply(
                        write, op.settings, marker, timeout_s=core.timeouts.apply_s
                    )
            except Interrupted:
                doubt = True
                if await self._committed_after_all(unit, lane):
                    return _FOUND_APPLIED
                if len(unit.operations) > 1:
                    return None
            except EngineError as error:
                if error.kind is ErrorKind.APPLICATION:
                    judged = await self._judged(unit, error)
                    if isinstance(judged, OperationOutcome):
                        return judged
                    error = judged
                doubt = True
                if error.kind is ErrorKind.AVAILABILITY and self._decides(unit):
                    await self._synchronous.hand_over(unit.offsets[0], op)
                trouble = self._failed(unit, error)
                await trouble.pause(pauses.pause_s())
                if await self._committed_after_all(unit, lane):
                    return _FOUND_APPLIED
                if self._poison_rejection.takes_apart(trouble):
                    return None
                await self._poison_rejection.consider(unit.version, op, trouble)
            else:
                return OperationOutcome(OutcomeStatus.APPLIED, applied)
        return await self._pass_over(unit, lane)

    def _passed_over(self, unit: Unit) -> bool:
        """True if an operation of the unit must not run: it is rejected, or to be skipped."""
        rejected = any(self._poison_rejection.rejects(offset) for offset in unit.offsets)
        return rejected or self._core.troubles.skip_wanted(unit.offsets)

    async def _pass_over(self, unit: Unit, lane: Lane) -> OperationOutcome | None:
        """Return the outcome of a unit that must not run (any more); None: it must be split."""
        offset, op = unit.version, unit.operations[0]
        # A record on one operation says nothing about others that an earlier process ran with it.
        single, abandoned = len(unit.operations) == 1, self._poison_rejection.abandoned(offset)
        if single and abandoned and self._poison_rejection.has_voted(offset):
            return self._poison_rejection.rejected(offset)  # tables were checked before the vote
        if single and self._poison_rejection.rejects(offset) and not abandoned:
            # This cluster is its origin, and checked its tables before it decided.
            return OperationOutcome(
                OutcomeStatus.REJECTED, failure=self._core.log_state.decisions.failure(offset)
            )
        if await self._committed_after_all(unit, lane):
            return _FOUND_APPLIED
        if not single:
            return None
        if not self._poison_rejection.abandoned(offset):
            return OperationOutcome(OutcomeStatus.SKIPPED)
        # The vote tells a later process that this one passed over the operation.
        await self._poison_rejection.vote(offset, op, "it was rejected before it was run here")
        return self._poison_rejection.rejected(offset)

    def _failed(self, unit: Unit, error: EngineError, *, counts: bool = True) -> Trouble:
        """Note a failed attempt of a unit; after several that count, the cluster is STUCK."""
        core = self._core
        logger.warning("offset %d: %s: %s", unit.version, error.kind, error.message)
        if error.kind is ErrorKind.AVAILABILITY:
            core.health.suspect(error.message)
        trouble = core.troubles.failed(unit.offsets, error, counts=counts)
        core.update_stuck()
        return trouble

    async def _judged(self, unit: Unit, error: EngineError) -> OperationOutcome | EngineError:
        """Return the outcome after an application error; an EngineError if that is not certain.

        A statement can fail after its commit, so an application error does not prove that nothing
        was committed.
        """
        try:
            if (refuted := await self._refuted(unit)) is not None:
                return refuted
            if await self.doubts.committed(unit):
                logger.warning("offset %d is applied, in spite of: %s", unit.version, error.message)
                return _FOUND_APPLIED
        except EngineError as unsure:
            return unsure
        return OperationOutcome(OutcomeStatus.FAILED, failure=ApplicationFailure.of(error))

    async def _refuted(self, unit: Unit) -> EngineError | None:
        """Return an error of the cluster that may have caused an application error, or None.

        If the storage is away, tables seem to be missing or empty. So an application error counts
        only if the storage is there, and every table that the catalog knows can be read. A combined
        statement is not checked: it is split anyway.
        """
        op = unit.operations[0]
        if len(unit.operations) > 1:
            return None
        try:
            await self._core.engine.check_tables(sorted(op.reads | op.writes))
        except EngineError as error:
            return error
        return await self._computing.vanished(unit)

    async def _note(self, unit: Unit) -> None:
        """Note the fingerprint of the objects that a DDL unit names, before it runs the first time.

        The unit does not run before this has succeeded. If no cluster succeeds, the ring gives the
        operation up, as after failed attempts. A unit that must not run any more gets no intent.
        """
        core, op, pauses = self._core, unit.operations[0], self._core.backoff()
        while not self._passed_over(unit):
            await core.condition.allowed()
            if (
                not await self._poison_rejection.may_run(unit.version, op)
                or not core.condition.may_apply
            ):
                continue
            try:
                await self.doubts.note(unit)
            except EngineError as error:
                away = error.kind is ErrorKind.AVAILABILITY
                if away and self._decides(unit):
                    await self._synchronous.hand_over(unit.offsets[0], op)
                trouble = self._failed(unit, error, counts=not away)
            else:
                return
            await trouble.pause(pauses.pause_s())
            await self._poison_rejection.consider(unit.version, op, trouble)

    async def _committed_after_all(self, unit: Unit, lane: Lane) -> bool:
        """Make sure that earlier attempts are over; return True if one of them committed."""
        core, pauses = self._core, self._core.backoff()
        while True:
            await core.condition.allowed()
            lane_is_clear = False
            try:
                await lane.fence()
                lane_is_clear = True
                return await self.doubts.settled(unit, lane)
            except EngineError as error:
                away = error.kind is ErrorKind.AVAILABILITY
                trouble = self._failed(unit, error, counts=not away)
                # It will be skipped, and it does not run: so the check of the tables is not needed.
                if core.troubles.skip_wanted(unit.offsets) and lane_is_clear:
                    return False
            await trouble.pause(pauses.pause_s())
