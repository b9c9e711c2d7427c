"""Kept answers show what their levels promise, over many seeds; broken rules are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from haproc.replicate.log_state.definitions import Written
from haproc.route import caching
from haproc.route.kept_answers import KeptAnswer, KeptAnswers, Key
from haproc.route.model import Answer
from haproc.route.reads import Reads
from tests.simulation.broken import BreakRule
from tests.simulation.cached import simulate_cached
from tests.simulation.seeds import SEEDS
from tests.simulation.violations import Violation, found_in

pytestmark = pytest.mark.usefixtures("quiet")
RUNS = max(4, SEEDS // 4)


def test_kept_answers_under_every_kind_of_fault_show_what_was_promised() -> None:
    found, hits = [], 0
    for seed in range(RUNS):
        report, counted = simulate_cached(seed)
        found += [(seed, report.problems[:3])] if report.problems else []
        hits += counted.hits
    assert found == []
    assert hits > 10 * RUNS


def writes_ignored(patch: pytest.MonkeyPatch) -> None:
    """Give an answer again whatever was written since."""
    patch.setattr(Written, "changed", lambda self, tables, since: False)


def under_way_ignored(patch: pytest.MonkeyPatch) -> None:
    """Take what was read when a query began for what it shows."""
    patch.setattr(caching, "touches", lambda op, tables: False)


def log_not_read(patch: pytest.MonkeyPatch) -> None:
    """Give a kept answer before the log was read as far as the level asks."""

    async def at_once(self: Reads, held: Callable[[], Answer | None], needed: int) -> Answer | None:
        return held()

    patch.setattr(Reads, "_held", at_once)


def meanwhile_ignored(patch: pytest.MonkeyPatch) -> None:
    """Keep an answer as one of what was read when its last piece came."""
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
def test_rule_of_keeping_broken_on_purpose_is_found(
    break_rule: BreakRule, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)
    runs = (simulate_cached(n)[0].problems for n in range(first, first + 60))
    found_in(runs, Violation.STALE)
