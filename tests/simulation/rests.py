"""Clients write what rests on a table's definition, while others define that table anew.

A client's request counts the columns of ``shaped`` on its cluster, which takes a while, and writes
this number into ``derived``. Where the operation is applied, the columns are counted again. So each
row has both numbers, and shows whether a definition came between.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

from haproc.classify.model import Kind, OperationClass
from haproc.failure import FailureKind, RequestError
from haproc.replicate.log_state.definitions import reach
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus
from haproc.replicate.records.operation import Operation
from haproc.replicate.replica import Replica
from haproc.replicate.writes import WriteAttempt
from haproc.route.attempts import Attempts
from haproc.route.model import Request, SentSql
from tests.simulation.clock import run
from tests.simulation.computed import of_attempt
from tests.simulation.life import Life, as_made
from tests.simulation.scenario import SETUP, Attempted, Report, Scenario, operation
from tests.simulation.violations import Violation

SHAPED = frozenset({"shaped"})


class RestsScenario(Scenario):
    """See the module."""

    setup: tuple[str, ...] = (
        *SETUP,
        "CREATE TABLE shaped (c0)",
        "CREATE TABLE derived (id, seen, found)",
    )
    looks: tuple[str, ...] = ("derive", "shape")
    """Steps that are made after a look at the ring."""
    mix: tuple[str, ...] = (
        ("derive",) * 8 + ("shape",) * 3 + ("set", "set", "register", "copy", "create", "drop")
    )

    def __init__(self, seed: int, **options: int) -> None:
        super().__init__(seed, **options)
        self.looks_rng = random.Random(f"{seed}/looks")
        self.stale = 0
        """The number of stale records."""

    async def send(self, name: str, attempt: Attempted, value: int) -> OperationOutcome:
        """Send what is made after a look on the way that the service takes."""
        if attempt.what not in self.looks:
            return await super().send(name, attempt, value)
        life, age_s = self.ring.nodes[name].running(), self.now() - attempt.started_at

        async def work(replica: Replica) -> WriteAttempt:
            if not replica.serving:
                raise replica.writes.unavailable()
            attempts = Attempts(replica)
            request = Request(attempt.id, SentSql(""), attempt.id, timeout_s=6, age_s=age_s)
            since = replica.writes.since(age_s)

            async def make() -> Operation:
                op = await self.made(life, attempts, attempt)
                return as_made(op, since)

            return await attempts.known(request) or await attempts.write(request, make)

        done = await life.call(work)
        assert done.outcome.status is OutcomeStatus.APPLIED, done.outcome
        return done.outcome

    async def made(self, life: Life, attempts: Attempts, attempt: Attempted) -> Operation:
        """Return the operation of a workload step."""
        name, spark = life.node.name, life.node.spark
        if attempt.what == "shape":
            sql = f"ALTER TABLE shaped ADD COLUMN {attempt.id}"
            op = operation(attempt.id, Kind.ALTER_TABLE, sql, name, writes=SHAPED)
            return replace(op, operation_class=OperationClass.SYNCHRONOUS)
        looked_at = (await attempts.ground()).low
        await life.check()
        await asyncio.sleep(self.looks_rng.expovariate(3))
        await life.check()
        if not spark.up:
            raise RequestError(FailureKind.AVAILABILITY, "Spark is away", error_class="SIM")
        seen = len(spark.columns("shaped"))
        found = "(SELECT count(*) FROM pragma_table_info('shaped'))"
        sql = f"INSERT INTO derived SELECT '{attempt.id}', {seen}, {found}"
        writes = frozenset({"derived"})
        op = operation(attempt.id, Kind.INSERT, sql, name, reads=SHAPED, writes=writes)
        return replace(op, analyzed_to=looked_at, rests_on=SHAPED)

    # -- the checker -----------------------------------------------------------------------

    def check_counts(self, name: str, what: str, ids: Sequence[str], report: Report) -> None:
        """Compare the ids in a cluster's table with the answers of the attempts."""
        for attempt in self.attempts:
            if attempt.what == what:
                report.problems += of_attempt(name, attempt, ids.count(attempt.id))

    def check_one(
        self, name: str, dump: dict[str, list[tuple[object, ...]]], report: Report
    ) -> None:
        super().check_one(name, dump, report)
        rows = dump.get("derived", [])
        stands = self.that_stand()
        for op_id, seen, found in rows:
            if seen != found:
                text = f"{op_id} saw {seen} columns and found {found} on {name}"
                report.wrong(Violation.OVERTAKEN, text)
            if op_id not in stands:
                text = f"{op_id} is on {name}, and every record of it was overtaken"
                report.wrong(Violation.OVERTAKEN, text)
        self.check_counts(name, "derive", [str(row[0]) for row in rows], report)
        shapes = set(self.ring.nodes[name].spark.columns("shaped"))
        for attempt in self.attempts:
            if attempt.what == "shape" and attempt.acknowledged and attempt.id not in shapes:
                text = f"{attempt.id} was acknowledged and is not on {name}"
                report.wrong(Violation.LOST, text)

    def that_stand(self) -> frozenset[str]:
        """Return the ids of operations with a record that no definition overtook."""
        log = self.ring.store.all_messages()
        shaped = {o for o, m in enumerate(log) if isinstance(m, Operation) and m.writes & SHAPED}
        unclear = {o for o, m in enumerate(log) if isinstance(m, Operation) and not m.tables_known}
        stands, self.stale = set(), 0
        for offset, message in enumerate(log):
            if not isinstance(message, Operation) or message.analyzed_to is None:
                continue
            between = range(message.analyzed_to, offset)
            near = len(between) <= reach(message.window)
            if near and not (shaped | unclear).intersection(between):
                stands.add(message.id)
            else:
                self.stale += 1
        return frozenset(stands)

    def check(self, report: Report) -> None:
        super().check(report)
        report.stale = self.stale


def simulate_rests(seed: int, **options: int) -> Report:
    """Run one seed and return its report."""
    return run(RestsScenario(seed, **options).main())
