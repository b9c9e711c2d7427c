"""The forms of a result: tables, vertical rows, CSV; widths of characters, NULL, long cells."""

from __future__ import annotations

import csv
import io
from typing import Any

import pyarrow as pa
import pytest

from haclient.columns import describe, rows
from haclient.exceptions import Failure, FailureKind, ProgrammingError
from haclient.output import Row, rows_of_screen, write_error, write_result
from haclient.statements import Split, split


class Done:
    """A cursor with the rows of this table."""

    rowcount = -1
    request_id = "r"

    def __init__(self, table: pa.Table) -> None:
        self.ha: dict[str, Any] = {}
        self.description = describe(table.schema)
        self._rows: list[Row] = [row for batch in table.to_batches() for row in rows(batch)]

    def __iter__(self) -> Any:
        return iter(self._rows)


def written(table: pa.Table, form: str = "table", columns_max: int | None = None) -> list[str]:
    out = io.StringIO()
    write_result(Done(table), form, out, None, columns_max)
    return out.getvalue().splitlines()


def test_table_aligns_wide_characters_and_escapes_control_characters() -> None:
    texts = ["\u6771\u4eac", "e\u0301", "\u0e01\u0e31", "a\x1b[2J", "abcd"]
    assert written(pa.table({"t": texts, "n": range(5)})) == [
        " t        | n",
        "----------+---",
        " \u6771\u4eac     | 0",
        " e\u0301        | 1",
        " \u0e01\u0e31        | 2",
        " a\\x1b[2J | 3",
        " abcd     | 4",
    ]


def test_null_differs_from_an_empty_text_in_every_form() -> None:
    table = pa.table({"t": ["", None], "b": [b"\x00\xff", b""]})
    assert written(table)[2:] == ["      | AP8=", " NULL |"]
    assert written(table, "vertical")[1::3] == ["t |", "t | NULL"]
    assert written(table, "csv") == ["t,b", '"",AP8=', ',""']


def test_csv_output_is_read_by_other_csv_readers() -> None:
    texts = ['a"b', "c,d", "e\nf", "g\rh", " i "]
    out = io.StringIO()
    write_result(Done(pa.table({"a, b": texts})), "csv", out, None)
    assert [row[0] for row in csv.reader(io.StringIO(out.getvalue(), newline=""))][1:] == texts


def test_table_wider_than_the_terminal_is_shown_vertically() -> None:
    table = pa.table({"id": [1, 2], "note": ["x" * 70, None]})
    assert written(table, columns_max=79)[0].startswith(" id | note")
    assert len(written(table)[0]) == len(" id | note"), "in a pipe any width"
    shown = written(table, columns_max=76)
    assert shown == [
        "-[ row 1 ]" + "-" * 30,
        "id   | 1",
        "note | " + "x" * 70,
        "-[ row 2 ]" + "-" * 30,
        "id   | 2",
        "note | NULL",
    ]
    assert written(table.slice(0, 0), columns_max=5)[0] == " id | note", "its columns are seen"


def test_vertical_form_keeps_the_lines_of_a_text() -> None:
    shown = written(pa.table({"plan": ["a\nb\x07"], "n": [1]}), "vertical")
    assert shown[1:] == ["plan | a", "     | b\\x07", "n    | 1"]


@pytest.mark.parametrize("form", ["table", "vertical"])
def test_single_text_with_line_breaks_is_shown_line_by_line(form: str) -> None:
    plan = "== Physical Plan ==\n* Project\n+- \x1b[1mScan\n"
    assert written(pa.table({"plan": [plan]}), form) == [
        "== Physical Plan ==",
        "* Project",
        "+- \\x1b[1mScan",
    ]
    assert written(pa.table({"plan": [plan, plan]}))[2].startswith(" == Physical Plan ==\\n*")


def test_long_cell_counts_as_several_lines_of_the_screen() -> None:
    assert rows_of_screen("abc\n\n" + "\u6771" * 6 + "\n", 5) == 1 + 1 + 3
    assert rows_of_screen("", 80) == 0


def test_error_of_many_lines_is_shortened_unless_errors_full_is_set() -> None:
    failure = Failure(
        FailureKind.APPLICATION, "[GONE] no \x1bx;\n'Project", error_class="GONE", hint="look"
    )
    error = ProgrammingError(failure.message, failure, "r1")

    def shown(form: str, full: bool) -> str:
        out = io.StringIO()
        write_error(error, form, out, full=full)
        return out.getvalue()

    short = shown("table", False)
    assert short.startswith("error: [GONE] no \\u001bx;\n  class GONE") and "hint: look" in short
    assert "Project" not in short and "--errors full" in short
    assert "\n'Project\n" in shown("csv", True) and "--errors" not in shown("csv", True)
    assert "'Project" in shown("json", False), "programs get all"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1\\G", Split(("SELECT 1",), "", frozenset({0}))),
        ("SELECT 1; SELECT 2 \\G; x", Split(("SELECT 1", "SELECT 2"), "x", frozenset({1}))),
        (r"SELECT '\G'", Split((), r"SELECT '\G'")),
        ("SELECT 1\\Go", Split((), "SELECT 1\\Go")),
        ("-- x\n\\G", Split((), "")),
        ("\\", Split((), "\\")),
    ],
)
def test_backslash_g_ends_a_statement_and_selects_the_vertical_form(
    sql: str, expected: Split
) -> None:
    assert split(sql) == expected
