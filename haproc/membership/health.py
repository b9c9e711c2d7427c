"""The health check of the cluster: a statement that runs on it.

A refused connection, unreachable storage and a missing plugin mean down at once. A slow answer
means down only after several in a row. If a cluster is slow because abandoned statements still hold
its cores, it stays up as long as no other cluster serves. Any caller that gets an availability
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
    """Probes one cluster for ever; ``up`` is set while it answers.

    ``probe`` raises EngineError if the cluster cannot run a statement. ``on_change`` receives the
    new ``up``, and the reason if it is False.
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
        """Receives the seconds until the cluster answered a probe."""
        self.on_gone: Callable[[], None] = lambda: None
        """Called if nothing listens there."""
        self.is_last: Callable[[], bool] = lambda: False
        """True if no other cluster serves."""
        self.up = asyncio.Event()
        self.error = ""

    def suspect(self, error: str) -> None:
        """Probe now: a statement has met an availability error."""
        self.error = error
        self._suspected.set()

    async def run_forever(self) -> None:
        """Probe until cancelled."""
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
