"""Checks the health of this HAProc's cluster by probes: a statement that Spark runs.

A refused connection, unreachable storage and a missing plugin mean that it is down at once. A slow
answer means that only after several in a row. If the cluster is slow because abandoned statements
still hold its cores, it stays up as long as no other cluster serves. Code that gets an availability
error calls `suspect`, and the next probe runs immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from haproc.engine.errors import REFUSED, EngineError
from haproc.failure import ErrorClass

_FOR_CERTAIN: Final = (REFUSED, ErrorClass.STORAGE_AWAY, ErrorClass.PLUGIN_MISSING)


class Health:
    """Probes one cluster for ever; the event ``up`` is set while the cluster answers.

    ``probe`` raises EngineError if the cluster cannot run a statement. ``on_change`` is called when
    the cluster goes up or down, or the reason why it is down changes; it receives True for up, and
    the reason.
    """

    def __init__(
        self,
        probe: Callable[[], Awaitable[None]],
        *,
        interval_s: float,
        missed_max: int,
        on_change: Callable[[bool, str], None],
    ) -> None:
        self._probe = probe
        self._interval_s = interval_s
        self._missed_max = missed_max
        self._on_change = on_change
        self._missed = 0
        self._suspected = asyncio.Event()
        self.on_answer: Callable[[float], None] = lambda seconds: None
        """Called after each successful probe, with the seconds that it took."""
        self.on_gone: Callable[[], None] = lambda: None
        """Called if the connection to the cluster's Spark is refused."""
        self.is_last: Callable[[], bool] = lambda: False
        """Returns True if no other cluster serves."""
        self.up = asyncio.Event()
        self.error = ""

    def suspect(self, error: str) -> None:
        """Make the next probe at once, because a statement got the availability error ``error``."""
        self.error = error
        self._suspected.set()

    async def run_forever(self) -> None:
        """Run a probe every ``interval_s`` seconds, or at once after `suspect`, until cancelled."""
        while True:
            self._suspected.clear()
            await self._probe_once()
            try:
                async with asyncio.timeout(self._interval_s):
                    await self._suspected.wait()
            except TimeoutError:
                continue

    async def _probe_once(self) -> None:
        now = asyncio.get_running_loop().time
        began = now()
        try:
            await self._probe()
        except EngineError as error:
            stays = error.error_class == ErrorClass.CORES_HELD and self.is_last()
            self._missed += not stays
            before, self.error = self.error, f"{error.error_class or error.kind}: {error.message}"
            gone = error.error_class in _FOR_CERTAIN
            if error.error_class == REFUSED:
                self.on_gone()
            if self.up.is_set() and not stays and (gone or self._missed >= self._missed_max):
                self.up.clear()
                self._on_change(self.up.is_set(), self.error)
            elif not self.up.is_set() and self.error != before:
                self._on_change(self.up.is_set(), self.error)  # the reason is shown
            # A failing cluster must not be probed in a busy loop, however often it is suspected.
            await asyncio.sleep(min(0.05, self._interval_s))
            return
        self._missed = 0
        self.error = ""
        self.on_answer(now() - began)
        if not self.up.is_set():
            self.up.set()
            self._on_change(self.up.is_set(), self.error)
