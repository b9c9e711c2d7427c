"""How far a cluster has come, as one small value that is stored with its cursor.

Everything below ``low`` is done. Above it, operations on other tables may be done already
(``done``). Two kinds of *intent* are written down before the statement starts, so that after a
crash exactly the same statement is run again:

- ``batches``: (first, last) offsets of INSERTs that run as one statement under the last one's
  version. A bigger batch formed anew would not be recognised by Delta as the one that may have
  been committed, and would apply its first part twice.
- ``unmarked``: statements without a mark (DDL), each with what stood under its names before it.
  After a crash they are in doubt, see `haproc.replicate.apply.doubts`.

An operation becomes done here, durably, before any operation that conflicts with it starts. So
whatever is in doubt after a crash has nothing conflicting behind it, and running it again is safe.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from dmq import Cursor, LogCorruptError
from haproc.membership.state import Cause, Divergence, Undecided

LINEAGE_MAX: Final = 3
"""Copies that are remembered, the newest ones: as many as there is room for beside the cursor."""


SPAN_MAX: Final = 16_384
"""Offsets between ``low`` and the farthest operation started. Keeps the worst note (every other
offset done) at about 2.8 kB, under what the log stores beside a cursor."""


JUDGING_MAX: Final = 8
"""Operations whose comparison is resumed after a restart."""


TEXT_CHARACTERS_MAX: Final = 200
"""What a note beside the cursor has room for, of each text for people in it."""


def shortened(text: str) -> str:
    """Return a text, or as much of it as there is room for beside a cursor."""
    if _width(text) <= TEXT_CHARACTERS_MAX:
        return text
    kept = text[: TEXT_CHARACTERS_MAX - 1]
    while _width(kept) > TEXT_CHARACTERS_MAX - len("\\u2026"):
        kept = kept[:-1]
    return kept + "…"


def _width(text: str) -> int:
    return len(json.dumps(text)) - 2


class CopyWay(StrEnum):
    """How the files of tables come to a cluster that copies another one."""

    STORAGE = "storage"
    """Its Spark reads the donor's files."""
    STREAM = "stream"
    """Through the two HAProcs."""


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """A copy that was asked for.

    ``wanted``: from which cluster; empty: from any. ``donor`` notes what it holds at ``marker``,
    the offset of the copy's record; -1: there is none yet. ``first``: that of the first record.
    """

    wanted: str = ""
    donor: str = ""
    marker: int = -1
    source: str = ""
    """The place of a backup, whose tables are wanted as of ``marker``; empty: a cluster's are."""
    verify: bool = False
    """Whether checksums of what is restored are compared with the backup's."""
    first: int = -1
    way: CopyWay | None = None
    """None: as the configuration has it for the donor."""
    spare: str = ""
    """Who notes the same as the donor does; empty: nobody."""


@dataclass(frozen=True, slots=True)
class Progress:
    """See the module. Offsets are log offsets; ``done`` holds only offsets at or above ``low``."""

    low: int = 0
    done: frozenset[int] = frozenset()
    batches: tuple[tuple[int, int], ...] = ()
    unmarked: tuple[tuple[int, str], ...] = ()
    """What stood there is empty where it is not known."""
    diverged: Divergence | None = None
    """How this cluster was found to differ from the others."""
    undecided: Undecided | None = None
    """How clusters were found to differ, and nothing proves which of them is wrong."""
    claims: tuple[tuple[str, int], ...] = ()
    """Each cluster's newest claim below ``low``."""
    born: int = 0
    """The claim of the first process that began without a cursor. What the log says of this
    cluster before it (skips) concerns tables that were rebuilt since."""
    judging: tuple[int, ...] = ()
    """Operations whose outcomes are to be compared with the other clusters', the newest ones."""
    roster: int = -1
    """The newest record read of who the ring's members are; it may stand far below ``low``."""
    storage: str = ""
    """The id of the marker in the storage to which all this belongs; empty before it has one."""
    lineage: tuple[tuple[str, int], ...] = ()
    """Whose tables these were before: a cluster, and the offset up to which. What that cluster says
    of operations below it is true here, too. By offset; empty: they were this cluster's always."""
    copying: CopyRequest | None = None
    """Its tables are to become another cluster's; they are nothing whole before that is done."""
    ahead: int = -1
    """Some tables are as of this place, which ``low`` has not passed: its record names them."""

    def has_done(self, offset: int) -> bool:
        """Whether what stands at an offset needs no running any more."""
        return offset < self.low or offset in self.done


