"""The running statements, each of which a revocation can stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

TablesShow: TypeAlias = Callable[[], Awaitable[bool]]
"""Returns True if the tables would show whether a stopped unit was committed."""


class Interrupted(Exception):
    """A statement was stopped, because its operation is to be revoked."""


@dataclass(frozen=True, slots=True, eq=False)
class _Statement:
    offsets: tuple[int, ...]
    limit: asyncio.Timeout
    tables_show: TablesShow

    def stop(self) -> None:
        if not self.limit.expired():
            self.limit.reschedule(asyncio.get_running_loop().time())


class UnderWay:
    """The statements that run now on this cluster, and can be stopped."""

    def __init__(self) -> None:
        self._statements: list[_Statement] = []

    @contextlib.asynccontextmanager
    async def runs(self, offsets: tuple[int, ...], tables_show: TablesShow) -> AsyncIterator[None]:
        """Let `stop` stop the statement that runs in this context; raises Interrupted if it did."""
        limit = asyncio.timeout(None)
        mine = _Statement(offsets, limit, tables_show)
        self._statements.append(mine)
        try:
            async with limit:
                yield
        except TimeoutError as error:
            if limit.expired():
                raise Interrupted from error
            raise
        finally:
            self._statements.remove(mine)

    async def stop(self, offset: int) -> None:
        """Stop an operation's statement, if the tables would show whether it was committed."""
        for each in [each for each in self._statements if offset in each.offsets]:
            if await each.tables_show() and each in self._statements:
                each.stop()
