"""The violations that a run or a story can find, by name; and checks of rules broken on purpose.

A rule broken on purpose proves something only if it is found by the very violation that it must
cause. A patch that no longer fits (a TypeError), a run that hangs, a broken promise unrelated to
the rule: none of these is a finding, and `found_in` and `found_by` fail.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

import pytest


class Violation(StrEnum):
    """The broken promise."""

    LOST = "acknowledged, and not there"
    DOUBLED = "applied more than once"
    REJECTED = "rejected, and there"
    ORDER = "another order in the tables than in time"
    UNEQUAL = "clusters hold different things"
    DIVERGED = "a cluster found itself different from the others"
    NOT_READY = "a cluster does not come back"
    UNVERIFIED = "the ring's own verification found its clusters different"
    NOT_ENDED = "a process that was replaced goes on"
    MISPLACED = "computed rows show something else than what stands before them in the order"
    OTHERWISE = "a table holds something else than the log's statements leave one after another"
    STALE = "a read does not show what it must"
    OVERTAKEN = "applied, though what it rests on had been defined anew"
    UNFULFILLED = "acknowledged before its concern was met"
    ANOTHER = "a session that was made anew is another one"
    GONE = "a session cannot be made anew any more"
    CRASHED = "a task died, or the run itself: no promise, but a bug"


@dataclass(frozen=True, slots=True)
class Problem:
    """One violation, and its description."""

    violation: Violation
    text: str

    def __str__(self) -> str:
        return self.text


class Violated(AssertionError):
    """A story's ring broke a promise."""

    def __init__(self, violation: Violation, text: str) -> None:
        super().__init__(f"{violation}: {text}")
        self.violation = violation


@contextmanager
def in_time(violated: Callable[[], Violated]) -> Iterator[None]:
    """Treat a timeout as a violation."""
    try:
        yield
    except TimeoutError as error:
        raise violated() from error


def found_in(
    runs: Iterable[Sequence[Problem]], expected: Violation, beside: Iterable[Violation] = ()
) -> None:
    """Search runs with a broken rule for the violation that the rule prevents.

    The ``first`` seed of a rule that few runs find is one that did: the others only cost time.
    Other violations on the way must be in ``beside``: consequences of the broken rule, too.
    Clusters that differ and notice it are a consequence of any event on one of them alone.
    """
    assert expected is not Violation.CRASHED
    follows = {Violation.UNEQUAL, Violation.UNVERIFIED, Violation.DIVERGED}
    allowed = {expected, *follows, *beside}
    number = 0
    for number, problems in enumerate(runs, 1):
        others = [str(problem) for problem in problems if problem.violation not in allowed]
        if others:
            pytest.fail(f"run {number} found something else than {expected.name}: {others[:3]}")
        if any(problem.violation is expected for problem in problems):
            return
    pytest.fail(f"{expected.name} was not found in {number} runs")


def found_by(story: Callable[[], object], expected: Violation | str) -> None:
    """Let a story find a broken rule: by a violation, or by an assertion of its own.

    An assertion, or a wait for a condition that never becomes true, is named by a part of its line.
    Errors of other kinds, timeouts as well, are raised unchanged.
    """
    try:
        story()
    except Violated as error:
        if isinstance(expected, Violation) and error.violation is expected:
            return
        found = str(error)
        if isinstance(expected, str) and expected in _line(error):
            return
    except AssertionError as error:
        found = _line(error)
        if isinstance(expected, str) and expected in found:
            return
    else:
        pytest.fail(f"not found: {expected}")
    pytest.fail(f"found by {found!r}, not by {expected!r}")


def _line(error: AssertionError) -> str:
    """Return the line of the story in which it failed."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.line or "" for frame in frames if "/test_" in frame.filename]
    return lines[-1] if lines else ""
