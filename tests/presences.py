"""HAProcs that only send each other heartbeats: presences behind real doors."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from haproc.config.model import Address, ClusterConfig, Config, Membership, Redis, StateWay
from haproc.doors.apps import waiting_app
from haproc.doors.http.listener import Listener
from haproc.engine.interface import EngineAddress
from haproc.membership.state import Own, State
from haproc.membership.view import Reachability
from haproc.metrics import Metrics
from haproc.node.doors import WaitingForLog, show_ring
from haproc.node.presence import Presence
from haproc.node.status import Watching
from haproc.ring.process import free_ports

NAMES = "abc"
RULES = Membership(heartbeat_interval_s=0.2, window_s=4.0, check_interval_s=0.2)
"""Slower than the defaults: a busy machine must not make a test fail."""
NOTICED_S = 2 * (RULES.missed_in_a_row + 5) * RULES.heartbeat_interval_s
"""Three missed, up to one before them, the next check, the other's word, and asking for it; twice
that because a busy machine is no finding."""
WITHIN_S = 30.0
OWN = Own(State.READY, "2026-01-01T00:00:00.000Z", 7, 40, 42, log_up=True)


def ring_config(folder: Path, redis: Redis | None, rules: Membership = RULES) -> Config:
    """Return the configuration of a ring of three on free ports."""
    ports = free_ports(len(NAMES))
    spark = EngineAddress("127.0.0.1", 1)
    clusters = tuple(
        ClusterConfig(name, Address("127.0.0.1", 1), Address("127.0.0.1", port), spark)
        for name, port in zip(NAMES, ports, strict=True)
    )
    config = Config(
        "demo", "memory:", clusters, "a-secret-of-usual-length", folder, membership=rules
    )
    if redis is None:
        return config
    return dataclasses.replace(config, state=StateWay.REDIS, redis=redis)


class Here:
    """One presence in this process."""

    def __init__(self, config: Config, name: str, incarnation: str = "") -> None:
        self.config = config
        self.name = name
        self.metrics = Metrics(config.ring, name, ["READY"])
        self.presence = Presence(config, name, incarnation or f"{name}1", self.metrics)
        status = WaitingForLog(config, name, self.presence, "")
        self.presence.members.attach(self)
        door = self.presence.door
        app = waiting_app(config, name, status, self.metrics, door)
        show_ring(config, self.presence, Watching(config, self.presence, status), app)
        self.listener = Listener(app, config.cluster(name).peer, shortcut=door.shortcut)

    def own(self) -> Own:
        return OWN

    def isolate(self, why: str) -> None:
        """Do nothing: there is no log to lose."""

    async def open(self) -> None:
        await self.listener.open()

    async def aclose(self) -> None:
        await self.listener.aclose()
        await self.presence.aclose()

    @property
    def receives_all(self) -> bool:
        """True if this one receives all others."""
        peers = self.presence.members.peers().values()
        return all(peer.status is Reachability.REACHABLE for peer in peers)

    @property
    def ways(self) -> set[str]:
        """The transports in use, of all peers."""
        transport = self.presence.transport()
        peers = transport["peers"]
        assert isinstance(peers, dict)
        return {str(transport["in_use"]), *map(str, peers.values())}


@contextlib.asynccontextmanager
async def presences(config: Config, names: str = NAMES) -> AsyncIterator[dict[str, Here]]:
    """Run these presences in this process."""
    made = {name: Here(config, name) for name in names}
    try:
        for each in made.values():
            await each.open()
        yield made
    finally:
        for each in made.values():
            await each.aclose()


async def until(condition: Callable[[], bool], within_s: float = WITHIN_S) -> float:
    """Wait until a condition holds; return the time that it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not condition():
        assert loop.time() - began < within_s, "waited in vain"
        await asyncio.sleep(0.005)
    return loop.time() - began


class Watch:
    """Notes each failure to receive another one, and the longest time between heartbeats."""

    def __init__(self, ring: dict[str, Here]) -> None:
        self._ring = ring
        self._task = asyncio.ensure_future(self._look())
        self.missing: list[str] = []
        self._beats: dict[tuple[str, str], float] = {}
        self.gap_s = 0.0
        for here in ring.values():
            self._listen(here)

    def _listen(self, here: Here) -> None:
        members, clock = here.presence.members, asyncio.get_running_loop().time
        taken = members.heartbeat

        def heartbeat(beat: object) -> None:
            pair, now = (here.name, beat.cluster), clock()  # type: ignore[attr-defined]
            self.gap_s = max(self.gap_s, now - self._beats.get(pair, now))
            self._beats[pair] = now
            taken(beat)  # type: ignore[arg-type]

        members.heartbeat = heartbeat  # type: ignore[method-assign]

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(RULES.heartbeat_interval_s / 8)
            for here in self._ring.values():
                for name, peer in here.presence.members.peers().items():
                    if peer.status is not Reachability.REACHABLE:
                        self.missing.append(f"{here.name}: {name} is {peer.status}")

    async def end(self) -> list[str]:
        """Return the peers that some presence did not receive."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return self.missing
