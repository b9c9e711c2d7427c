"""A whole ring in one process: nodes that die, freeze and come back; a network and a log that fail.

Everything random comes from one seeded generator, everything timed from the virtual clock, so a
seed replays a run exactly.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from dmq import Cursor, Entry, Json, LogUnavailableError, Record
from dmq.memory import MemoryLog, MemoryStore
from haproc.classify.model import WriteConcern
from haproc.config.model import Address, Limits, Membership, Timeouts, Trim, Writes
from haproc.membership.insync import Place, places
from haproc.membership.links import HEARTBEAT_PATH
from haproc.membership.members import Members, Own
from haproc.membership.messages import Beat, Report
from haproc.membership.peers import PeerUnavailableError
from haproc.membership.roster import Member
from haproc.membership.state import State
from haproc.replicate.agree.assurance import Assurance
from haproc.replicate.member.core import Core
from haproc.replicate.member.identity import Identity
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import Outcome, Status
from haproc.replicate.records.operation import Operation
from haproc.replicate.replica import Replica
from haproc.replicate.trim.trimmer import Trimmer
from tests.simulation.spark import SimEngine, SimSpark

T = TypeVar("T")
MEMBERSHIP = Membership(
    heartbeat_interval_s=0.5, window_s=5, check_interval_s=0.5, report_interval_s=2
)
LIMITS = Limits(lanes=3, look_ahead_records_max=40, batch_operations_max=8, window_records=5000)
TRIM = Trim(interval_s=1.0, keep_records=0, keep_s=0)
"""Everything goes that may go."""
TIMEOUTS = Timeouts(
    apply_s=60, probe_interval_s=0.5, takeover_s=2, peer_s=0.5, fanout_s=5, give_up_after_s=5
)


@dataclass
class Weather:
    """How bad things are at the moment; all are rates per call."""

    step_crash_rate: float = 0.0
    peer_loss_rate: float = 0.0
    peer_copy_rate: float = 0.0
    log_away: bool = False
    log_error_rate: float = 0.0
    delay_s: float = 0.01


def unix_ms() -> int:
    """Return what every clock shows."""
    return int(asyncio.get_running_loop().time() * 1000) + 1_790_000_000_000


def member_of(name: str) -> Member:
    """Return a node as a member of the ring."""
    return Member(name, Address(name, 1), f"http://{name}:8080")


class Refused(Exception):
    """Nobody listens there."""


class Node:
    """A cluster and its HAProcs: processes come and go, the cluster's tables stay.

    One process is the node's own; others that it replaced may still be there, frozen.
    """

    def __init__(self, ring: Ring, name: str) -> None:
        self.ring = ring
        self.name = name
        self.spark = SimSpark(name, ring.rng)
        self.incarnation = 0
        self.drained = False
        """An operator's word, which outlives processes."""
        self.life: Life | None = None
        self.replaced: list[Life] = []

    def start(self) -> None:
        """Start a process, if none runs."""
        if self.life is None:
            self.incarnation += 1
            self.life = Life(self, self.incarnation)

    def replace(self) -> Life | None:
        """Start another process beside the one that runs; return that one."""
        earlier, self.life = self.life, None
        if earlier is not None:
            self.replaced.append(earlier)
        self.start()
        return earlier

    def kill(self) -> None:
        """kill -9: nothing is cleaned up, nobody is told."""
        if self.life is not None:
            self.life.kill()
            self.life = None

    def drain(self, *, drained: bool) -> None:
        """haproc drain, or undrain."""
        self.drained = drained
        if self.life is not None:
            self.life.replica.core.drain(drained=drained)

    def freeze(self) -> None:
        """SIGSTOP."""
        if self.life is not None:
            self.life.thawed.clear()

    def thaw(self) -> None:
        """SIGCONT, also to those that were replaced."""
        for life in (self.life, *self.replaced):
            if life is not None:
                life.thaw()

    @property
    def alive(self) -> bool:
        """Whether the node has a process."""
        return self.life is not None

    @property
    def replica(self) -> Replica | None:
        """What runs in the node's own process."""
        return self.life.replica if self.life is not None else None

    async def call(self, work: Callable[[Replica], Awaitable[T]]) -> T:
        """Call the node over the network; it may die meanwhile."""
        if self.life is None:
            raise Refused
        return await self.life.call(work)


