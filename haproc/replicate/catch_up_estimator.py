"""Keeps the catch-up estimate: whether the replay takes longer than a copy of the tables would.

Looks seldom, beside the replay, and asks the cluster for tables' sizes only while the replay is
expected to take long. What is read ahead stands for the whole backlog.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

from haproc.engine.errors import EngineError
from haproc.replicate.member.core import Core
from haproc.replicate.queue.catch_up_estimate import CatchUpEstimate, Sample, estimate

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 10.0
SAMPLES_MAX: Final = 12
"""Lately is two minutes."""
SIZES_KEPT_S: Final = 600.0
TABLES_MAX: Final = 64
"""Of a backlog that touches more tables it is not said what copying would take. Chosen."""
_UNKNOWN: Final[tuple[float, int | None]] = (0.0, None)


class CatchUpEstimator:
    """See the module."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._sizes: dict[str, tuple[float, int | None]] = {}
        self._asking = False
        self.catch_up_estimate = CatchUpEstimate()
        """What is to be expected, as of the last look."""

    def look(self) -> None:
        """Take in how far the replay is; for who passes here often."""
        core, now_s = self._core, asyncio.get_running_loop().time()
        if core.condition.now.caught_up or not core.condition.may_apply:
            if self._samples:
                self._samples.clear()
                self._sizes.clear()
                self.catch_up_estimate = CatchUpEstimate()
            return
        if self._samples and now_s - self._samples[-1].at_s < LOOK_EVERY_S:
            return
        self._samples.append(Sample(now_s, core.schedule.low, core.watermarks.log_end))
        if len(self._samples) == 1:
            return
        first, last = self._samples[0], self._samples[-1]
        found = estimate(first, last, ())
        if found.long:
            tables = sorted({name for u in core.schedule.unfinished() for name in u.op.writes})
            found = estimate(first, last, [self._sizes.get(name, _UNKNOWN)[1] for name in tables])
            due = [name for name in tables if self._due(name, now_s)]
            if due and not self._asking and len(tables) <= TABLES_MAX:
                self._asking = True
                core.tasks.spawn(self._ask(due))
        before, self.catch_up_estimate = self.catch_up_estimate, found
        if found.copy_is_faster and not before.copy_is_faster:
            logger.warning("%s recovers, but a copy would be faster: %s", core.me, found)

    def _due(self, table: str, now_s: float) -> bool:
        return table not in self._sizes or now_s - self._sizes[table][0] >= SIZES_KEPT_S

    async def _ask(self, tables: Sequence[str]) -> None:
        """Ask for tables' sizes, one after another."""
        try:
            for table in tables:
                size = await self._size(table)
                self._sizes[table] = asyncio.get_running_loop().time(), size
        finally:
            self._asking = False

    async def _size(self, table: str) -> int | None:
        try:
            return await self._core.engine.table_bytes(table)
        except EngineError as error:
            logger.info("the size of %s is not known: %s", table, error.message)
            return None
