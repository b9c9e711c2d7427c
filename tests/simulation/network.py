"""The network between the nodes of a simulated ring: requests, heartbeats and reports."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from haproc.membership.peers import (
    CopyAnswer,
    CopyQuestion,
    Member,
    PeerOutcome,
    PeerProgress,
    PeerStatus,
    PeerUnavailableError,
)
from haproc.membership.state import PeerMessage
from haproc.replicate.replica import Replica

if TYPE_CHECKING:
    from tests.simulation.life import Life
    from tests.simulation.ring import Ring


T = TypeVar("T")


class Refused(Exception):
    """Nobody listens there."""


class SimPeers:
    """Calls between nodes: lost on the way there or back, delayed, or delivered twice."""

    def __init__(self, ring: Ring, life: Life) -> None:
        self._ring = ring
        self._life = life

    def is_gone(self, peer: str) -> bool:
        return self._life.member.members.is_gone(peer)

    async def _call(
        self,
        peer: str,
        timeout_s: float,
        work: Callable[[Replica], Awaitable[T]],
    ) -> T:
        ring, node = self._ring, self._ring.nodes.get(peer)
        await self._life.check()
        if node is None:
            raise PeerUnavailableError(peer)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.sleep(ring.delay_s(self._life.node.name))
                if not ring.joined(self._life.node.name, peer):
                    await asyncio.sleep(timeout_s)
                if ring.rng.random() < ring.weather.peer_loss_rate:
                    await asyncio.sleep(timeout_s)
                if ring.rng.random() < ring.weather.peer_copy_rate:
                    await node.call(work)
                answer = await node.call(work)
                if ring.rng.random() < ring.weather.peer_loss_rate:
                    await asyncio.sleep(timeout_s)
        except (Refused, TimeoutError) as error:
            raise PeerUnavailableError(peer) from error
        await self._life.check()
        return answer

    async def apply_now(
        self, peer: str, offset: int, operation_id: str, timeout_s: float
    ) -> PeerOutcome:
        return await self._call(
            peer, timeout_s, lambda replica: replica.apply_now(offset, operation_id, timeout_s)
        )

    async def outcome(self, peer: str, offset: int, timeout_s: float) -> PeerOutcome:
        return await self._call(peer, timeout_s, lambda replica: replica.outcome(offset))

    async def progress(self, peer: str, seen: str, timeout_s: float) -> PeerProgress:
        return await self._call(
            peer, timeout_s + 0.5, lambda replica: replica.progress(seen, timeout_s)
        )

    async def copy(
        self, peer: str, question: CopyQuestion, timeout_s: float
    ) -> tuple[CopyAnswer, bytes]:
        async def copy(replica: Replica) -> tuple[CopyAnswer, bytes]:
            answer, data = await replica.copy(question)
            return msgspec.json.decode(msgspec.json.encode(answer), type=CopyAnswer), data

        return await self._call(peer, min(timeout_s, 5), copy)

    async def status(self, peer: str, timeout_s: float) -> PeerStatus:
        async def status(replica: Replica) -> PeerStatus:
            return replica.status()

        return await self._call(peer, timeout_s, status)


class SimLines:
    """Heartbeats and reports between nodes: late, lost, or not sent at all."""

    def __init__(self, ring: Ring, life: Life, peers: Iterable[str]) -> None:
        self._ring = ring
        self._life = life
        self._sign_at = dict.fromkeys(peers, 0.0)

    def follow(self, members: Iterable[Member]) -> None:
        """Send to these members from now on."""
        names = [each.name for each in members if each.name != self._life.node.name]
        self._sign_at = {name: self._sign_at.get(name, 0.0) for name in names}

    def send(self, message: PeerMessage) -> None:
        ring, loop = self._ring, asyncio.get_running_loop()
        if not self._life.awake:
            return
        for name in self._sign_at:
            life = ring.nodes[name].life if name in ring.nodes else None
            if not ring.joined(self._life.node.name, name):
                continue
            if life is None or life.thawed.is_set():
                self._sign_at[name] = loop.time()  # an answer, or a refusal
            if life is not None and ring.beats_rng.random() >= ring.weather.peer_loss_rate / 2:
                delay_s = ring.beats_rng.uniform(0, ring.weather.delay_s)
                loop.call_later(delay_s, life.receive_message, message)

    def silent(self) -> frozenset[str]:
        now, window_s = asyncio.get_running_loop().time(), self._ring.config.membership.window_s
        return frozenset(n for n, at in self._sign_at.items() if now - at > window_s)
