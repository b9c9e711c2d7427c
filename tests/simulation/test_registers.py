"""Linearizable reads are linearizable, over many seeds; broken rules of reading are found.

Clients append to the lists under a few keys, and read them, while things break. The check is that
of the kill harness: an order of all appends and reads of a key must explain every read. It knows
only what the clients saw, neither the log nor the clusters.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Mapping, Sequence

import pytest

from haproc.config.model import Consistency
from haproc.route.model import Freshness, Request, SentSql
from tests.fault.torture.contradiction import contradiction
from tests.fault.torture.history import Verb
from tests.fault.torture.linearizability import Call, search
from tests.simulation.broken import BreakRule
from tests.simulation.clock import run
from tests.simulation.reads import Doors
from tests.simulation.scenario import KEYS, Report, Scenario
from tests.simulation.seeds import SEEDS
from tests.simulation.test_reads import end_known_before, nothing_waited_for
from tests.simulation.violations import Violation, found_in

pytestmark = pytest.mark.usefixtures("quiet")


class RegisterDoors(Doors):
    """Queries show the registers."""

    def shown(self, tables: Mapping[str, Sequence[tuple[object, ...]]]) -> frozenset[str]:
        """Return a text for each key: the key, then its elements."""
        return frozenset(f"{key}{history}" for key, history in tables.get("registers", []))


class RegisterScenario(Scenario):
    """See the module."""

    def __init__(self, seed: int, steps: int = 24, clients: int = 5) -> None:
        super().__init__(seed, writes_per_client=steps, clients=clients)
        self.read_rng = random.Random(f"{seed}/registers")
        self.doors = RegisterDoors(self.ring, self.read_rng)
        self.numbers: dict[str, int] = {}
        """The number of each write in the calls."""
        self.calls: dict[int, list[Call]] = {key: [] for key in range(KEYS)}
        self.reads = 0
        self.failovers = 0
        """The number of reads that another node answered than the one that received them first."""
        for node in self.ring.nodes.values():
            node.spark.statement_s = self.read_rng.choice((0, 0, 0.3, 1))

    async def client(self, number: int) -> None:
        """Write and read in turn."""
        order = self.ring.order(number)
        for n in range(self.writes_per_client):
            await asyncio.sleep(self.read_rng.expovariate(4))
            if self.read_rng.random() < 0.3:
                await self.append(f"c{number}n{n}", order)
            else:
                await self.look(number, order)

    async def append(self, op_id: str, order: list[str]) -> None:
        """Write once."""
        key = self.read_rng.randrange(KEYS)
        attempt = await self.attempt(op_id, "register", order, key)
        if attempt.acknowledged is False:
            return
        made = Call(Verb.APPEND, (self.number(op_id),), attempt.started_at, label=op_id)
        if attempt.acknowledged:
            made = Call(made.verb, made.values, made.invoked_s, attempt.ended_at, op_id)
        self.calls[key].append(made)

    async def look(self, number: int, order: list[str]) -> None:
        """Read all keys once, on the first node that answers."""
        wanted = Freshness(Consistency.LINEARIZABLE)
        request = Request("r", SentSql("SELECT"), "", freshness=wanted, timeout_s=6)
        began, first = self.now(), order[0]
        answer = await self.doors.ask_in_turn(order, request)
        if answer is None:
            return
        texts, report = answer
        self.reads += 1
        self.failovers += order[0] != first
        for text in texts:
            key, *ids = text.split(",")
            held = tuple(map(self.number, ids))
            label = f"client {number}'s read of {text} on {report.cluster}"
            self.calls[int(key)].append(Call(None, held, began, self.now(), label))

    def number(self, op_id: str) -> int:
        """Return what stands for a write."""
        return self.numbers.setdefault(op_id, len(self.numbers))

    def check(self, report: Report) -> None:
        """Look for an order."""
        super().check(report)
        for calls in self.calls.values():
            if not search(calls).possible:
                report.wrong(Violation.STALE, str(contradiction(calls)))


def simulate_registers(seed: int) -> tuple[Report, RegisterScenario]:
    """Run one seed; return what it came to, and the clients."""
    scenario = RegisterScenario(seed)
    return run(scenario.main()), scenario


def longest(scenarios: Sequence[RegisterScenario]) -> int:
    """Return the most operations that there were on a key."""
    calls = itertools.chain.from_iterable(each.calls.values() for each in scenarios)
    return max(map(len, calls))


# -- tests -------------------------------------------------------------------------------------

RUNS = SEEDS // 2


def test_registers_under_all_faults_are_linearizable() -> None:
    runs = [simulate_registers(seed) for seed in range(RUNS)]
    assert [(r.seed, r.problems[:3]) for r, _ in runs if r.problems] == []
    # The runs were not idle.
    assert sum(scenario.reads for _, scenario in runs) > 30 * RUNS
    assert sum(scenario.failovers for _, scenario in runs) > RUNS
    assert longest([scenario for _, scenario in runs]) > 60


@pytest.mark.thorough
@pytest.mark.parametrize(("break_rule", "first"), [(nothing_waited_for, 0), (end_known_before, 16)])
def test_rule_of_reading_registers_broken_on_purpose_is_found(
    break_rule: BreakRule, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)
    problems = (simulate_registers(n)[0].problems for n in range(first, first + 100))
    found_in(problems, Violation.STALE)
