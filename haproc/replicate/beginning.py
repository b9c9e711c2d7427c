"""How a process takes over where earlier ones left off."""

from __future__ import annotations

import asyncio
import logging
from typing import TypeVar

from haproc.replicate.agree.admission import Admission
from haproc.replicate.agree.poison_rejection import PoisonRejection
from haproc.replicate.copying import Receiver
from haproc.replicate.copying_ahead import copied_ahead
from haproc.replicate.member.core import Core
from haproc.replicate.queue.outcomes import DONE_BEFORE
from haproc.replicate.reader import Reader
from haproc.replicate.records.progress import Progress, from_cursor
from haproc.replicate.restoring import Restorer

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Beginning:
    """Takes over for one process.

    It claims the cluster, goes back to where the stored progress says, stops what was left
    running, and learns from the tables themselves what a crash left unclear.
    """

    def __init__(
        self,
        core: Core,
        reader: Reader,
        admission: Admission,
        poison_rejection: PoisonRejection,
        receiver: Receiver,
        restorer: Restorer,
    ) -> None:
        self._core = core
        self._receiver = receiver
        self._restorer = restorer
        self._reader = reader
        self._admission = admission
        self._poison_rejection = poison_rejection

    async def begin(self) -> bool:
        """Take over, and follow the log from here on; False if that cannot be."""
        core = self._core
        await core.own_log.claim()
        stored = await self._load()
        is_restore = stored.copying is not None and stored.copying.source
        makes = self._restorer.restored if is_restore else self._receiver.needed
        progress = await makes(stored)
        if progress is None:
            return False
        end = await core.own_log.reaching(core.log.end)
        if progress.low > end:
            core.condition.fell_behind(
                f"the log ends at {end}, before this cluster's cursor {progress.low}: it lost its "
                "newest records, or is an older copy: stop all HAProcs, and bring the newest one "
                "back"
            )
            return False
        core.log_state.past.observe(asyncio.get_running_loop().time(), end)
        core.schedule.resume(progress, end)
        core.schedule.copied(await copied_ahead(core, progress))
        core.notes.resume(progress)
        core.log_state.claims.restore(progress.claims)
        await self._admission.restore(progress.roster)
        await self._reader.rebuild(progress.low)
        core.condition.differs(progress.diverged)
        core.condition.undecided(progress.undecided)
        await self._poison_rejection.replay_votes(end)
        core.tasks.spawn(self._reader.run())
        core.tasks.spawn(self._all_heard(end))
        await core.fence()
        await self._know_the_storage()
        await self._read_up_to(end)
        await self._restore(end)
        core.condition.started()
        return True

    async def _all_heard(self, end: int) -> None:
        """Wait until all is heard that may say what became of what is done: its record is there."""
        await self._core.watermarks.heard(end)
        self._core.outcomes.presumed_applied()

    async def _load(self) -> Progress:
        log = self._core.own_log
        cursor = await log.unless_replaced()
        return Progress(born=log.epoch) if cursor is None else from_cursor(cursor)

    async def _know_the_storage(self) -> None:
        """Make sure that the cluster's storage is the one to which the cursor belongs."""
        core, known = self._core, self._core.notes.storage
        found = await core.asking(lambda: core.engine.storage(known))
        if found != known:
            core.notes.belongs_to(found)
            await core.store()

    async def _read_up_to(self, offset: int) -> None:
        """Wait until the log is read up to the offset, or as far as it is read ahead."""
        core = self._core
        await core.news.until(
            lambda: (
                core.schedule.read_to >= offset or core.condition.now.behind or self._reader.full
            )
        )

    async def _restore(self, log_end: int) -> None:
        """Ask the tables for their last offsets: what the stored progress does not know yet."""
        core, application = self._core, self._core.own_log.application
        read_to, waiting = core.schedule.read_to, core.schedule.unfinished()
        begun = [each.op for each in waiting if each.offset < log_end and not each.op.unmarked]
        tables = sorted({table for op in begun for table in op.writes})
        if not tables:
            core.schedule.looked_up(read_to)
            return
        applied = await core.asking(lambda: core.engine.offsets_applied(tables, application))
        if any(offset >= log_end for offset in applied.values()):
            core.condition.fell_behind(
                f"tables hold offsets that the log (end {log_end}) does not have; it is an "
                "older copy: bring the newest one back"
            )
            return
        core.schedule.looked_up(read_to)
        found = core.schedule.restore(applied)
        self._poison_rejection.applied(found)
        for offset in found:
            known = core.outcomes.at(offset)
            if known is not None and known.outcome is None:
                core.outcomes.resolve(offset, DONE_BEFORE)
        # Durable before anything later starts, like whatever is done: a second crash may come.
        await core.store()
