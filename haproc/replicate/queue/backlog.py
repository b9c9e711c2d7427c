"""Chooses the tables of a backlog that are copied, because their replay would take longer.

A copy has the tables as they are at an offset that the cluster's cursor has not reached: the
copy's *marker* (no transaction marker). There are two groups of operations below the marker:

- those that write only copied tables, and have a transaction marker: the copy has their effect, so
  they are passed over;
- all others: they are replayed after the copy, and would find copied tables in a later state. So
  there is no such copy if one of them reads or changes a copied table (`Backlog.hindrance`).

Values in, values out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from haproc.classify.model import Kind
from haproc.classify.names import Context, parts_of, qualified
from haproc.replicate.records.control import Abandon, Copy, Revoke, Verify
from haproc.replicate.records.operation import Claim, FailureReport, Filler, Message, Operation
from haproc.replicate.records.rows import ApplicationFailure

# Estimates if the replay of a backlog takes longer than a copy of its tables.
#
# Values in, values out. The rate is the recent one, less the rate of new records: a cluster that
# falls behind faster than it applies the log never catches up.


WORTH_S: Final = 60.0
"""A replay that is shorter than this needs no copy. Chosen."""
COPY_BYTES_PER_S: Final = 50 << 20
"""The speed of a copy. Chosen: half of a line of 1 Gbit/s."""
COPY_TABLE_S: Final = 3.0
"""The fixed time for each copied table. Chosen: 8 small tables took 57 s with all around them."""
FOREVER_S: Final = 3600.0
"""The assumed time of a replay that does not come nearer to its end. One long statement may be the
reason, so not every table is worth a copy then. Chosen."""
FACTOR: Final = 2.0
"""A copy is made if it takes less than the replay by this factor: both are estimates. Chosen."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The cursor of a cluster (``low``) and the log's end, at a time of the loop's clock."""

    at_s: float
    low: int
    log_end: int


@dataclass(frozen=True, slots=True)
class CatchUpEstimate:
    """The expected times of the replay of a backlog, and of a copy of its tables.

    ``replay_s`` is None if the replay never ends, ``copy_s`` if the copy's time is not known.
    ``tables`` and ``bytes``: the size of the copy. ``rate_per_s``: the recent rate of the replay.
    """

    replay_s: float | None = 0.0
    rate_per_s: float = 0.0
    copy_s: float | None = None
    tables: int = 0
    bytes: int = 0

    @property
    def long(self) -> bool:
        """True if the replay takes so long that a copy may be better."""
        return self.replay_s is None or self.replay_s > WORTH_S

    @property
    def copy_is_faster(self) -> bool:
        """True if a copy takes less time than the replay, even if multiplied by `FACTOR`."""
        return self.copy_s is not None and self.long and FACTOR * self.copy_s < self.bounded_s

    @property
    def bounded_s(self) -> float:
        """The time of the replay; FOREVER_S if it never ends."""
        return FOREVER_S if self.replay_s is None else self.replay_s

    def __str__(self) -> str:
        replay = "never ends" if self.replay_s is None else f"takes {self.replay_s:.0f} s"
        estimate = f"the replay {replay} at {self.rate_per_s:.1f} operations/s"
        if self.copy_s is None:
            return estimate
        size = f"{self.tables} tables, {self.bytes / 2**20:.1f} MiB"
        rate = f"{COPY_BYTES_PER_S >> 20} MiB/s and {COPY_TABLE_S:g} s each"
        return f"{estimate}, a copy {self.copy_s:.0f} s ({size}, at {rate})"


def replay_s(earlier: Sample, now: Sample) -> float | None:
    """Return the time that the replay will take at the rate between two samples.

    None if it never ends, because new records come faster than the cluster applies them.
    """
    if now.log_end <= now.low:
        return 0.0
    gained = (earlier.log_end - earlier.low) - (now.log_end - now.low)
    if gained <= 0:
        return None
    return (now.log_end - now.low) * (now.at_s - earlier.at_s) / gained


def rate_per_s(earlier: Sample, now: Sample) -> float:
    """Return the number of records applied per second between two samples."""
    return (now.low - earlier.low) / (now.at_s - earlier.at_s)


def copy_s(sizes: Collection[int]) -> float:
    """Return the expected time of a copy of tables; ``sizes``: the bytes of each table."""
    return COPY_TABLE_S * len(sizes) + sum(sizes) / COPY_BYTES_PER_S


# The tables of a backlog that are worth a copy, and the operations that the copies replace.


TOGETHER: Final = 1_000
"""So many INSERTs take as long as one other statement. Measured: `bench_ring`."""
ATTEMPTS_MAX: Final = 3
"""The most copies that are begun for one backlog; then it is replayed. Chosen."""


@lru_cache(4096)
def table_of(name: str) -> str:
    """Return a table's full name; ``name``: as an operation states it, or ``schema.table``."""
    parts = parts_of(name)
    return name if parts is None else qualified(parts, Context())


