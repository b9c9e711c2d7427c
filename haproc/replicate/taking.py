"""Replaces this cluster's tables, views and functions by those of a cluster or a backup.

The copy of another cluster and the restore of a backup use this, while the cluster is out of
service. After a crash the next process goes on: a finished table names its source.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from dmq import Json
from haproc.engine.copies import (
    COMMIT,
    LINES_BYTES_MAX,
    Copies,
    CopyTable,
    Inventory,
    Place,
    commit,
    line_of,
    put_all,
)
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Lane
from haproc.membership.peers import CopyFailure, CopyStatus
from haproc.replicate.member.core import Core
from haproc.replicate.member.steps import Step
from haproc.replicate.records.progress import Progress

logger = logging.getLogger(__name__)

FILES_AT_ONCE: Final = 4
"""How many files are copied at the same time. Chosen."""
ERROR_CHARACTERS_MAX: Final = 500
"""The most characters of an error that the status shows."""
T = TypeVar("T")


class HopelessError(Exception):
    """The tables cannot be copied; the text says why, and what an operator can do."""


@dataclass(slots=True)
class CopyProgress:
    """How far a copy or restore is. ``donor``: the copied cluster, or the backup's place.

    ``marker``: the offset of the copy's record, or of the backup; -1: not known yet.
    """

    donor: str = ""
    marker: int = -1
    tables: int = 0
    tables_done: int = 0
    bytes: int = 0
    bytes_done: int = 0
    began_s: float = 0.0
    waits: str = ""
    """The states of the clusters that could be copied, as text, while none is READY."""
    error: str = ""
    """The newest error of this cluster's Spark; empty once it has answered again."""

    def status(self, now_s: float) -> CopyStatus:
        """Return the progress in the form that peers receive."""
        seconds = round(now_s - self.began_s, 1)
        counts = (self.tables, self.tables_done, self.bytes, self.bytes_done)
        return CopyStatus(self.donor, self.marker, *counts, seconds)

    def text(self, now_s: float) -> str:
        """Return the progress as text for people."""
        if self.marker < 0:
            if not self.waits:
                return "begins to copy"
            return (
                f"waits for a cluster to copy ({self.waits}), or haproc cluster rebuild --withdraw"
            )
        text = (
            f"copies {self.donor} as of offset {self.marker}: "
            f"{self.tables_done} of {self.tables} tables, "
            f"{self.bytes_done / 2**20:.0f} of {self.bytes / 2**20:.0f} MiB"
        )
        if self.error:
            return f"{text}; tries again after: {self.error[:ERROR_CHARACTERS_MAX]}"
        rate = self.bytes_done / max(now_s - self.began_s, 1e-3)
        if rate < 1:
            return text
        left = max(0, self.bytes - self.bytes_done) / rate
        return f"{text}, {rate / 2**20:.1f} MiB/s, {left:.0f} s left"


