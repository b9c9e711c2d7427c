"""Which DDL touches nothing but the tables that it names: a closed list, and no places."""

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
def test_names_all_of_a_text_is_only_without_a_place(sql: str, named: bool) -> None:
    assert names_all(replace(table_as("t", "s", "t"), write=SqlText(sql))) is named


def test_names_all_is_never_of_a_renaming() -> None:
    renames = replace(table_ddl("d", "t"), write=SqlText("ALTER TABLE t RENAME TO u"))
    assert (names_all(table_ddl("d", "t")), names_all(renames)) == (True, False)


def test_names_all_of_a_plan_is_only_without_an_option_for_a_place() -> None:
    plan = replace(table_as("t", "s", "t"), write=SparkPlan(b"... saveAsTable"))
    assert names_all(plan)
    assert not names_all(replace(plan, write=SparkPlan(b"... PATH /x")))


@pytest.mark.parametrize("kind", sorted(set(Kind) - {Kind.CREATE_TABLE_AS}))
def test_operation_runs_beside_others_without_a_mark_only_if_it_computes_a_table(
    kind: Kind,
) -> None:
    assert not replace(table_as("t", "s", "t"), kind=kind).beside


def test_names_all_is_only_where_its_tables_are_known() -> None:
    assert not names_all(replace(table_as("t", "s", "t"), tables_known=False))
    assert not names_all(replace(table_as("t", "s", "t"), writes=frozenset()))
    assert not names_all(insert("i", "t"))
