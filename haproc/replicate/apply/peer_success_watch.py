"""Looks which waiting operations have succeeded on other clusters, so that they can be composed.

It does so while statements wait that might be composed. The other clusters' stored cursors and the
log's control records say what has succeeded. It also asks Spark for the columns of the tables.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from haproc.engine.errors import EngineError, ErrorKind
from haproc.replicate.member.core import Core

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.5
"""Chosen: an UPDATE takes longer."""


TABLES_AT_ONCE: Final = 4
"""Asked for their columns. Chosen."""


class PeerSuccessWatch:
    """See the module."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        core = self._core
        while True:
            await core.news.until(lambda: core.schedule.composable and core.condition.may_apply)
            if tables := core.schedule.tables_to_describe():
                await self._hear_the_others()
                for at in range(0, len(tables), TABLES_AT_ONCE):
                    few = tables[at : at + TABLES_AT_ONCE]
                    await asyncio.gather(*map(self._describe, few))
            await asyncio.sleep(LOOK_EVERY_S)

    async def _hear_the_others(self) -> None:
        core = self._core
        cursors = await core.own_log.reaching(core.log.cursors)
        end = await core.own_log.reaching(core.log.end)
        await core.watermarks.heard(end)
        counting = core.log_state.cursors.counting(cursors, end)
        passed = [found.low for name, found in counting.items() if name != core.me]
        core.log_state.peer_success.passed(max(passed, default=0))
        core.news.changed()

    async def _describe(self, table: str) -> None:
        core, composing = self._core, self._core.schedule.composing
        if composing.described(table):
            return
        definitions = composing.definitions
        try:
            columns = await core.engine.plain_columns(table)
        except EngineError as error:
            if error.kind is ErrorKind.AVAILABILITY:
                core.health.suspect(error.message)
            else:
                composing.failed(table)
                core.news.changed()
            logger.info("the columns of %s are not known: %s", table, error.message)
            return
        composing.describe(table, columns, definitions)
        core.news.changed()
