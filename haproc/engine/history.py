"""Asks a cluster for the commits of its Delta tables."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from haproc.engine.commits import Commit, Newest
from haproc.engine.confs import quoted_name
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Named, Sort
from haproc.engine.pieces import CATALOG
from haproc.engine.remote import RemoteSession
from haproc.engine.table import HISTORY_TIMEOUT_S, all_rows, listed

STANDING_AT_ONCE: Final = 200
"""Tables whose newest commits are asked for in one call. Chosen: a second at 5 ms each."""
_DELTA: Final = re.compile(r"([0-9]+)@([0-9]+)")


class SparkHistories:
    """Implements Histories.

    ``ask`` makes a call that depends on no session's state; ``standing`` is that of the engine.
    """

    def __init__(
        self,
        in_session: Callable[[Callable[[RemoteSession], Awaitable[Any]]], Awaitable[Any]],
        standing: Callable[[Sequence[Named]], Awaitable[str]],
    ) -> None:
        self._in_session = in_session
        self._standing = standing

    async def newest(self) -> Mapping[str, Newest]:
        """See Histories. Spark runs no task for it."""
        names = [name for name, is_view in await listed(self._rows, CATALOG) if not is_view]
        found: dict[str, Newest] = {}
        for first in range(0, len(names), STANDING_AT_ONCE):
            some = names[first : first + STANDING_AT_ONCE]
            text = await self._standing([Named(Sort.TABLE, name) for name in some])
            for name, found_text in zip(some, text.split("/"), strict=True):
                if newest := _DELTA.fullmatch(found_text):
                    found[name] = Newest(int(newest[1]), int(newest[2]))
        return found

    async def commits(self, table: str, count: int) -> Sequence[Commit]:
        """See Histories."""
        try:
            rows = await self._rows(f"DESCRIBE HISTORY {quoted_name(table)} LIMIT {count}")
        except EngineError as error:
            if error.kind is not ErrorKind.APPLICATION:
                raise
            return ()
        return [
            Commit(
                int(row["version"]),
                int(row["timestamp"].timestamp() * 1000),
                str(row["operation"] or ""),
                str(row["userName"] or row["userId"] or ""),
                str(row["engineInfo"] or ""),
                str(row["userMetadata"] or ""),
            )
            for row in rows
        ]

    async def _rows(self, sql: str) -> list[dict[str, Any]]:
        async def rows(own: RemoteSession) -> list[dict[str, Any]]:
            return [row async for row in all_rows(own, sql, HISTORY_TIMEOUT_S)]

        found: list[dict[str, Any]] = await self._in_session(rows)
        return found
