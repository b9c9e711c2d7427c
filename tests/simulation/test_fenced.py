"""Attempts of a job that replace one another, whatever fails: a fenced attempt writes nothing more.

An attempt is fenced before the next one begins to write. A HAProc looks up whether an attempt is
still valid right before it appends the write. A process that is frozen between the two appends
late. In the tables, no row of an attempt may stand behind a row of a later attempt.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from haproc.classify.model import Kind
from haproc.failure import ErrorClass, RequestError, refused
from haproc.replicate.log_state.definitions import Definitions
from haproc.replicate.reader import Reader
from haproc.replicate.records.control import Fence
from haproc.replicate.records.operation import Operation
from haproc.route.attempts import Attempts
from tests.simulation.broken import BreakRule
from tests.simulation.clock import run
from tests.simulation.life import Life
from tests.simulation.network import Refused
from tests.simulation.rests import RestsScenario
from tests.simulation.scenario import Attempted, Report, operation
from tests.simulation.seeds import SEEDS, judged
from tests.simulation.violations import Violation, found_in

JOB = "job/1"
TURNS = frozenset({"turns"})


class FencedScenario(RestsScenario):
    """See the module."""

    setup = (*RestsScenario.setup, "CREATE TABLE turns (place, id, attempt)")
    looks = (*RestsScenario.looks, "turn")
    mix = ("turn",) * 8 + ("fence",) * 2 + ("set", "register", "derive", "shape", "create", "drop")

    def __init__(self, seed: int, **options: int) -> None:
        super().__init__(seed, **options)
        self.pauses = random.Random(f"{seed}/pauses")
        """The time from a look to the append: processes are stopped, machines busy."""
        self.current = 0
        """The attempt whose token is good, as the key-value store says."""
        self.begun = 0
        """The newest one that writes: those before it are fenced."""
        self.of: dict[str, int] = {}
        """The attempt of each write."""
        self.fencing = asyncio.Lock()
        self.fenced = 0
        """Writes whose attempt received the answer that it is fenced."""

    async def write(self, attempt: Attempted, order: list[str], value: int) -> bool | None:
        """Write for the attempt that writes now, or begin the next one."""
        if attempt.what == "fence":
            return await self.next_attempt(order)
        self.of[attempt.id] = self.begun
        return await super().write(attempt, order, value)

    def refuses(self, error: RequestError) -> bool:
        fenced = error.error_class == ErrorClass.JOB_FENCED
        self.fenced += fenced
        return fenced

    async def next_attempt(self, order: list[str]) -> bool:
        """Replace the attempt, then fence it, then let the next one write."""
        async with self.fencing:
            self.current += 1
            while True:
                for name in order:
                    node = self.ring.nodes[name]
                    try:
                        async with asyncio.timeout(8):
                            await node.call(lambda replica: replica.writes.fence(JOB))
                    except (Refused, TimeoutError, RequestError):
                        await asyncio.sleep(self.rng.uniform(0.1, 1))
                        continue
                    self.begun = self.current
                    return True

    async def made(self, life: Life, attempts: Attempts, attempt: Attempted) -> Operation:
        """Return a write as `haproc.route.making` makes it for a job."""
        if attempt.what != "turn":
            return await super().made(life, attempts, attempt)
        mine = self.of[attempt.id]
        sql = f"INSERT INTO turns SELECT count(*), '{attempt.id}', {mine} FROM turns"
        op = operation(attempt.id, Kind.INSERT, sql, life.node.name, reads=TURNS, writes=TURNS)
        analyzed_to = (await attempts.ground()).low
        await life.check()
        if mine != self.current:
            raise refused(ErrorClass.JOB_FENCED, "a later attempt has replaced it")
        if self.pauses.random() < 0.4:
            await asyncio.sleep(self.pauses.uniform(0, 4))
            await life.check()
        return replace(op, analyzed_to=analyzed_to, rests_on=frozenset({JOB}))

    # -- the checker -----------------------------------------------------------------------

    def check_one(
        self, name: str, dump: dict[str, list[tuple[object, ...]]], report: Report
    ) -> None:
        super().check_one(name, dump, report)
        placed = sorted(dump.get("turns", []), key=lambda row: int(str(row[0])))
        rows = [(str(op_id), int(str(number))) for _, op_id, number in placed]
        for (earlier, before), (later, after) in pairwise(rows):
            if after < before:
                text = f"{later} of attempt {after} stands behind {earlier} of {before} on {name}"
                report.wrong(Violation.OVERTAKEN, text)
        self.check_counts(name, "turn", [op_id for op_id, _ in rows], report)

    def check(self, report: Report) -> None:
        super().check(report)
        report.stale = self.fenced


def simulate_fenced(seed: int, **options: int) -> Report:
    """Run one seed and return what it came to."""
    return run(FencedScenario(seed, **options).main())


# -- tests -------------------------------------------------------------------------------------

RUNS = SEEDS // 2


fenced = partial(judged, simulate_fenced)


def test_attempts_of_a_job_under_faults_are_ordered_by_their_fences() -> None:
    reports = [fenced(seed) for seed in range(RUNS)]
    assert [(r.seed, r.problems[:3]) for r in reports if r.problems] == []
    # The runs were not idle: attempts were told that they are fenced, and writes got through.
    assert sum(report.stale for report in reports) > RUNS // 2
    assert sum(report.acknowledged for report in reports) > 15 * RUNS
    assert sum(report.kills for report in reports) > 5 * RUNS


# -- broken rules ------------------------------------------------------------------------------


def fence_passed_over(patch: pytest.MonkeyPatch) -> None:
    """Rely on the check of the token alone."""
    note = Definitions.note

    def only_operations(self: Definitions, offset: int, op: Operation | Fence) -> None:
        if not isinstance(op, Fence):
            note(self, offset, op)

    patch.setattr(Definitions, "note", only_operations)


def fence_forgotten_at_a_start(patch: pytest.MonkeyPatch) -> None:
    """Rebuild the definitions at a start without the fences."""
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
