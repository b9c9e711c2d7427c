"""The commits that were made past HAProc to a simulated cluster's tables."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from haproc.engine.commits import Commit, Newest

if TYPE_CHECKING:
    from tests.simulation.spark import SimSpark


class Past:
    """Commits by table, the oldest first; they outlive the server, as files do."""

    def __init__(self) -> None:
        self.commits: dict[str, list[Commit]] = {}

    def commit(self, table: str, operation: str, at_ms: int) -> None:
        """Commit to a table past HAProc."""
        commits = self.commits.setdefault(table, [])
        commits.append(Commit(len(commits), at_ms, operation, "somebody"))


class SimHistories:
    """Implements Histories for one process of a cluster."""

    def __init__(self, spark: SimSpark, check: Callable[[], Awaitable[None]]) -> None:
        self._spark = spark
        self._check = check

    async def newest(self) -> Mapping[str, Newest]:
        await self._check()
        found = self._spark.past.commits.items()
        return {table: Newest(each[-1].version, each[-1].at_ms) for table, each in found}

    async def commits(self, table: str, count: int) -> Sequence[Commit]:
        await self._check()
        return self._spark.past.commits.get(table, [])[::-1][:count]
