"""Combining statements by key: which are read, which are refused, and that results are the same.

SQLite runs the combined statements here, to check the logic of keys. Types are checked on Spark, by
`tests/integration/test_composed.py`.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from haproc.classify.model import Kind
from haproc.engine.arrow import stream_of
from haproc.engine.interface import Column, Settings
from haproc.engine.statement import ArrowRows
from haproc.replicate.compose.merging import statement
from haproc.replicate.compose.reading import change_of
from haproc.replicate.compose.terms import Cell, Change, Changed, Inserted, Own
from haproc.replicate.compose.window import ComposedWindow
from haproc.replicate.records.operation import Operation
from tests.simulation.merging import executed, sqlite_text
from tests.windows import Writer, combined, operation

COLUMNS = [Column("k", "int"), Column("s", "string"), Column("v", "int"), Column("w", "string")]


def change(sql: str) -> Change | None:
    return change_of(operation(sql, "t"))


def one(text: str, letter: str = "i") -> Cell:
    return Cell(letter, text)


def window_of(columns: list[Column], sqls: Sequence[str]) -> ComposedWindow:
    """Return a window that takes all of these."""
    window = ComposedWindow(columns)
    for sql in sqls:
        found = change(sql)
        assert found is not None and window.take(found), sql
    return window


def lines_of(*sqls: str) -> list[str]:
    """Return the lines of the one statement that these come to."""
    text = statement("t", window_of(COLUMNS, sqls))
    assert text is not None
    return text.splitlines()


def last_stays_out(columns: list[Column], sqls: list[str]) -> None:
    """Check that a window refuses the last of these, and stays as it was."""
    window, last = window_of(columns, sqls[:-1]), change(sqls[-1])
    was = statement("t", window)
    assert last is not None
    assert not window.take(last)
    assert statement("t", window) == was


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("DELETE FROM t WHERE k = 7", Changed(("k",), ((one("7"),),))),
        ("DELETE FROM a.t AS x WHERE x.K IN (-7)", Changed(("k",), ((one("-7"),),))),
        (
            "UPDATE t SET v = v + 1, `w` = 'it''s' WHERE k = 7 AND s = 'a'",
            Changed(
                ("k", "s"),
                ((one("7"), one("'a'", "s")),),
                (("v", (Own("v"), "+", one("1"))), ("w", (one("'it''s'", "s"),))),
            ),
        ),
        (
            "UPDATE t SET w = timestamp '2020-01-31 10:00:00+01:00' WHERE k = 7",
            Changed(
                ("k",),
                ((one("7"),),),
                (("w", (one("timestamp '2020-01-31 10:00:00+01:00'", "z"),)),),
            ),
        ),
        (
            "UPDATE t SET v = abs(t.v) * -(2) WHERE t.k = 7",
            Changed(
                ("k",),
                ((one("7"),),),
                (("v", ("ABS", "(", Own("v"), ")", "*", "-", "(", one("2"), ")")),),
            ),
        ),
        (
            "INSERT INTO t (V, k) VALUES (1, NULL)",
            Inserted(("v", "k"), ((one("1"), one("NULL", "n")),)),
        ),
    ],
)
def test_statement_by_key_is_read_as_a_change(sql: str, expected: object) -> None:
    assert change(sql) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM t",
        "DELETE FROM t WHERE k > 7",
        "DELETE FROM t WHERE k = 7 OR v = 1",
        "DELETE FROM t WHERE k = 7 AND k = 8",
        "DELETE FROM t WHERE k = v",
        "DELETE FROM t WHERE NOT k = 7",
        "DELETE FROM t WHERE s = 'a' 'b'",
        "DELETE FROM t WHERE a.b.k = 7",
        "DELETE FROM IDENTIFIER('t') WHERE k = 7",
        "UPDATE t SET v = 1",
        "UPDATE t SET v = 1, v = 2 WHERE k = 7",
        "UPDATE t SET v = DEFAULT WHERE k = 7",
        "UPDATE t SET v = now() WHERE k = 7",
        "UPDATE t SET v = rand() + 1 WHERE k = 7",
        "UPDATE t SET v = (SELECT 1) WHERE k = 7",
        "UPDATE t SET v = CASE WHEN v = 1 THEN 2 END WHERE k = 7",
        "UPDATE t SET v = INTERVAL '1' DAY WHERE k = 7",
        "UPDATE t SET v = v[0] WHERE k = 7",
        "UPDATE t SET s.f = 1 WHERE k = 7",
        "UPDATE t SET v = 1 WHERE k = 7 AND current_date = DATE'2020-01-01' OR TRUE",
        "INSERT INTO t VALUES (1), (2.5)",
        "INSERT INTO t VALUES (1 + 1)",
        "INSERT INTO t PARTITION (k = 1) VALUES ('a', 1, 'b')",
        "INSERT INTO t SELECT 1",
    ],
)
def test_statement_of_another_form_is_no_change(sql: str) -> None:
    assert change(sql) is None


def test_statement_with_settings_that_change_stored_values_is_no_change() -> None:
    op = operation("DELETE FROM t WHERE k = 7", "t")
    assert change_of(op) is not None
    assert change_of(replace(op, settings=Settings(ansi=False))) is None
    confs = (("spark.sql.storeAssignmentPolicy", "LEGACY"),)
    assert change_of(replace(op, settings=Settings(confs=confs))) is None


@pytest.mark.parametrize(
    ("columns", "sqls"),
    [
        # a key whose equal values are not told by their literals
        ([Column("k", "double"), Column("v", "int")], ["DELETE FROM t WHERE k = 1e0"]),
        ([Column("k", "string collate UTF8_LCASE")], ["DELETE FROM t WHERE k = 'a'"]),
        ([Column("k", "char(3)")], ["DELETE FROM t WHERE k = 'a'"]),
        # a literal that is compared otherwise
        (COLUMNS, ["DELETE FROM t WHERE k = '1'"]),
        (COLUMNS, ["DELETE FROM t WHERE k = 1.0"]),
        (COLUMNS, ["DELETE FROM t WHERE s = 1"]),
        ([Column("k", "date")], ["DELETE FROM t WHERE k = DATE'1582-10-10'"]),
        # other columns, a key that changes, no such column
        (COLUMNS, ["DELETE FROM t WHERE k = 1", "DELETE FROM t WHERE s = 'a'"]),
        (COLUMNS, ["UPDATE t SET k = 2 WHERE k = 1"]),
        (COLUMNS, ["UPDATE t SET v = x WHERE k = 1"]),
        (COLUMNS, ["UPDATE t SET x = 1 WHERE k = 1"]),
        # an inserted key that nobody can tell from others
        (COLUMNS, ["INSERT INTO t VALUES (1, 5, 1, 'a')", "DELETE FROM t WHERE s = '5'"]),
        (COLUMNS, ["DELETE FROM t WHERE k = 1", "INSERT INTO t (k) VALUES (1.0)"]),
        # columns that differ by their case alone
        ([*COLUMNS, Column("K", "int")], ["DELETE FROM t WHERE k = 1"]),
        # rows of another width, and what no cast stores
        (COLUMNS, ["INSERT INTO t VALUES (1, 'a', 2)"]),
        (COLUMNS, ["INSERT INTO t (v) VALUES ('1')"]),
        ([Column("k", "int"), Column("c", "char(3)")], ["INSERT INTO t VALUES (1, 'a')"]),
    ],
)
def test_change_with_a_result_that_might_differ_is_not_combined(
    columns: list[Column], sqls: list[str]
) -> None:
    last_stays_out(columns, sqls)


def test_window_of_inserts_alone_becomes_an_insert() -> None:
    (text,) = lines_of(
        "INSERT INTO t VALUES (1, 'a', 2, NULL)", "INSERT INTO t (w, k) VALUES ('x', 3)"
    )
    assert text.startswith("INSERT INTO `t` (`k`, `s`, `v`, `w`) WITH ")


def test_window_of_an_insert_and_its_delete_still_deletes_rows_of_the_table() -> None:
    text = "\n".join(
        lines_of("INSERT INTO t VALUES (1, 'a', 2, NULL)", "DELETE FROM t WHERE k = 1")
    )
    assert "THEN DELETE" in text and "INSERT" not in text


def test_window_accepts_a_limited_number_of_updates_of_one_key() -> None:
    window, found = ComposedWindow(COLUMNS), change("UPDATE t SET v = v + 1 WHERE k = 1")
    assert found is not None
    accepted = 0
    while window.take(found):
        accepted += 1
    assert 20 < accepted < 50


def rows_after(statements: list[str], setup: list[str]) -> tuple[list[object], list[str]]:
    """Return the table's rows after these statements, and the statements that did not fail."""
    disk = sqlite3.connect(":memory:", isolation_level=None)
    disk.execute("CREATE TABLE t (k INT, s TEXT, v INT, w TEXT)")
    good = []
    for sql in [*setup, *statements]:
        with suppress(sqlite3.IntegrityError):
            executed(disk, sqlite_text(sql))
            good.append(sql)
    return sorted(disk.execute("SELECT k, s, v, w FROM t"), key=repr), good[len(setup) :]


