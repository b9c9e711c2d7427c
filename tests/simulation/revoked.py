"""Seeded runs in which clients and operators revoke running operations, under every fault.

Some writes have a time budget, too. A write reported as revoked must be on no cluster, and one
reported as committed on every cluster.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace

from haproc.failure import RequestError
from haproc.replicate.operators import Operators
from haproc.replicate.queue.facts import Fate, Revoked
from haproc.replicate.records.operation import Operation
from haproc.replicate.replica import Replica
from tests.simulation.clock import run
from tests.simulation.network import Refused
from tests.simulation.scenario import Attempted, Report, Scenario, build
from tests.simulation.violations import Violation

BUDGETS = (None, None, None, 1.0, 4.0)


def build_with_budget(what: str, op_id: str, origin: str, rng_value: int) -> Operation:
    """Build one of a scenario's writes; some of them have a budget."""
    return replace(build(what, op_id, origin, rng_value), apply_budget_s=BUDGETS[rng_value % 5])


class RevokeScenario(Scenario):
    """See the module."""

    build = staticmethod(build_with_budget)

    def __init__(self, seed: int) -> None:
        super().__init__(seed, writes_per_client=10, computing=seed % 2)
        self.revoke_rng = random.Random(f"{seed}/revoke")
        self.fates: dict[str, set[Fate]] = {}
        self.answers = Counter[str]()

    async def operator(self) -> None:
        """Revoke writes, in addition to the operators' other actions."""
        for node in self.ring.nodes.values():
            node.spark.statement_s = self.revoke_rng.choice((0, 0.3, 2))
        asking: set[asyncio.Task[None]] = set()
        drains = asyncio.ensure_future(super().operator())
        while self.writing:
            await asyncio.sleep(self.revoke_rng.expovariate(3))
            begun = [each for each in self.attempts if not each.ended_at]
            if begun:
                chosen = self.revoke_rng.choice(begun)
                asking.add(asyncio.ensure_future(self.want_back(chosen)))
        await asyncio.gather(drains, *asking)

    async def want_back(self, attempt: Attempted) -> None:
        """Ask a node to revoke a write; record its answer."""
        node = self.ring.nodes[self.revoke_rng.choice(self.ring.names)]
        by_operator = self.revoke_rng.random() < 0.3

        async def work(replica: Replica) -> Fate | None:
            known = replica.core.outcomes.find(("anonymous", attempt.id))
            if known is None:
                return None
            if by_operator:
                return await _of_operator(replica.operators, known.offset)
            found: Revoked = await replica.revoking.revoke(known.offset, "its sender")
            return found.fate

        try:
            async with asyncio.timeout(60):
                fate = await node.call(work)
        except (Refused, TimeoutError, RequestError):
            return
        if fate is not None:
            self.ring.note(f"{node.name} says of {attempt.id}: {fate}")
            self.fates.setdefault(attempt.id, set()).add(fate)
            self.answers[fate] += 1

    async def heal(self) -> None:
        """Make statements fast again, too."""
        for node in self.ring.nodes.values():
            node.spark.statement_s = 0
        await super().heal()

    def check(self, report: Report) -> None:
        """Use the answers about a revoked write as its client's answer."""
        for attempt in self.attempts:
            fates = self.fates.get(attempt.id, set())
            gone, there = Fate.REVOKED in fates, Fate.COMMITTED in fates
            # A DELETE of nothing leaves no commit: a HAProc that is replaced may acknowledge it,
            # and the next one find nothing of it. Both are right: it has no effect anywhere.
            changed = attempt.acknowledged and attempt.what != "prune"
            if (gone and (there or changed)) or (
                there and attempt.acknowledged is False and attempt.what in ("set", "register")
            ):
                text = f"{attempt.id} is {fates}, and acknowledged: {attempt.acknowledged}"
                report.wrong(Violation.REJECTED, text)
            elif gone:
                attempt.acknowledged = False
            elif there and attempt.what in ("set", "register"):
                attempt.acknowledged = True
        super().check(report)


async def _of_operator(operators: Operators, offset: int) -> Fate:
    return Fate(str((await operators.revoke(offset, "", ()))["status"]))


def simulate_revoked(seed: int) -> tuple[Report, Counter[str]]:
    """Run one seed; return its report, and the answers about revoked writes."""
    scenario = RevokeScenario(seed)
    return run(scenario.main()), scenario.answers
