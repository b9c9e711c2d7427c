"""Which commits of a table somebody made past HAProc.

Every commit that the ring makes carries its note (`haproc.engine.confs.user_metadata`): rows, DDL,
and what Delta adds by itself, such as compaction or an upgrade of the table. A commit without it
is *foreign*. One that changed rows, or the table's definition, makes this cluster differ from the
others; one that only tidies up does not.

What stood in the tables before the first look is not foreign: the tables may be older than the
ring. From then on a commit is looked at once. In one process its version says whether it is new;
across restarts, and for a table that is new or was made anew, its time does: the time of the
newest commit at the last look is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from dmq import Json
from haproc.engine.commits import Commit, Newest
from haproc.engine.confs import version_in
from haproc.engine.copies import OPERATION as COPY
from haproc.membership.state import time_text

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
"""Delta 4.4's operations after which a query gives what it gave before."""
COMMITS_MAX: Final = 1000
"""Of more commits of one table since the last look only the newest are read. Chosen."""
_FIRST: Final = 16
_MORE: Final = 4


@dataclass(frozen=True, slots=True)
class Looked:
    """What earlier looks have seen.

    ``until_ms``: the time of the newest commit, by the cluster's clock; None before the first look.
    ``versions``: of the tables that this process has looked at.
    """

    until_ms: int | None = None
    versions: Mapping[str, int] = field(default_factory=dict)

    def is_due(self, table: str, newest: Newest) -> bool:
        """Whether a table has commits that nobody has looked at."""
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
        """Return how many to read instead, if those may not be all; else 0."""
        reached = len(read) < count or read[-1].at_ms <= (self.until_ms or 0)
        return 0 if reached or count >= COMMITS_MAX else min(count * _MORE, COMMITS_MAX)

    def foreign(
        self, table: str, newest: Newest, read: Sequence[Commit], application: str
    ) -> list[Commit]:
        """Return the foreign commits up to a table's newest one, the oldest first.

        ``read``: the table's commits, the newest first. ``application``: as the ring's notes have
        it.
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
        """Return what has been seen after a look at these; some could not be read."""
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
    """A foreign commit. ``found_at``: an offset of the log; all below it was read by then.

    ``verified_at``: the verification behind it that found this cluster equal to the others.
    """

    table: str
    commit: Commit
    found_at: int
    verified_at: int | None = None

    @property
    def changes_rows(self) -> bool:
        """Whether the table may differ from the other clusters' since."""
        return self.commit.operation not in CHANGE_NO_ROWS

    def verified(self, marker: int) -> Foreign:
        """Return it after this cluster was found equal at a marker."""
        known = self.verified_at is not None or self.found_at > marker
        return self if known else replace(self, verified_at=marker)

    def json(self) -> dict[str, Json]:
        """Return it as answers show it."""
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
        """Return it for people."""
        commit = self.commit
        by = commit.user or commit.engine or "an unknown user"
        return f"{self.table} version {commit.version}, {commit.operation} by {by}, {self._at}"

    @property
    def _at(self) -> str:
        return time_text(datetime.fromtimestamp(self.commit.at_ms / 1000, UTC))
