"""Finds by checksums which clusters have wrong tables, and which commits were made past HAProc."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from dmq import Json
from haproc.engine.commits import Commit, Newest
from haproc.engine.confs import version_in
from haproc.engine.copies import OPERATION as COPY
from haproc.membership.state import time_text
from haproc.replicate.records.control import Checksums
from haproc.replicate.records.progress import TEXT_CHARACTERS_MAX

# The wrong clusters, when some of them differ: only a majority proves it.


def right_of(votes: Iterable[str], absent: int) -> str | None:
    """Return the value that is proven right; None if no value is.

    ``votes``: the value of each cluster that may vote. ``absent``: the number of clusters that may
    vote later. A value is right if all votes so far agree on it, or if it has more than half of all
    votes, the absent ones included.
    """
    counts = Counter(votes)
    if not counts:
        return None
    word, most = counts.most_common(1)[0]
    alike = len(counts) == 1
    return word if alike or 2 * most > counts.total() + absent else None


def is_wrong(me: str, outcomes: Mapping[str, str], absent: int) -> bool:
    """True if the outcomes prove that the outcome of cluster ``me`` is wrong.

    ``outcomes``: each known outcome as a text, by cluster. ``absent``: as in `right_of`.
    """
    right = right_of(outcomes.values(), absent)
    return right is not None and outcomes[me] != right


def tied(outcomes: Mapping[str, str], absent: int) -> bool:
    """True if the outcomes differ and it is not proven which of them is right (see `right_of`)."""
    return right_of(outcomes.values(), absent) is None


# The clusters with equal tables, judged by the checksums that they appended to the log.
#
# The majority is right, table by table (`right_of`). Without a majority no cluster is DIFFERENT. If
# the verify record names a trusted cluster, that cluster's tables are right; nothing is decided
# before its checksums are there. A cluster that is known to differ has no vote, unless all of them
# are known to differ. It is EQUAL only if it was compared with another cluster.


ABSENT = "absent"
"""The checksum of a table that a cluster does not have."""
_PARTS_OF_A_TABLE: Final = 3


class Finding(StrEnum):
    """The result of a verification for a cluster, or for a table on it."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNDECIDED = "undecided"
    """The table could not be read or compared; or the clusters differ, and none is proven right."""
    UNAVAILABLE = "unavailable"
    """The cluster has appended no checksums, or an error in their place."""


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of a verification. ``tables``: for each table, the finding on each cluster.

    ``differing``: for each table that differs, the content on each cluster, as text for people.
    ``tied``: the differing tables without a majority.
    """

    tables: Mapping[str, Mapping[str, Finding]]
    clusters: Mapping[str, Finding]
    differing: Mapping[str, Mapping[str, str]]
    tied: tuple[str, ...] = ()

    def different(self, cluster: str) -> list[str]:
        """Return the tables that are proven wrong on a cluster."""
        found = self.tables.items()
        return sorted(table for table, by in found if by[cluster] is Finding.DIFFERENT)

    def counted(self, cluster: str) -> dict[str, int]:
        """Return for each finding the number of tables with it on a cluster."""
        counts = Counter(by[cluster] for by in self.tables.values())
        return {finding.value: counts[finding] for finding in Finding}


def compare(records: Mapping[str, Checksums], ring: Iterable[str], trusted: str = "") -> Findings:
    """Judge all clusters of the ring by the checksums that have been appended so far.

    ``trusted``: the cluster whose tables are right; empty: the tables of the majority are.
    """
    names = list(ring)
    reports = {name: records[name] for name in names if name in records and not records[name].error}
    voters = {name for name, record in reports.items() if not record.marked}
    if not voters and reports.keys() == set(names):
        voters = set(reports)
    absent = len(set(names) - records.keys())
    tables: dict[str, dict[str, Finding]] = {}
    differing: dict[str, dict[str, str]] = {}
    tied: list[str] = []
    for table in sorted({table for record in reports.values() for table in record.tables}):
        sums = {name: record.tables.get(table, ABSENT) for name, record in reports.items()}
        if trusted:
            right = sums.get(trusted) or None
        else:
            right = right_of(
                [sums[name] for name in names if name in voters and sums[name]], absent
            )
        tables[table] = {name: _found(name, sums, right) for name in names}
        if len({held for held in sums.values() if held}) > 1:
            differing[table] = {name: contents(held) for name, held in sums.items()}
            tied += [table] * (right is None)
    clusters = {name: _cluster(name, names, reports, voters, tables) for name in names}
    return Findings(tables, clusters, differing, tuple(tied))


def contents(checksum: str) -> str:
    """Return the checksum of a table as text for people."""
    if not checksum:
        return "cannot be read"
    parts = checksum.split(":")
    if len(parts) == _PARTS_OF_A_TABLE:
        return f"{parts[0]} rows, sum {parts[1]}, columns {parts[2]}"
    return checksum if checksum == ABSENT else f"definition {checksum}"


def listed_names(names: Sequence[str]) -> str:
    """Return the names as one text, short enough for the note that is stored beside a cursor."""
    text = ""
    for count, name in enumerate(names):
        longer = f"{text}, {name}" if text else name
        rest = f" and {len(names) - count} more"
        if len(longer.encode("unicode_escape")) > TEXT_CHARACTERS_MAX - len(rest):
            return text + rest if text else f"{len(names)} tables"
        text = longer
    return text


def _found(name: str, sums: Mapping[str, str], right: str | None) -> Finding:
    if name not in sums:
        return Finding.UNAVAILABLE
    if not sums[name] or right is None:
        return Finding.UNDECIDED
    return Finding.EQUAL if sums[name] == right else Finding.DIFFERENT


def _cluster(
    name: str,
    names: list[str],
    reports: Mapping[str, Checksums],
    voters: set[str],
    tables: Mapping[str, Mapping[str, Finding]],
) -> Finding:
    if name not in reports:
        return Finding.UNAVAILABLE
    found = {by[name] for by in tables.values()}
    for finding in (Finding.DIFFERENT, Finding.UNDECIDED):
        if finding in found:
            return finding
    others = (voters if reports[name].marked else reports.keys()) - {name}
    compared = bool(others) or len(names) == 1
    return Finding.EQUAL if compared else Finding.UNDECIDED


# Foreign commits of a table: those that were made past HAProc.
#
# Every commit of the ring carries the ring's note (`haproc.engine.confs.user_metadata`), also a
# commit that Delta adds by itself, such as compaction or an upgrade of the table. A commit without
# the note is *foreign*. If it changed rows, or the table's definition, this cluster differs from
# the others; maintenance changes neither.
#
# Commits before the first scan are not foreign: the tables may be older than the ring. Each later
# commit is examined once. Within one process its version shows that it is new. After a restart, and
# for a table that is new or was made again, its time shows that: each scan stores the time of the
# newest commit.


CHANGE_NO_ROWS: Final = frozenset(
    {
        "OPTIMIZE",
        "OPTIMIZE CHECKPOINT",
        "REORG",
        "VACUUM START",
        "VACUUM END",
        "CLUSTER BY",
        "COMPUTE STATS",
        "Deletion Vector Tombstones",
        "DOMAIN METADATA CLEANUP",
        "ROW TRACKING BACKFILL",
    }
)
"""The operations in Delta 4.4's table histories that do not change the result of any query."""
COMMITS_MAX: Final = 1000
"""The most commits of one table that a scan reads, the newest ones. Chosen."""
_FIRST: Final = 16
_MORE: Final = 4