class Taking:
    """Makes the new tables, views and functions, and shows in the state how far that is."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lanes: asyncio.Queue[Lane] = asyncio.Queue()
        self._advice = f"haproc cluster rebuild {core.me}"
        self.progress: CopyProgress | None = None
        """The progress of the copy or restore that runs; None if none does."""
        self.failure: CopyFailure | None = None
        """The newest copy of some tables that failed in this process; None if none did."""

    def status(self) -> CopyStatus | None:
        """Return the progress in the form that peers receive; None if nothing is copied."""
        return None if self.progress is None else self.progress.status(self._now_s())

    @asynccontextmanager
    async def begun(self, advice: str) -> AsyncIterator[None]:
        """Stop all other statements on the cluster; report the progress within this context.

        ``advice``: the command that begins the copy again, for the text of an error.
        """
        before, self._advice = self._advice, advice
        self.copies("", -1)
        try:
            async with self.reporting():
                await self._core.fence()
                yield
        finally:
            self._advice = before

    @asynccontextmanager
    async def reporting(self) -> AsyncIterator[None]:
        """Show the progress in the state every second within this context."""
        reporting = asyncio.ensure_future(self._report())
        try:
            yield
        finally:
            reporting.cancel()

    def copies(self, donor: str, marker: int) -> None:
        """Begin a copy of a donor as of the offset ``marker``: with new progress and new lanes."""
        core, self._lanes = self._core, asyncio.Queue()
        for number in range(FILES_AT_ONCE):
            self._lanes.put_nowait(core.engine.lane(number, core.own_log.still_mine))
        self.progress = CopyProgress(donor, marker, began_s=self._now_s())
        self._show_progress()

    def waits(self, why: str) -> None:
        """Show in the state why no cluster can be copied yet."""
        if self.progress is not None:
            self.progress.waits = why
            self._show_progress()

    def got(self, size: int) -> None:
        """Add ``size`` to the number of copied bytes."""
        if self.progress is not None:
            self.progress.bytes_done += size

    def _erred(self, message: str) -> None:
        if self.progress is not None and message != self.progress.error:
            self.progress.error = message
            self._show_progress()

    def over(self) -> None:
        """Note that the copy has ended; the state does not show it any more."""
        self.progress = None
        self._core.condition.copying("")

    def failed(self, error: HopelessError) -> None:
        """Note that the copy is impossible.

        The state becomes TOO_FAR_BEHIND with the error's text.
        """
        self._core.condition.copying("")
        self._core.condition.fell_behind(str(error))

    def lost(self, failure: CopyFailure) -> None:
        """Note for the status that some tables could not be copied; the state stays as it is."""
        self.failure = failure

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._show_progress()

    def _show_progress(self) -> None:
        if self.progress is not None:
            self._core.condition.copying(self.progress.text(self._now_s()))

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def store(self, progress: Progress) -> None:
        """Go on from this progress, and store it."""
        core = self._core
        core.schedule.resume(progress, progress.low)
        core.notes.resume(progress)
        core.log_state.claims.restore(progress.claims)
        await core.store()

    async def own(self, call: Callable[[Copies], Awaitable[T]]) -> T:
        """Send a request to this cluster's Spark until it succeeds; return the result.

        It is sent in a lane, so that a process that was replaced changes no table. Raises
        HopelessError for an application error.
        """
        lane = await self._lanes.get()
        try:
            copies = self._core.engine.copies(lane)
            return await self.asking(lambda: call(copies))
        finally:
            self._lanes.put_nowait(lane)

    async def asking(self, call: Callable[[], Awaitable[T]]) -> T:
        """Send a request to this cluster's Spark until it succeeds, without a lane.

        Raises HopelessError for an application error.
        """

        async def asked() -> T:
            try:
                found = await call()
                self._erred("")
                return found
            except EngineError as error:
                if error.kind is not ErrorKind.APPLICATION:
                    self._erred(error.message)
                    raise
                raise HopelessError(
                    f"the copy met an error on this cluster: {error.message}; mend its cause, "
                    f"then run {self._advice}"
                ) from error

        return await self._core.asking(asked)

    async def take(
        self,
        inventory: Inventory,
        make: Callable[[int, CopyTable], Awaitable[None]],
        only: frozenset[str] = frozenset(),
    ) -> None:
        """Make the cluster's content equal to the inventory, or replace ``only`` these tables.

        ``make`` makes one table; it receives the table's number in the inventory, and the table.
        Raises HopelessError.
        """
        core, progress = self._core, self.progress
        assert progress is not None
        named = [(n, t) for n, t in enumerate(inventory.tables) if not only or t.full_name in only]
        progress.tables = len(named)
        progress.bytes = sum(table.bytes for _, table in named)
        tables = {table.key: table for _, table in named}
        begun = await self.own(lambda copies: copies.begun(tables))
        kept = {key: each for key, each in begun.items() if tables[key].is_kept(each)}
        keys = frozenset(tables) if only else None
        await self.own(lambda copies: copies.clear(kept, keys))
        for schema in inventory.schemas:
            await self._define("schema", schema)
        for number, table in named:
            known = kept.get(table.key)
            if known is None or not known.done:
                await make(number, table)
                await core.trace(Step.COPIED_TABLE)
            else:
                progress.bytes_done += table.bytes
            progress.tables_done += 1
        if only:
            return
        for function in inventory.functions:
            await self._define("function", function)
        for view in inventory.views:
            await self._define("view", view)

    async def fill(
        self,
        table: CopyTable,
        place: Place,
        state: Sequence[Any],
        marker: int,
        files: Callable[[str], Awaitable[Sequence[Any]]],
        copy: Callable[[Sequence[Any]], Awaitable[None]],
    ) -> None:
        """Copy the files of a table to its new place, then commit the table's state there.

        ``state``: the Delta actions that describe the table. ``files`` returns the next files
        behind a path, as ``add`` actions; empty: there are no more. ``copy`` copies such files.
        ``marker``: the offset for the commit's transaction marker. Raises HopelessError.
        """
        core, after = self._core, ""
        with tempfile.SpooledTemporaryFile(max_size=LINES_BYTES_MAX) as lines:
            for line in commit(
                table, place.id, state, core.own_log.application, marker, core.unix_ms()
            ):
                lines.write(line)
            while adds := await files(after):
                await copy(adds)
                for add in adds:
                    lines.write(line_of({"add": add}))
                after = str(adds[-1]["path"])
            await put_all(
                lambda offset, data, last: self.put(place, COMMIT, offset, data, last=last), lines
            )

    async def put(self, place: Place, path: str, offset: int, data: bytes, *, last: bool) -> int:
        """Write ``data`` at an offset of a file in a table's new place.

        Return the offset behind it. ``last``: the file ends there. Raises HopelessError.
        """
        return await self.own(
            lambda copies: copies.put(place.location, path, offset, data, last=last)
        )

    async def _define(self, what: str, definition: Mapping[str, Json]) -> None:
        await self.own(lambda copies: copies.define(what, definition))