def to_cursor(progress: Progress, epoch: int = 0) -> Cursor:
    """Return the cursor that stores the progress, for the process of this epoch."""
    note: dict[str, Any] = {"v": 1}
    if progress.done:
        bits = 0
        for offset in progress.done:
            bits |= 1 << (offset - progress.low)
        packed = zlib.compress(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), 9)
        note["d"] = base64.b85encode(packed).decode()
    if progress.batches:
        note["b"] = [
            [first - progress.low, last - progress.low] for first, last in progress.batches
        ]
    if progress.unmarked:
        note["m"] = [[offset - progress.low, before] for offset, before in progress.unmarked]
    if (diverged := progress.diverged) is not None:
        note["x"] = [diverged.offset, diverged.cause.value, diverged.applies, diverged.tables]
    if (open_ := progress.undecided) is not None:
        note["u"] = [open_.offset, open_.cause.value, open_.what]
    if progress.claims:
        note["c"] = dict(progress.claims)
    if progress.judging:
        note["j"] = [*progress.judging]
    if progress.born:
        note["n"] = progress.born
    if progress.roster >= 0:
        note["r"] = progress.roster
    if progress.storage:
        note["s"] = progress.storage
    if progress.lineage:
        note["l"] = [[*each] for each in progress.lineage]
    if progress.copying is not None:
        copying = progress.copying
        note["k"] = [
            *(copying.wanted, copying.donor, copying.marker),
            *(copying.source, copying.verify, copying.first),
            *(copying.way, copying.spare),
        ]
    if progress.ahead >= 0:
        note["a"] = progress.ahead
    return Cursor(progress.low, json.dumps(note, separators=(",", ":")), epoch)


def _unmarked(note: dict[str, Any], low: int) -> tuple[tuple[int, str], ...]:
    return tuple((offset + low, before) for offset, before in note.get("m", []))


def _divergence(note: dict[str, Any]) -> Divergence | None:
    if "x" not in note:
        return None
    offset, cause, applies, tables = note["x"]
    return Divergence(offset, Cause(cause), applies, tables)


def _undecided(note: dict[str, Any]) -> Undecided | None:
    if "u" not in note:
        return None
    offset, cause, what = note["u"]
    return Undecided(offset, Cause(cause), what)


def _copying(note: dict[str, Any]) -> CopyRequest | None:
    if "k" not in note:
        return None
    found = CopyRequest(*note["k"])
    return replace(found, way=None if found.way is None else CopyWay(found.way))


def from_cursor(cursor: Cursor) -> Progress:
    """Return the progress that a cursor stores; LogCorruptError for a note of another make."""
    try:
        note: dict[str, Any] = json.loads(cursor.note) if cursor.note else {"v": 1}
        if note["v"] != 1:
            raise LogCorruptError(
                f"the cursor's note has version {note['v']}, this version of HAProc knows 1"
            )
        packed = zlib.decompress(base64.b85decode(note["d"])) if "d" in note else b""
        bits = int.from_bytes(packed, "little")
        done = {cursor.offset + i for i in range(bits.bit_length()) if bits >> i & 1}
        batches = tuple(
            (first + cursor.offset, last + cursor.offset) for first, last in note.get("b", [])
        )
        claims = tuple(sorted(note.get("c", {}).items()))
        return Progress(
            low=cursor.offset,
            done=frozenset(done),
            batches=batches,
            unmarked=_unmarked(note, cursor.offset),
            diverged=_divergence(note),
            undecided=_undecided(note),
            claims=claims,
            born=note.get("n", 0),
            judging=tuple(note.get("j", ())),
            roster=note.get("r", -1),
            storage=note.get("s", ""),
            lineage=tuple((name, offset) for name, offset in note.get("l", ())),
            copying=_copying(note),
            ahead=note.get("a", -1),
        )
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise LogCorruptError(f"the cursor's note cannot be read: {error!r}") from error