@dataclass(frozen=True, slots=True)
class Looked:
    """The tables' commits that earlier scans have covered.

    ``until_ms``: the time of the newest commit, by the cluster's clock; None before the first scan.
    ``versions``: the newest covered version of each table that this process has scanned.
    """

    until_ms: int | None = None
    versions: Mapping[str, int] = field(default_factory=dict)

    def is_due(self, table: str, newest: Newest) -> bool:
        """True if a table has commits that no scan has covered."""
        if self.until_ms is None:
            return False
        seen = self.versions.get(table)
        return newest.at_ms > self.until_ms or (seen is not None and newest.version > seen)

    def first_count(self, table: str, newest: Newest) -> int:
        """Return how many of a table's commits to read at first."""
        seen = self.versions.get(table)
        if seen is None or newest.version <= seen:
            return _FIRST
        return min(newest.version - seen + 1, COMMITS_MAX)

    def more_count(self, read: Sequence[Commit], count: int) -> int:
        """Return how many commits to read instead, if some since the last scan may be missing.

        ``read``: the newest commits; ``count``: the number that was asked for. 0: none is missing,
        or no more may be read.
        """
        reached = len(read) < count or read[-1].at_ms <= (self.until_ms or 0)
        return 0 if reached or count >= COMMITS_MAX else min(count * _MORE, COMMITS_MAX)

    def foreign(
        self, table: str, newest: Newest, read: Sequence[Commit], application: str
    ) -> list[Commit]:
        """Return a table's new foreign commits up to its newest commit, the oldest first.

        ``read``: the table's commits, the newest first. ``application``: the ring's application id.
        """
        seen, until_ms = self.versions.get(table), self.until_ms or 0
        copied = any(each.version == 1 and each.operation == COPY for each in read)
        return [
            each
            for each in reversed(read)
            if each.version <= newest.version
            and (each.at_ms > until_ms or (seen is not None and each.version > seen))
            and version_in(each.note, application) is None
            and not (copied and each.version == 0)  # the empty table, which a copy begins with
        ]

    def after(self, newest: Mapping[str, Newest], unread: Sequence[str] = ()) -> Looked:
        """Return what is covered after a scan up to ``newest``; ``unread``: unreadable tables."""
        until_ms = max([self.until_ms or 0, *(each.at_ms for each in newest.values())])
        versions = {
            name: self.versions.get(name, each.version)
            if name in unread or not self._moved(name, each)
            else each.version
            for name, each in newest.items()
        }
        return Looked(until_ms, versions)

    def _moved(self, table: str, newest: Newest) -> bool:
        return self.until_ms is None or self.is_due(table, newest)


