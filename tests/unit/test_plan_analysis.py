"""What Spark is asked about plans that write, and what is remembered of its answers."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from haproc.classify.model import Classified, Kind, OperationClass
from haproc.engine.interface import Analyzed, Settings
from haproc.engine.statement import SparkPlan
from haproc.pin.model import Pinned, Treatment
from haproc.route.plan_analysis import PlanAnalysis
from haproc.witness.findings import Facts
from haproc.witness.judge import Verdict, judge_query
from haproc.witness.plan import Plan, read_query
from haproc.witness.plans import input_question
from tests.unit.recorded_plans import recorded

SAID = (
    "== Parsed Logical Plan ==\nx\n\n== Analyzed Logical Plan ==\nn: bigint\n"
    "LocalRelation <empty>, [n#1L]\n\n== Optimized Logical Plan ==\ny\n\n== Physical Plan ==\nz"
)
WRITE = Classified(
    "", Kind.INSERT, OperationClass.ASYNCHRONOUS, frozenset(), frozenset({"c.s.t"}), True, "plan"
)
SAME_EVERYWHERE = Pinned(Treatment.REPLICATE, "")


@dataclass
class Spark:
    """Says the same of each question; stands for the analysis, and for how a session is asked."""

    epoch: int = 0
    asked: list[bytes] = field(default_factory=list)
    defines: bool = False
    """Whether a definition changes while it is asked."""
    says: str = SAID
    session: Spark | None = None
    """The client's own, which may say something else."""

    async def clean(self, settings: Settings, user: str) -> Spark:
        return self

    async def spoken(self, query: SparkPlan) -> Analyzed:
        self.asked.append(query.plan)
        self.epoch += self.defines
        return Analyzed(self.says, ())

    @asynccontextmanager
    async def in_place(self, settings: Settings, session: object) -> AsyncIterator[Spark]:
        assert self.session is not None
        yield self.session

    def explaining(self, spark: Spark, user: str) -> Spark:
        return spark

    async def read(self, analyzed: Analyzed) -> Plan:
        plan = read_query(analyzed.text, columns=True)
        assert isinstance(plan, Plan)
        return plan

    async def facts(self, plans: list[Plan], known: Facts) -> Facts:
        return known

    async def judged(
        self, statement: Classified, pinned: Pinned, plan: Plan, facts: Facts
    ) -> Verdict:
        return judge_query(statement, pinned, plan, facts)


def question(value: int) -> bytes:
    def program(s: Any) -> Any:
        return s.createDataFrame([(value,)], ["n"]).writeTo("t").append()

    found = input_question(recorded(program))
    assert found is not None
    return found


async def looked(
    spark: Spark, analysis: PlanAnalysis, value: int, pinned: Pinned = SAME_EVERYWHERE
) -> int:
    """Ask about a piece of rows; return how often Spark was asked so far."""
    found = await analysis.verdict(WRITE, pinned, question(value), Settings(), None, "alice")
    assert found.analyzed is not None and found.verdict.treatment is pinned.treatment
    return len(spark.asked)


async def test_verdict_on_rows_piece_by_piece_asks_spark_once() -> None:
    spark = Spark()
    analysis = PlanAnalysis(spark)  # type: ignore[arg-type]
    assert [await looked(spark, analysis, value) for value in range(3)] == [1, 1, 1]


async def test_verdict_behind_a_definition_asks_spark_again() -> None:
    spark = Spark()
    analysis = PlanAnalysis(spark)  # type: ignore[arg-type]
    await looked(spark, analysis, 1)
    spark.epoch += 1
    assert [await looked(spark, analysis, value) for value in range(2)] == [2, 2]


async def test_verdict_while_a_definition_changes_is_not_remembered() -> None:
    spark = Spark(defines=True)
    analysis = PlanAnalysis(spark)  # type: ignore[arg-type]
    assert [await looked(spark, analysis, value) for value in range(2)] == [1, 2]


async def test_verdict_on_what_may_differ_asks_spark_each_time() -> None:
    spark = Spark()
    analysis = PlanAnalysis(spark)  # type: ignore[arg-type]
    doubted = dataclasses.replace(
        SAME_EVERYWHERE, treatment=Treatment.REFUSE, reasons=("it may differ",), dispellable=False
    )
    assert [await looked(spark, analysis, value, doubted) for value in range(2)] == [1, 2]


async def test_verdict_on_what_reads_otherwise_in_its_session_asks_each_once() -> None:
    own = Spark(says=SAID.replace("LocalRelation <empty>", "Relation spark_catalog.default.t"))
    spark = Spark(session=own)
    session: Any = SimpleNamespace(holds_temporaries=True)
    found = await PlanAnalysis(spark).verdict(  # type: ignore[arg-type]
        WRITE, SAME_EVERYWHERE, question(1), Settings(), session, "alice"
    )
    assert found.verdict.of_session and found.analyzed == Analyzed(own.says, ())
    assert [len(spark.asked), len(own.asked)] == [1, 1]
