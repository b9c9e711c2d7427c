"""Makes this cluster a copy of another one; from there it goes on with the log.

A cluster copies another cluster's tables (`haproc.replicate.agree.donating`) if it is new and
cannot begin with the log's first operation, or if an operator has it rebuilt:

1. A `Copy` record is appended. The cursor is stored at the record: so no later record is trimmed.
2. The donor makes a snapshot of its content when it reaches the record.
3. This cluster drops its own content, and makes the donor's: schemas, tables with their files,
   functions, views.
4. The cursor is stored after the record. From here on the cluster recovers like any other.

After a crash the next process goes on: a finished table names its source, and a file that exists
is not requested again. A second cluster, the spare, makes a snapshot, too. If the donor is away for
a minute, the spare replaces it, and finished tables are kept. If the donor has lost its snapshot,
or a table of it, a new record is appended. Tables that have not changed since are kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from msgspec import UNSET

from dmq import TrimmedError
from haproc.failure import ErrorClass, refused
from haproc.membership.peers import CopyFailure, Enrolled
from haproc.membership.state import Cause, Divergence, State
from haproc.replicate.agree.rebuilding import state_of_peer
from haproc.replicate.copying_ahead import AheadCopy, UnfitError
from haproc.replicate.log_state.members import enrolled_after
from haproc.replicate.member.core import Core
from haproc.replicate.member.steps import Step
from haproc.replicate.records.control import Change, Copy, Roster
from haproc.replicate.records.operation import from_record
from haproc.replicate.records.progress import LINEAGE_MAX, CopyRequest, Progress, shortened
from haproc.replicate.taking import HopelessError, Taking
from haproc.replicate.transfer import ANEW_MAX, AnewError, AwayError, Transfer

logger = logging.getLogger(__name__)


class _WithdrawnError(Exception):
    """An operator has withdrawn the request for a copy: the tables stay as they are."""


class Receiver:
    """Copies tables from another cluster to this one.

    It copies all tables at the start of the process, or some when the cluster reaches a record.
    """

    def __init__(self, core: Core, taking: Taking) -> None:
        self._core = core
        self._taking = taking
        self._ahead = AheadCopy(core, taking, self._chosen)
        self._repairs: dict[int, Copy] = {}
        self._choosing = asyncio.Event()
        """Set while a rebuild waits for a donor, and so can still be withdrawn."""
        self._withdrawn = asyncio.Event()

    # -- some tables, when this cluster reaches a record -------------------------------------

    def note_copy_as_receiver(self, offset: int, copy: Copy) -> bool:
        """Store a `Copy` record if this cluster must copy its tables; return whether it must.

        It copies them when it reaches the record.
        """
        mine = (
            copy.cluster == self._core.me
            and bool(copy.tables)
            and copy.ahead is UNSET
            and copy.epoch >= self._core.notes.born
        )
        if mine:
            self._repairs[offset] = copy
        return mine

    def wants(self, offset: int) -> bool:
        """True if this cluster must copy tables when it reaches the record at this offset."""
        return offset in self._repairs

    async def at(self, offset: int) -> None:
        """Copy the tables of the record that this cluster has reached.

        Nothing else runs here meanwhile. If that fails and a table is changed already, the cluster
        is DIVERGED.
        """
        core, copy = self._core, self._repairs.pop(offset)
        request = CopyRequest("", copy.donor, offset, first=offset)
        transfer = Transfer(core, self._taking, request)
        try:
            async with self._taking.reporting():
                noted = await transfer.noted(copy.tables)
                await transfer.check(noted, frozenset(copy.tables))
                await transfer.take(noted, frozenset(copy.tables))
        except (AnewError, HopelessError) as error:
            what = ", ".join(copy.tables)
            logger.error("%s is not copied from %s: %s", what, copy.donor, error)
            if not await self._untouched(copy.tables):
                core.diverge(Divergence(offset, Cause.REPAIR, tables=shortened(what)))
                await core.store()
            self._taking.lost(CopyFailure(offset, str(error)))
        finally:
            self._taking.over()
        await transfer.end()

    async def _untouched(self, tables: Collection[str]) -> bool:
        """True if all these tables exist here, and none is half copied.

        An earlier process may have begun to copy it. False also if the cluster's Spark answers with
        an error.
        """
        try:
            found = await self._taking.own(lambda copies: copies.inventory())
            keys = {each.full_name: each.key for each in found.tables}
            there = [keys[table] for table in tables if table in keys]
            begun = await self._taking.own(lambda copies: copies.begun(there))
        except HopelessError:
            return False
        return len(there) == len(tables) and all(each.done for each in begun.values())

    # -- all tables, at the start of the process ---------------------------------------------

    async def needed(self, progress: Progress) -> Progress | None:
        """Copy the whole cluster, or some tables, if ``progress`` or a new cluster needs it.

        Returns the progress to begin with. None if a copy is needed and impossible; the state says
        why.
        """
        core = self._core
        is_new = progress.low == 0 and progress.born == core.own_log.epoch
        if progress.copying is None and not is_new:
            return progress
        member, has_all = await self._membership()
        if progress.copying is None and member and has_all:
            return progress
        if not member:  # the copy is made once it is a member
            return replace(progress, copying=progress.copying or CopyRequest())
        try:
            if progress.copying is None and not await self._is_empty():
                raise HopelessError(
                    "this new cluster needs another one's tables, but it has tables of its own: "
                    f"drop them, or have them replaced with haproc cluster rebuild {core.me}"
                )
            request = progress.copying or CopyRequest()
            if (copy := await self._ahead.asked(progress)) is not None:
                try:
                    return await self._ahead.made(progress, copy)
                except UnfitError as error:
                    logger.warning("%s is copied as a whole: %s", core.me, error)
                    # Tables may be changed already, so the copy cannot be withdrawn.
                    request = CopyRequest(first=max(request.first, request.marker))
            return await self._copy(progress, request)
        except _WithdrawnError:
            logger.warning("the copy of another cluster is not made: it was withdrawn")
            progress = replace(progress, copying=None)
            await self._taking.store(progress)
            self._taking.over()
            return progress
        except HopelessError as error:
            self._taking.failed(error)
            return None

    async def _membership(self) -> tuple[bool, bool]:
        """Return two booleans: this cluster is a member.

        It can begin with the log's first operation. They follow from the records that the log still
        has. A cluster that joined later cannot begin with the log's first operation: the others may
        have had tables before it.
        """
        core, enrolled, founded = self._core, Enrolled(), True
        start = await core.own_log.reaching(core.log.start)
        is_whole = start == 0
        end = await core.own_log.reaching(core.log.end)
        while start < end:
            try:
                entries = await core.own_log.read_log(start)
            except TrimmedError:
                # Another HAProc trims; the newest record with the members stays in the log.
                start, is_whole = await core.own_log.reaching(core.log.start), False
                continue
            for entry in entries:
                if entry.record.kind != "members":
                    continue
                roster = from_record(entry.record)
                if isinstance(roster, Roster):
                    first = enrolled.offset < 0
                    known = Enrolled(entry.offset, roster.members)
                    enrolled = known if first else enrolled_after(enrolled, entry.offset, roster)
                    joins = roster.change is Change.JOIN and roster.cluster == core.me
                    founded = founded and not joins
            if not entries:
                break
            start = entries[-1].offset + 1
        return enrolled.names is None or core.me in enrolled.names, founded and is_whole

    async def _is_empty(self) -> bool:
        found = await self._taking.asking(self._core.engine.copies().inventory)
        return not (found.tables or found.views or found.functions or found.others)

    def withdraw(self) -> None:
        """Withdraw the requested copy; raises RequestError if none waits for a donor."""
        if not self._choosing.is_set():
            raise refused(
                ErrorClass.NOT_NOW,
                f"cluster {self._core.me} does not wait for a donor: it is "
                f"{self._core.condition.state} {self._core.condition.reason}".rstrip(),
            )
        self._choosing.clear()
        self._withdrawn.set()

    async def _copy(self, progress: Progress, request: CopyRequest) -> Progress:
        core = self._core
        async with self._taking.begun(f"haproc cluster rebuild {core.me}"):
            anew, pauses = 0, core.backoff()
            if progress.copying is not None and request.first < 0:
                self._choosing.set()
            while True:
                try:
                    request = await self._marked(progress, request)
                    transfer = Transfer(core, self._taking, request)
                    noted = await transfer.noted()
                    await transfer.check(noted)
                    await transfer.take(noted)
                    break
                except AnewError as error:
                    logger.warning("the copy of %s is interrupted: %s", request.donor, error)
                    anew += 1
                    if anew == ANEW_MAX:
                        raise HopelessError(
                            f"the copy began anew {anew} times, at last because of: {error}. "
                            f"Choose another donor: haproc cluster rebuild {core.me} --from NAME"
                        ) from None
                    await asyncio.sleep(pauses.pause_s())
                    if isinstance(error, AwayError) and await self._spare_serves(request):
                        request = replace(request, donor=request.spare, spare=request.donor)
                        await self._keep(progress, request)
                    else:
                        request = replace(request, marker=-1)
        done = Progress(
            low=request.marker + 1,
            claims=noted.claims,
            born=core.own_log.epoch,
            roster=noted.roster,
            lineage=(*noted.lineage, (request.donor, request.marker))[-LINEAGE_MAX:],
        )
        await core.trace(Step.COPIED)
        await self._taking.store(done)
        await transfer.end()
        logger.info("%s is a copy of %s as of offset %d", core.me, request.donor, request.marker)
        self._taking.over()
        return done

    # -- the donor and its snapshot ----------------------------------------------------------

    async def _marked(self, progress: Progress, request: CopyRequest) -> CopyRequest:
        """Return the request with its record's offset; if it has none, append the record first.

        This may wait for a donor.
        """
        core = self._core
        if request.marker < 0:
            donor, spare = await self._chosen(request.wanted, request.donor)
            record = Copy(core.me, donor, core.own_log.epoch, spare=spare)
            marker = await core.own_log.append(record)
            first = marker if request.first < 0 else request.first
            request = replace(request, donor=donor, spare=spare, marker=marker, first=first)
            await self._keep(progress, request)
        return request

    async def _keep(self, progress: Progress, request: CopyRequest) -> None:
        """Store the request, so that after a crash the next process goes on with it."""
        stored = Progress(low=request.marker, claims=progress.claims, copying=request)
        await self._taking.store(stored)

    async def _spare_serves(self, request: CopyRequest) -> bool:
        spare = request.spare
        return bool(spare) and await state_of_peer(self._core, spare) == State.READY.value

    async def _chosen(self, wanted: str, failed: str) -> tuple[str, str]:
        """Wait until a cluster is READY; return it as the donor, and another one as the spare.

        The spare is empty if there is none. ``wanted``: the only possible donor; empty: any peer.
        ``failed``: the donor before, which is taken only if no other is READY.
        """
        core, pauses = self._core, self._core.backoff()
        while True:
            states = {}
            for peer in (wanted,) if wanted else core.members.peers:
                states[peer] = await state_of_peer(core, peer)
                if self._withdrawn.is_set():
                    raise _WithdrawnError
            ready = [peer for peer, state in states.items() if state == State.READY.value]
            ready.sort(key=lambda peer: peer == failed)
            if ready:
                self._choosing.clear()
                return ready[0], "".join(ready[1:2])
            self._taking.waits(", ".join(f"{peer} is {state}" for peer, state in states.items()))
            with suppress(TimeoutError):
                async with asyncio.timeout(pauses.pause_s()):
                    await self._withdrawn.wait()
