"""Takes tables from a donor, for `haproc.replicate.copying`."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import unquote

from haproc.engine.copies import (
    CHUNK_BYTES,
    COMMIT,
    LINES_BYTES_MAX,
    CopyFile,
    CopyTable,
    Inventory,
    Place,
    commit,
    files_of,
    line_of,
    put_all,
)
from haproc.engine.errors import EngineError
from haproc.membership.peers import CopyAnswer, CopyQuestion, PeerUnavailableError
from haproc.replicate.agree.rebuilding import uncopied
from haproc.replicate.member.core import Core
from haproc.replicate.records.progress import CopyRequest
from haproc.replicate.taking import FILES_AT_ONCE, HopelessError, Taking

logger = logging.getLogger(__name__)

ANSWER_S: Final = 300.0
DONOR_WAIT_S: Final = 60.0
"""How long a donor that does not answer, or is not ready, is waited for before another is asked."""


class AnewError(Exception):
    """What the donor noted is not there any more: a new record is needed."""


@dataclass(frozen=True, slots=True)
class Noted:
    """What the donor noted."""

    inventory: Inventory
    claims: tuple[tuple[str, int], ...]
    roster: int
    lineage: tuple[tuple[str, int], ...]


class Transfer:
    """One copy as of one record."""

    def __init__(self, core: Core, taking: Taking, request: CopyRequest) -> None:
        self._core = core
        self._taking = taking
        self._request = request
        self._note = ""
        taking.copies(request.donor, request.marker)

    async def noted(self, tables: Collection[str] = ()) -> Noted:
        """Return what the donor noted, once it has; HopelessError if it cannot be copied.

        ``tables``: which are asked for; empty: all.
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
                raise AnewError(f"{self._request.donor} is {answer.message}")
            await asyncio.sleep(self._core.timeouts.retry_first_s)
        self._note = answer.note
        asked = tuple(
            replace(table, request=self._request.first) for table in answer.inventory.tables
        )
        inventory = replace(answer.inventory, tables=asked)
        noted = Noted(inventory, answer.claims, answer.roster, answer.lineage)
        others = [each for each in noted.inventory.others if not tables or each[0] in tables]
        if others:
            what = uncopied(self._request.donor, others)
            raise HopelessError(f"{what}, then run haproc cluster rebuild {self._core.me}")
        return noted

    async def _ask(self, do: str, **said: Any) -> tuple[CopyAnswer, bytes]:
        """Ask the donor; AnewError if it lost what it noted, or does not answer for long.

        The answer is ok; that to ``note`` may be pending.
        """
        core, pauses, clock = self._core, self._core.backoff(), asyncio.get_running_loop().time
        question = CopyQuestion(do, self._request.marker, self._note, **said)
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
                        raise AnewError(why)
            await asyncio.sleep(pauses.pause_s())

    async def end(self) -> None:
        """Let the donor forget; it does so by itself a little later."""
        question = CopyQuestion("end", self._request.marker, self._note)
        try:
            await self._core.peers.copy(self._request.donor, question, self._core.timeouts.peer_s)
        except PeerUnavailableError as error:
            logger.info("%s is not told that the copy is done: %s", self._request.donor, error)

    async def take(self, noted: Noted, only: frozenset[str] = frozenset()) -> None:
        """Copy what was noted, or ``only`` these tables."""
        await self._taking.take(noted.inventory, self._table, only)

    async def _table(self, number: int, table: CopyTable) -> None:
        """Copy a table's files, then commit its state."""
        core = self._core
        answer, _ = await self._ask("state", table=number)
        place = await self._taking.own(lambda copies: copies.begin(table))
        with tempfile.SpooledTemporaryFile(max_size=LINES_BYTES_MAX) as lines:
            for line in commit(
                table,
                place.id,
                answer.actions,
                core.own_log.application,
                self._request.marker,
                core.unix_ms(),
            ):
                lines.write(line)
            after = ""
            while True:
                told, _ = await self._ask("files", table=number, after=after)
                adds = told.files
                if not adds:
                    break
                await self._files(number, place, adds)
                for add in adds:
                    lines.write(line_of({"add": add}))
                after = str(adds[-1]["path"])
            await put_all(
                lambda offset, data, last: self._put(place, COMMIT, offset, data, last=last), lines
            )

    async def _files(self, number: int, place: Place, adds: Sequence[Any]) -> None:
        permits = asyncio.Semaphore(FILES_AT_ONCE)
        try:
            found = files_of(adds)
        except EngineError as error:
            raise HopelessError(f"table {number}: {error.message}") from error

        async def one(file: CopyFile) -> None:
            async with permits:
                await self._file(number, place, file)

        tasks = [asyncio.ensure_future(one(file)) for file in found]
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
            told, data = await self._ask(
                "read", table=number, path=file.path, offset=offset, length=CHUNK_BYTES
            )
            size = told.size
            if file.size not in (None, size):
                raise AnewError(f"{file.path} has {size} bytes, not {file.size}")
            is_last = offset + len(data) >= size
            written = await self._put(place, file.path, offset, data, last=is_last)
            if written == offset + len(data):
                self._taking.got(len(data))
            else:
                is_last = False  # the server was started again: it has less
            offset = written

    async def _put(self, place: Place, path: str, offset: int, data: bytes, *, last: bool) -> int:
        return await self._taking.own(
            lambda copies: copies.put(place.location, path, offset, data, last=last)
        )
