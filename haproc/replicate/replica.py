"""One cluster's replica: connects the parts of the replication, and runs them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from haproc.membership.peers import (
    CopyAnswer,
    CopyQuestion,
    Member,
    PeerOutcome,
    PeerProgress,
    PeerStatus,
)
from haproc.membership.state import SERVING
from haproc.replicate.agree import assurance
from haproc.replicate.agree.admission import Admission
from haproc.replicate.agree.comparing import Comparison, Verifier
from haproc.replicate.agree.donating import Donor
from haproc.replicate.agree.foreign_watch import ForeignWatch
from haproc.replicate.agree.poison_rejection import PoisonRejection
from haproc.replicate.agree.revoking import Revoking
from haproc.replicate.apply.applier import Applier
from haproc.replicate.apply.computing import Computing
from haproc.replicate.apply.synchronous import Synchronous, describe
from haproc.replicate.apply.takeover import PeerSuccessWatch, Takeover
from haproc.replicate.backing_up import Backups
from haproc.replicate.catching_up import Beginning, CatchingUp, CatchUpEstimator, Recovery
from haproc.replicate.copying import Receiver
from haproc.replicate.copying_ahead import Considering
from haproc.replicate.member.core import Core
from haproc.replicate.operators import Operators
from haproc.replicate.queue.backlog import CatchUpEstimate
from haproc.replicate.reader import Reader
from haproc.replicate.records.control import Copy
from haproc.replicate.records.operation import Operation
from haproc.replicate.restoring import Restorer
from haproc.replicate.taking import Taking
from haproc.replicate.writes import Writes

logger = logging.getLogger(__name__)


class Replica:
    """All parts of one cluster's replication, with the methods that peers and clients need."""

    def __init__(
        self,
        core: Core,
        foreign: ForeignWatch,
        on_members: Callable[[Sequence[Member]], None] = lambda members: None,
    ) -> None:
        self.core = core
        self._comparison = Comparison(core)
        self._synchronous = Synchronous(core)
        self.computing = Computing(core)
        self.foreign = foreign
        self.verifier = Verifier(core, foreign)
        self.donor = Donor(core, self.verifier.pending)
        self.taking = Taking(core)
        self.receiver = Receiver(core, self.taking)
        restorer = Restorer(core, self.taking)
        poison_rejection = PoisonRejection(core)
        self.revoking = Revoking(core, poison_rejection)
        self.operators = Operators(
            core, self.verifier, self.revoking, Backups(core, self.donor), restorer, self.receiver
        )
        self.admission = Admission(core, on_members, lambda: self.operators.on_rebuild())
        self._reader = Reader(
            core,
            self._comparison.reported,
            self.operators.handle_operator_record,
            self.admission.follow,
            poison_rejection,
            self._synchronous.ran_before,
            self._copy_read,
        )
        self._beginning = Beginning(
            core,
            self._reader,
            self.admission,
            poison_rejection,
            self.receiver,
            restorer,
        )
        lanes = [core.engine.lane(i, core.own_log.still_mine) for i in range(core.limits.lanes)]
        self._applier = Applier(
            core,
            lanes,
            self._synchronous,
            self.computing,
            poison_rejection,
            self._comparison.ran,
            self._at_marker,
            self.donor,
        )
        considering = Considering(core, self._applier.stop, lambda: self.operators.on_rebuild())
        self._catch_up_estimator = CatchUpEstimator(core, considering.consider)
        self._catching_up = CatchingUp(core, self._catch_up_estimator)
        self.writes = Writes(core, lambda: self._reader.known_from, lambda: self._applier.stopping)

    def _copy_read(self, offset: int, copy: Copy) -> bool:
        """Pass a `Copy` record to the part that it concerns.

        True if this cluster is the donor or the receiver, and must stop when it reaches the record.
        """
        return self.donor.note_copy_as_donor(offset, copy) or self.receiver.note_copy_as_receiver(
            offset, copy
        )

    async def _at_marker(self, offset: int) -> None:
        """Do what the reached record demands of this cluster: a snapshot, a copy or checksums."""
        if self.donor.wants(offset):
            await self.donor.at(offset)
        elif self.receiver.wants(offset):
            await self.receiver.at(offset)
        else:
            await self.verifier.at(offset)

    def foresee(self, op: Operation) -> None:
        """Begin lookups in tables that this operation will need, before it is in the log."""
        self._applier.doubts.foresee(op)

    # -- life ------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run all parts until cancelled; raises an error that no retry can solve."""
        tasks = self.core.tasks
        try:
            tasks.spawn(self.core.store.run_forever())
            tasks.spawn(self.core.health.run_forever())
            tasks.spawn(self._start())
            await tasks.broken()
        finally:
            await tasks.cancel()

    async def _start(self) -> None:
        if not await self._beginning.begin():
            return
        tasks = self.core.tasks
        tasks.spawn(self._applier.run_forever())
        tasks.spawn(self.computing.clean())
        tasks.spawn(Takeover(self.core, self.computing).watch())
        tasks.spawn(self._catching_up.run_forever())
        tasks.spawn(self._catching_up.know_the_end())
        tasks.spawn(PeerSuccessWatch(self.core).run_forever())
        tasks.spawn(self.foreign.run())
        self._comparison.resume()
        await self.verifier.resume()
        await self._synchronous.resume(dict(self._reader.unfinished))

    async def drain(self, timeout_s: float) -> None:
        """Let running statements end, start no new ones, and store the progress, before the end.

        If that takes longer than ``timeout_s``, the statements are finished after a restart.
        """
        core = self.core
        core.condition.stopping()
        try:
            async with asyncio.timeout(timeout_s):
                await self._applier.stop()
                await core.store()
        except TimeoutError:
            logger.warning("stopping with statements under way; they are finished after a restart")
        core.condition.stopped()

    # -- reads -----------------------------------------------------------------------------

    async def applied(self, offset: int, to: Callable[[], int] | None = None) -> None:
        """Wait until all operations below the offset are applied on this cluster.

        ``to``: if only some operations matter: returns the offset below which these are applied.
        Raises RequestError if the cluster leaves service.
        """
        schedule, condition = self.core.schedule, self.core.condition
        to = to or (lambda: schedule.low)
        await self.core.news.until(lambda: to() >= offset or condition.state not in SERVING)
        if to() < offset:
            raise self.writes.unavailable()

    async def read_end(self) -> int:
        """Ask the log for its end and return it; raises LogError."""
        end = await self.core.own_log.once(self.core.log.end)
        self.core.watermarks.log_ends(end)
        return end

    # -- requests of peers and operators ---------------------------------------------------

    async def apply_now(self, offset: int, operation_id: str, timeout_s: float) -> PeerOutcome:
        """Run a synchronous operation for a peer, before its decision; return the outcome here."""
        return await self._synchronous.apply_now(offset, operation_id, timeout_s)

    async def outcome(self, offset: int) -> PeerOutcome:
        """Return the outcome of an operation here; ``pending``: none yet.

        ``unknown``: not in memory.
        """
        known = self.core.outcomes.at(offset)
        if known is None:
            return PeerOutcome("unknown")
        return PeerOutcome("pending") if known.outcome is None else describe(known.outcome)

    async def progress(self, seen: str, timeout_s: float) -> PeerProgress:
        """Return this cluster's progress once it differs from ``seen``, or after ``timeout_s``."""
        return await assurance.progress(self.core, seen, timeout_s)

    async def copy(self, question: CopyQuestion) -> tuple[CopyAnswer, bytes]:
        """Answer a question of a cluster that copies this one; see `Donor.answer`."""
        return await self.donor.answer(question)

    def latencies(self, start: int, end: int) -> Mapping[int, int]:
        """Return, by offset, the ms from each operation's creation to its end on this cluster."""
        return self.core.outcomes.latencies(start, end)

    def status(self) -> PeerStatus:
        """Return this member's state, cursor, lag and other facts, as peers receive them."""
        core, condition = self.core, self.core.condition
        low, log_end = core.schedule.low, core.watermarks.log_end
        return PeerStatus(
            cluster=core.me,
            state=condition.state,
            reason=condition.reason,
            drained=condition.now.drained,
            undecided=condition.now.undecided,
            incarnation=core.identity.incarnation,
            cursor=low,
            log_end=log_end,
            lag=core.watermarks.lag,
            applying=condition.applying,
            computing=tuple(self.computing.offsets),
            copy=self.taking.status(),
            foreign=self.foreign.json(),
            copy_failed=self.taking.failure,
        )

    @property
    def serving(self) -> bool:
        """True if this cluster is in a state in which it serves clients."""
        return self.core.condition.state in SERVING

    @property
    def recovery(self) -> Recovery:
        """The progress of the replay; all zero without one."""
        return self._catching_up.recovery

    @property
    def catch_up_estimate(self) -> CatchUpEstimate:
        """The expected times of the replay, and of a copy of tables."""
        return self._catch_up_estimator.catch_up_estimate
