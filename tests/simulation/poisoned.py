"""Seeded runs in which some statements fail for ever, on all clusters or on a part of them.

Clients write as in `Scenario`, and everything dies, freezes and returns as there. What all clusters
fail for ever has to be given up before the ring can settle; what a part of them fails is mended
when everything heals, and has to be there then, if any of them had acknowledged it.
"""

from __future__ import annotations

import asyncio
import random

from haproc.engine.statement import SqlText
from haproc.replicate.records.control import Abandon
from tests.simulation.clock import run
from tests.simulation.scenario import Attempted, Report, Scenario, build


class PoisonScenario(Scenario):
    """See the module."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, writes_per_client=8, clients=3)
        self.poison_rng = random.Random(f"{seed}/poison")
        self.poisoned: set[str] = set()
        self.mending: list[asyncio.TimerHandle] = []
        self.given_up = 0

    async def write(self, attempt: Attempted, order: list[str], value: int) -> bool | None:
        """Poison some of the writes that run alone."""
        alone = attempt.what == "register" or (attempt.what == "set" and value % 4 in (1, 2))
        if alone and self.poison_rng.random() < 0.25:
            self.poison(attempt, order[0], value)
        return await super().write(attempt, order, value)

    def poison(self, attempt: Attempted, origin: str, value: int) -> None:
        """Have some clusters, or all, fail it; some of them only for a while."""
        rng, names = self.poison_rng, self.ring.names
        write = build(attempt.what, attempt.id, origin, value).write
        assert isinstance(write, SqlText)
        chosen = names if rng.random() < 0.6 else rng.sample(names, rng.randrange(1, len(names)))
        self.ring.note(f"{attempt.id} is poison on {''.join(chosen)}")
        self.poisoned.add(write.sql)
        for name in chosen:
            spark = self.ring.nodes[name].spark
            spark.poison.add(write.sql)
            if rng.random() < 0.1:
                after_s = rng.uniform(5, 90)
                loop = asyncio.get_running_loop()
                self.mending.append(loop.call_later(after_s, spark.poison.discard, write.sql))

    async def heal(self) -> None:
        """Mend what a part of the clusters can apply; the rest stays as it is, for ever."""
        for each in self.mending:
            each.cancel()  # or one could apply what nobody mends for the others any more
        sparks = [node.spark for node in self.ring.nodes.values()]
        for sql in sorted(self.poisoned):
            if not all(sql in spark.poison for spark in sparks):
                for spark in sparks:
                    spark.poison.discard(sql)
        await super().heal()

    def check(self, report: Report) -> None:
        """Count what was given up, too."""
        super().check(report)
        messages = self.ring.store.all_messages()
        self.given_up = len({m.offset for m in messages if isinstance(m, Abandon)})


def simulate_poison(seed: int) -> tuple[Report, int]:
    """Run one seed; return what it came to, and how many operations were given up."""
    scenario = PoisonScenario(seed)
    return run(scenario.main()), scenario.given_up