class Life:
    """One process of a node. What it does to the world passes through here.

    It does nothing while it is frozen, and nothing more once it is dead.
    """

    def __init__(self, node: Node, incarnation: int) -> None:
        self.node = node
        self.incarnation = incarnation
        self.died = asyncio.Event()
        self.thawed = asyncio.Event()
        self.thawed.set()
        self._checks_left: int | None = None
        self._unread: list[tuple[str, Mapping[str, Any]]] = []
        ring = node.ring
        core = Core(
            ring.identity(node.name, f"{node.name}{incarnation}"),
            SimLog(ring, self),
            SimEngine(node.spark, self.check),  # type: ignore[arg-type]  # has not all of it
            SimPeers(ring, self),
            ring.limits,
            TIMEOUTS,
            trace=self.trace,
            on_state=self._state_changed,
            tell=self._tell,
            unix_ms=unix_ms,
        )
        core.drain(drained=node.drained)
        self.replica = Replica(core)
        self._lines = SimLines(ring, self, core.identity.peers)
        self.members = Members(
            MEMBERSHIP,
            (node.name, core.identity.incarnation),
            tuple(core.identity.peers),
            self._lines,
            self._describe,
            on_isolated=core.isolate,
        )
        self.assurance = Assurance(core, ring.writes, MEMBERSHIP, self._places)
        self.replica.admission.on_members = self._follow
        self.trimmer = Trimmer(core, self.replica.admission, ring.trim, self.members.ready)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self.replica.run()),
            loop.create_task(self._beat()),
            loop.create_task(self.trimmer.run()),
        ]
        for task in self._tasks:
            task.add_done_callback(ring.ended)

    def _follow(self, members: Sequence[Member]) -> None:
        names = [member.name for member in members]
        self.members.follow(names)
        self._lines.follow(name for name in names if name != self.node.name)

    async def _beat(self) -> None:
        while True:
            await self.thawed.wait()
            self.members.tick()
            await asyncio.sleep(MEMBERSHIP.heartbeat_interval_s)

    def _describe(self) -> Own:
        replica, core = self.replica, self.replica.core
        low, seen, lost = core.schedule.low, core.log_seen, core.log_lost
        return Own(core.state, "-", core.epoch + 1, low, replica.log_end, seen, lost)

    def _places(self) -> dict[str, Place]:
        own, limit = self._describe(), self.node.ring.in_sync_lag_max
        peers, unheard = self.members.judged(), self.members.unheard()
        return places(self.node.name, own.state, own.cursor, own.log_end, peers, unheard, limit)

    def _tell(self) -> None:
        if self.thawed.is_set() and not self.died.is_set():
            self.members.report_now()

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
        """End, as a process does that was replaced."""
        if self.node.life is self:
            self.node.life = None
        else:
            self.node.replaced.remove(self)
        self.kill()

    def thaw(self) -> None:
        self._checks_left = None
        self.thawed.set()
        unread, self._unread = self._unread, []
        for path, body in unread:
            self.told(path, body)

    def freeze_after(self, checks: int) -> None:
        """Freeze at one of the next moments at which the process touches the world outside."""
        self._checks_left = checks

    async def check(self) -> None:
        """Go no further if this process is dead or frozen."""
        if self._checks_left is not None:
            self._checks_left -= 1
            if self._checks_left < 0:
                self._checks_left = None
                self.thawed.clear()
        await self.thawed.wait()
        if self.died.is_set():
            await asyncio.get_running_loop().create_future()

    def told(self, path: str, body: Mapping[str, Any]) -> None:
        """A peer's heartbeat or report arrives; a frozen process finds it when it wakes up."""
        if self.died.is_set():
            return
        if not self.thawed.is_set():
            self._unread.append((path, body))
            return
        values = {**body, "state": State(body["state"])}
        if path == HEARTBEAT_PATH:
            self.members.heartbeat(Beat(**{**values, "hears": tuple(body["hears"])}))
        else:
            self.members.report(Report(**values))

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
        answer = await work(self.replica)
        await self.thawed.wait()
        return answer


