"""Cached answers show what their read levels promise, over many seeds; broken rules are found.

The clients of `reads` read through the real `haproc.route.caching`. A query looks at its two tables
at two moments. Each read is repeated at once, so that cached answers are given while things break.
Spark's analysis is replaced by a constant: each query reads these two tables.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from haclient.settings import SeenOffsets
from haproc.classify.model import Classified, Kind, OperationClass
from haproc.config.model import Consistency
from haproc.config.sections import Cache
from haproc.engine.interface import Chunk, Settings
from haproc.replicate.log_state.definitions import Written, defines
from haproc.replicate.member.core import Core
from haproc.replicate.replica import Replica
from haproc.route import caching
from haproc.route.caching import Caching, Reading, Repeatable
from haproc.route.classifying import Understood
from haproc.route.kept_answers import KeptAnswer, KeptAnswers, Key
from haproc.route.model import Answer, HaReport, Request
from haproc.route.reads import Reads
from haproc.route.ruling import always
from haproc.route.streams import Replayed
from tests.simulation.broken import BreakRule
from tests.simulation.clock import run
from tests.simulation.life import Life
from tests.simulation.reads import TABLES, Counted, Doors, ReadScenario
from tests.simulation.ring import Ring
from tests.simulation.scenario import Report
from tests.simulation.seeds import SEEDS
from tests.simulation.violations import Violation, found_in

pytestmark = pytest.mark.usefixtures("quiet")
QUERY = Classified(
    "SELECT", Kind.SELECT, OperationClass.QUERY, frozenset(TABLES), frozenset(), True, "default"
)


class TheseTables(Repeatable):
    """Answers, after some time, that a query reads these tables."""

    def __init__(self, core: Core, doors: Doors) -> None:
        self._core = core
        self._doors = doors

    async def reading(self, statement: Classified, settings: Settings, user: str) -> Reading:
        since = self._core.schedule.done_below(defines)
        await asyncio.sleep(self._doors.rng.expovariate(50))
        return Reading(since, frozenset(TABLES))


class Hits(Counted):
    """Counts reads, and the answers among them that came from the cache."""

    hits: int = 0

    def cached(self, outcome: str) -> None:
        self.hits += outcome == "hit"

    def cache(self, answers: int, bytes_used: int, evicted: object) -> None:
        """Nothing is bounded here."""


class CachedDoors(Doors):
    """The reads and the cache of each process."""

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
        understood, caching = Understood(request, None, Settings(), QUERY), self.caching(life)

        async def work(replica: Replica) -> tuple[frozenset[str], HaReport]:
            if not replica.serving:
                raise replica.writes.unavailable()
            answer = await self.reads(life).from_cache_or_peer(
                request, partial(caching.held, understood, always)
            )
            answer = answer or await caching.answer(understood, partial(self.look, life), always)
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


# -- tests -------------------------------------------------------------------------------------

RUNS = max(4, SEEDS // 4)


def test_cached_answers_under_all_faults_keep_their_read_levels() -> None:
    found, hits = [], 0
    for seed in range(RUNS):
        report, counted = simulate_cached(seed)
        found += [(seed, report.problems[:3])] if report.problems else []
        hits += counted.hits
    assert found == []
    assert hits > 10 * RUNS


def writes_ignored(patch: pytest.MonkeyPatch) -> None:
    """Return a cached answer again, without regard to later writes."""
    patch.setattr(Written, "changed", lambda self, tables, since: False)


def under_way_ignored(patch: pytest.MonkeyPatch) -> None:
    """Ignore the operations that were running when a query began."""
    patch.setattr(caching, "touches", lambda op, tables: False)


def log_not_read(patch: pytest.MonkeyPatch) -> None:
    """Return a cached answer before the log was read as far as the level requires."""

    async def at_once(self: Reads, held: Callable[[], Answer | None], needed: int) -> Answer | None:
        return held()

    patch.setattr(Reads, "_held", at_once)


def meanwhile_ignored(patch: pytest.MonkeyPatch) -> None:
    """Store an answer as one of the log state at the time of its last piece."""
    keep, outdated = KeptAnswers.keep, KeptAnswers.outdated

    def as_of_now(self: KeptAnswers, key: Key, answer: KeptAnswer) -> None:
        newest = max(self._written._newest.values(), default=-1)
        keep(self, key, replace(answer, since=max(newest, self._written._defined) + 1))

    def once_kept(self: KeptAnswers, answer: KeptAnswer, departures: int) -> bool:
        return answer in self._answers.values() and outdated(self, answer, departures)

    patch.setattr(KeptAnswers, "keep", as_of_now)
    patch.setattr(KeptAnswers, "outdated", once_kept)


@pytest.mark.parametrize(
    ("break_rule", "first"),
    [(writes_ignored, 0), (under_way_ignored, 0), (meanwhile_ignored, 0), (log_not_read, 52)],
)
def test_rule_of_caching_broken_on_purpose_is_found(
    break_rule: BreakRule, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)
    runs = (simulate_cached(n)[0].problems for n in range(first, first + 60))
    found_in(runs, Violation.STALE)
