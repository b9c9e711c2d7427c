"""Tests of OPTIMIZE by rule: when it is due, and that it is requested once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from haproc.classify.model import OperationClass
from haproc.config.sections import Optimize, OptimizeRule
from haproc.failure import FailureKind, RequestError
from haproc.route.model import Answer, HaReport, Request, SentSql
from haproc.route.optimizing import USER, Optimizing, commits_since, rule_of
from tests.unit.canned import CannedStream, chunks_of

RULES = (OptimizeRule("*.logs.*", 2), OptimizeRule("spark_catalog.*", 3))
TABLE = "spark_catalog.s.t"


def test_first_matching_rule_applies() -> None:
    assert rule_of("spark_catalog.logs.t", RULES) is RULES[0]
    assert rule_of(TABLE, RULES) is RULES[1]
    assert rule_of("other.s.t", RULES) is None


@pytest.mark.parametrize(
    ("operations", "looked_at", "count"),
    [
        (["WRITE", "MERGE", "OPTIMIZE", "WRITE"], -1, 2),
        (["WRITE", "WRITE"], -1, 2),
        (["WRITE", "WRITE", "WRITE", "WRITE"], 2, 1),
        (["WRITE", "WRITE", "WRITE", "WRITE"], 3, 0),
        (["CREATE TABLE", "WRITE", "WRITE"], 500, 3),
        (["OPTIMIZE"], -1, 0),
        ([], -1, 0),
    ],
)
def test_commits_are_counted_back_to_the_last_optimize(
    operations: list[str], looked_at: int, count: int
) -> None:
    newest = len(operations) - 1
    history = [(newest - at, operation) for at, operation in enumerate(operations)]
    assert commits_since(history, looked_at) == count


class Ring:
    """A table's history, and the requests that were made."""

    def __init__(self, leads: bool = True) -> None:
        self.history = ["WRITE"] * 3
        self.newest = {TABLE: 10, "other.s.t": 5}
        self.requests: list[Request] = []
        self.error: RequestError | None = None
        self.optimizing = Optimizing(
            Optimize(RULES, 60.0),
            self.execute,
            lambda: self.newest,
            lambda: leads,
            lambda: 6_030_000,
            9.0,
        )

    @property
    def texts(self) -> list[str]:
        statements = [request.statement for request in self.requests]
        return [each.text for each in statements if isinstance(each, SentSql)]

    async def execute(self, request: Request) -> Answer:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        newest = len(self.history) - 1
        table = pa.table(
            {
                "version": [newest - at for at in range(len(self.history))],
                "operation": self.history[::-1],
            }
        )
        report = HaReport("a", OperationClass.QUERY)
        return Answer(report, CannedStream(chunks_of(table)))


LOOK = "DESCRIBE HISTORY `spark_catalog`.`s`.`t` LIMIT 3"
RUN = "OPTIMIZE `spark_catalog`.`s`.`t`"


async def test_table_with_many_commits_is_optimized_under_an_id_that_all_haprocs_share() -> None:
    one, other = Ring(), Ring()
    await one.optimizing.look()
    await other.optimizing.look()
    assert one.texts == [LOOK, RUN]
    request = one.requests[1]
    assert (request.user, request.timeout_s) == (USER, 9.0)
    assert request.id == other.requests[1].id and request.id.endswith(":100")
    assert request.fingerprint == other.requests[1].fingerprint


async def test_table_is_checked_again_only_after_another_write() -> None:
    ring = Ring()
    await ring.optimizing.look()
    await ring.optimizing.look()
    assert len(ring.texts) == 2
    ring.newest = {TABLE: 11}
    await ring.optimizing.look()
    # The last one found nothing to do, and left no trace: it is not asked for at each write.
    assert ring.texts[2:] == [LOOK]
    ring.newest = {TABLE: 12}
    ring.history += ["WRITE"] * 3
    await ring.optimizing.look()
    assert ring.texts[3:] == [LOOK, RUN]


async def test_error_of_a_table_is_logged_and_not_raised(caplog: pytest.LogCaptureFixture) -> None:
    ring = Ring()
    ring.error = RequestError(FailureKind.APPLICATION, "no such table", error_class="X")
    await ring.optimizing.look()
    await ring.optimizing.look()
    assert ring.texts == [LOOK] and "no such table" in caplog.text
