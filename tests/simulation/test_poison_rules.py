"""Tests of the rules of skips and verifications, broken on purpose: a story finds each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from dmq import Cursor
from haproc.replicate.apply import applier
from haproc.replicate.member import own_log
from haproc.replicate.member.steps import Step
from haproc.replicate.operators import Operators
from haproc.replicate.queue import schedule, units
from haproc.replicate.queue.facts import Notes
from haproc.replicate.queue.units import TaskState
from haproc.replicate.records.control import Checksums, Skip, Verify
from haproc.replicate.records.progress import Progress
from tests.simulation import test_poison as stories
from tests.simulation.broken import BreakRule
from tests.simulation.violations import Violation, found_by


def killed_at(step: Step) -> Callable[[], None]:
    """Return the story of a process that is killed at a step of a skip."""
    script = (
        stories.test_process_killed_between_skip_record_and_progress_has_skipped_after_its_restart
    )
    return partial(script, step)


def not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """Skip without a check whether a failed attempt was committed."""

    async def never(self: applier.Applier, unit: object, lane: object) -> bool:
        return False

    patch.setattr(applier.Applier, "_committed_after_all", never)


def earlier_lives_count(patch: pytest.MonkeyPatch) -> None:
    """Apply skip records of tables that were rebuilt since."""
    patch.setattr(Notes, "born", 0)


def mark_not_stored(patch: pytest.MonkeyPatch) -> None:
    """Forget at a restart that the cluster is diverged."""
    original = own_log.to_cursor  # type: ignore[attr-defined]

    def forgetful(progress: Progress, epoch: int) -> Cursor:
        return original(replace(progress, diverged=None), epoch)

    patch.setattr(own_log, "to_cursor", forgetful)


def not_recorded(patch: pytest.MonkeyPatch) -> None:
    """Ignore the record of a skip after a restart."""
    original = Operators.handle_operator_record

    def deaf(self: Operators, offset: int, message: Skip | Verify | Checksums) -> None:
        if self._core.condition.now.started:
            original(self, offset, message)

    patch.setattr(Operators, "handle_operator_record", deaf)


def no_barrier(patch: pytest.MonkeyPatch) -> None:
    """Survey the tables at the cluster's cursor of the moment when it reads the marker."""
    original = schedule.Schedule.take

    def hasty(self: schedule.Schedule, lanes_free: int) -> list[units.Unit]:
        for task in self._tasks.values():
            if task.op is units.MARKER and task.state is TaskState.WAITING:
                return [self._start([task], units.Intent.NONE)]
        return original(self, lanes_free)

    patch.setattr(schedule.Schedule, "take", hasty)


@pytest.mark.parametrize(
    ("break_rule", "found", "expected"),
    [
        (
            not_looked_at,
            stories.test_skip_of_a_committed_operation_completes_it,
            'answer["status"] == OutcomeStatus.APPLIED',
        ),
        (
            earlier_lives_count,
            stories.test_rebuilt_cluster_replays_operations_that_it_skipped_before,
            Violation.DIVERGED,
        ),
        (mark_not_stored, killed_at(Step.CURSOR_AFTER), "State.DIVERGED"),
        (not_recorded, killed_at(Step.APPLY_AFTER), "State.DIVERGED"),
        (
            no_barrier,
            stories.test_verification_waits_for_operations_before_its_marker,
            "findings(found) ==",
        ),
    ],
)
def test_rule_of_skips_and_verifications_broken_on_purpose_is_found(
    break_rule: BreakRule,
    found: Callable[[], None],
    expected: Violation | str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_rule(monkeypatch)
    found_by(found, expected)
