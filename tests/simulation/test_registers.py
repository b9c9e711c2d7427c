"""Linearizable reads are, over many seeds; rules of reading broken on purpose are found."""

from __future__ import annotations

import pytest

from tests.simulation.broken import BreakRule
from tests.simulation.registers import longest, simulate_registers
from tests.simulation.seeds import SEEDS
from tests.simulation.test_reads import end_known_before, nothing_waited_for
from tests.simulation.violations import Violation, found_in

pytestmark = pytest.mark.usefixtures("quiet")
RUNS = SEEDS // 2


def test_registers_under_every_kind_of_fault_are_linearizable() -> None:
    runs = [simulate_registers(seed) for seed in range(RUNS)]
    assert [(r.seed, r.problems[:3]) for r, _ in runs if r.problems] == []
    # The runs were not idle.
    assert sum(scenario.reads for _, scenario in runs) > 30 * RUNS
    assert sum(scenario.failovers for _, scenario in runs) > RUNS
    assert longest([scenario for _, scenario in runs]) > 60


@pytest.mark.thorough
@pytest.mark.parametrize(("break_rule", "first"), [(nothing_waited_for, 0), (end_known_before, 16)])
def test_register_read_that_breaks_a_rule_is_found(
    break_rule: BreakRule, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)
    problems = (simulate_registers(n)[0].problems for n in range(first, first + 100))
    found_in(problems, Violation.STALE)
