"""The progress of a cluster, one small value that is stored with its cursor.

Everything below ``low`` is done. Above it, operations on other tables may be done already
(``done``). Two kinds of *intent* are stored before the statement starts, so that exactly the same
statement runs again after a crash:

- ``batches``: (first, last) offsets of INSERTs that run as one statement, with the last offset as
  the version of the transaction marker. A new, bigger batch would have another version: Delta
  would not recognise the committed part, and would apply it twice.
- ``unmarked``: statements without a transaction marker (DDL), each with a fingerprint of the
  objects that it names. After a crash they are in doubt, see `haproc.replicate.apply.doubts`.

Before a conflicting operation starts, it is stored here that the earlier one is done. So nothing
that conflicts has run after an operation in doubt, and it is safe to run that one again.
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
"""The most entries of `Progress.lineage`, the newest ones: the room beside the cursor is
limited."""


SPAN_MAX: Final = 16_384
"""The most offsets between ``low`` and the farthest started operation. So the largest note (every
other offset done) has about 2.8 kB, which is below the log's limit for a note beside a cursor."""


JUDGING_MAX: Final = 8
"""The most operations of `Progress.judging`: their comparison is resumed after a restart."""


TEXT_CHARACTERS_MAX: Final = 200
"""The most characters, as JSON, of a text for people in the note beside the cursor."""


def shortened(text: str) -> str:
    """Return the text, cut to TEXT_CHARACTERS_MAX characters of JSON."""
    if _width(text) <= TEXT_CHARACTERS_MAX:
        return text
    kept = text[: TEXT_CHARACTERS_MAX - 1]
    while _width(kept) > TEXT_CHARACTERS_MAX - len("\\u2026"):
        kept = kept[:-1]
    return kept + "…"


def _width(text: str) -> int:
    return len(json.dumps(text)) - 2


class CopyWay(StrEnum):
    """How table files come to a cluster that copies another one."""

    STORAGE = "storage"
    """The Spark of the copying cluster reads the donor's files."""
    STREAM = "stream"
    """The donor's HAProc sends the files to the other HAProc."""


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """A stored request to copy a cluster or some tables, or to restore a backup.

    ``wanted``: the cluster to copy; empty: any. ``donor``: the chosen one, which makes its snapshot
    at ``marker``, the offset of the copy's record; -1: no record yet. ``first``: the offset of the
    copy's first record, if it was begun several times.
    """

    wanted: str = ""
    donor: str = ""
    marker: int = -1
    source: str = ""
    """The place of the backup that is restored as of ``marker``; empty: a cluster is copied."""
    verify: bool = False
    """True if the checksums of restored tables are compared with the backup's."""
    first: int = -1
    way: CopyWay | None = None
    """How the files come; None: as configured for the donor."""
    spare: str = ""
    """The cluster that makes the same snapshot as the donor, to replace it; empty: none."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a cluster has applied the log; all offsets in ``done`` are at or above ``low``."""

    low: int = 0
    done: frozenset[int] = frozenset()
    batches: tuple[tuple[int, int], ...] = ()
    unmarked: tuple[tuple[int, str], ...] = ()
    """Offsets of begun operations without a marker, each with its fingerprint; empty: unknown."""
    diverged: Divergence | None = None
    """Why the cluster is DIVERGED; None: it is not."""
    undecided: Undecided | None = None
    """A difference between clusters of which nothing proves which one is wrong; None: there is
    none."""
    claims: tuple[tuple[str, int], ...] = ()
    """Each cluster's newest claim below ``low``."""
    born: int = 0
    """The claim of the first process that began without a cursor. Earlier records about this
    cluster (skips) concern tables that were rebuilt since."""
    judging: tuple[int, ...] = ()
    """The newest operations whose outcomes are not compared with other clusters' outcomes yet."""
    roster: int = -1
    """The offset of the newest ``members`` record; it may be far below ``low``. -1: none."""
    storage: str = ""
    """The id of the storage (in Spark's warehouse folder) that this progress is about; empty:
    unknown."""
    lineage: tuple[tuple[str, int], ...] = ()
    """The clusters that these tables were copied from, each with the offset up to which they were
    that cluster's. Its reports on operations below the offset are true here, too. Sorted by
    offset."""
    copying: CopyRequest | None = None
    """The request for a copy or restore that is not done; until then tables may be incomplete."""
    ahead: int = -1
    """The offset of a `Copy` record at or above ``low``, whose tables are as of this offset; -1:
    none."""

    def has_done(self, offset: int) -> bool:
        """True if the operation at an offset is done on this cluster."""
        return offset < self.low or offset in self.done


def to_cursor(progress: Progress, epoch: int = 0) -> Cursor:
    """Return the cursor that stores the progress; ``epoch``: of the process that stores it."""
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
    """Return the progress that a cursor stores.

    Raises LogCorruptError if its note cannot be read.
    """
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
