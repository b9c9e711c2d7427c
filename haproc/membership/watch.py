"""What this HAProc knows of its peers, from asking each of them regularly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from dmq import Json
from haproc.membership.peers import Peers, PeerUnavailableError


class PeerWatch:
    """Asks every peer for its status, for ever; ``view`` is the newest answer of each."""

    def __init__(
        self,
        peers: Peers,
        names: Sequence[str],
        *,
        interval_s: float,
        timeout_s: float,
        on_answer: Callable[[str, bool], None] = lambda name, alive: None,
    ) -> None:
        self._peers = peers
        self._names = names
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._on_answer = on_answer
        self.view: dict[str, dict[str, Json]] = {name: {"alive": False} for name in names}

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await asyncio.gather(*(self._ask(name) for name in self._names))
            await asyncio.sleep(self._interval_s)

    async def _ask(self, name: str) -> None:
        try:
            answer: Mapping[str, Json] = await self._peers.status(name, self._timeout_s)
        except PeerUnavailableError:
            self.view[name] = {**self.view[name], "alive": False}
            self._on_answer(name, False)
        else:
            shown = ("state", "cursor", "lag", "incarnation")
            self.view[name] = {"alive": True, **{key: answer.get(key) for key in shown}}
            self._on_answer(name, True)
