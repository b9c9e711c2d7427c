"""Submits OPTIMIZE for tables that had many commits since the last one, where a rule asks for it.

OPTIMIZE is a statement like any client's, so its place in the log is the same for all clusters. The
live HAProc with the lowest name submits it. The request id is made of the table and the time, so
two HAProcs that both submit it send the same request. The commits are counted in the table's own
history on this cluster, so no count is stored. A table without a new write is not checked.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from fnmatch import fnmatchcase
from typing import Any, Final, NoReturn

from haproc.classify.names import parts_of
from haproc.config.sections import Optimize, OptimizeRule
from haproc.engine.arrow import rows
from haproc.engine.errors import EngineError
from haproc.failure import RequestError
from haproc.pin.sqltypes import quote_name
from haproc.route.model import Answer, Request, SentSql

logger = logging.getLogger(__name__)

USER: Final = "haproc.optimize"
"""The user in whose name HAProc submits the statements."""

Execute = Callable[[Request], Awaitable[Answer]]


def rule_of(table: str, rules: Iterable[OptimizeRule]) -> OptimizeRule | None:
    """Return the first rule whose pattern fits ``table``; None if none does."""
    return next((rule for rule in rules if fnmatchcase(table, rule.table)), None)


def commits_since(history: Iterable[tuple[int, str]], looked_at: int) -> int:
    """Return how many commits a table had since its last OPTIMIZE.

    ``history``: the table's versions with their operations, the newest first. ``looked_at``: the
    version at the last OPTIMIZE from here; older commits do not count. If the newest version is
    below it, the table was created again, and all its commits count.
    """
    count = 0
    found = list(history)
    if found and found[0][0] < looked_at:
        looked_at = -1
    for version, operation in found:
        if operation == "OPTIMIZE" or version <= looked_at:
            break
        count += 1
    return count


class Optimizing:
    """Submits OPTIMIZE for the tables that need it.

    ``newest`` returns the offset of each table's newest write. ``leads`` returns True if this is
    the HAProc that has to submit.
    """

    def __init__(
        self,
        settings: Optimize,
        execute: Execute,
        newest: Callable[[], Mapping[str, int]],
        leads: Callable[[], bool],
        unix_ms: Callable[[], int],
        timeout_s: float,
    ) -> None:
        self._settings = settings
        self._execute = execute
        self._newest = newest
        self._leads = leads
        self._unix_ms = unix_ms
        self._timeout_s = timeout_s
        self._looked: dict[str, int] = {}
        """For each table, the offset of its newest write when the table was last checked."""
        self._optimized: dict[str, int] = {}
        """For each table, its version when OPTIMIZE was last submitted from here. An OPTIMIZE that
        finds nothing to do is not in the table's history."""

    async def run_forever(self) -> NoReturn:
        """Check the tables at intervals, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.interval_s)
            if self._settings.tables and self._leads():
                await self.look()

    async def look(self) -> None:
        """Check all tables written since their last check; submit OPTIMIZE where it is due."""
        newest = self._newest()
        self._looked = {name: at for name, at in self._looked.items() if name in newest}
        self._optimized = {name: at for name, at in self._optimized.items() if name in newest}
        for table, offset in sorted(newest.items()):
            rule = rule_of(table, self._settings.tables)
            if rule is None or self._looked.get(table, -1) >= offset:
                continue
            self._looked[table] = offset
            try:
                await self._look_at(table, rule)
            except (RequestError, EngineError) as error:
                logger.warning("%s is not optimized: %s", table, error)

    async def _look_at(self, table: str, rule: OptimizeRule) -> None:
        name = ".".join(quote_name(part) for part in parts_of(table) or (table,))
        history = await self._rows(f"DESCRIBE HISTORY {name} LIMIT {rule.after_commits}", "history")
        found = [(int(row["version"]), str(row["operation"])) for row in history]
        if commits_since(found, self._optimized.get(table, -1)) < rule.after_commits:
            return
        self._optimized[table] = found[0][0]
        logger.info("OPTIMIZE of %s: %d commits since the last", table, rule.after_commits)
        await self._rows(f"OPTIMIZE {name}", "optimize")

    async def _rows(self, sql: str, what: str) -> list[dict[str, Any]]:
        slot = int(self._unix_ms() / 1000 // self._settings.interval_s)
        digest = hashlib.sha256(sql.encode()).hexdigest()
        request = Request(
            f"{what}:{digest[:24]}:{slot}", SentSql(sql), digest, USER, timeout_s=self._timeout_s
        )
        answer = await self._execute(request)
        async with aclosing(answer.result) as result:
            return list(rows([chunk.data async for chunk in result]))
