"""Makes this cluster what another one is, and goes on with the log from there.

A cluster without tables whose log has lost its beginning, or one that an operator has rebuilt,
takes another cluster's tables (`haproc.replicate.agree.donating`):

1. A `Copy` record is put into the log. The cursor is stored at it, so nothing behind it is trimmed.
2. The donor notes what it holds at that place.
3. What this cluster holds is dropped, and made anew: schemas, tables with their files, functions,
   views.
4. The cursor is stored behind the record. From here on the cluster recovers like any other.

A process that is killed goes on: a finished table names its source, a file that is there is not
asked for again. A second cluster notes the same (the spare). If the donor is away for a minute, the
spare takes its place: what is finished is kept. If it has lost its notes, or a table of them, there
is a new record. Tables that have not changed since are kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from msgspec import UNSET

from haproc.failure import ErrorClass, refused
from haproc.membership.peers import CopyFailure, Enrolled
from haproc.membership.state import Cause, Divergence, State
from haproc.replicate.agree.rebuilding import standing_of
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
    """The tables stay as they are."""


class Receiver:
    """See the module."""

    def __init__(self, core: Core, taking: Taking) -> None:
        self._core = core
        self._taking = taking
        self._ahead = AheadCopy(core, taking, self._chosen)
        self._repairs: dict[int, Copy] = {}
        self._choosing = asyncio.Event()
        """Set: a rebuild was asked for, and nothing of it has begun."""
        self._withdrawn = asyncio.Event()

    # -- some tables, at a place in the order ------------------------------------------------

    def read(self, offset: int, copy: Copy) -> bool:
        """Take in a record; returns whether some tables are to be copied here at its place."""
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
        """Return whether a place in the order is that of such a record."""
        return offset in self._repairs

    async def at(self, offset: int) -> None:
        """The order has come to the record: copy the tables; nothing runs beside that."""
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
        """Return whether tables are as they were before their copy, as far as can be seen.

        An earlier process may have begun with it. False also if the cluster does not say.
        """
        try:
            found = await self._taking.own(lambda copies: copies.inventory())
            keys = {each.full_name: each.key for each in found.tables}
            there = [keys[table] for table in tables if table in keys]
            begun = await self._taking.own(lambda copies: copies.begun(there))
        except HopelessError:
            return False
        return len(there) == len(tables) and all(each.done for each in begun.values())

    # -- all of them, at the beginning -------------------------------------------------------

    async def needed(self, progress: Progress) -> Progress | None:
        """Return the progress to begin with, after a copy if one is needed; None: there is none.

        None also if a copy is needed and cannot be made; the condition says why.
        """
        core = self._core
        log_start = await core.own_log.reaching(core.log.start)
        is_new = progress.low == 0 and progress.born == core.own_log.epoch
        if progress.copying is None and not is_new:
            return progress
        member, founded = await self._standing(log_start)
        if progress.copying is None and member and founded and log_start == 0:
            return progress
        if not member:  # it copies once it is one
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
                    # Tables are touched: that can't be withdrawn.
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

    async def _standing(self, start: int) -> tuple[bool, bool]:
        """Return whether the ring has this cluster, and whether it has since the ring began.

        By the records that the log still has. A cluster that came later cannot begin with the
        log's first operation: the others may have had tables before that.
        """
        core, enrolled, founded = self._core, Enrolled(), True
        end = await core.own_log.reaching(core.log.end)
        while start < end and (entries := await core.own_log.read(start)):
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
            start = entries[-1].offset + 1
        return enrolled.names is None or core.me in enrolled.names, founded

    async def _is_empty(self) -> bool:
        found = await self._taking.asking(self._core.engine.copies().inventory)
        return not (found.tables or found.views or found.functions or found.others)

    def withdraw(self) -> None:
        """Have no copy made, if that was asked for and has not begun; raises RequestError."""
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

    # -- the donor and its notes -------------------------------------------------------------

    async def _marked(self, progress: Progress, request: CopyRequest) -> CopyRequest:
        """Return the request with a record in the log; its place is stored."""
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
        """Store the request; a process that is killed goes on with it."""
        stored = Progress(low=request.marker, claims=progress.claims, copying=request)
        await self._taking.store(stored)

    async def _spare_serves(self, request: CopyRequest) -> bool:
        spare = request.spare
        return bool(spare) and await standing_of(self._core, spare) == State.READY.value

    async def _chosen(self, wanted: str, failed: str) -> tuple[str, str]:
        """Return a cluster that is READY, the ``wanted`` one or any, and a spare; waits for it.

        ``failed``: the donor that gave no copy; another one is asked first.
        """
        core, pauses = self._core, self._core.backoff()
        while True:
            states = {}
            for peer in (wanted,) if wanted else core.members.peers:
                states[peer] = await standing_of(core, peer)
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
