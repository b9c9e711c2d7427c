"""The commits in the history of a Delta table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest commit of a table: its version, and its time in ms since 1970."""

    version: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit in the history of a Delta table.

    ``user``: empty if Delta has none; ``note``: the commit's user metadata.
    """

    version: int
    at_ms: int
    operation: str
    user: str = ""
    engine: str = ""
    note: str = ""


class Histories(Protocol):
    """Reads the commits of one cluster's tables. Methods raise EngineError."""

    async def newest(self) -> Mapping[str, Newest]:
        """Return, by full name, the newest commit of each Delta table in Spark's own catalog."""
        ...

    async def commits(self, table: str, count: int) -> Sequence[Commit]:
        """Return a table's ``count`` newest commits, newest first; empty if it does not exist."""
        ...
