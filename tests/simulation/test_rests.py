"""Tests that an operation is passed over if the definitions that it rests on have changed."""

from __future__ import annotations

from functools import partial

import pytest

from haproc.replicate.log_state.definitions import Definitions
from haproc.replicate.member.core import Core
from haproc.replicate.queue.outcomes import DONE_BEFORE, OutcomeStatus
from haproc.replicate.reader import Reader
from haproc.replicate.records.operation import Operation
from tests.simulation.broken import BreakRule
from tests.simulation.rests import simulate_rests
from tests.simulation.seeds import SEEDS, judged
from tests.simulation.violations import Violation, found_in

RUNS = SEEDS // 2


rests = partial(judged, simulate_rests)


def test_ring_under_constant_definition_changes_applies_no_overtaken_operation() -> None:
    reports = [rests(seed) for seed in range(RUNS)]
    assert [(r.seed, r.problems[:3]) for r in reports if r.problems] == []
    # The runs were not idle: records were overtaken, and writes got through.
    assert sum(report.stale for report in reports) > 2 * RUNS
    assert sum(report.acknowledged for report in reports) > 20 * RUNS
    assert sum(report.kills for report in reports) > 5 * RUNS


def test_decision_that_arrives_while_the_origin_is_queried_ends_the_wait() -> None:
    assert rests(1109).problems == []


# -- broken rules ------------------------------------------------------------------------------


def staleness_ignored(patch: pytest.MonkeyPatch) -> None:
    """Apply operations that DDL has overtaken."""
    patch.setattr(Definitions, "stale", lambda self, offset, op: False)


def stale_counts_as_first(patch: pytest.MonkeyPatch) -> None:
    """Count a stale record as the first attempt of its request."""
    original = Reader._is_new

    def is_new(self: Reader, offset: int, op: Operation, window_max: int | None = None) -> bool:
        core = self._core
        if not core.log_state.definitions.stale(offset, op):
            return original(self, offset, op, window_max)
        core.log_state.definitions.note(offset, op)
        self._window.see(offset, op.key, op.since, op.window)
        if core.outcomes.find(op.key) is None:
            core.outcomes.admit(offset, op)
            core.outcomes.resolve(offset, DONE_BEFORE)
        return False

    patch.setattr(Reader, "_is_new", is_new)


def judged_by_state(patch: pytest.MonkeyPatch) -> None:
    """Judge staleness by the definitions that this cluster has applied, not by those in the log."""

    redefined: dict[int, frozenset[str]] = {}

    def is_stale(core: Core, offset: int, op: Operation) -> bool:
        core.log_state.definitions.note(offset, op)
        redefined[offset] = op.redefines or frozenset()
        if op.analyzed_to is None:
            return False
        known = [core.outcomes.at(between) for between in range(op.analyzed_to, offset)]
        return any(
            each.outcome is not None
            and each.outcome.status is OutcomeStatus.APPLIED
            and bool(redefined.get(each.offset, frozenset()) & op.rests_on)
            for each in known
            if each is not None
        )

    judged = Reader._is_new

    def is_new(self: Reader, offset: int, op: Operation, window_max: int | None = None) -> bool:
        def stale(at: int, op: Operation, *, passed: bool) -> bool:
            return is_stale(self._core, at, op)

        patch.setattr(self._judge, "_stale", stale)
        return judged(self, offset, op, window_max)

    patch.setattr(Reader, "_is_new", is_new)


@pytest.mark.parametrize(
    ("break_rule", "expected", "beside"),
    [
        (staleness_ignored, Violation.OVERTAKEN, ()),
        (stale_counts_as_first, Violation.LOST, ()),
        (
            judged_by_state,
            Violation.UNEQUAL,
            (Violation.OVERTAKEN, Violation.LOST, Violation.DOUBLED),
        ),
    ],
)
def test_staleness_rule_broken_on_purpose_is_found(
    break_rule: BreakRule,
    expected: Violation,
    beside: tuple[Violation, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_rule(monkeypatch)
    found_in((rests(seed).problems for seed in range(60)), expected, beside)
