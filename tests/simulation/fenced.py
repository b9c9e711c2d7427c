"""A job's attempts write, one after another, each fenced before the next one begins.

Whether an attempt may still act is looked up as HAProcs do it: at the last moment before its write
is appended, in a store that every process sees alike. A process that is frozen between the two
appends late. Nothing of an attempt may stand behind anything of a later one.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from itertools import pairwise

from haproc.classify.model import Kind
from haproc.failure import ErrorClass, RequestError, refused
from haproc.replicate.records.operation import Operation
from haproc.route.attempts import Attempts
from tests.simulation.clock import run
from tests.simulation.life import Life
from tests.simulation.network import Refused
from tests.simulation.rests import RestsScenario
from tests.simulation.scenario import Attempted, Report, operation
from tests.simulation.violations import Violation

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
        """How long it takes from a look to the append: processes are stopped, machines busy."""
        self.current = 0
        """The attempt whose token is good, as the key-value store says."""
        self.begun = 0
        """The newest one that writes: those before it are fenced."""
        self.of: dict[str, int] = {}
        """For which attempt each write is made."""
        self.fencing = asyncio.Lock()
        self.fenced = 0
        """Writes whose attempt was told that it is fenced."""

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
