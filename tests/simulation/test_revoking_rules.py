"""Revoking under every fault, and with its rules broken on purpose: each broken rule is found."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from haproc.replicate.apply.doubts import Doubts
from haproc.replicate.queue.facts import Fate
from haproc.replicate.queue.units import Unit
from tests.simulation.broken import BreakRule, not_fenced
from tests.simulation.directed import Script, Stage, story
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
    """On one cluster the statement has not ended yet when the cluster votes."""
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
    """One cluster has committed the operation, although it received an error."""
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
    """One cluster commits early and then freezes; the others stop the statement."""
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


async def committed_with_unknown_tables(stage: Stage) -> None:
    """A statement of unknown tables is committed on one cluster, which receives an error."""
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
    committed_with_unknown_tables,
)


@pytest.mark.parametrize("script", STORIES)
def test_operation_that_may_be_committed_is_not_revoked(
    script: Script,
) -> None:
    story(script, timeouts=PATIENT)


SEED_RUNS = [(2, 4), pytest.param(100, SEEDS, marks=pytest.mark.thorough)]


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("first", "count"), SEED_RUNS)
def test_revoked_writes_are_applied_everywhere_or_nowhere_under_every_fault(
    first: int, count: int
) -> None:
    runs = [simulate_revoked(seed) for seed in range(first, first + count)]
    assert [(r.seed, r.problems[:3]) for r, _ in runs if r.problems] == []
    fates = sum((fates for _, fates in runs), Counter[str]())
    assert fates[Fate.REVOKED] > count and fates[Fate.COMMITTED] > count


# -- rules broken on purpose ---------------------------------------------------------------------


def stopped_with_unknown_tables(patch: pytest.MonkeyPatch) -> None:
    """Vote although nobody can know whether the operation was committed."""

    async def certain(self: Doubts, unit: Unit) -> bool:
        return True

    patch.setattr(Doubts, "tables_show", certain)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("break_rule", "script", "expected"),
    [
        (not_fenced, stopped_and_not_over, Violation.UNEQUAL),
        (not_looked_at, committed_and_failed, Violation.UNEQUAL),
        (away_is_ignored, committed_by_one, Violation.DIVERGED),
        (stopped_with_unknown_tables, committed_with_unknown_tables, Violation.DIVERGED),
    ],
)
def test_revoke_rule_broken_on_purpose_is_found(
    break_rule: BreakRule,
    script: Script,
    expected: Violation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_rule(monkeypatch)
    found_by(lambda: story(script, timeouts=PATIENT), expected)
