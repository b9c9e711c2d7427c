"""A cluster that has done at once whatever it is given: what is measured before it is HAProc's own.

It holds nothing, so nothing can be queried, and of every table it says the same columns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, NoReturn

from haproc.engine.interface import (
    ABSENT,
    Applied,
    Column,
    Named,
    Restore,
    Session,
    Settings,
    TableState,
    TransactionMarker,
)
from haproc.engine.statement import Statement
from haproc.membership.drift import REQUIRED

COLUMNS: Final = (
    Column("id", "bigint"),
    Column("name", "string"),
    Column("price", "double"),
    Column("visits", "int"),
)


class NullLane:
    """Has a statement done in the loop's next turn."""

    def __init__(self, on_applied: Callable[[TransactionMarker | None], None]) -> None:
        self._on_applied = on_applied

    async def apply(
        self,
        write: Statement,
        settings: Settings,
        marker: TransactionMarker | None,
        *,
        timeout_s: float,
    ) -> Applied:
        """Do nothing, as far as the loop's next turn."""
        await asyncio.sleep(0)
        self._on_applied(marker)
        return Applied()

    async def fence(self) -> None:
        """Nothing runs."""

    def renew(self) -> None:
        """Nothing was looked up."""

    async def prepare(self) -> None:
        """It needs nothing."""


class NullEngine:
    """See the module; implements Engine. ``on_applied`` hears of each statement's mark."""

    def __init__(
        self, on_applied: Callable[[TransactionMarker | None], None] = lambda marker: None
    ) -> None:
        self._on_applied = on_applied

    async def probe(self, *, timeout_s: float) -> None:
        """It is well."""

    async def storage(self, known: str) -> str:
        """The storage is the one that is known."""
        return known or "null"

    def session(self, key: str, restore: Restore | None = None, pool: str = "") -> Session:
        """There is nothing to query."""
        _nothing()

    def lane(self, index: int, authorise: Callable[[], Awaitable[None]]) -> NullLane:
        """Return one."""
        return NullLane(self._on_applied)

    async def table_columns(self, table: str) -> list[Column]:
        """All have the same."""
        return [*COLUMNS]

    async def plain_columns(self, table: str) -> Sequence[Column] | None:
        """All store what they are given."""
        return COLUMNS

    async def table_bytes(self, table: str) -> int | None:
        """They hold nothing."""
        return 0

    async def offsets_applied(self, tables: Sequence[str], application: str) -> Mapping[str, int]:
        """No table holds anything."""
        return {}

    async def check_tables(self, tables: Sequence[str]) -> None:
        """All are well."""

    async def standing(self, named: Sequence[Named]) -> str:
        """Nothing stands anywhere."""
        return "/".join(ABSENT for _ in named)

    async def keeps_marks(self, table: str) -> bool:
        """Each does."""
        return True

    async def default_place(self, table: str) -> str:
        """Nowhere."""
        return ""

    async def server_settings(self, names: Collection[str]) -> Mapping[str, str | None]:
        """Return what is required, and nothing else."""
        return {**dict.fromkeys(names), **{each.name: each.values[0] for each in REQUIRED}}

    async def staged(self) -> Collection[str]:
        """There are none."""
        return ()

    async def table_states(self) -> Sequence[TableState]:
        """There are none."""
        return ()

    async def checksum(self, state: TableState, *, timeout_s: float) -> str:
        """All are alike."""
        return ""

    async def aclose(self) -> None:
        """Nothing is open."""


def _nothing() -> NoReturn:
    raise NotImplementedError("the null engine holds nothing")