class Plain(Writer):
    """Statements that mean the same in SQLite."""

    def literal(self, column: Column) -> str:
        if self.rng.random() < 0.1:
            return "NULL"
        return self.rng.choice(
            ("0", "1", "2", "-1") if column.type_text == "int" else ("'a'", "'b'", "'it''s'", "''")
        )

    def new(self, column: Column, of: str = "") -> str:
        if self.rng.random() < 0.4:
            return self.literal(column)
        names = [c.name for c in COLUMNS if c.type_text == column.type_text]
        other = f"{of}{self.rng.choice(names)}"
        return f"{other} + 1" if column.type_text == "int" else f"{other} || {self.literal(column)}"


@pytest.mark.parametrize("keys", [1, 2])
def test_combined_window_has_the_effect_of_its_statements(keys: int) -> None:
    together = 0
    for seed in range(400):
        writer = Plain(random.Random(f"{keys}/{seed}"), "t", COLUMNS, keys)
        setup = [writer.insert() for _ in range(5)]
        sqls = writer.window(random.Random(seed).randint(2, 12))
        expected, good = rows_after(sqls, setup)
        found = combined(good, "t", COLUMNS)
        together += sum(len(members) for _, members in found if len(members) > 1)
        texts = [text for text, _ in found]
        assert rows_after(texts, setup) == (expected, texts), good
    assert together > 1_500


