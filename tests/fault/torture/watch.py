"""Asks every HAProc for its state a few times a second and notes the changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp

from haproc.config.model import Config
from tests.fault.torture.history import History
from tests.fault.torture.part import Part

_INTERVAL_S = 0.25
_ANSWER_S = 1.0
_STARVED_S = 12.0
SILENT = "-"


class Watch(Part):
    """Writes a ``state`` event for each change; a HAProc that does not answer is ``-``."""

    def __init__(self, config: Callable[[], Config], history: History) -> None:
        """``config``: returns the configuration with the current members."""
        super().__init__("watch", history)
        self._config = config
        self._ready_at = history.now()
        self.status: dict[str, dict[str, object]] = {each.name: {} for each in config().clusters}
        """Each HAProc's last answer; empty while it gives none."""

    @property
    def starved(self) -> bool:
        """True if no HAProc has been READY for a while."""
        return self._history.now() - self._ready_at > _STARVED_S

    def work(self) -> None:
        """Ask until stopped."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            following: dict[str, asyncio.Future[None]] = {}
            while not self._stopped.is_set():
                for each in self._config().clusters:
                    if each.name not in following:
                        follow = self._follow(session, each.name)
                        following[each.name] = asyncio.ensure_future(follow)
                await asyncio.sleep(_INTERVAL_S)
            await asyncio.gather(*following.values())

    async def _follow(self, session: aiohttp.ClientSession, name: str) -> None:
        state = SILENT
        while not self._stopped.is_set():
            config = self._config()
            members = {each.name: config.url(each.peer) for each in config.clusters}
            status = dict[str, object]()
            if name in members:
                status = await self._ask(session, f"{members[name]}/clusterStatus")
            self.status[name] = status
            now = str(status.get("state", SILENT))
            if now == "READY":
                self._ready_at = self._history.now()
            if now != state:
                state = now
                reason = str(status.get("reason", ""))[:200]
                self._history.write("state", cluster=name, state=state, reason=reason)
            await asyncio.sleep(_INTERVAL_S)

    async def _ask(self, session: aiohttp.ClientSession, url: str) -> dict[str, object]:
        try:
            async with session.get(url) as response:
                return dict(await response.json())
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return {}

    @property
    def settled(self) -> bool:
        """True if all clusters serve and have applied the whole log."""
        answers = [self.status.get(each.name, {}) for each in self._config().clusters]
        ends = {str(answer.get("log_end")) for answer in answers}
        done = all(a.get("state") == "READY" and a.get("lag") == 0 for a in answers)
        return done and len(ends) == 1
