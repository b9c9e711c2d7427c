"""The cache as clients see it: a whole HAProc with a Spark that gives canned plan readings."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from haproc.config.sections import Cache
from haproc.engine.interface import Observed
from haproc.engine.statement import SparkPlan, SqlText, Statement
from haproc.engine.tasks import Planned
from tests.unit import test_reads_between_doors as between
from tests.unit.canned import CannedStream
from tests.unit.made_readings import alias, files, reading_json, table
from tests.unit.test_reads_between_doors import HAProc, Pair, Reads, Spark, pair

QUERY = "SELECT name FROM t"
TABLE = "spark_catalog.default.t"
PLAN = reading_json(table(TABLE))


@dataclass
class ExplainingSpark(Spark):
    """A Spark that answers each plan reading with a canned text."""

    plan_reading: str = PLAN
    query_texts: list[str] = field(default_factory=list)
    looks: int = 0

    async def query(
        self,
        statement: Statement,
        *,
        timeout_s: float,
        planned: Planned | None = None,
        observed: Observed | None = None,
    ) -> CannedStream:
        assert isinstance(statement, SqlText)
        self.query_texts.append(statement.sql)
        return await super().query(statement, timeout_s=timeout_s)

    async def reading(
        self,
        statement: SqlText | SparkPlan,
        *,
        timeout_s: float,
        paths: Sequence[str] = (),
        parsed_only: bool = False,
    ) -> str:
        self.looks += 1
        return self.plan_reading


@contextlib.asynccontextmanager
async def ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Cache | None = None
) -> AsyncIterator[tuple[Pair, HAProc, ExplainingSpark]]:
    monkeypatch.setattr(between, "Spark", ExplainingSpark)
    if cache is not None:
        make = between.Config
        monkeypatch.setattr(between, "Config", lambda *a, **k: replace(make(*a, **k), cache=cache))
    async with pair(tmp_path, Reads()) as both:
        spark = both.a.spark
        assert isinstance(spark, ExplainingSpark)
        yield both, both.a, spark


async def cached(both: Pair, to: HAProc, sql: str = QUERY, **fields: Any) -> dict[str, Any] | None:
    """Send a query and return the answer's report about the cache."""
    answer = await both.ask(to, sql, **fields)
    assert answer["status"]["state"] == "SUCCEEDED", answer
    assert answer["result"]["data_array"] == [[answer["ha"]["cluster"]]]
    cache_report: dict[str, Any] | None = answer["ha"].get("cache")
    return cache_report


async def test_cached_answer_is_used_until_its_table_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ring(tmp_path, monkeypatch) as (both, a, spark):
        assert await cached(both, a) is None
        assert await cached(both, a, cache=True) == {
            "hit": False,
            "age_s": 0.0,
            "kept": True,
            "reason": "",
        }
        for level in ("any", "bounded", "session", "linearizable"):
            cache_report = await cached(both, a, cache=True, consistency=level)
            assert cache_report is not None and cache_report["hit"] and cache_report["kept"]
        assert spark.queries == [QUERY] * 2
        assert await cached(both, a, cache=True, schema="other") != cache_report  # another query
        await both.ask(a, "INSERT INTO u VALUES (1)")
        assert (await cached(both, a, cache=True) or {})["hit"]
        await both.ask(both.b, "INSERT INTO t VALUES (1)")
        levels: dict[str, Any] = {"consistency": "linearizable", "cache": True}
        assert not (await cached(both, a, **levels) or {})["hit"]
        assert (await cached(both, a, **levels) or {})["hit"]
        assert spark.looks == 2
        metrics = a.metrics.text().decode()
        assert 'haproc_cache_queries_total{outcome="hit"} 6.0' in metrics
        assert 'haproc_cache_evictions_total{reason="written"} 1.0' in metrics
        assert "haproc_cache_answers 2.0" in metrics


async def test_request_with_cache_false_is_run_though_the_cache_is_on_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ring(tmp_path, monkeypatch, Cache(by_default=True)) as (both, a, _):
        assert (await cached(both, a) or {})["kept"]
        assert (await cached(both, a) or {})["hit"]
        assert await cached(both, a, cache=False) is None
        answer = await both.ask(a, QUERY, cache="yes")
        assert answer["error_class"] == "HAPROC_BAD_REQUEST"


@pytest.mark.parametrize(
    ("sql", "answer", "reason"),
    [
        (QUERY, reading_json(table(TABLE), items=(alias("CurrentDate", "DATE"),)), "clock"),
        (QUERY, reading_json(table(TABLE), items=(alias("Uuid", "STRING"),)), "uuid"),
        (
            QUERY,
            reading_json(table(TABLE, "parquet")),
            "spark_catalog.default.t is no managed Delta table",
        ),
        (
            QUERY,
            reading_json(table(TABLE, kind="EXTERNAL")),
            "spark_catalog.default.t is no managed Delta",
        ),
        (QUERY, "nonsense", "no reading"),
        (QUERY, reading_json(files()), "files"),
        ("SHOW TABLES", PLAN, "it is no SELECT"),
    ],
)
async def test_answer_of_a_query_not_known_to_be_repeatable_is_not_kept(
    sql: str,
    answer: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ring(tmp_path, monkeypatch) as (both, a, spark):
        spark.plan_reading = answer
        for _ in range(2):
            cache_report = await cached(both, a, sql, cache=True)
            assert cache_report is not None and not cache_report["hit"] and not cache_report["kept"]
            assert reason in cache_report["reason"]
