"""Tests of writes in a session that holds temporary views."""

from __future__ import annotations

from dataclasses import replace

import pytest

from haproc.classify.model import RefusedError
from haproc.classify.names import Context, joined, qualified
from haproc.route.session_statements import changes_temporary
from tests.readings.classified import classified

TEMPORARY = frozenset({"v"})


def changes(sql: str) -> bool:
    return changes_temporary(classified(sql), TEMPORARY)


@pytest.mark.parametrize(
    "sql",
    [
        "DROP VIEW v",
        "DROP VIEW IF EXISTS `V`",
        "DROP TABLE v",
        "DROP VIEW session.v",
        "DROP VIEW system.session.v",
        "ALTER VIEW v AS SELECT 1",
        "ALTER VIEW v RENAME TO w",
        "ALTER TABLE v RENAME TO w",
    ],
)
def test_drop_or_alter_of_a_name_hidden_by_a_temporary_view_changes_the_session(sql: str) -> None:
    assert changes(sql)


@pytest.mark.parametrize(
    ("name", "temporary", "is_temporary"),
    [("a-v", "v", False), ("a v", "v", False), ("a.v", "v", False), ("größe-v", "v", False)]
    + [(name, name, True) for name in ("a-v", "a v", "a.v", "a`v", "1")],
)
def test_name_with_signs_is_compared_as_a_whole(
    name: str, temporary: str, is_temporary: bool
) -> None:
    table = qualified([name], Context())
    statement = replace(classified("DROP TABLE v"), bare=frozenset({table}))
    assert changes_temporary(statement, frozenset({joined([temporary])})) is is_temporary


@pytest.mark.parametrize(
    "sql",
    [
        "DROP VIEW default.v",
        "DROP VIEW spark_catalog.default.v",
        "DROP TABLE other.v",
        "DROP VIEW w",
        "ALTER VIEW w RENAME TO v",
        "CREATE TABLE v (a INT) USING delta",
        "CREATE OR REPLACE VIEW v AS SELECT 1",
        "INSERT INTO t SELECT * FROM v",
        "CREATE TABLE t AS SELECT * FROM v",
        "CREATE VIEW w AS SELECT * FROM v",
        "DELETE FROM default.v",
    ],
)
def test_statement_with_another_target_does_not_change_the_session(sql: str) -> None:
    assert not changes(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO v VALUES (1)",
        "INSERT INTO session.v SELECT 1",
        "UPDATE v SET a = 1",
        "MERGE INTO v USING u ON v.a = u.a WHEN MATCHED THEN DELETE",
        "TRUNCATE TABLE v",
        "OPTIMIZE v",
        "COMMENT ON TABLE v IS 'x'",
    ],
)
def test_write_to_a_name_hidden_by_a_temporary_view_is_refused(sql: str) -> None:
    with pytest.raises(RefusedError, match="schema in front") as caught:
        changes(sql)
    assert caught.value.error_class == "HAPROC_TEMPORARY_VIEW"
