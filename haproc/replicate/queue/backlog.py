"""Which tables of a backlog are worth a copy, and which operations the copies stand for.

A copy is as of a place in the order, its *marker*, that the queue has not reached. It stands for
the operations in front of the marker that write these tables. What else is in front is replayed
afterwards. That is right if nothing of it reads or changes one of the copied tables; else there is
no such copy (`Backlog.hindrance`).

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
from haproc.replicate.queue.catch_up_estimate import FACTOR, copy_s
from haproc.replicate.records.contents import Verify
from haproc.replicate.records.copy import Copy
from haproc.replicate.records.operation import Claim, FailureReport, Filler, Message, Operation
from haproc.replicate.records.rows import ApplicationFailure
from haproc.replicate.records.votes import Abandon, Revoke

TOGETHER: Final = 1_000
"""INSERTs that take as long as one statement that runs alone. Measured: `bench_ring`."""
ATTEMPTS_MAX: Final = 3
"""Copies of one backlog that are begun; then it is replayed. Chosen."""


@lru_cache(4096)
def table_of(name: str) -> str:
    """Return a table's full name, from that of an operation or ``schema.table``."""
    parts = parts_of(name)
    return name if parts is None else qualified(parts, Context())


@dataclass(frozen=True, slots=True)
class CopiedAhead:
    """Tables (full names) that are as of a marker."""

    marker: int
    tables: frozenset[str]

    def stands_for(self, offset: int, op: Operation) -> bool:
        """Return whether what an operation does is in the tables, and nowhere else."""
        if offset >= self.marker or op.unmarked or not op.writes:
            return False
        return all(table_of(name) in self.tables for name in op.writes)


NOT_AHEAD: Final = CopiedAhead(-1, frozenset())


@dataclass(frozen=True, slots=True)
class _Touched:
    """What operations touch that are alike in this. ``whole``: these tables are all of it."""

    reads: frozenset[str]
    writes: frozenset[str]
    unmarked: bool
    whole: bool


class Backlog:
    """What the log holds from a cursor on, read record by record.

    ``me``: the cluster whose it is; ``low``: its cursor; ``claims``: each cluster's newest claim
    below it; ``marker``: where the operations end that count.
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
        """What each table has to do, in INSERTs."""
        self._touched: dict[_Touched, int] = {}
        """With the first offset of each."""
        self._hindrance = ""
        self._failures: dict[int, dict[str, ApplicationFailure]] = {}
        self.attempts = 0
        """How many copies of this backlog were begun."""

    def read(self, offset: int, message: Message | Filler) -> None:
        """Take in the next record."""
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
        """Return the tables that are copied sooner than their part of the replay takes.

        ``sizes``: bytes of what can be copied, by full name; ``replay_s``: what the whole replay
        takes.
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
        """Return a table, and those that are written from it, or together with it."""
        found, before = {table}, 0
        while before != len(found):
            before = len(found)
            for each in self._touched:
                if not found.isdisjoint(each.reads | each.writes) and not each.unmarked:
                    found |= each.writes
        return frozenset(found)

    def hindrance(self, tables: Collection[str]) -> str:
        """Return why copies of these tables cannot stand for what writes them; empty: they can."""
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
        """Return the operations that failed on a cluster, and how; or on whose tables it copied.

        ``lineage``: as in `Progress`.
        """
        found = {}
        for offset, by in sorted(self._failures.items()):
            whose = next((name for name, below in lineage if offset < below), cluster)
            if offset >= self._low and whose in by:
                found[offset] = by[whose]
        return found
