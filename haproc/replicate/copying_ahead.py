"""Copies tables whose replay would take longer than a copy; the cluster replays the rest.

1. During the replay HAProc reads the cluster's backlog in the log, lists the tables of another
   cluster, and chooses some (`haproc.replicate.queue.backlog`). It appends a `Copy` record with
   these tables, and stores the request. The process begins anew. No table is changed so far.
2. The donor makes a snapshot at the record. The backlog is read again, up to the record. If an
   operation in it prevents the copy, or no snapshot comes in time, the request is dropped, and all
   tables are replayed.
3. HAProc stores that the tables are changed from here on. They are replaced, one after another. If
   the donor is lost now, another one replaces it, with a new record. If the backlog prevents that,
   the whole cluster is copied.
4. The copies stand for operations of the backlog. If some of these failed on the donor, HAProc
   reports the same errors for this cluster. Then it stores that the tables are ahead
   (`Progress.ahead`). The replay goes on from the cursor, and skips these operations.

After a crash the next process goes on from the stored request; the record names the tables.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from dmq import TrimmedError
from haproc.failure import RequestError
from haproc.membership.state import State
from haproc.replicate.agree.rebuilding import held, ready_peer
from haproc.replicate.member.core import Core
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.backlog import (
    ATTEMPTS_MAX,
    NOT_AHEAD,
    Backlog,
    CatchUpEstimate,
    CopiedAhead,
    copy_s,
    table_of,
)
from haproc.replicate.records.control import Copy
from haproc.replicate.records.operation import Operation, from_record
from haproc.replicate.records.progress import CopyRequest, Progress
from haproc.replicate.taking import HopelessError, Taking
from haproc.replicate.transfer import ANEW_MAX, AnewError, Noted, Transfer

logger = logging.getLogger(__name__)

STOP_S: Final = 10.0
"""The longest wait until running statements end, before the process begins anew."""
WAIT_S: Final = 0.5
NOTES_S: Final = 60.0
"""The longest wait for the donor's snapshot; when it is over, nothing is copied, all is
replayed."""


class UnfitError(Exception):
    """An operation before the record prevents the copy of these tables; the text says why."""


async def read_backlog(core: Core, backlog: Backlog, start: int) -> Backlog:
    """Read the log from the offset ``start`` to its end into ``backlog``, and return it."""
    end = await core.own_log.reaching(core.log.end)
    while start < end and (entries := await core.own_log.read_log(start)):
        for entry in entries:
            backlog.note_record(entry.offset, from_record(entry.record))
        start = entries[-1].offset + 1
        await asyncio.sleep(0)
    return backlog


async def copied_ahead(core: Core, progress: Progress) -> CopiedAhead:
    """Return the tables that are ahead of the cursor in a stored progress."""
    if progress.ahead < 0:
        return NOT_AHEAD
    copy = await _record(core, progress.ahead)
    assert copy is not None, progress.ahead  # not trimmed: the cursor is not beyond it
    return CopiedAhead(progress.ahead, frozenset(map(table_of, copy.tables)))


async def _record(core: Core, offset: int) -> Copy | None:
    """Return the `Copy` record at an offset; None if another record is there."""
    entries = await core.own_log.read_log(offset, records_max=1)
    message = from_record(entries[0].record) if entries and entries[0].offset == offset else None
    return message if isinstance(message, Copy) else None


class Considering:
    """During a replay, finds the tables that a copy would bring sooner, and begins their copy.

    ``stop`` prevents new statements, and returns when none is running. ``begins_anew`` makes the
    process begin anew.
    """

    def __init__(
        self, core: Core, stop: Callable[[], Awaitable[None]], begins_anew: Callable[[], None]
    ) -> None:
        self._core = core
        self._stop = stop
        self._begins_anew = begins_anew

    async def consider(self, expected: CatchUpEstimate) -> CatchUpEstimate:
        """Return the estimate with the time of a copy added; begin the copy if it is faster.

        Without a time if there is no donor, or no table would be there sooner.
        """
        core, low = self._core, self._core.schedule.low
        found = replace(expected, copy_s=None, tables=0, bytes=0)
        if (donor := await ready_peer(core)) is None:
            return found
        try:
            inventory = await held(core, donor)
        except RequestError as error:
            logger.info("%s: no copy: %s", core.me, error)
            return found
        try:
            backlog = await read_backlog(core, Backlog(core.me, low), low)
        except TrimmedError:
            return found  # the cursor went on meanwhile, and the log was trimmed below it
        names = {
            table_of(table.full_name): table
            for table in inventory.tables
            if "." not in table.schema + table.name
        }
        sizes = {name: table.bytes for name, table in names.items()}
        tables = sorted(backlog.chosen(sizes, expected.bounded_s))
        if not tables:
            why = backlog.hindrance(()) or "no table would be there sooner"
            logger.info("%s recovers, %s: %s", core.me, found, why)
            return found
        weights = [sizes[name] for name in tables]
        found = replace(found, copy_s=copy_s(weights), tables=len(tables), bytes=sum(weights))
        may = core.condition.state is State.RECOVERING and core.notes.idle(core.schedule.low)
        if found.copy_is_faster and may and backlog.attempts < ATTEMPTS_MAX:
            logger.warning("%s recovers, %s: copies from %s", core.me, found, donor)
            await self._begin(donor, tuple(names[name].full_name for name in tables))
        return found

    async def _begin(self, donor: str, tables: tuple[str, ...]) -> None:
        core = self._core
        copy = Copy(core.me, donor, core.own_log.epoch, tables, ahead=True)
        marker = await core.own_log.append(copy)
        await core.trace(Step.AHEAD_MARKED)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._stop()
        if core.notes.copying is None:  # else an operator has asked for a rebuild
            core.notes.copy(CopyRequest(donor=donor, marker=marker))
            await core.store()
            await core.trace(Step.AHEAD_ASKED)
        self._begins_anew()


class AheadCopy:
    """Makes the requested copies at the start of a process, before anything else runs here.

    ``chosen`` waits for a cluster that can be copied; it returns that cluster and a spare.
    """

    def __init__(
        self, core: Core, taking: Taking, chosen: Callable[[str, str], Awaitable[tuple[str, str]]]
    ) -> None:
        self._core = core
        self._taking = taking
        self._chosen = chosen

    async def asked(self, progress: Progress) -> Copy | None:
        """Return the `Copy` record of the request in ``progress``.

        None if that has no request for copies ahead.
        """
        request = progress.copying
        if request is None or request.marker < 0 or request.source:
            return None
        copy = await _record(self._core, request.marker)
        return copy if copy is not None and copy.ahead is True else None

    async def made(self, progress: Progress, copy: Copy) -> Progress:
        """Copy the tables of the record; return the progress to go on from.

        If the copy is given up before a table was changed, it is the progress without the copies.
        Raises HopelessError, and UnfitError if only a copy of the whole cluster can help now.
        """
        core, request, pauses = self._core, progress.copying, self._core.backoff()
        assert request is not None
        async with self._taking.begun(f"haproc cluster rebuild {core.me}"):
            for _ in range(ANEW_MAX):
                touched = request.first >= 0
                begun = request if touched else replace(request, first=request.marker)
                transfer = Transfer(core, self._taking, begun)
                try:
                    noted = await self._noted(transfer, copy, None if touched else NOTES_S)
                    backlog = await self._fitting(progress, begun, copy)
                    await transfer.check(noted, frozenset(copy.tables))
                    if not touched:
                        request = begun
                        await self._store(replace(progress, copying=request))
                    await transfer.take(noted, frozenset(copy.tables))
                    break
                except (AnewError, HopelessError, UnfitError, TimeoutError) as error:
                    if request.first < 0:
                        logger.warning("%s copies no tables, and replays all: %s", core.me, error)
                        return await self._over(replace(progress, copying=None))
                    if isinstance(error, HopelessError | UnfitError):
                        raise
                    logger.warning("the copy of %s begins anew: %s", request.donor, error)
                await asyncio.sleep(pauses.pause_s())
                request = await self._again(request, copy)
                await self._store(replace(progress, copying=request))
            else:
                raise UnfitError(f"some tables were begun {ANEW_MAX} times")
        await self._report(backlog, noted, request, copy)
        await core.trace(Step.COPIED)
        done = await self._over(replace(progress, copying=None, ahead=request.marker))
        await transfer.end()
        what = ", ".join(copy.tables)
        logger.info("%s has %s as of offset %d, and replays the rest", core.me, what, done.ahead)
        return done

    async def _noted(self, transfer: Transfer, copy: Copy, within_s: float | None) -> Noted:
        async with asyncio.timeout(within_s):
            noted = await transfer.noted(copy.tables)
        missing = set(copy.tables) - {table.full_name for table in noted.inventory.tables}
        if missing:
            raise UnfitError(f"the donor has no {', '.join(sorted(missing))}")
        return noted

    async def _fitting(self, progress: Progress, request: CopyRequest, copy: Copy) -> Backlog:
        """Return the backlog below the record.

        Raises UnfitError if an operation in it prevents the copy.
        """
        core, low, marker = self._core, progress.low, request.marker
        backlog = Backlog(core.me, low, progress.claims, marker)
        await read_backlog(core, backlog, low)
        if why := backlog.hindrance(frozenset(map(table_of, copy.tables))):
            raise UnfitError(why)
        begun = [*progress.done, *(last for _, last in progress.batches)]
        if max([low - 1, *begun, *(offset for offset, _ in progress.unmarked)]) >= marker:
            raise UnfitError(f"operations behind offset {marker} were begun")
        return backlog

    async def _again(self, request: CopyRequest, copy: Copy) -> CopyRequest:
        """Choose a donor, another one if possible, and append a new record.

        Return the new request.
        """
        core = self._core
        donor, _ = await self._chosen("", request.donor)
        marker = await core.own_log.append(replace(copy, donor=donor, epoch=core.own_log.epoch))
        return replace(request, donor=donor, marker=marker)

    async def _report(
        self, backlog: Backlog, noted: Noted, request: CopyRequest, copy: Copy
    ) -> None:
        """Append error reports of this cluster, of operations that failed in the donor's copies.

        They tell that the copied tables show these operations as failed here, too.
        """
        core = self._core
        ahead = CopiedAhead(request.marker, frozenset(map(table_of, copy.tables)))
        for offset, failure in backlog.failures(request.donor, noted.lineage).items():
            entries = await core.own_log.read_log(offset, records_max=1)
            op = from_record(entries[0].record)
            if isinstance(op, Operation) and ahead.stands_for(offset, op):
                await core.own_log.report(offset, failure)

    async def _over(self, progress: Progress) -> Progress:
        await self._store(progress)
        self._taking.over()
        return progress

    async def _store(self, progress: Progress) -> None:
        while self._core.notes.copying is not None:  # noqa: ASYNC110
            # An operator's request is being stored: this process ends then, or the storing fails.
            await asyncio.sleep(WAIT_S)
        await self._core.own_log.commit(lambda: progress)
