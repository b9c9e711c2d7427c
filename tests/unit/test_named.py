"""Tests of names_all: DDL that touches only the tables that it names, and no locations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from haproc.classify.model import Kind
from haproc.engine.statement import SparkPlan, SqlText
from haproc.replicate.log_state.definitions import names_all
from tests.unit.operations import insert, table_as, table_ddl


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("CREATE TABLE t AS SELECT location, id FROM s", True),
        ("CREATE OR REPLACE TABLE t USING delta AS SELECT id AS location FROM s", True),
        ("CREATE TABLE t LOCATION '/x' AS SELECT 1", False),
        ('CREATE TABLE t /* here */ location /* there */ "/x" AS SELECT 1', False),
        ("CREATE TABLE t OPTIONS ('p\\u0061th' '/x') AS SELECT 1", False),
        ("CREATE TABLE t AS SELECT 'LOCATION' AS x, 'OPTIONS (' AS y", True),
    ],
)
def test_names_all_of_a_statement_is_true_only_without_a_location(sql: str, named: bool) -> None:
    assert names_all(replace(table_as("t", "s", "t"), write=SqlText(sql))) is named


def test_names_all_of_a_table_renaming_is_false() -> None:
    renames = replace(table_ddl("d", "t"), write=SqlText("ALTER TABLE t RENAME TO u"))
    assert (names_all(table_ddl("d", "t")), names_all(renames)) == (True, False)


def test_names_all_of_a_plan_is_true_only_without_a_location_option() -> None:
    plan = replace(table_as("t", "s", "t"), write=SparkPlan(b"... saveAsTable"))
    assert names_all(plan)
    assert not names_all(replace(plan, write=SparkPlan(b"... PATH /x")))


@pytest.mark.parametrize("kind", sorted(set(Kind) - {Kind.CREATE_TABLE_AS}))
def test_operation_of_any_other_kind_than_create_table_as_does_not_run_beside_others(
    kind: Kind,
) -> None:
    assert not replace(table_as("t", "s", "t"), kind=kind).beside


def test_names_all_is_true_only_of_ddl_with_known_tables() -> None:
    assert not names_all(replace(table_as("t", "s", "t"), tables_known=False))
    assert not names_all(replace(table_as("t", "s", "t"), writes=frozenset()))
    assert not names_all(insert("i", "t"))
