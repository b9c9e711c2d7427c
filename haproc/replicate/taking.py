"""Puts tables, views and functions into this cluster in place of what it holds.

Used by what copies another cluster and by what restores a backup, while the cluster is out of
service. A process that is killed goes on: a finished table names its source.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from dmq import Json
from haproc.engine.copies import Copies, CopyTable, Inventory
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Lane
from haproc.membership.peers import CopyFailure, CopyStatus
from haproc.replicate.member.core import Core
from haproc.replicate.member.steps import Step
from haproc.replicate.records.progress import Progress

logger = logging.getLogger(__name__)

FILES_AT_ONCE: Final = 4
"""Files that are copied side by side. Chosen."""
ERROR_CHARACTERS_MAX: Final = 500
"""Of an error in the status."""
T = TypeVar("T")


class HopelessError(Exception):
    """The tables cannot be made as things are; the text says why, and what to do."""


@dataclass(slots=True)
class CopyProgress:
    """How far a copy is. ``donor``: a cluster, or a backup's place."""

    donor: str = ""
    marker: int = -1
    tables: int = 0
    tables_done: int = 0
    bytes: int = 0
    bytes_done: int = 0
    began_s: float = 0.0
    waits: str = ""
    """What is waited for before the donor is known."""
    error: str = ""
    """This cluster's newest error; empty once it has answered again."""

    def status(self, now_s: float) -> CopyStatus:
        """Return it as others are told."""
        seconds = round(now_s - self.began_s, 1)
        counts = (self.tables, self.tables_done, self.bytes, self.bytes_done)
        return CopyStatus(self.donor, self.marker, *counts, seconds)

    def text(self, now_s: float) -> str:
        """Return it for people."""
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
    """See the module."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lanes: asyncio.Queue[Lane] = asyncio.Queue()
        self._advice = f"haproc cluster rebuild {core.me}"
        self.progress: CopyProgress | None = None
        """How far it is; None: nothing is made."""
        self.failure: CopyFailure | None = None
        """Why tables were not copied, the newest time."""

    def status(self) -> CopyStatus | None:
        """Return how far it is; None: nothing is made."""
        return None if self.progress is None else self.progress.status(self._now_s())

    @asynccontextmanager
    async def begun(self, advice: str) -> AsyncIterator[None]:
        """Do it with nothing else running on the cluster, and say how far it is.

        ``advice``: the command that begins anew after an error of a statement's own.
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
        """Say every second how far it is."""
        reporting = asyncio.ensure_future(self._report())
        try:
            yield
        finally:
            reporting.cancel()

    def copies(self, donor: str, marker: int) -> None:
        """Begin with something to copy, as of an offset."""
        core, self._lanes = self._core, asyncio.Queue()
        for number in range(FILES_AT_ONCE):
            self._lanes.put_nowait(core.engine.lane(number, core.own_log.still_mine))
        self.progress = CopyProgress(donor, marker, began_s=self._now_s())
        self._tell()

    def waits(self, why: str) -> None:
        """No cluster can be copied yet."""
        if self.progress is not None:
            self.progress.waits = why
            self._tell()

    def got(self, size: int) -> None:
        """So many bytes more are here."""
        if self.progress is not None:
            self.progress.bytes_done += size

    def _erred(self, message: str) -> None:
        if self.progress is not None and message != self.progress.error:
            self.progress.error = message
            self._tell()

    def over(self) -> None:
        """Say that all is done."""
        self.progress = None
        self._core.condition.copying("")

    def failed(self, error: HopelessError) -> None:
        """Say that it cannot be done."""
        self._core.condition.copying("")
        self._core.condition.fell_behind(str(error))

    def lost(self, failure: CopyFailure) -> None:
        """Say that some tables were not copied; the cluster goes on otherwise."""
        self.failure = failure

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._tell()

    def _tell(self) -> None:
        if self.progress is not None:
            self._core.condition.copying(self.progress.text(self._now_s()))

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def store(self, progress: Progress) -> None:
        """Store the progress that the cluster goes on from."""
        core = self._core
        core.schedule.resume(progress, progress.low)
        core.notes.resume(progress)
        core.log_state.claims.restore(progress.claims)
        await core.store()

    async def own(self, call: Callable[[Copies], Awaitable[T]]) -> T:
        """Ask this cluster until it answers; HopelessError for an error of the statement's own.

        Asked through a lane: a process that was replaced must not touch the tables any more.
        """
        lane = await self._lanes.get()
        try:
            copies = self._core.engine.copies(lane)
            return await self.asking(lambda: call(copies))
        finally:
            self._lanes.put_nowait(lane)

    async def asking(self, call: Callable[[], Awaitable[T]]) -> T:
        """Ask this cluster until it answers; HopelessError for an error of the statement's own."""

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
        """Make the cluster hold this and nothing else, or have ``only`` these tables alike.

        ``make`` makes a table, from its number in the inventory.
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

    async def _define(self, what: str, said: Mapping[str, Json]) -> None:
        await self.own(lambda copies: copies.define(what, said))
