"""One process of a simulated ring: a real member; its log, peers and cluster are simulated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from haproc.membership.members import Members
from haproc.membership.state import Beat, PeerMessage, State
from haproc.node.member import Observers, World, build_member
from haproc.replicate.log_state.definitions import redefined_by
from haproc.replicate.member.steps import Step
from haproc.replicate.records.operation import Operation
from haproc.replicate.replica import Replica
from tests.simulation.log import SimKeyedStore, SimLog
from tests.simulation.network import Refused, SimLines, SimPeers
from tests.simulation.spark import SimEngine

if TYPE_CHECKING:
    from tests.simulation.ring import Node

T = TypeVar("T")


def as_made(op: Operation, since: int) -> Operation:
    """Return the operation as `haproc.route.making` makes it, for a request of that age."""
    return replace(op, since=since, created_ms=unix_ms(), redefines=redefined_by(op))


def unix_ms() -> int:
    """Return the time of every clock."""
    return int(asyncio.get_running_loop().time() * 1000) + 1_790_000_000_000


class Life:
    """One process of a node; all its side effects pass through here.

    It does nothing while it is frozen, and nothing more once it is dead.
    """

    def __init__(self, node: Node, incarnation: int) -> None:
        self.node = node
        self.incarnation = incarnation
        self.died = asyncio.Event()
        self.thawed = asyncio.Event()
        self.thawed.set()
        self._checks_left: int | None = None
        self._unread: list[PeerMessage] = []
        ring, name = node.ring, node.name
        config = ring.config_of(name)
        peers = tuple(cluster.name for cluster in config.clusters if cluster.name != name)
        self._beat_s = config.membership.heartbeat_interval_s
        members = Members(
            config.membership,
            (name, f"{name}{incarnation}"),
            peers,
            SimLines(ring, self, peers),
            unix_ms,
        )
        engine: Any = SimEngine(node.spark, self.check)  # has not all of it
        world = self.world = World(
            SimLog(ring, self),
            SimKeyedStore(ring, self),
            engine,
            SimPeers(ring, self),
            members,
            self.trace,
            unix_ms,
        )
        self.member = build_member(config, world, Observers(on_state=self._state_changed))
        self.member.replica.operators.on_rebuild = self._begin_anew
        self.member.core.condition.drain(drained=node.drained)
        self._tasks = [*self.member.start(), asyncio.ensure_future(self._beat())]
        for task in self._tasks:
            task.add_done_callback(ring.ended)

    async def _beat(self) -> None:
        while True:
            await self.thawed.wait()
            self.member.members.tick()
            await asyncio.sleep(self._beat_s)

    @property
    def awake(self) -> bool:
        """True if it can do anything."""
        return self.thawed.is_set() and not self.died.is_set()

    def kill(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.died.set()
        self.thawed.set()

    def _state_changed(self, state: State, reason: str) -> None:
        self.node.ring.on_state(self, state, reason)
        if state is State.FENCED:
            asyncio.get_running_loop().call_soon(self._exit)

    def _exit(self) -> None:
        """End, like a process that was replaced."""
        if self.node.life is self:
            self.node.life = None
        else:
            self.node.replaced.remove(self)
        self.kill()

    def _begin_anew(self) -> None:
        """End, and start another process, like a HAProc that is to be rebuilt."""

        def again() -> None:
            if self.node.life is self:
                self.node.restart()

        asyncio.get_running_loop().call_later(0.1, again)

    def thaw(self) -> None:
        self._checks_left = None
        self.thawed.set()
        unread, self._unread = self._unread, []
        for message in unread:
            self.receive_message(message)

    def freeze_after(self, checks: int) -> None:
        """Freeze at one of the next moments at which the process has a side effect."""
        self._checks_left = checks

    async def check(self) -> None:
        """Wait while this process is frozen; never return once it is dead."""
        if self._checks_left is not None:
            self._checks_left -= 1
            if self._checks_left < 0:
                self._checks_left = None
                self.thawed.clear()
        await self.thawed.wait()
        if self.died.is_set():
            await asyncio.get_running_loop().create_future()

    def receive_message(self, message: PeerMessage) -> None:
        """Receive a peer's heartbeat or report; a frozen process gets it when it wakes up."""
        if self.died.is_set():
            return
        if not self.thawed.is_set():
            self._unread.append(message)
        elif isinstance(message, Beat):
            self.member.members.heartbeat(message)
        else:
            self.member.members.report(message)

    async def trace(self, step: Step) -> None:
        ring = self.node.ring
        await self.check()
        ring.steps[step] = ring.steps.get(step, 0) + 1
        ring.on_step(self.node, step)
        await self.check()
        if ring.rng.random() < ring.weather.step_crash_rate:
            ring.note(f"{self.node.name} dies at {step}")
            self.node.kill()
            await self.check()

    async def call(self, work: Callable[[Replica], Awaitable[T]]) -> T:
        died, call = (
            asyncio.ensure_future(self.died.wait()),
            asyncio.ensure_future(self._answer(work)),
        )
        try:
            await asyncio.wait([died, call], return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise Refused
            return call.result()
        finally:
            for task in (died, call):
                task.cancel()
            await asyncio.gather(died, call, return_exceptions=True)

    async def _answer(self, work: Callable[[Replica], Awaitable[T]]) -> T:
        await self.thawed.wait()
        answer = await work(self.member.replica)
        await self.thawed.wait()
        return answer
