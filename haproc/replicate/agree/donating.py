"""The donor's side of a copy: this cluster gives its tables to another one.

At a `Copy` record this cluster takes a snapshot: the definitions, and each table's version. Then
it goes on applying. The other cluster asks for the snapshot, and for the files of those versions.
Meanwhile operations that delete files wait here (`HELD`), for `HOLD_S` at most.
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
"""Operations that delete files which a copy may still read."""
HOLD_S: Final = 6 * 3600.0
"""The longest wait of these operations for a copy. Chosen: a TiB at 50 MiB/s."""
LEASE_S: Final = 120.0
"""The time after which a copy counts as ended if the other cluster asks nothing any more."""
NOTES_MAX: Final = 16
ATTEMPTS_MAX: Final = 5
READ_BYTES_MAX: Final = 16 << 20
READS_AT_ONCE: Final = 4
"""The most reads of this cluster's files at once, for all copies. Chosen: as one copy asks."""


@dataclass(slots=True)
class _Note:
    id: str
    """The name of this snapshot in questions. They name a table by its number in the snapshot."""
    inventory: Inventory
    claims: tuple[tuple[str, int], ...]
    roster: int
    lineage: tuple[tuple[str, int], ...]
    began_s: float
    asked_s: float


class Donor:
    """Takes snapshots of this cluster, and answers the questions of clusters that copy it."""

    def __init__(self, core: Core, unverified: Callable[[int], bool]) -> None:
        """``unverified``: True if a verification before an offset is not judged here yet."""
        self._core = core
        self._unverified = unverified
        self._wanted: dict[int, Copy] = {}
        self._notes: dict[int, _Note] = {}
        self._reads = asyncio.Semaphore(READS_AT_ONCE)

    def note_copy_as_donor(self, offset: int, copy: Copy) -> bool:
        """Note a `Copy` record; return True if this cluster must take a snapshot at its offset."""
        claims = self._core.log_state.claims
        void = claims.void(offset, copy.cluster, copy.epoch)  # of a process that was replaced
        mine = self._core.me in (copy.donor, copy.spare) and not void
        if mine:
            self._wanted[offset] = copy
            # A cluster that copies all tables again does not need its earlier snapshots.
            for other, each in list(self._wanted.items()):
                if not copy.tables and other < offset and each.cluster == copy.cluster:
                    self.forget(other)
            while len(self._wanted) > NOTES_MAX:
                self.forget(min(self._wanted))
        return mine

    def forget(self, marker: int) -> None:
        """Drop the snapshot of the `Copy` record at offset ``marker``; do not take it later."""
        self._wanted.pop(marker, None)
        if self._notes.pop(marker, None) is not None:
            self._core.news.changed()

    def wants(self, offset: int) -> bool:
        """True if a `Copy` record at this offset wants a snapshot of this cluster."""
        return offset in self._wanted

    async def at(self, offset: int) -> None:
        """Take the snapshot for the `Copy` record at ``offset``; everything before it is applied.

        Take none if this cluster must copy tables itself, has tables ahead of the record, or cannot
        list its tables.
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
            # A spare may never be asked: its snapshot must not hold up a DROP.
            asked_s = now_s if self._wanted[offset].donor == core.me else -LEASE_S
            self._notes[offset] = _Note(
                uuid4().hex, inventory, claims, roster, core.notes.lineage, now_s, asked_s
            )

    async def free(self, operation: Operation) -> None:
        """Wait until an operation may delete files: no copy needs them any more."""
        if self.holds(operation):
            logger.info("%s waits for a copy of this cluster", operation.kind.value)
        while self.holds(operation):  # noqa: ASYNC110 - a hold also ends by time
            await asyncio.sleep(self._core.timeouts.probe_interval_s)

    def holds(self, operation: Operation) -> bool:
        """True if an operation would delete files that a copy may still read; so it must wait."""
        now_s = self._now_s()
        return operation.kind in HELD and any(
            now_s - note.asked_s < LEASE_S and now_s - note.began_s < HOLD_S
            for note in self._notes.values()
        )

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    # -- questions of the other cluster ----------------------------------------------------

    async def answer(self, question: CopyQuestion) -> tuple[CopyAnswer, bytes]:
        """Answer a question of a cluster that copies this one; return also the bytes it asks for.

        ``question.do`` is inventory, note, state, files, read or end. An error of Spark is part of
        the answer. Raises ValueError for another ``do``, or if there is no such table.
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
            return CopyAnswer("pending"), b""  # these tables may still be found wrong
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
        """Return the inventory of this cluster as of now."""
        try:
            return CopyAnswer("ok", inventory=await self._core.engine.copies().inventory())
        except EngineError as error:
            return CopyAnswer("failed", message=error.message)

    def _without_notes(self, marker: int) -> CopyAnswer:
        """Return "pending" if the snapshot is still to come, and why it is late; else "gone"."""
        core = self._core
        state, reason = core.condition.state, core.condition.reason
        if state in HOPELESS or not (marker in self._wanted or marker >= core.schedule.read_to):
            return CopyAnswer("gone")
        return CopyAnswer("pending", message="" if self._moves() else f"{state} {reason}")

    def _moves(self) -> bool:
        """True if this cluster goes on applying the log; one that copies tables itself does not."""
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
                size, data = await copies.read_file_part(
                    place, question.path, question.offset, length
                )
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
