"""A whole ring in one process: nodes that die, freeze and return; a faulty network and log.

All random values come from one seeded generator, all times from the virtual clock, so a seed
replays a run exactly.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from string import ascii_letters
from typing import Any, TypeVar

from dmq import MemoryKeys
from haproc.classify.model import WriteConcern
from haproc.config.model import (
    Address,
    ClusterConfig,
    Config,
    Membership,
    OnForeignWrite,
    Prefixes,
    Reads,
    Timeouts,
    Trim,
)
from haproc.config.sections import Limits
from haproc.engine.interface import EngineAddress
from haproc.membership.state import State
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus
from haproc.replicate.records.operation import Operation
from haproc.replicate.replica import Replica
from tests.simulation.life import Life, as_made
from tests.simulation.log import KeepingStore
from tests.simulation.network import Refused
from tests.simulation.places import Places
from tests.simulation.spark import SimSpark

T = TypeVar("T")
MEMBERSHIP = Membership(
    heartbeat_interval_s=0.5, window_s=5, check_interval_s=0.5, report_interval_s=2
)
LIMITS = Limits(
    lanes=3, look_ahead_records_max=40, batch_operations_max=8, window_records=5000, part_rows_max=2
)
TRIM = Trim(interval_s=1.0, keep_records=0, keep_s=0)
"""Trims everything that is not needed."""
TIMEOUTS = Timeouts(
    apply_s=60, probe_interval_s=0.5, takeover_s=2, peer_s=0.5, fanout_s=5, give_up_after_s=5
)


@dataclass
class Weather:
    """The present faults; all are rates per call."""

    step_crash_rate: float = 0.0
    peer_loss_rate: float = 0.0
    peer_copy_rate: float = 0.0
    log_away: bool = False
    log_error_rate: float = 0.0
    delay_s: float = 0.01


READS = Reads(wait_s=4)


def cluster_of(name: str) -> ClusterConfig:
    """Return a node's configuration."""
    return ClusterConfig(name, Address(name, 8080), Address(name, 1), EngineAddress(name, 1))


def config_of(names: Iterable[str], **fields: Any) -> Config:
    """Return the configuration of a ring of these nodes."""
    return Config("ring", "memory:", tuple(map(cluster_of, names)), "secret", **fields)


class Node:
    """A cluster and its HAProcs: processes come and go, the cluster's tables stay.

    One process is the node's own; others that it replaced may still exist, frozen.
    """

    def __init__(self, ring: Ring, name: str) -> None:
        self.ring = ring
        self.name = name
        self.spark = SimSpark(name, ring.rng)
        self.spark.places = ring.places
        self.incarnation = 0
        self.drained = False
        """An operator's drain, which outlives processes."""
        self.life: Life | None = None
        self.replaced: list[Life] = []

    def start(self) -> None:
        """Start a process, if none runs."""
        if self.life is None:
            self.incarnation += 1
            self.life = Life(self, self.incarnation)

    def replace(self) -> Life | None:
        """Start another process beside the running one; return the earlier one."""
        earlier, self.life = self.life, None
        if earlier is not None:
            self.replaced.append(earlier)
        self.start()
        return earlier

    def kill(self) -> None:
        """kill -9: nothing is cleaned up, and no peer is informed."""
        if self.life is not None:
            self.life.kill()
            self.life = None

    def restart(self) -> None:
        """Kill the process, and start another one."""
        self.kill()
        self.start()

    def drain(self, *, drained: bool) -> None:
        """haproc drain, or undrain."""
        self.drained = drained
        if self.life is not None:
            self.life.member.core.condition.drain(drained=drained)

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
        """True if the node has a process."""
        return self.life is not None

    @property
    def replica(self) -> Replica | None:
        """The replica in the node's own process."""
        return self.life.member.replica if self.life is not None else None

    def running(self) -> Life:
        """Return the node's own process; Refused if there is none."""
        if self.life is None:
            raise Refused
        return self.life

    async def call(self, work: Callable[[Replica], Awaitable[T]]) -> T:
        """Call the node over the network; it may die meanwhile."""
        return await self.running().call(work)


