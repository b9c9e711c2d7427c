"""Tests that the schedule's model finds violations: rules are broken on purpose."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import (
    run_state_machine_as_test,
)

from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.queue.turns import Readiness, Turns, Unmarked
from haproc.replicate.queue.units import Unit
from haproc.replicate.records.operation import Operation
from tests.simulation.violations import found_by
from tests.unit.test_schedule_model import Life


def tables_ignored(patch: pytest.MonkeyPatch) -> None:
    """Run all operations side by side."""
    patch.setattr(Turns, "_is_free", lambda self, offset, op: True)


def readers_ignored(patch: pytest.MonkeyPatch) -> None:
    """Let writers overtake the readers of a table."""

    def is_free(self: Turns, offset: int, op: Operation) -> bool:
        writing = (self._queues[table].writing for table in op.reads | op.writes)
        return all(next(iter(line), offset) >= offset for line in writing)

    patch.setattr(Turns, "_is_free", is_free)


def exclusive_ignored(patch: pytest.MonkeyPatch) -> None:
    """Treat DDL like any other operation."""
    patch.setattr(Operation, "exclusive", property(lambda self: False))


def decisions_not_awaited(patch: pytest.MonkeyPatch) -> None:
    """Run other clusters' synchronous operations before their decision."""
    patch.setattr(Readiness, "lacks", lambda self, offset, op: False)


def batches_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Forget the intents after a crash."""
    original = Schedule.__init__

    def forgetful(self: Schedule, *args: object) -> None:
        original(self, *args)  # type: ignore[arg-type]
        self._old_batches = {}

    patch.setattr(Schedule, "__init__", forgetful)


def doubt_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Combine operations right after a crash."""
    original = Schedule.__init__

    def forgetful(self: Schedule, *args: object) -> None:
        original(self, *args)  # type: ignore[arg-type]
        self._doubtful_below = 0

    patch.setattr(Schedule, "__init__", forgetful)


def alone_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Run a statement without a marker after a crash as if it were new."""
    original = Schedule.__init__

    def forgetful(self: Schedule, *args: object) -> None:
        original(self, *args)  # type: ignore[arg-type]
        self.unmarked._old = frozenset()

    patch.setattr(Schedule, "__init__", forgetful)


def begun_before_a_look(patch: pytest.MonkeyPatch) -> None:
    """Store an intent before the previous state of the table is known."""
    begins = Unmarked.begins

    def hasty(self: Unmarked, offset: int) -> None:
        begins(self, offset)
        self._stood.setdefault(offset, "")

    patch.setattr(Unmarked, "begins", hasty)


def over_and_kept(patch: pytest.MonkeyPatch) -> None:
    """Keep the intent of an operation that need not run."""
    patch.setattr(Unmarked, "over", lambda self, offset: None)


def passed_whatever_it_names(patch: pytest.MonkeyPatch) -> None:
    """Let DDL overtake a table that is being computed although both name it."""
    patch.setattr(Turns, "_stands_before", lambda self, offset, op, table: False)


def passed_whatever_it_touches(patch: pytest.MonkeyPatch) -> None:
    """Let any exclusive operation overtake a table that is being computed."""

    def comes(self: Turns, offset: int) -> bool:
        return next(iter(self._plain), offset) >= offset

    patch.setattr(Turns, "_comes", comes)


def completed_is_released(patch: pytest.MonkeyPatch) -> None:
    """Let conflicting operations start before the progress is durable."""
    original, release = Schedule.complete, Schedule.release

    def hasty(self: Schedule, unit: Unit) -> None:
        original(self, unit)
        release(self, unit)

    patch.setattr(Schedule, "complete", hasty)
    patch.setattr(Schedule, "release", lambda self, unit: None)


@pytest.mark.parametrize(
    ("break_rule", "expected"),
    [
        (tables_ignored, "is not settled"),
        (readers_ignored, "is not settled"),
        (exclusive_ignored, "is not settled"),
        (decisions_not_awaited, "starts undecided"),
        (batches_forgotten, "a batch was formed anew"),
        (doubt_forgotten, "the first statement in doubt on a table is combined"),
        (alone_forgotten, "assert unit.in_doubt"),
        (begun_before_a_look, "nobody knows what stood there"),
        (over_and_kept, "an intent of what is over"),
        (completed_is_released, "is not settled"),
        (passed_whatever_it_names, "is not settled"),
        (passed_whatever_it_touches, "is not settled"),
    ],
)
def test_rule_broken_on_purpose_is_found(
    break_rule: Callable[[pytest.MonkeyPatch], None],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_rule(monkeypatch)
    quick = settings(
        max_examples=5000,
        stateful_step_count=50,
        deadline=None,
        phases=[Phase.generate],
        derandomize=True,  # found always or never
        database=None,
        print_blob=False,
    )
    found_by(lambda: run_state_machine_as_test(Life, settings=quick), expected)