@dataclass(frozen=True, slots=True)
class CopiedAhead:
    """Tables (full names) that were copied as they are at an offset, ``marker``."""

    marker: int
    tables: frozenset[str]

    def stands_for(self, offset: int, op: Operation) -> bool:
        """True if the copied tables contain the whole effect of an operation."""
        if offset >= self.marker or op.unmarked or not op.writes:
            return False
        return all(table_of(name) in self.tables for name in op.writes)


NOT_AHEAD: Final = CopiedAhead(-1, frozenset())


@dataclass(frozen=True, slots=True)
class _Touched:
    """The tables that some operations touch; ``whole``: they touch no other tables."""

    reads: frozenset[str]
    writes: frozenset[str]
    unmarked: bool
    whole: bool


class Backlog:
    """The records from a cluster's cursor on, read one after another.

    ``me``: the cluster; ``low``: its cursor; ``claims``: each cluster's newest claim below the
    cursor; ``marker``: the copy's place: only operations before it count; None: all count.
    """

    def __init__(
        self,
        me: str,
        low: int,
        claims: Iterable[tuple[str, int]] = (),
        marker: int | None = None,
    ) -> None:
        self._me = me
        self._low = low
        self._marker = marker
        self._claims = dict(claims)
        self._work: Counter[str] = Counter()
        """By table: the work of replaying the operations that write it, in units of one INSERT."""
        self._touched: dict[_Touched, int] = {}
        """For each group of touched tables: the offset of the first operation that touches them."""
        self._hindrance = ""
        self._failures: dict[int, dict[str, ApplicationFailure]] = {}
        self.attempts = 0
        """The number of copies that were begun for this backlog."""

    def note_record(self, offset: int, message: Message | Filler) -> None:
        """Note the next record of the log."""
        in_front = self._marker is None or offset < self._marker
        match message:
            case Operation() if in_front:
                self._operation(offset, message)
            case Claim():
                self._claims[message.cluster] = offset
            case FailureReport() if self._claims.get(message.cluster, -1) <= message.epoch:
                reports = self._failures.setdefault(message.offset, {})
                reports[message.cluster] = message.failure
            case Abandon() | Revoke() if message.offset >= self._low:
                self._hinders(f"operation {message.offset} is taken back, see offset {offset}")
            case Verify() if in_front:
                self._hinders(f"offset {offset} compares the tables")
            case Copy(ahead=True) if message.cluster == self._me:
                self.attempts += 1
            case Copy() if in_front and self._me in (
                message.donor,
                message.spare,
                message.cluster,
            ):
                self._hinders(f"offset {offset} is the place of another copy")

    def _operation(self, offset: int, op: Operation) -> None:
        writes = frozenset(map(table_of, op.writes))
        whole = op.named or not op.exclusive
        touched = _Touched(frozenset(map(table_of, op.reads)), writes, op.unmarked, whole)
        self._touched.setdefault(touched, offset)
        brings_rows = op.insert is not None or op.kind is Kind.ROWS
        for table in writes:
            self._work[table] += 1 if brings_rows else TOGETHER

    def _hinders(self, why: str) -> None:
        self._hindrance = self._hindrance or why

    def chosen(self, sizes: Mapping[str, int], replay_s: float) -> frozenset[str]:
        """Return the tables whose copy takes less time than their part of the replay, by FACTOR.

        ``sizes``: the bytes of each table that can be copied, by full name. ``replay_s``: the
        expected time of the whole replay.
        """
        total, found = sum(self._work.values()), frozenset[str]()
        for table in self._work:
            tables = self._with_written(table)
            if tables <= found or not tables <= sizes.keys() or self.hindrance(tables):
                continue
            work = sum(self._work[each] for each in tables)
            if FACTOR * copy_s([sizes[each] for each in tables]) < replay_s * work / total:
                found |= tables
        return found

    def _with_written(self, table: str) -> frozenset[str]:
        """Return the table and all tables that operations write from it, or together with it."""
        found, before = {table}, 0
        while before != len(found):
            before = len(found)
            for each in self._touched:
                if not found.isdisjoint(each.reads | each.writes) and not each.unmarked:
                    found |= each.writes
        return frozenset(found)

    def hindrance(self, tables: Collection[str]) -> str:
        """Return why copies cannot replace the operations on these tables; empty: they can."""
        if self._hindrance:
            return self._hindrance
        for each, offset in self._touched.items():
            if not each.whole:
                return f"it is not known what offset {offset} touches"
            apart = (each.reads | each.writes).isdisjoint(tables)
            within = bool(each.writes) and each.writes <= set(tables)
            if not apart and (each.unmarked or not within):
                return f"offset {offset} reads or changes a copied table, and is not in the copy"
        return ""

    def failures(
        self, cluster: str, lineage: Sequence[tuple[str, int]]
    ) -> dict[int, ApplicationFailure]:
        """Return the application errors that the operations had on a cluster, by offset.

        Before a copy, the errors of the cluster that was copied count; ``lineage``: as in
        `Progress`.
        """
        found = {}
        for offset, by in sorted(self._failures.items()):
            whose = next((name for name, below in lineage if offset < below), cluster)
            if offset >= self._low and whose in by:
                found[offset] = by[whose]
        return found
