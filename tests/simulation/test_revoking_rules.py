"""Taking back under every fault, and with its rules broken on purpose: each is found."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from haproc.replicate.apply.doubts import Doubts
from haproc.replicate.queue.facts import Fate
from haproc.replicate.queue.units import Unit
from tests.simulation.broken import BreakRule, not_fenced
from tests.simulation.directed import Stage, Tell, story
from tests.simulation.revoked import simulate_revoked
from tests.simulation.scenario import insert
from tests.simulation.seeds import SEEDS
from tests.simulation.test_poison import rows
from tests.simulation.test_poison_rejection_rules import away_is_ignored, not_looked_at
from tests.simulation.test_revoking import (
    PATIENT,
    SLOW_S,
    UPDATE,
    begin,
    revoke,
    send,
    slow,
    update,
)
from tests.simulation.violations import Violation, found_by


async def stopped_and_not_over(stage: Stage) -> None:
    """Where its statement would end, it has not ended when its cluster says its word."""
    await begin(stage)
    slow(stage, *"bc")
    stage.node("a").spark.statement_s = SLOW_S / 2
    offset, waiting = await send(stage, update())
    assert (await revoke(stage, "a", offset)).fate is Fate.REVOKED
    await asyncio.gather(waiting, return_exceptions=True)
    slow(stage)
    await asyncio.sleep(SLOW_S * 3 / 4)
    stage.check_equal(*"abc")
    await stage.settle()


async def committed_and_failed(stage: Stage) -> None:
    """One cluster has committed it, and was told an error all the same."""
    await begin(stage)
    slow(stage, *"bc")
    stage.node("a").spark.torn = {UPDATE}
    offset, waiting = await send(stage, update())
    await stage.replica("b").revoking._poison_rejection.append_revoke(offset, "slow", "its sender")
    await asyncio.sleep(5)
    slow(stage)
    await stage.settle()
    await waiting
    assert rows(stage, "a") == ["one!"]


async def committed_by_one(stage: Stage) -> None:
    """One cluster was quick, and sleeps; the others stop it."""
    await begin(stage)
    slow(stage, *"ab")
    offset, waiting = await send(stage, update())
    stage.node("c").freeze()
    await stage.replica("b").revoking._poison_rejection.append_revoke(offset, "slow", "its sender")
    await asyncio.sleep(20)
    slow(stage)
    await stage.settle()
    await waiting
    assert rows(stage, "b") == ["one!"]


async def committed_where_no_look_tells(stage: Stage) -> None:
    """A statement of unknown tables is committed on one cluster, which is told an error."""
    await begin(stage)
    slow(stage, *"bc")
    op = replace(insert("hidden", "t", "a"), tables_known=False, writes=frozenset(), insert=None)
    stage.node("a").spark.torn = {op.write.sql}  # type: ignore[union-attr]
    offset, waiting = await send(stage, op)
    await revoke(stage, "b", offset)
    stage.node("a").spark.torn = set()
    slow(stage)
    await stage.settle()
    await asyncio.gather(waiting, return_exceptions=True)  # it may have heard that a is STUCK
    assert rows(stage, "c") == ["hidden", "one"]


STORIES = (
    stopped_and_not_over,
    committed_and_failed,
    committed_by_one,
    committed_where_no_look_tells,
)


@pytest.mark.parametrize("tell", STORIES)
def test_nothing_that_may_have_been_committed_is_taken_back(
    tell: Tell,
) -> None:
    story(tell, timeouts=PATIENT)


SEED_RUNS = [(2, 4), pytest.param(100, SEEDS, marks=pytest.mark.thorough)]


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("first", "count"), SEED_RUNS)
def test_writes_that_are_wanted_back_are_nowhere_or_everywhere_under_every_fault(
    first: int, count: int
) -> None:
    runs = [simulate_revoked(seed) for seed in range(first, first + count)]
    assert [(r.seed, r.problems[:3]) for r, _ in runs if r.problems] == []
    told = sum((told for _, told in runs), Counter[str]())
    assert told[Fate.REVOKED] > count and told[Fate.COMMITTED] > count


# -- rules broken on purpose ---------------------------------------------------------------------


def stopped_where_no_look_tells(patch: pytest.MonkeyPatch) -> None:
    """Say the word though nobody can know what was committed."""

    async def certain(self: Doubts, unit: Unit) -> bool:
        return True

    patch.setattr(Doubts, "tables_show", certain)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("break_rule", "tell", "expected"),
    [
        (not_fenced, stopped_and_not_over, Violation.UNEQUAL),
        (not_looked_at, committed_and_failed, Violation.UNEQUAL),
        (away_is_ignored, committed_by_one, Violation.DIVERGED),
        (stopped_where_no_look_tells, committed_where_no_look_tells, Violation.DIVERGED),
    ],
)
def test_rule_of_taking_back_broken_on_purpose_is_found(
    break_rule: BreakRule,
    tell: Tell,
    expected: Violation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_rule(monkeypatch)
    found_by(lambda: story(tell, timeouts=PATIENT), expected)
