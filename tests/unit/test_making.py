"""Tests of making operations: work that may take long runs outside the event loop."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark.sql.connect.functions as F
import pytest

from haproc import protos
from haproc.classify.names import Context
from haproc.config.model import Reads
from haproc.engine.arrow import stream_of
from haproc.engine.interface import Column
from haproc.engine.placeholder import placeholder, with_rows
from haproc.pin.plan_parts import called, input_of
from haproc.route import making
from haproc.route.model import Request, SentRows
from haproc.route.offload import Offload
from haproc.route.plans import computed
from haproc.route.rows.reading import fitted
from tests.unit.recorded_plans import recorded
from tests.unit.test_reads_between_doors import pair


async def test_rows_of_any_length_are_fitted_outside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_it: list[int] = []

    def noting(*values: Any) -> bytes:
        at_it.append(threading.get_ident())
        return fitted(*values)

    async def columns(name: str) -> Sequence[Column]:
        return [Column("s", "string")]

    monkeypatch.setattr(making, "fitted", noting)
    texts = Offload()
    indices = pa.array([0] * 1000, pa.int16())
    short = stream_of(
        pa.table({"s": pa.DictionaryArray.from_arrays(indices, pa.array(["x" * 99]))})
    )
    async with pair(tmp_path, Reads()) as both:
        service = both.a.service
        monkeypatch.setattr(both.a.spark, "table_columns", columns, raising=False)
        monkeypatch.setattr(service._making, "_texts", texts)
        answer = await service.execute(Request("r", SentRows("t", short), "f"))
    await texts.aclose()
    assert answer.affected_rows == 1 and len(short) < 10_000
    assert at_it and threading.get_ident() not in at_it


def test_computed_plan_queries_the_source_and_has_the_placeholder_under_its_alias() -> None:
    def program(s: Any) -> Any:
        source = s.range(3).alias("s")
        return source.mergeInto("t", F.expr("s.id = t.id")).whenNotMatched().insertAll().merge()

    plan = recorded(program)
    found = called(input_of(plan), Context())
    assert found is not None
    write = computed(plan, None, found.over(placeholder(), ["id"]))
    assert protos.relations.Relation.FromString(write.query) == input_of(plan)
    filled = protos.base.Plan.FromString(with_rows(write.template, b"rows"))
    source = filled.command.merge_into_table_command.source_table_plan.subquery_alias
    assert source.alias == "s" and source.input.local_relation.data == b"rows"
