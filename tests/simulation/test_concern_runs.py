"""Tests of write concerns under kills and freezes: seeded runs, and rules broken on purpose."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace

import pytest

from haproc.classify.model import WriteConcern
from haproc.failure import RequestError
from haproc.membership.peers import PeerProgress
from haproc.membership.state import State
from haproc.replicate.agree.assurance import ConcernJudgement, Requirement
from tests.simulation.broken import BreakRule
from tests.simulation.clock import run
from tests.simulation.directed import ddl
from tests.simulation.life import Life
from tests.simulation.network import Refused
from tests.simulation.ring import MEMBERSHIP, Node, Ring
from tests.simulation.scenario import insert
from tests.simulation.seeds import SEEDS
from tests.simulation.test_concern import ALL, MAJORITY, holds
from tests.simulation.violations import Problem, Violation, found_in

SERVED_S = 2 * MEMBERSHIP.window_s
"""A cluster that has served so long without a break is in sync for all its peers."""


@dataclass
class Verdict:
    """The results of a run."""

    problems: list[Problem] = field(default_factory=list)
    acknowledged: dict[WriteConcern, int] = field(default_factory=dict)
    kills: int = 0


class Watch:
    """The time since which each node serves clients, seen by an observer outside of the ring."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self.since: dict[str, float] = {}
        self._lives: dict[str, Life | None] = {}

    async def run(self) -> None:
        while True:
            for name, node in self._ring.nodes.items():
                life = node.life
                core = life.member.core if life is not None else None
                up = core is not None and core.condition.state in (State.READY, State.READ_ONLY)
                frozen = life is not None and not life.thawed.is_set()
                if not up or frozen or self._lives.get(name) is not life:
                    self.since.pop(name, None)
                else:
                    self.since.setdefault(name, asyncio.get_running_loop().time())
                self._lives[name] = life
            await asyncio.sleep(0.02)

    def serving(self) -> list[Node]:
        """Return the nodes that serve now and have served for at least SERVED_S."""
        now = asyncio.get_running_loop().time()
        return [
            self._ring.nodes[name] for name, since in self.since.items() if now - since > SERVED_S
        ]


class Run:
    """Clients that write with all concerns, while nodes die, freeze and return."""

    def __init__(self, seed: int) -> None:
        self.ring = Ring(seed)
        self.rng = random.Random(f"{seed}/concern")
        self.watch = Watch(self.ring)
        self.verdict = Verdict()
        self.writing = True

    async def client(self, number: int) -> None:
        for n in range(10):
            await asyncio.sleep(self.rng.expovariate(1))
            concern = self.rng.choice(list(WriteConcern))
            await self.write(f"c{number}n{n}", concern)

    async def write(self, op_id: str, concern: WriteConcern) -> None:
        for _ in range(30):
            name = self.rng.choice(self.ring.names)
            try:
                op = insert(op_id, "t", name)
                async with asyncio.timeout(20):
                    await self.ring.assured(name, op, concern, 15)
            except (Refused, TimeoutError, RequestError):
                await asyncio.sleep(self.rng.uniform(0.1, 1))
                continue
            self.judge(op_id, concern)
            return

    def judge(self, op_id: str, concern: WriteConcern) -> None:
        """Check the tables at the moment of the acknowledgement."""
        verdict = self.verdict
        verdict.acknowledged[concern] = verdict.acknowledged.get(concern, 0) + 1
        having = [name for name, node in self.ring.nodes.items() if holds(node, op_id)]
        if concern is MAJORITY and len(having) < 2:
            self.unfulfilled(f"{op_id} is on {having} alone")
        if concern is ALL:
            lacking = [n.name for n in self.watch.serving() if not holds(n, op_id)]
            for name in lacking:
                self.unfulfilled(f"{op_id} is not on {name}, which serves")

    def unfulfilled(self, text: str) -> None:
        self.verdict.problems.append(Problem(Violation.UNFULFILLED, text))

    async def nemesis(self) -> None:
        rng, call_later = self.rng, asyncio.get_running_loop().call_later
        while self.writing:
            await asyncio.sleep(rng.expovariate(0.25))
            node = self.ring.nodes[rng.choice(self.ring.names)]
            match rng.choice(("kill", "freeze", "spark", "slow")):
                case "kill":
                    node.kill()
                    call_later(rng.uniform(0.1, 10), node.start)
                case "freeze":
                    node.freeze()
                    call_later(rng.uniform(0.1, 10), node.thaw)
                case "spark":
                    node.spark.kill()
                    call_later(rng.uniform(0.1, 10), node.spark.restart)
                case "slow":
                    node.spark.held.add("t")
                    call_later(rng.uniform(0.1, 4), node.spark.held.clear)
            self.verdict.kills += 1

    async def main(self) -> Verdict:
        await self.ring.begin()
        await self.ring.submit("a", ddl("a"), 60)
        watch = asyncio.ensure_future(self.watch.run())
        await asyncio.sleep(2 * SERVED_S)
        nemesis = asyncio.ensure_future(self.nemesis())
        await asyncio.gather(*(self.client(n) for n in range(4)))
        self.writing = False
        await nemesis
        watch.cancel()
        return self.verdict


RUNS = range(SEEDS)


def test_acknowledged_writes_are_on_the_clusters_of_their_concern() -> None:
    verdicts = [run(Run(seed).main()) for seed in RUNS]
    assert [(seed, v.problems) for seed, v in zip(RUNS, verdicts, strict=True) if v.problems] == []
    for concern in WriteConcern:
        assert sum(v.acknowledged.get(concern, 0) for v in verdicts) > 5 * len(verdicts)
    assert sum(v.kills for v in verdicts) > 2 * len(verdicts)


# -- rules broken on purpose -------------------------------------------------------------------


def nobody_waits(patch: pytest.MonkeyPatch) -> None:
    """Answer as soon as the receiving cluster has the write."""
    patch.setattr(Requirement, "judge", lambda self, in_sync, applied: ConcernJudgement(True))


def read_is_taken_for_applied(patch: pytest.MonkeyPatch) -> None:
    """Count what a peer has read from the log as applied."""
    patch.setattr(PeerProgress, "applied", lambda self, offset: offset < self.known_to)


def all_is_taken_for_majority(patch: pytest.MonkeyPatch) -> None:
    """Wait for the required number of clusters, not for all in sync."""
    patch.setattr(Requirement, "needed", 2)
    original = Requirement.judge

    def judge(
        self: Requirement, in_sync: frozenset[str], applied: frozenset[str]
    ) -> ConcernJudgement:
        return original(replace(self, concern=MAJORITY), in_sync, applied)

    patch.setattr(Requirement, "judge", judge)


@pytest.mark.parametrize(
    "break_rule", [nobody_waits, read_is_taken_for_applied, all_is_taken_for_majority]
)
def test_rule_of_concerns_broken_on_purpose_is_found(
    break_rule: BreakRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)
    found_in((run(Run(seed).main()).problems for seed in range(40)), Violation.UNFULFILLED)
