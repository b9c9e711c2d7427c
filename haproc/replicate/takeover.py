"""Does what a silent cluster owes the others: a decision, or the rows of an operation.

Whoever waits for it, at that place in the order, may take over; that several do, or that the
silent one wakes up, does no harm, because of what they put into the log the first counts.
"""

from __future__ import annotations

import asyncio
import logging

from haproc.membership.state import State
from haproc.replicate.computing import Computing
from haproc.replicate.core import Core
from haproc.replicate.liveness import progressing
from haproc.replicate.operation import Operation, Verdict

logger = logging.getLogger(__name__)


class Takeover:
    """See the module."""

    def __init__(self, core: Core, computing: Computing) -> None:
        self._core = core
        self._computing = computing
        self._silent_since: dict[tuple[str, int], float] = {}
        """Since when who owes something on an operation is silent, by its name and the offset."""

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._core.timeouts.takeover_s / 4)
            await self._look()

    async def _look(self) -> None:
        core = self._core
        waited = [
            (self._computing.responsible(offset, op), offset, op)
            for offset, op in core.schedule.uncomputed()
        ]
        if (undecided := core.schedule.undecided()) is not None:
            waited.append((undecided[1].origin, *undecided))
        waited = [each for each in waited if each[0] != core.me]
        if core.state is State.STOPPED:
            waited = []
        names = dict.fromkeys(name for name, _, _ in waited)
        alive = {name: await progressing(core, name) for name in names}
        now = asyncio.get_running_loop().time()
        before, self._silent_since = self._silent_since, {}
        for name, offset, op in waited:
            if not alive[name]:
                since = self._silent_since[name, offset] = before.get((name, offset), now)
                if now - since >= core.timeouts.takeover_s:
                    await self._act(name, offset, op)

    async def _act(self, name: str, offset: int, op: Operation) -> None:
        core = self._core
        undecided = core.schedule.undecided()
        if undecided is not None and undecided[0] == offset:
            logger.warning("offset %d: %s is silent, committing for it", offset, name)
            await core.decide(offset, op.id, Verdict.COMMIT)
            self._silent_since.pop((name, offset))
        elif self._computing.begin(offset, op):
            logger.warning("offset %d: %s is silent, computing its rows", offset, name)