class Ring:
    """The nodes, their log, and the weather."""

    def __init__(self, seed: int, size: int = 3, limits: Limits = LIMITS) -> None:
        self.rng = random.Random(seed)
        self.beats_rng = random.Random(f"{seed}/beats")
        """Separate, so that heartbeats change nothing else in a run."""
        self.cut: set[str] = set()
        """Nodes that reach neither the log nor other nodes."""
        self.cut_from_log: set[str] = set()
        """Nodes that reach each other, but not the log."""
        self.names = tuple(ascii_letters[:size])
        self.config = config_of(
            self.names,
            limits=limits,
            timeouts=TIMEOUTS,
            on_foreign_write=OnForeignWrite.IGNORE,
            membership=MEMBERSHIP,
            trim=TRIM,
            reads=READS,
        )
        """The configuration of processes that start from now on."""
        self.storage: dict[str, Prefixes] = {}
        """The paths of clusters to each other's files, for such processes."""
        self.trims = 0
        self.weather = Weather()
        self.store = KeepingStore()
        self.keyed = MemoryKeys()
        self.places = Places()
        self.nodes = {name: Node(self, name) for name in self.names}
        self.steps: dict[Step, int] = {}
        self.history: list[str] = []
        self.errors: list[BaseException] = []
        self.on_step: Callable[[Node, Step], None] = lambda node, step: None
        """Called at each step of a node; it may kill or freeze the node there."""
        self.on_state: Callable[[Life, State, str], None] = lambda life, state, reason: None
        """Called at each change of a process's state."""

    def delay_s(self, name: str) -> float:
        """Return the transit time of a call of this node."""
        return self.rng.uniform(0, self.weather.delay_s)

    def order(self, number: int) -> list[str]:
        """Return the nodes in the order in which a client goes to them at first."""
        at = number % len(self.names)
        return [*self.names[at:], *self.names[:at]]

    def joined(self, one: str, other: str) -> bool:
        """Return whether two nodes can reach each other."""
        return not {one, other} & self.cut

    def configure(self, **changes: Any) -> None:
        """Change the configuration of processes that start from now on."""
        self.config = replace(self.config, **changes)

    def config_of(self, name: str) -> Config:
        """Return a process's configuration; it contains itself and the founders."""
        names = sorted({*self.names, name})
        known = (replace(cluster_of(each), storage=self.storage.get(each, ())) for each in names)
        return replace(self.config, clusters=tuple(known))

    def add(self, name: str) -> Node:
        """Add another, empty cluster; the ring has yet to admit it."""
        self.nodes[name] = Node(self, name)
        return self.nodes[name]

    def trimmed(self, name: str, before: int) -> None:
        """Record that a node trimmed the log."""
        self.trims += 1
        self.note(f"{name} trims to {before}")

    def note(self, what: str) -> None:
        """Record an event, for the report of a failed run."""
        self.history.append(f"{asyncio.get_running_loop().time():9.3f} {what}")

    def ended(self, task: asyncio.Task[None]) -> None:
        """Record the error of a replica that ended; unless it was killed, that is a bug."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.append(error)

    async def submit(
        self, name: str, operation: Operation, timeout_s: float, age_s: float = 0
    ) -> tuple[int, OperationOutcome]:
        """Send a client's request to one node; its age is the client's statement."""

        async def work(replica: Replica) -> tuple[int, OperationOutcome]:
            if not replica.serving:
                raise replica.writes.unavailable()
            since = replica.writes.since(age_s)
            op = as_made(operation, since)
            await replica.writes.clear(op, timeout_s)
            return await replica.writes.submit(op, timeout_s)

        return await self.nodes[name].call(work)

    async def assured(
        self, name: str, operation: Operation, concern: WriteConcern, timeout_s: float
    ) -> tuple[int, Mapping[str, str]]:
        """Send a client's write with a write concern, as the service does.

        Return the offset, and the clusters that had applied it when the answer left.
        """
        life = self.nodes[name].running()
        assurance = life.member.assurance

        async def work(replica: Replica) -> tuple[int, Mapping[str, str]]:
            deadline_s = asyncio.get_running_loop().time() + timeout_s
            assurance.check(concern, operation.key)
            op = as_made(operation, replica.writes.since())
            offset, outcome = await replica.writes.submit(op, timeout_s)
            assert outcome.status is OutcomeStatus.APPLIED
            return offset, await assurance.fulfil(offset, concern, deadline_s)

        return await life.call(work)

    async def begin(self) -> None:
        """Start every node, and wait until all serve."""
        for node in self.nodes.values():
            node.start()
        await self.settled()

    async def settled(self, timeout_s: float = 600) -> None:
        """Wait until every node is READY and has applied the whole log."""
        async with asyncio.timeout(timeout_s):
            while not all(self.settled_node(node) for node in self.nodes.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.5)

    def settled_node(self, node: Node) -> bool:
        """Return whether a node is READY and has applied the whole log."""
        if node.replica is None:
            return False
        core = node.replica.core
        return core.condition.state is State.READY and core.schedule.low == self.store.end
