"""Attempts of a job that replace one another, whatever fails: a fenced one writes nothing more."""

from __future__ import annotations

from functools import partial

import pytest

from haproc.replicate.log_state.definitions import Definitions
from haproc.replicate.reader import Reader
from haproc.replicate.records.control import Fence
from haproc.replicate.records.operation import Operation
from tests.simulation.broken import BreakRule
from tests.simulation.fenced import simulate_fenced
from tests.simulation.seeds import SEEDS, judged
from tests.simulation.violations import Violation, found_in

RUNS = SEEDS // 2


fenced = partial(judged, simulate_fenced)


def test_attempts_of_a_job_stand_in_the_log_one_after_another() -> None:
    reports = [fenced(seed) for seed in range(RUNS)]
    assert [(r.seed, r.problems[:3]) for r in reports if r.problems] == []
    # The runs were not idle: attempts were told that they are fenced, and writes got through.
    assert sum(report.stale for report in reports) > RUNS // 2
    assert sum(report.acknowledged for report in reports) > 15 * RUNS
    assert sum(report.kills for report in reports) > 5 * RUNS


# -- broken rules ------------------------------------------------------------------------------


def fence_passed_over(patch: pytest.MonkeyPatch) -> None:
    """Let the look at the token be all there is."""
    note = Definitions.note

    def only_operations(self: Definitions, offset: int, op: Operation | Fence) -> None:
        if not isinstance(op, Fence):
            note(self, offset, op)

    patch.setattr(Definitions, "note", only_operations)


def fence_forgotten_at_a_start(patch: pytest.MonkeyPatch) -> None:
    """Rebuild what is known without the fences."""
    remember = Reader._remember

    def without_fences(self: Reader, entry: object, begin: int) -> None:
        if entry.record.kind != "fence":  # type: ignore[attr-defined]
            remember(self, entry, begin)  # type: ignore[arg-type]

    patch.setattr(Reader, "_remember", without_fences)


@pytest.mark.parametrize(
    ("break_rule", "expected", "beside"),
    [
        (fence_passed_over, Violation.OVERTAKEN, (Violation.REJECTED,)),
        # What one applies and acknowledges that the others pass over is lost on those.
        (
            fence_forgotten_at_a_start,
            Violation.UNEQUAL,
            (Violation.OVERTAKEN, Violation.REJECTED, Violation.LOST),
        ),
    ],
)
def test_rule_of_the_fence_broken_on_purpose_is_found(
    break_rule: BreakRule,
    expected: Violation,
    beside: tuple[Violation, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_rule(monkeypatch)
    found_in((fenced(seed).problems for seed in range(60)), expected, beside)
