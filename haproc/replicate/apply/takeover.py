"""Watches the other clusters: learns of their successes, takes over work that they do not do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from haproc.engine.errors import EngineError, ErrorKind
from haproc.membership.state import State
from haproc.replicate.apply.computing import Computing
from haproc.replicate.apply.synchronous import computing, diverged, progressing
from haproc.replicate.member.core import Core
from haproc.replicate.records.operation import DecisionKind

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.5
"""Seconds between checks. Chosen: an UPDATE takes longer."""


TABLES_AT_ONCE: Final = 4
"""The most tables that Spark is asked about at once. Chosen."""


class PeerSuccessWatch:
    """Finds the waiting operations that have succeeded on other clusters.

    These can be composed into one statement. It works while operations wait that might be. The
    other clusters' stored cursors and the log's control records show the successes. It also asks
    Spark for the tables' columns.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    async def run_forever(self) -> None:
        """Look for successes and columns whenever operations might be composed, until cancelled."""
        core = self._core
        while True:
            await core.news.until(lambda: core.schedule.composable and core.condition.may_apply)
            if tables := core.schedule.tables_to_describe():
                await self._read_to_end()
                for at in range(0, len(tables), TABLES_AT_ONCE):
                    few = tables[at : at + TABLES_AT_ONCE]
                    await asyncio.gather(*map(self._describe, few))
            await asyncio.sleep(LOOK_EVERY_S)

    async def _read_to_end(self) -> None:
        core = self._core
        cursors = await core.own_log.reaching(core.log.cursors)
        end = await core.own_log.reaching(core.log.end)
        await core.watermarks.until_known(end)
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


class Takeover:
    """Takes over work of a silent cluster: a decision, or the rows of an operation.

    The origin of a synchronous operation appends its decision. Another cluster appends it only if
    the origin does not run operations any more. The responsible cluster computes rows. Another
    cluster computes them already if the responsible one lags, because a query changes nothing.

    Every cluster that waits at that operation may take over. Several may do so at once, and the
    silent one may wake up: only the first record in the log counts.
    """

    def __init__(self, core: Core, computing: Computing) -> None:
        self._core = core
        self._computing = computing
        self._silent_since: dict[tuple[str, int], float] = {}
        """By cluster and offset: when the cluster was first found not to do its work."""

    async def watch(self) -> None:
        """Look for work that another cluster does not do, again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._core.timeouts.takeover_s / 4)
            await self._look()

    async def _look(self) -> None:
        core = self._core
        if core.condition.state is State.STOPPED:
            return
        before, self._silent_since = self._silent_since, {}
        going_on: dict[str, bool] = {}
        for offset, op in core.schedule.undecided():
            if op.origin not in going_on:
                going_on[op.origin] = await progressing(core, op.origin)
            if not going_on[op.origin] and self._too_long(before, op.origin, offset):
                logger.warning("offset %d: %s is silent, committing for it", offset, op.origin)
                await core.own_log.decide(offset, op.id, DecisionKind.COMMIT)
        at_it = {core.me: frozenset[int]()}
        for offset, op in core.schedule.uncomputed():
            name = self._computing.responsible(offset, op)
            if name not in at_it:
                at_it[name] = await computing(core, name)
            differs = core.condition.now.diverged is not None
            if offset in at_it[name] or (name == core.me and not differs):
                continue
            if not self._too_long(before, name, offset):
                continue
            if self._computing.begin(offset, op):
                logger.warning("offset %d: %s does not compute its rows: taken over", offset, name)
            elif differs and await self._all_differ():
                await self._computing.refuse(offset, op)

    async def _all_differ(self) -> bool:
        """True if all peers are DIVERGED, so that no cluster may compute rows for the others."""
        core = self._core
        return all([await diverged(core, peer) for peer in core.members.peers])

    def _too_long(self, before: Mapping[tuple[str, int], float], name: str, offset: int) -> bool:
        """Note that a cluster does not do its work; True if that has lasted ``takeover_s``."""
        now = asyncio.get_running_loop().time()
        since = self._silent_since[name, offset] = before.get((name, offset), now)
        return now - since >= self._core.timeouts.takeover_s
