"""Tests of the tables and queries of the pipeline's programs."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from haproc.classify.model import Kind
from haproc.pipeline import tables
from haproc.pipeline.tables import BY, query
from haproc.pipeline.usage import Span, summed
from haproc.pipeline.verify import rows
from haproc.replicate.archive.columns import OWN_SCHEMA_PREFIX
from tests.readings.classified import classified


@pytest.mark.parametrize("by", BY)
def test_usage_report_is_a_query_of_the_usage_table(by: str) -> None:
    found = classified(query(by, 24))
    assert found.kind is Kind.SELECT and f"FROM {tables.USAGE}" in found.sql


def test_usage_is_computed_by_a_query_of_the_archive() -> None:
    span = Span(datetime(2026, 1, 1, 10, tzinfo=UTC), 17)
    found = classified(summed(span))
    assert found.kind is Kind.SELECT and f"FROM {tables.OPERATIONS}" in found.sql


@pytest.mark.parametrize(
    ("sql", "table"),
    [
        (tables.CREATE_OPERATIONS, tables.OPERATIONS),
        (tables.CREATE_USAGE, tables.USAGE),
        (tables.CREATE_VERIFICATIONS, tables.VERIFICATIONS),
    ],
)
def test_tables_of_the_pipeline_are_in_the_schema_that_the_archive_leaves_out(
    sql: str, table: str
) -> None:
    found = classified(sql)
    assert found.writes == {table}
    assert table.startswith(OWN_SCHEMA_PREFIX)


def test_verification_is_stored_as_a_row_per_cluster_and_per_table_on_it() -> None:
    found = {
        "marker": 7,
        "complete": True,
        "clusters": {
            "a": {"finding": "equal", "reason": ""},
            "b": {"finding": "unavailable", "reason": "DOWN"},
        },
        "tables": {"s.t": {"a": "equal", "b": "unavailable"}},
    }
    now = datetime(2026, 1, 1, tzinfo=UTC)
    kept = [(r["table"], r["cluster"], r["finding"], r["reason"]) for r in rows(found, now)]
    assert kept == [
        (None, "a", "equal", ""),
        (None, "b", "unavailable", "DOWN"),
        ("s.t", "a", "equal", ""),
        ("s.t", "b", "unavailable", ""),
    ]
    assert {(row["marker"], row["time"]) for row in rows(found, now)} == {(7, now)}
