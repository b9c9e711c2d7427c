"""Compares clusters for a new log: a ring that has lost its log starts again from one cluster.

The log is gone, but each write to a Delta table left the log's id and its offset in the table's
history. So the tables show which cluster is the most advanced one, and which writes another cluster
has applied and the founder has not. A write that was acknowledged and is in no table has no trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from haproc.engine.commits import Commit
from haproc.engine.confs import mark_in
from haproc.engine.copies import OPERATION

SHOWN_MAX: Final = 20
"""The most offsets of a table that are printed."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A transaction marker, as found in a commit: the log's name on tables, and an offset.

    ``copied``: True if the commit made the table a copy, with all writes below that offset; then
    the marker stands for no write.
    """

    application: str
    offset: int
    at_ms: int = 0
    copied: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """Writes that other clusters have applied to a table after the founder's last one.

    - ``applied``: the founder's last offset in that table; None without a marker or such a table;
    - ``offsets``: the offsets of the writes; a commit of combined INSERTs has only the last one's;
    - ``by``: the clusters that have applied them.
    """

    table: str
    applied: int | None
    offsets: tuple[int, ...]
    by: tuple[str, ...]


def marks_of(ring: str, commits: Iterable[Commit]) -> list[Mark]:
    """Return the transaction markers of a ring's logs among the commits of a table."""
    found = []
    for commit in commits:
        marker = mark_in(commit.note)
        if marker is not None and marker[0].rpartition(".")[0] == ring:
            found.append(Mark(*marker, commit.at_ms, commit.operation == OPERATION))
    return found


@dataclass(frozen=True, slots=True)
class Findings:
    """The transaction markers of each cluster's tables; only those of the lost log."""

    clusters: Mapping[str, Mapping[str, Sequence[Mark]]]

    @classmethod
    def of(cls, clusters: Mapping[str, Mapping[str, Sequence[Mark]]]) -> Findings:
        """Return the markers of the lost log only: the log that the newest marker names."""
        every = [
            mark for tables in clusters.values() for marks in tables.values() for mark in marks
        ]
        newest = max(every, key=lambda mark: mark.at_ms, default=None)
        return cls(
            {
                name: {
                    table: [
                        mark for mark in marks if newest and mark.application == newest.application
                    ]
                    for table, marks in tables.items()
                }
                for name, tables in clusters.items()
            }
        )

    def highest(self, name: str) -> int:
        """Return the highest offset in the markers of a cluster's tables; -1 without any marker."""
        marks = self.clusters[name].values()
        return max((mark.offset for each in marks for mark in each), default=-1)

    @property
    def begins_at(self) -> int:
        """The offset at which the new log begins: above all offsets in markers."""
        return max(1, max(map(self.highest, self.clusters)) + 1)

    @property
    def _tables(self) -> list[str]:
        return sorted({table for tables in self.clusters.values() for table in tables})

    def _last(self, founder: str, table: str) -> int:
        """Return the highest offset in the markers of the founder's table; -1 without markers."""
        marks = self.clusters[founder].get(table, ())
        return max((mark.offset for mark in marks), default=-1)

    def lost(self, founder: str) -> list[Lost]:
        """Return, for each table, the writes that are known to be lost with this founder."""
        found = []
        for table in self._tables:
            last = self._last(founder, table)
            ahead = {
                name: {m.offset for m in tables.get(table, ()) if m.offset > last and not m.copied}
                for name, tables in self.clusters.items()
            }
            offsets = tuple(sorted(set().union(*ahead.values())))
            if offsets:
                by = tuple(name for name, each in ahead.items() if each)
                found.append(Lost(table, last if last >= 0 else None, offsets, by))
        return found

    def copied_later(self, founder: str) -> list[tuple[str, tuple[str, ...]]]:
        """Return tables that others copied at a later offset than the founder's last write there.

        With each table come the names of the clusters that copied it. A copy contains all writes
        below its offset, but no marker for each. So nobody knows whether the founder has these
        writes.
        """
        found = []
        for table in self._tables:
            last = self._last(founder, table)
            by = tuple(
                name
                for name, tables in self.clusters.items()
                if any(mark.copied and mark.offset > last + 1 for mark in tables.get(table, ()))
            )
            if by:
                found.append((table, by))
        return found

    @property
    def best(self) -> str:
        """The name of the most advanced cluster: as the founder it loses the fewest writes."""
        return min(self.clusters, key=lambda name: (self._lacks(name), -self.highest(name)))

    def is_best(self, founder: str) -> bool:
        """True if no other cluster as founder would lose fewer writes."""
        return self._lacks(founder) == self._lacks(self.best)

    def only_on_others(self, founder: str) -> list[tuple[str, tuple[str, ...]]]:
        """Return the tables that the founder does not have, and the clusters that have them."""
        return [
            (table, tuple(name for name, tables in self.clusters.items() if table in tables))
            for table in self._tables
            if table not in self.clusters[founder]
        ]

    def _lacks(self, name: str) -> tuple[int, int]:
        return sum(len(each.offsets) for each in self.lost(name)), len(self.copied_later(name))


def shown(offsets: Sequence[int]) -> str:
    """Return offsets as a text for people; of a long list only the first ones and the last."""
    if len(offsets) <= SHOWN_MAX:
        return ", ".join(map(str, offsets))
    some = ", ".join(map(str, offsets[: SHOWN_MAX - 1]))
    return f"{some}, … {offsets[-1]} ({len(offsets)} in all)"
