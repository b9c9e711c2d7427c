"""Copies tables from another cluster, the donor, for `haproc.replicate.copying`.

The donor's HAProc sends a table's state and the list of its files. It also sends the files' bytes
(`CopyWay.STREAM`), or this cluster's Spark reads the donor's files (`CopyWay.STORAGE`). During the
copy the donor receives a request at regular times, so that it keeps the files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from haproc.engine.backups import batches
from haproc.engine.copies import (
    CHUNK_BYTES,
    Copies,
    CopyFile,
    CopyTable,
    Inventory,
    Place,
    files_of,
    located,
)
from haproc.engine.errors import EngineError, ErrorKind
from haproc.membership.peers import CopyAnswer, CopyQuestion, PeerUnavailableError
from haproc.replicate.agree.donating import LEASE_S
from haproc.replicate.agree.rebuilding import samples, uncopied, unread, way_of
from haproc.replicate.member.core import Core
from haproc.replicate.records.progress import CopyRequest, CopyWay
from haproc.replicate.taking import FILES_AT_ONCE, HopelessError, Taking

logger = logging.getLogger(__name__)

ANSWER_S: Final = 300.0
T = TypeVar("T")
BATCH_BYTES: Final = 2 << 30
"""How many bytes of the donor's files one Spark job reads; `FILES_AT_ONCE` jobs run at once.
Chosen: enough files for some dozens of cores, and small enough to show progress."""
ANEW_MAX: Final = 20
"""How often a copy is begun. After that it fails, or the whole cluster is copied. Chosen."""
DONOR_WAIT_S: Final = 60.0
"""The longest wait for a donor that is silent or not ready; then another donor is chosen."""


class AnewError(Exception):
    """The donor has lost its snapshot, or files of it: a new `Copy` record is needed."""


class AwayError(AnewError):
    """The donor or its storage has been away for too long; its snapshot may still exist."""


class _UnreadError(Exception):
    """This cluster's Spark answered with an error when it read the donor's files."""

    def __init__(self, error: EngineError) -> None:
        super().__init__(error.message)
        self.is_final = error.kind is ErrorKind.APPLICATION


@dataclass(frozen=True, slots=True)
class Noted:
    """The donor's snapshot as of the copy's record: its content, and what it knew from the log."""

    inventory: Inventory
    claims: tuple[tuple[str, int], ...]
    roster: int
    lineage: tuple[tuple[str, int], ...]


class Transfer:
    """Copies from one donor, as of one `Copy` record."""

    def __init__(self, core: Core, taking: Taking, request: CopyRequest) -> None:
        self._core = core
        self._taking = taking
        self._request = request
        self._note = ""
        self._way = way_of(core, request.donor, request.way)
        taking.copies(request.donor, request.marker)

    async def noted(self, tables: Collection[str] = ()) -> Noted:
        """Wait until the donor has made its snapshot, and return it.

        ``tables``: full names of the tables to copy; empty: all. Raises HopelessError if some
        cannot be copied, AnewError if the snapshot is lost, AwayError.
        """
        clock = asyncio.get_running_loop().time
        applied_s = clock()
        while True:
            answer, _ = await self._ask("note")
            if answer.state == "ok" and answer.inventory is not None:
                break
            if not answer.message:
                applied_s = clock()
            elif clock() - applied_s > DONOR_WAIT_S and not self._request.wanted:
                raise AwayError(f"{self._request.donor} is {answer.message}")
            await asyncio.sleep(self._core.timeouts.retry_first_s)
        self._note = answer.note
        asked = tuple(
            replace(table, request=self._request.first, marker=self._request.marker)
            for table in answer.inventory.tables
        )
        inventory = replace(answer.inventory, tables=asked)
        noted = Noted(inventory, answer.claims, answer.roster, answer.lineage)
        others = [each for each in noted.inventory.others if not tables or each[0] in tables]
        if others:
            what = uncopied(self._request.donor, others)
            raise HopelessError(f"{what}, then run haproc cluster rebuild {self._core.me}")
        return noted

    async def _ask(self, do: str, **fields: Any) -> tuple[CopyAnswer, bytes]:
        """Send a question to the donor until it answers; return the answer, and bytes of a file.

        ``do``: what the donor should do. The answer's state is ``ok``, or ``pending`` for ``note``.
        Raises AnewError if the donor has lost its snapshot, AwayError, HopelessError.
        """
        core, pauses, clock = self._core, self._core.backoff(), asyncio.get_running_loop().time
        question = CopyQuestion(do, self._request.marker, self._note, **fields)
        silent_s = clock()
        while True:
            try:
                answer, data = await core.peers.copy(self._request.donor, question, ANSWER_S)
            except PeerUnavailableError as error:
                answer, data = CopyAnswer("silent", message=str(error)), b""
            why = answer.message
            match answer.state:
                case "ok":
                    return answer, data
                case "pending" if do == "note":
                    return answer, data
                case "gone" | "pending":
                    raise AnewError(
                        f"{self._request.donor} has no notes of offset {self._request.marker}"
                    )
                case "failed" if answer.error_class == "NOT_COPIED":
                    raise HopelessError(why)
                case "failed" if answer.final:
                    raise AnewError(why)
                case _:
                    logger.warning("the copy of %s: %s", self._request.donor, why)
                    if clock() - silent_s > DONOR_WAIT_S:
                        raise AwayError(why)
            await asyncio.sleep(pauses.pause_s())

    async def end(self) -> None:
        """Tell the donor to drop its snapshot; if that fails, the donor drops it a little later."""
        question = CopyQuestion("end", self._request.marker, self._note)
        try:
            await self._core.peers.copy(self._request.donor, question, self._core.timeouts.peer_s)
        except PeerUnavailableError as error:
            logger.info("%s did not receive that the copy is done: %s", self._request.donor, error)

    async def take(self, noted: Noted, only: frozenset[str] = frozenset()) -> None:
        """Copy the tables of the snapshot, or ``only`` these; call `check` first."""
        async with self._kept():
            await self._taking.take(noted.inventory, self._table, only)

    @asynccontextmanager
    async def _kept(self) -> AsyncIterator[None]:
        """Send requests to the donor within this context, so that it keeps the snapshot's files."""
        core, request = self._core, self._request

        async def ask() -> None:
            while True:
                await asyncio.sleep(LEASE_S / 4)
                with suppress(PeerUnavailableError):
                    question = CopyQuestion("note", request.marker)
                    await core.peers.copy(request.donor, question, ANSWER_S)

        asking = asyncio.ensure_future(ask())
        try:
            yield
        finally:
            asking.cancel()

    # -- by this cluster's Spark ---------------------------------------------------------------

    def _place(self, table: CopyTable) -> str:
        """Return where this cluster's Spark finds the files of a table of the donor."""
        return located(table.location, self._core.storage.get(self._request.donor, ()))

    async def check(self, noted: Noted, only: frozenset[str] = frozenset()) -> None:
        """Test whether this cluster's Spark can read the donor's tables, if it has to.

        Raises HopelessError if it cannot.
        """
        if self._way is not CopyWay.STORAGE:
            return
        tables = noted.inventory.tables
        for table in samples(each for each in tables if not only or each.full_name in only):
            there = replace(table, location=self._place(table))
            try:
                await self._reading(partial(_state, there))
            except AwayError as error:
                donor, me = self._request.donor, self._core.me
                raise HopelessError(unread(me, donor, there.location, str(error))) from error

    async def _reading(self, call: Callable[[Copies], Awaitable[T]]) -> T:
        """Repeat a call that reads the donor's files by this cluster's Spark, until it succeeds.

        Raises AwayError: for an application error at once, for others after DONOR_WAIT_S seconds.
        """
        clock, pauses, failing_s = asyncio.get_running_loop().time, self._core.backoff(), None

        async def attempt(copies: Copies) -> T:
            try:
                return await call(copies)
            except EngineError as error:
                if error.kind is ErrorKind.AVAILABILITY:
                    raise  # this cluster itself is away
                raise _UnreadError(error) from error

        while True:
            try:
                return await self._taking.own(attempt)
            except _UnreadError as error:
                failing_s = failing_s or clock()
                logger.warning("%s: files of %s: %s", self._core.me, self._request.donor, error)
                if error.is_final or clock() - failing_s > DONOR_WAIT_S:
                    raise AwayError(str(error)) from error
            await asyncio.sleep(pauses.pause_s())

    async def _transferred(self, table: CopyTable, place: Place, adds: Sequence[Any]) -> None:
        sizes = {file.path: file.size or 0 for file in self._named(table, adds)}

        async def transfer(paths: Sequence[str]) -> None:
            await self._reading(
                lambda copies: copies.transfer(self._place(table), place.location, paths)
            )
            self._taking.got(sum(sizes[path] for path in paths))

        await self._side_by_side([partial(transfer, paths) for paths in batches(adds, BATCH_BYTES)])

    # -- a table -------------------------------------------------------------------------------

    async def _table(self, number: int, table: CopyTable) -> None:
        """Copy one table: first its files, then the commit with its state."""
        state, _ = await self._ask("state", table=number)
        place = await self._taking.own(lambda copies: copies.begin(table))

        async def files(after: str) -> Sequence[Any]:
            answer, _ = await self._ask("files", table=number, after=after)
            return answer.files

        async def copy(adds: Sequence[Any]) -> None:
            if self._way is CopyWay.STORAGE:
                await self._transferred(table, place, adds)
                return
            named = self._named(table, adds)
            await self._side_by_side([partial(self._file, number, place, each) for each in named])

        marker = self._request.marker
        await self._taking.fill(table, place, state.actions, marker, files, copy)

    def _named(self, table: CopyTable, adds: Sequence[Any]) -> list[CopyFile]:
        try:
            return files_of(adds)
        except EngineError as error:
            raise HopelessError(f"{table.full_name}: {error.message}") from error

    async def _side_by_side(self, works: Iterable[Callable[[], Awaitable[None]]]) -> None:
        permits = asyncio.Semaphore(FILES_AT_ONCE)

        async def one(work: Callable[[], Awaitable[None]]) -> None:
            async with permits:
                await work()

        tasks = [asyncio.ensure_future(one(work)) for work in works]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _file(self, number: int, place: Place, file: CopyFile) -> None:
        known = place.sizes.get(unquote(file.path))
        if known is not None and known == file.size:
            self._taking.got(known)
            return
        offset, is_last = 0, False
        while not is_last:
            answer, data = await self._ask(
                "read", table=number, path=file.path, offset=offset, length=CHUNK_BYTES
            )
            size = answer.size
            if file.size not in (None, size):
                raise AnewError(f"{file.path} has {size} bytes, not {file.size}")
            is_last = offset + len(data) >= size
            written = await self._taking.put(place, file.path, offset, data, last=is_last)
            if written == offset + len(data):
                self._taking.got(len(data))
            else:
                is_last = False  # the server was restarted, and has lost the end
            offset = written


async def _state(table: CopyTable, copies: Copies) -> Sequence[Any]:
    return await copies.state(table)
