"""Reads as in `reads`, with the cache in front of them: kept answers are held against the same log.

The real `haproc.route.caching` keeps and gives. A query looks at its two tables at two moments, and
may be asked for again at once, by whatever client, so that answers are given again while things
break. What Spark's analysis would say stands here: these tables, and no others.
"""

from __future__ import annotations

import asyncio
from functools import partial

from haclient.settings import SeenOffsets
from haproc.classify.model import Classified, Kind, OperationClass
from haproc.config.model import Consistency
from haproc.config.sections import Cache
from haproc.engine.interface import Chunk, Settings
from haproc.replicate.log_state.definitions import defines
from haproc.replicate.member.core import Core
from haproc.replicate.replica import Replica
from haproc.route.caching import Caching, Reading, Repeatable
from haproc.route.classifying import Understood
from haproc.route.model import Answer, HaReport, Request
from haproc.route.ruling import always
from haproc.route.streams import Replayed
from tests.simulation.clock import run
from tests.simulation.life import Life
from tests.simulation.reads import TABLES, Counted, Doors, ReadScenario
from tests.simulation.ring import Ring
from tests.simulation.scenario import Report

QUERY = Classified(
    "SELECT", Kind.SELECT, OperationClass.QUERY, frozenset(TABLES), frozenset(), True, "default"
)


class TheseTables(Repeatable):
    """What Spark's analysis would say, some time after it was asked."""

    def __init__(self, core: Core, doors: Doors) -> None:
        self._core = core
        self._doors = doors

    async def reading(self, statement: Classified, settings: Settings, user: str) -> Reading:
        since = self._core.schedule.done_below(defines)
        await asyncio.sleep(self._doors.rng.expovariate(50))
        return Reading(since, frozenset(TABLES))


class Hits(Counted):
    """What happened to reads, and how many answers were kept ones."""

    hits: int = 0

    def cached(self, outcome: str) -> None:
        self.hits += outcome == "hit"

    def cache(self, answers: int, bytes_used: int, evicted: object) -> None:
        """Nothing is bounded here."""


class CachedDoors(Doors):
    """What each process has in front of its replica, the cache among it."""

    def __init__(self, ring: Ring, scenario: CachedScenario) -> None:
        super().__init__(ring, scenario.read_rng)
        self.counted: Hits = Hits()
        self._caching: dict[Life, Caching] = {}

    def caching(self, life: Life) -> Caching:
        """Return a process's cache, made when first asked for."""
        if life not in self._caching:
            core = life.member.core
            repeatable = TheseTables(core, self)
            self._caching[life] = Caching(core, Cache(by_default=True), repeatable, self.counted)
        return self._caching[life]

    async def ask(self, name: str, request: Request) -> tuple[frozenset[str], HaReport]:
        """A client's query to one node; raises Refused and RequestError."""
        life = self.ring.nodes[name].running()
        asked, caching = Understood(request, None, Settings(), QUERY), self.caching(life)

        async def work(replica: Replica) -> tuple[frozenset[str], HaReport]:
            if not replica.serving:
                raise replica.writes.unavailable()
            answer = await self.reads(life).from_cache_or_peer(
                request, partial(caching.held, asked, always)
            )
            answer = answer or await caching.answer(asked, partial(self.look, life), always)
            caching.count(answer)
            found = [chunk.data.decode().split() async for chunk in answer.result]
            await life.check()
            return frozenset(each for ids in found for each in ids), answer.report

        return await life.call(work)

    async def look(self, life: Life) -> Answer:
        """Run the query on the process's own cluster: table by table."""
        chunks = []
        for table in TABLES:
            found = await self.tables(life)
            ids = sorted(str(row[0]) for row in found.get(table, []))
            chunks.append(Chunk(" ".join(ids).encode(), len(ids)))
        await life.check()
        return Answer(self.report(life), Replayed(chunks))


class CachedScenario(ReadScenario):
    """See the module."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, steps=16)
        self.doors = CachedDoors(self.ring, self)

    async def read(
        self,
        level: Consistency,
        number: int,
        order: list[str],
        seen: SeenOffsets,
        known: frozenset[str],
        plain: bool,
    ) -> tuple[SeenOffsets, frozenset[str]] | None:
        """Read three times."""
        found = None
        for _ in range(3):
            found = await super().read(level, number, order, seen, known, plain) or found
            seen, known = found or (seen, known)
        return found


def simulate_cached(seed: int) -> tuple[Report, Hits]:
    """Run one seed; return what it came to and what happened to reads."""
    scenario = CachedScenario(seed)
    report = run(scenario.main())
    assert isinstance(scenario.doors, CachedDoors)
    return report, scenario.doors.counted
