"""Tests of the questions to Spark about parts of plans that write, and of the kept readings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from haproc.classify.model import RefusedError
from haproc.config.shares import Shares
from haproc.engine.interface import Settings
from haproc.engine.statement import SparkPlan, SqlText
from haproc.route.classifying import Asker
from haproc.route.offload import Inline
from haproc.route.plan_questions import input_question, shape_of
from haproc.route.planning import Planning
from haproc.route.readings import Readings
from haproc.route.shared_sessions import ReadingSessions
from tests.unit.recorded_plans import recorded


def tree(cls: str, kind: str = "", **fields: Any) -> dict[str, Any]:
    typed = {"t": kind} if kind else {}
    return {"c": cls, "n": True, "f": fields, **typed}


def column(number: int) -> dict[str, Any]:
    return tree("AttributeReference", "BIGINT", name=f"c{number}") | {"i": number}


ROWS = tree("LocalRelation", output=[column(0), column(1)])


def reading(analyzed: dict[str, Any], *, metadata: dict[str, Any] | None = None) -> str:
    fields = [{"name": "n", "type": "long", "nullable": True, "metadata": metadata or {}}]
    schema = json.dumps({"type": "struct", "fields": fields})
    return json.dumps({"analyzed": analyzed, "columns": [["n", "BIGINT"]], "schema": schema})


@dataclass
class Spark:
    """A session that returns the same reading each time."""

    says: str = reading(ROWS)
    plans: list[bytes] = field(default_factory=list)
    epoch: int = 0
    defines: bool = False
    """True if a definition changes during a reading."""

    async def ready(self) -> None:
        pass

    async def reading(
        self,
        statement: SqlText | SparkPlan,
        *,
        timeout_s: float,
        paths: Sequence[str] = (),
        parsed_only: bool = False,
    ) -> str:
        assert isinstance(statement, SparkPlan)
        self.plans.append(statement.plan)
        self.epoch += self.defines
        return self.says


def readings(spark: Spark) -> Readings:
    class Sessions(ReadingSessions):
        async def shared(self, settings: Settings) -> Any:
            return spark

    def epoch() -> int:
        return spark.epoch

    sessions = Sessions(cast(Any, None), epoch, lambda: 0.0)
    return Readings(sessions, epoch, Inline(), Planning(Shares(9), Shares(9)), 5)


def question(value: int) -> bytes:
    def program(s: Any) -> Any:
        s.range(value)  # each DataFrame has a number of its own
        return s.createDataFrame([(value,)], ["n"]).writeTo("t").append()

    found = input_question(recorded(program))
    assert found is not None
    return found


async def reading_counts(spark: Spark, having: Readings, **how: Any) -> list[int]:
    """Ask about two batches of rows; return the number of Spark's readings after each."""
    counts = []
    for value in range(2):
        await having.frame(question(value), Asker(Settings(), None, "ann"), **how)
        counts.append(len(spark.plans))
    return counts


async def test_rows_in_batches_are_read_once_and_without_the_numbers_of_steps() -> None:
    spark = Spark()
    having = readings(spark)
    assert await reading_counts(spark, having) == [1, 1]
    assert spark.plans == [shape_of(question(7))]
    spark.epoch += 1
    assert await reading_counts(spark, having) == [2, 2]


@pytest.mark.parametrize(
    ("spark", "how"),
    [
        (Spark(defines=True), {}),
        (Spark(), {"keeps": False}),
        (Spark(reading(tree("Sample", child=ROWS))), {}),
    ],
)
async def test_reading_that_may_change_is_not_kept(spark: Spark, how: dict[str, Any]) -> None:
    assert await reading_counts(spark, readings(spark), **how) == [1, 2]


async def test_frame_of_a_session_with_temporary_objects_is_read_there_and_not_kept() -> None:
    shared, own = Spark(), Spark()
    having = readings(shared)
    for temporaries, there, counts in (
        (True, False, (0, 1)),
        (True, False, (0, 2)),
        (False, True, (0, 3)),
        (False, False, (1, 3)),
    ):
        session: Any = SimpleNamespace(holds_temporaries=temporaries, spark=own)
        await having.frame(question(1), Asker(Settings(), session, "ann"), only_there=there)
        assert (len(shared.plans), len(own.plans)) == counts


async def test_frame_has_its_columns_and_the_keys_of_their_metadata() -> None:
    spark = Spark(reading(ROWS, metadata={"delta.generationExpression": "x"}))
    found = await readings(spark).frame(question(1), Asker(Settings(), None, "ann"))
    assert found.columns == (("n", "BIGINT"),)
    assert found.metadata == {"delta.generationExpression"}


@pytest.mark.parametrize(
    ("analyzed", "says"),
    [
        (tree("Deduplicate", keys=[column(0), column(1)], child=ROWS), ""),
        (tree("Deduplicate", keys=[column(0)], child=ROWS), "dropDuplicates()"),
        (tree("CollectMetrics", child=ROWS), ""),
        (tree("Brand new"), "is not known to give the same everywhere"),
        (tree("PythonUDF", "BIGINT", func=tree("SimplePythonFunction")), "runs code"),
    ],
)
async def test_frame_has_the_reasons_why_it_may_differ(analyzed: dict[str, Any], says: str) -> None:
    found = await readings(Spark(reading(analyzed))).frame(
        question(1), Asker(Settings(), None, "ann")
    )
    assert says in "; ".join(found.reasons) and bool(found.reasons) is bool(says)
    assert not any("SimplePythonFunction" in each for each in found.reasons)


@pytest.mark.parametrize("cls", ["CallMethodViaReflection", "AppendData"])
async def test_frame_that_is_no_query_or_runs_foreign_code_is_refused(cls: str) -> None:
    found = await readings(Spark(reading(tree(cls)))).frame(
        question(1), Asker(Settings(), None, "ann")
    )
    assert found.refused and set(found.refused) <= set(found.reasons)


@pytest.mark.parametrize("says", ["", "[]", '{"parsed": null}', '{"analyzed": {"c": 1, "f": 2}}'])
async def test_frame_without_a_valid_reading_is_refused(says: str) -> None:
    with pytest.raises(RefusedError, match="cannot be judged"):
        await readings(Spark(says)).frame(question(1), Asker(Settings(), None, "ann"))