class SimLog:
    """The shared log as one incarnation reaches it."""

    def __init__(self, ring: Ring, life: Life) -> None:
        self._ring = ring
        self._life = life
        self._log = MemoryLog(ring.store)

    async def _reach(self, call: Callable[[], Awaitable[T]]) -> T:
        ring = self._ring
        await self._life.check()
        await asyncio.sleep(ring.rng.uniform(0, ring.weather.delay_s))
        await self._life.check()
        cut = self._life.node.name in ring.cut | ring.cut_from_log
        if cut or ring.weather.log_away or ring.rng.random() < ring.weather.log_error_rate / 2:
            raise LogUnavailableError("away")
        result = await call()
        await self._life.check()
        if ring.rng.random() < ring.weather.log_error_rate / 2:
            raise LogUnavailableError("the answer was lost")
        return result

    async def append(self, records: Sequence[Record]) -> list[int]:
        return await self._reach(lambda: self._log.append(records))

    async def read(
        self, start: int, *, records_max: int = 1024, bytes_max: int = 16 << 20
    ) -> list[Entry]:
        return await self._reach(lambda: self._log.read(start, records_max=records_max))

    async def wait(self, offset: int, timeout_s: float) -> bool:
        await self._life.check()
        return await self._log.wait(offset, timeout_s)

    async def start(self) -> int:
        return await self._reach(self._log.start)

    async def end(self) -> int:
        return await self._reach(self._log.end)

    async def load_cursor(self, reader: str) -> Cursor | None:
        return await self._reach(lambda: self._log.load_cursor(reader))

    async def commit_cursor(self, reader: str, cursor: Cursor) -> None:
        await self._reach(lambda: self._log.commit_cursor(reader, cursor))

    async def cursors(self) -> Mapping[str, Cursor]:
        return await self._reach(self._log.cursors)

    async def trim(self, before: int) -> None:
        await self._reach(lambda: self._log.trim(before))
        self._ring.trimmed(self._life.node.name, before)

    async def identity(self) -> str:
        return await self._reach(self._log.identity)

    async def close(self) -> None:
        await self._log.close()


class SimPeers:
    """Calls between nodes: lost on the way there or back, delayed, delivered twice."""

    def __init__(self, ring: Ring, life: Life) -> None:
        self._ring = ring
        self._life = life

    def given_up(self, peer: str) -> bool:
        return self._life.members.given_up(peer)

    async def _call(
        self,
        peer: str,
        timeout_s: float,
        work: Callable[[Replica], Awaitable[Mapping[str, Json]]],
    ) -> Mapping[str, Json]:
        ring, node = self._ring, self._ring.nodes.get(peer)
        await self._life.check()
        if node is None:
            raise PeerUnavailableError(peer)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.sleep(ring.rng.uniform(0, ring.weather.delay_s))
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
    ) -> Mapping[str, Json]:
        return await self._call(
            peer, timeout_s, lambda replica: replica.apply_now(offset, operation_id, timeout_s)
        )

    async def outcome(self, peer: str, offset: int, timeout_s: float) -> Mapping[str, Json]:
        return await self._call(peer, timeout_s, lambda replica: replica.outcome(offset))

    async def progress(self, peer: str, seen: str, timeout_s: float) -> Mapping[str, Json]:
        return await self._call(
            peer, timeout_s + 0.5, lambda replica: replica.progress(seen, timeout_s)
        )

    async def status(self, peer: str, timeout_s: float) -> Mapping[str, Json]:
        async def status(replica: Replica) -> Mapping[str, Json]:
            return replica.status()

        return await self._call(peer, timeout_s, status)


class SimLines:
    """Heartbeats and reports between nodes: late, lost, or not on their way at all."""

    def __init__(self, ring: Ring, life: Life, peers: Iterable[str]) -> None:
        self._ring = ring
        self._life = life
        self._sign_at = dict.fromkeys(peers, 0.0)

    def follow(self, peers: Iterable[str]) -> None:
        """Go by these peers from now on."""
        self._sign_at = {name: self._sign_at.get(name, 0.0) for name in peers}

    def send(self, path: str, body: Mapping[str, Json]) -> None:
        ring, loop = self._ring, asyncio.get_running_loop()
        for name in self._sign_at:
            life = ring.nodes[name].life if name in ring.nodes else None
            if not ring.joined(self._life.node.name, name):
                continue
            if life is None or life.thawed.is_set():
                self._sign_at[name] = loop.time()  # an answer, or a refusal
            if life is not None and ring.beats_rng.random() >= ring.weather.peer_loss_rate / 2:
                delay_s = ring.beats_rng.uniform(0, ring.weather.delay_s)
                loop.call_later(delay_s, life.told, path, body)

    def silent(self) -> frozenset[str]:
        now = asyncio.get_running_loop().time()
        return frozenset(n for n, at in self._sign_at.items() if now - at > MEMBERSHIP.window_s)