@dataclass(frozen=True, slots=True)
class Foreign:
    """A foreign commit: one that was made past HAProc.

    ``found_at``: the offset up to which the log had been read when it was found. ``verified_at``:
    the first verification after it that found this cluster equal to the others.
    """

    table: str
    commit: Commit
    found_at: int
    verified_at: int | None = None

    @property
    def changes_rows(self) -> bool:
        """True if the commit may make the table differ from the other clusters'."""
        return self.commit.operation not in CHANGE_NO_ROWS

    def verified(self, marker: int) -> Foreign:
        """Return this commit after the verification at ``marker`` found its cluster equal.

        ``verified_at`` becomes ``marker``, unless the commit is newer or was verified before.
        """
        known = self.verified_at is not None or self.found_at > marker
        return self if known else replace(self, verified_at=marker)

    def json(self) -> dict[str, Json]:
        """Return the commit as JSON."""
        return {
            "table": self.table,
            "version": self.commit.version,
            "at": self._at,
            "operation": self.commit.operation,
            "user": self.commit.user,
            "engine": self.commit.engine,
            "changes_rows": self.changes_rows,
            "verified_at": self.verified_at,
        }

    def __str__(self) -> str:
        """Return the commit as text for people."""
        commit = self.commit
        by = commit.user or commit.engine or "an unknown user"
        return f"{self.table} version {commit.version}, {commit.operation} by {by}, {self._at}"

    @property
    def _at(self) -> str:
        return time_text(datetime.fromtimestamp(self.commit.at_ms / 1000, UTC))
