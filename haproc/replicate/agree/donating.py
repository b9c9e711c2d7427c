"""What this cluster gives to another one that copies it.

At the place of a `Copy` record this cluster notes what it holds: definitions, and each table's
version. Then it goes on. The other cluster asks for the notes, and for the files of those versions.
As long as it does, what would take files away waits here (`HELD`), for `HOLD_S` in all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from haproc.classify.model import Kind
from haproc.engine.copies import CopyTable, Inventory
from haproc.engine.errors import EngineError, ErrorKind
from haproc.membership.peers import CopyAnswer, CopyQuestion
from haproc.membership.state import HOPELESS
from haproc.replicate.member.core import Core
from haproc.replicate.records.control import Copy
from haproc.replicate.records.operation import Operation

logger = logging.getLogger(__name__)

HELD: Final = frozenset({Kind.DROP_TABLE, Kind.DROP_NAMESPACE, Kind.VACUUM})
"""Operations that delete the files of a version that may be read still."""
HOLD_S: Final = 6 * 3600.0
"""How long these wait for a copy, at most. Chosen: a TiB at 50 MiB/s."""
LEASE_S: Final = 120.0
"""A copy that has asked for nothing for so long counts as over."""
NOTES_MAX: Final = 16
ATTEMPTS_MAX: Final = 5
READ_BYTES_MAX: Final = 16 << 20
READS_AT_ONCE: Final = 4
"""The most reads of this cluster at once, for all copies together. Chosen: as one copy asks."""


@dataclass(slots=True)
class _Note:
    id: str
    """A number of tables and versions holds for these notes only, not for later ones."""
    inventory: Inventory
    claims: tuple[tuple[str, int], ...]
    roster: int
    lineage: tuple[tuple[str, int], ...]
    began_s: float
    asked_s: float


class Donor:
    """See the module."""

    def __init__(self, core: Core, unverified: Callable[[int], bool]) -> None:
        """``unverified``: whether a verification before an offset is not judged yet."""
        self._core = core
        self._unverified = unverified
        self._wanted: dict[int, Copy] = {}
        self._notes: dict[int, _Note] = {}
        self._reads = asyncio.Semaphore(READS_AT_ONCE)

    def read(self, offset: int, copy: Copy) -> bool:
        """Take in a record; returns whether this cluster is to note what it holds there."""
        claims = self._core.log_state.claims
        void = claims.void(offset, copy.cluster, copy.epoch)  # of a process that was replaced
        mine = self._core.me in (copy.donor, copy.spare) and not void
        if mine:
            self._wanted[offset] = copy
            # A cluster that copies all anew does not need what was noted for it before.
            for other, each in list(self._wanted.items()):
                if not copy.tables and other < offset and each.cluster == copy.cluster:
                    self.forget(other)
            while len(self._wanted) > NOTES_MAX:
                self.forget(min(self._wanted))
        return mine

    def forget(self, marker: int) -> None:
        """Keep no notes of a record any more."""
        self._wanted.pop(marker, None)
        if self._notes.pop(marker, None) is not None:
            self._core.news.changed()

    def wants(self, offset: int) -> bool:
        """Return whether a place in the order is that of such a record."""
        return offset in self._wanted

    async def at(self, offset: int) -> None:
        """The order has come to the record: note what this cluster holds.

        Nothing is noted if some tables are not as of this place, but ahead of it.
        """
        core, pauses = self._core, self._core.backoff()
        if not core.notes.idle(offset):
            self.forget(offset)
            return
        for attempt in range(1, ATTEMPTS_MAX + 1):
            await core.condition.allowed()
            try:
                inventory = await core.engine.copies().inventory()
                break
            except EngineError as error:
                logger.warning("offset %d: notes for a copy: %s", offset, error.message)
                if error.kind is ErrorKind.AVAILABILITY:
                    core.health.suspect(error.message)
                if attempt == ATTEMPTS_MAX:
                    self.forget(offset)
                    return
            await asyncio.sleep(pauses.pause_s())
        if offset in self._wanted:
            now_s, roster = self._now_s(), core.members.enrolled.offset
            claims = core.log_state.claims.before(offset)
            # A spare may never be asked: its notes must not hold up a DROP.
            asked_s = now_s if self._wanted[offset].donor == core.me else -LEASE_S
            self._notes[offset] = _Note(
                uuid4().hex, inventory, claims, roster, core.notes.lineage, now_s, asked_s
            )

    async def free(self, operation: Operation) -> None:
        """Return once an operation may take files away."""
        if self.holds(operation):
            logger.info("%s waits for a copy of this cluster", operation.kind.value)
        while self.holds(operation):  # noqa: ASYNC110 - that ends with the time, too
            await asyncio.sleep(self._core.timeouts.probe_interval_s)

    def holds(self, operation: Operation) -> bool:
        """Return whether an operation would take files away that are to be copied."""
        now_s = self._now_s()
        return operation.kind in HELD and any(
            now_s - note.asked_s < LEASE_S and now_s - note.began_s < HOLD_S
            for note in self._notes.values()
        )

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    # -- what the other cluster asks -------------------------------------------------------

    async def answer(self, question: CopyQuestion) -> tuple[CopyAnswer, bytes]:
        """Answer a question of a copy: ``do`` is inventory, note, state, files, read or end.

        Errors of Spark are a part of the answer. Raises ValueError for what is no question.
        """
        if question.do == "inventory":
            return await self._inventory(), b""
        note, asks = self._notes.get(question.marker), question.do == "note"
        if note is None or self._core.condition.state in HOPELESS:
            return self._without_notes(question.marker) if asks else CopyAnswer("gone"), b""
        if not asks and question.note != note.id:
            return CopyAnswer("gone"), b""
        note.asked_s = self._now_s()
        if asks and self._unverified(question.marker):
            return CopyAnswer("pending"), b""  # it may turn out that these tables are wrong
        try:
            async with self._reads:
                return await self._answer(question, note)
        except EngineError as error:
            if error.kind is ErrorKind.AVAILABILITY:
                self._core.health.suspect(error.message)
            final = error.kind is ErrorKind.APPLICATION
            failed = CopyAnswer(
                "failed", message=error.message, error_class=error.error_class, final=final
            )
            return failed, b""

    async def _inventory(self) -> CopyAnswer:
        """Return what this cluster holds now."""
        try:
            return CopyAnswer("ok", inventory=await self._core.engine.copies().inventory())
        except EngineError as error:
            return CopyAnswer("failed", message=error.message)

    def _without_notes(self, marker: int) -> CopyAnswer:
        """Return whether there will be notes; the message says why they take long."""
        core = self._core
        state, reason = core.condition.state, core.condition.reason
        if state in HOPELESS or not (marker in self._wanted or marker >= core.schedule.read_to):
            return CopyAnswer("gone")
        return CopyAnswer("pending", message="" if self._moves() else f"{state} {reason}")

    def _moves(self) -> bool:
        """Return whether the order goes on here: a cluster that copies itself stands still."""
        condition = self._core.condition
        return condition.applying and not condition.now.copying

    async def _answer(self, question: CopyQuestion, note: _Note) -> tuple[CopyAnswer, bytes]:
        copies = self._core.engine.copies()
        match question.do:
            case "note":
                return CopyAnswer(
                    "ok",
                    note.id,
                    inventory=note.inventory,
                    claims=note.claims,
                    roster=note.roster,
                    lineage=note.lineage,
                ), b""
            case "state":
                actions = await copies.state(_table(question, note))
                return CopyAnswer("ok", actions=tuple(actions)), b""
            case "files":
                files = await copies.files(_table(question, note), question.after)
                return CopyAnswer("ok", files=tuple(files)), b""
            case "read":
                length = min(question.length, READ_BYTES_MAX)
                place = _table(question, note).location
                size, data = await copies.read(place, question.path, question.offset, length)
                return CopyAnswer("ok", size=size), data
            case "end":
                self.forget(question.marker)
                return CopyAnswer("ok"), b""
            case other:
                raise ValueError(f"{other[:80]!r} is nothing to ask for")


def _table(question: CopyQuestion, note: _Note) -> CopyTable:
    if not 0 <= question.table < len(note.inventory.tables):
        raise ValueError(f"there is no table {question.table}")
    return note.inventory.tables[question.table]
