"""A possibly applied operation is never given up: stories that end badly if a rule is broken.

In seeded runs, some statements fail for ever, on all clusters or on some. Clients write as in
`Scenario`, and the same faults strike. The ring has to give up a statement that fails on all
clusters, or it could not settle. A statement that fails on some is mended when everything heals; if
a cluster had acknowledged it, all must have it then.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any

import pytest

from haproc.engine.statement import SqlText
from haproc.failure import RequestError
from haproc.membership.state import State
from haproc.replicate.agree.poison_rejection import PoisonRejection
from haproc.replicate.log_state.failure_votes import FailureVotes
from haproc.replicate.member.steps import Step
from haproc.replicate.records.control import Abandon, FailureVote
from haproc.replicate.records.operation import Operation
from tests.simulation.broken import BreakRule, not_fenced
from tests.simulation.clock import run
from tests.simulation.directed import Script, Stage, story
from tests.simulation.ring import TIMEOUTS, Node
from tests.simulation.scenario import Attempted, Report, Scenario, build
from tests.simulation.spark import SimEngine
from tests.simulation.test_poison import POISON, rows, update
from tests.simulation.test_poison_rejection import (
    LONG_S,
    SEEDS,
    applied_by_one_that_is_away,
    begin,
    kinds,
    sent,
)
from tests.simulation.violations import Violation, found_by


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


# -- tests -------------------------------------------------------------------------------------


async def committed_without_an_answer(stage: Stage) -> None:
    """One cluster commits the operation, and never reports it."""
    await begin(stage, *"bc")
    stage.node("a").spark.torn = {POISON}
    with contextlib.suppress(RequestError):
        await stage.submit("a", update("poison"), 5)
    await asyncio.sleep(LONG_S)
    for name in "bc":
        stage.node(name).spark.poison = set()
    await stage.settle()
    assert rows(stage, "a") == ["one!"]
    assert kinds(stage, Abandon) == []


async def still_running_at_the_word(stage: Stage) -> None:
    """The last attempt before the vote still runs when its caller stops waiting."""
    await begin(stage, *"abc")
    spark, attempts = stage.node("a").spark, TIMEOUTS.stuck_after_attempts

    def goes_on(_: Node) -> None:
        spark.poison, spark.statement_s = set(), 2 * TIMEOUTS.apply_s

    stage.at("a", Step.APPLY_BEFORE, *[nothing] * (attempts - 1), goes_on, poisoned_again)
    await sent(stage)
    await stage.until(lambda: bool(kinds(stage, Abandon)), LONG_S)
    spark.statement_s = 0
    await asyncio.sleep(2 * TIMEOUTS.apply_s)
    await stage.settle()
    assert rows(stage, "a") == ["one"]


def nothing(_: Node) -> None:
    """No change this time."""


def poisoned_again(node: Node) -> None:
    node.spark.poison, node.spark.statement_s = {POISON}, 0


async def applied_after_the_word(stage: Stage) -> None:
    """A cluster that has voted is fixed, applies the operation, answers its client, and dies."""
    await begin(stage, *"abc")
    stage.node("c").kill()
    await sent(stage)
    await stage.until(lambda: {*kinds(stage, FailureVote)} == {"a", "b"}, LONG_S)
    stage.node("b").spark.poison = set()
    await stage.until(lambda: stage.state("b") is State.READY, LONG_S)
    await stage.apply("b", update("poison"))
    await asyncio.sleep(1)  # stored: it is not looked at again
    stage.node("b").kill()
    stage.node("c").start()
    await asyncio.sleep(LONG_S)
    for name in "ac":
        stage.node(name).spark.poison = set()
    await stage.settle()
    assert rows(stage, "a") == ["one!"]


async def withdrawn_while_it_is_decided(stage: Stage) -> None:
    """The cluster that decides is frozen before its decision; meanwhile another one is fixed."""
    await begin(stage, *"abc")
    frozen: list[Node] = []

    def sleep(node: Node) -> None:
        if not frozen:
            frozen.append(node)
            node.freeze()

    for name in "abc":
        stage.at(name, Step.ABANDON_BEFORE, *[sleep] * 100)
    await sent(stage)
    await stage.until(lambda: bool(frozen), LONG_S)
    repaired = next(name for name in "abc" if name != frozen[0].name)
    for name in "abc":
        if name not in (repaired, frozen[0].name):
            stage.node(name).kill()
    stage.node(repaired).spark.poison = set()
    await stage.operators(repaired).retry(repaired, stage.stuck_at(repaired) or 0)
    await stage.until(lambda: stage.state(repaired) is State.READY, LONG_S)
    await stage.apply(repaired, update("poison"))
    stage.node(repaired).kill()
    frozen[0].thaw()
    await asyncio.sleep(30)
    assert kinds(stage, Abandon) != []
    for node in stage.ring.nodes.values():
        node.spark.poison = set()
    await stage.settle()
    assert rows(stage, "a") == ["one!"]


STORIES = (
    committed_without_an_answer,
    still_running_at_the_word,
    applied_after_the_word,
    withdrawn_while_it_is_decided,
    applied_by_one_that_is_away,
)


@pytest.mark.parametrize("script", STORIES)
def test_operation_that_may_be_applied_is_not_rejected(
    script: Script,
) -> None:
    story(script)


@pytest.mark.usefixtures("quiet")
def test_writes_with_poison_operations_under_all_faults_keep_all_promises() -> None:
    runs = [simulate_poison(seed) for seed in SEEDS]
    assert [(r.seed, r.problems[:3]) for r, _ in runs if r.problems] == []
    assert sum(abandoned for _, abandoned in runs) > 1


# -- rules broken on purpose ---------------------------------------------------------------------


def not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """Vote without a check of the tables."""

    async def never(self: SimEngine, tables: Sequence[str], application: str) -> dict[str, int]:
        return {}

    patch.setattr(SimEngine, "offsets_applied", never)


def not_withdrawn(patch: pytest.MonkeyPatch) -> None:
    """Try again without a withdrawal of the vote."""

    async def at_once(self: PoisonRejection, offset: int, op: Operation, *_: object) -> bool:
        if self.has_voted(offset):
            await self._rest(offset, op, self._core.troubles.stands(offset, ""))
        return not self.abandoned(offset)

    patch.setattr(PoisonRejection, "may_run", at_once)


def counted_though_withdrawn(patch: pytest.MonkeyPatch) -> None:
    """Take all decisions for valid."""
    patch.setattr(FailureVotes, "_valid", lambda self, at, word, claims: True)


def away_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """Decide without the votes of silent clusters."""
    original = FailureVotes.abandon

    def alone(
        self: FailureVotes, offset: int, op_id: str, by: tuple[str, int], *rest: Any
    ) -> object:
        read_to, _, absent = rest
        return original(self, offset, op_id, by, read_to, self.valid_votes(offset), absent)

    patch.setattr(FailureVotes, "abandon", alone)


@pytest.mark.parametrize(
    ("break_rule", "script", "expected"),
    [
        (not_looked_at, committed_without_an_answer, Violation.UNEQUAL),
        (not_fenced, still_running_at_the_word, Violation.UNEQUAL),
        (not_withdrawn, applied_after_the_word, Violation.UNEQUAL),
        (counted_though_withdrawn, withdrawn_while_it_is_decided, Violation.UNEQUAL),
        (away_is_ignored, applied_by_one_that_is_away, Violation.DIVERGED),
    ],
)
def test_rule_of_rejecting_broken_on_purpose_is_found(
    break_rule: BreakRule,
    script: Script,
    expected: Violation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_rule(monkeypatch)
    found_by(lambda: story(script), expected)