def test_arrow_rows_become_literals() -> None:
    table = pa.table(
        {
            "K": pa.array([1, None], pa.int32()),
            "s": ["it's \\ 'x'", ""],
            "p": pa.array([Decimal("1.50"), Decimal("-0.00")], pa.decimal128(10, 2)),
            "f": pa.array([1e300, -0.0], pa.float64()),
            "r": pa.array([0.1, None], pa.float32()),
            "d": [date(1, 1, 1), date(2020, 1, 31)],
            "b": [True, False],
            "l": pa.array([-(2**63), 5], pa.int64()),
        }
    )
    found = change_of(arrow(table))
    assert isinstance(found, Inserted) and found.columns[0] == "k"
    first, second = ([cell.text for cell in row] for row in found.rows)
    assert first[:4] == ["1", r"'it\'s \\ \'x\''", "1.50BD", "1e+300D"]
    assert first[4:] == [
        "0.10000000149011612F",
        "DATE'0001-01-01'",
        "TRUE",
        "-9223372036854775808L",
    ]
    assert second[:4] == ["NULL", "''", "0.00BD", "-0.0D"]


@pytest.mark.parametrize(
    "column",
    [[float("nan")], [[1]], [datetime(2020, 1, 1)], [1] * 2_000],
    ids=["nan", "array", "timestamp", "many"],
)
def test_arrow_rows_without_literals_are_no_change(column: list[object]) -> None:
    assert change_of(arrow(pa.table({"k": column}))) is None


def arrow(table: pa.Table) -> Operation:
    write = ArrowRows("t", stream_of(table))
    return replace(operation("DELETE FROM t", "t"), kind=Kind.ROWS, write=write)