class KeepingStore(MemoryStore):
    """Remembers what was trimmed, too, for checkers."""

    def __init__(self) -> None:
        super().__init__()
        self.everything: list[bytes] = []
        """By offset."""

    def append_stored(self, encoded: Sequence[bytes]) -> list[int]:
        self.everything.extend(encoded)
        return super().append_stored(encoded)


class Ring:
    """The nodes, their log, and the weather."""

    def __init__(self, seed: int, size: int = 3, limits: Limits = LIMITS) -> None:
        self.rng = random.Random(seed)
        self.beats_rng = random.Random(f"{seed}/beats")
        """Apart, so that heartbeats change nothing else in a run."""
        self.cut: set[str] = set()
        """Nodes that reach neither the log nor anybody else."""
        self.cut_from_log: set[str] = set()
        """Nodes that reach each other, but not the log."""
        self.limits = limits
        self.writes = Writes()
        self.in_sync_lag_max = MEMBERSHIP.in_sync_lag_max
        self.trim = TRIM
        self.trims = 0
        self.weather = Weather()
        self.store = KeepingStore()
        self.names = tuple("abcdefg"[:size])
        self.nodes = {name: Node(self, name) for name in self.names}
        self.steps: dict[Step, int] = {}
        self.history: list[str] = []
        self.errors: list[BaseException] = []
        self.on_step: Callable[[Node, Step], None] = lambda node, step: None
        """Called whenever a node reaches a step; it may kill or freeze the node there."""
        self.on_state: Callable[[Life, State, str], None] = lambda life, state, reason: None
        """Called whenever a process changes its state."""

    def joined(self, one: str, other: str) -> bool:
        """Whether there is a way between two nodes."""
        return not {one, other} & self.cut

    def identity(self, name: str, incarnation: str) -> Identity:
        """Return who a process is; its configuration names itself and those of the beginning."""
        names = tuple(sorted({*self.names, name}))
        founders = tuple(member_of(each) for each in names)
        return Identity("ring", name, incarnation, names, founders)

    def add(self, name: str) -> Node:
        """Put another cluster beside the others, empty; the ring has yet to take it."""
        self.nodes[name] = Node(self, name)
        return self.nodes[name]

    def trimmed(self, name: str, before: int) -> None:
        """Somebody trimmed the log."""
        self.trims += 1
        self.note(f"{name} trims to {before}")

    def note(self, what: str) -> None:
        """Remember what happened, for the report of a failed run."""
        self.history.append(f"{asyncio.get_running_loop().time():9.3f} {what}")

    def ended(self, task: asyncio.Task[None]) -> None:
        """A replica ended; unless it was killed, that is a bug."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.append(error)

    async def submit(
        self, name: str, operation: Operation, timeout_s: float, age_s: float = 0
    ) -> tuple[int, Outcome]:
        """A client's request to one node; its age is what the client says."""

        async def work(replica: Replica) -> tuple[int, Outcome]:
            if not replica.serving:
                raise replica.unavailable()
            since = replica.since(age_s)
            op = replace(operation, since=since, created_ms=unix_ms())
            return await replica.submit(op, timeout_s)

        return await self.nodes[name].call(work)

    async def assured(
        self, name: str, operation: Operation, concern: WriteConcern, timeout_s: float
    ) -> tuple[int, Mapping[str, str]]:
        """A client's write of some concern, as the service makes it of its parts.

        Returns the offset, and who had applied it when the answer left.
        """
        life = self.nodes[name].life
        if life is None:
            raise Refused
        assurance = life.assurance

        async def work(replica: Replica) -> tuple[int, Mapping[str, str]]:
            deadline_s = asyncio.get_running_loop().time() + timeout_s
            assurance.check(concern, operation.key)
            op = replace(operation, since=replica.since(), created_ms=unix_ms())
            offset, outcome = await replica.submit(op, timeout_s)
            assert outcome.status is Status.APPLIED
            return offset, await assurance.fulfil(offset, concern, deadline_s)

        return await life.call(work)

    async def settled(self, timeout_s: float = 600) -> None:
        """Wait until every node is READY and has applied the whole log."""
        async with asyncio.timeout(timeout_s):
            while not all(self.settled_node(node) for node in self.nodes.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.5)

    def settled_node(self, node: Node) -> bool:
        """Whether a node is READY and has applied the whole log."""
        if node.replica is None:
            return False
        core = node.replica.core
        return core.state is State.READY and core.schedule.low == self.store.end
