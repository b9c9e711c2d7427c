"""`haclient sql` on a terminal: Tab, wide rows, the pager, a spinner, Ctrl-C."""

from __future__ import annotations

import asyncio
import io
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import haclient
from haclient import cli, output, statements
from haclient.prompt import RingNames
from haclient.statements import Wanted, completions, tables_of, unquoted, wanted
from tests.unit.haclient_rig import UNAVAILABLE, server, serving
from tests.unit.haclient_server import Server, answering, failing, slow, until_cancelled
from tests.unit.pseudo_terminal import FakeTerminal, HaclientTerminal

__all__ = ["server"]

WIDE = pa.table({"id": [1], "note": ["x" * 90], "gone": pa.array([None], pa.string())})


@pytest.fixture
def environment(server: Server, tmp_path: Path) -> dict[str, str]:
    return {"HACLIENT_SERVERS": server.url, "XDG_STATE_HOME": str(tmp_path)}


def test_prompt_completes_tables_and_columns_and_shows_wide_rows_vertically(
    server: Server, environment: dict[str, str]
) -> None:
    tables = pa.table({"namespace": ["s"], "tableName": ["orders"], "isTemporary": [False]})
    nothing = pa.table({"id": pa.array([], pa.int32()), "gone": pa.array([], pa.string())})
    answers = [tables, pa.table({"namespace": ["sales"]}), nothing, WIDE, WIDE]
    server.script.extend(map(answering, answers))
    with HaclientTerminal("sql", environment=environment) as terminal:
        terminal.enter("SELECT * FROM or\t")
        terminal.see("ders")
        terminal.type(" WHERE go\t")
        terminal.see("ne")
        terminal.type(" <> '';\r")
        shown = terminal.see("cluster a")
        assert "-[ row 1 ]-" in shown and "note | " + "x" * 73 in shown and "gone | NULL" in shown
        terminal.enter("SELECT 2\\G\r")
        assert "id   | 1" in terminal.see("cluster a")
        terminal.enter("quit\r")
        assert terminal.ended() == 0
    assert [each["statement"] for each in server.seen] == [
        *("SHOW TABLES", "SHOW SCHEMAS", "SELECT * FROM orders LIMIT 0"),
        *("SELECT * FROM orders WHERE gone <> ''", "SELECT 2"),
    ]


def test_prompt_shows_the_first_line_of_an_error_and_all_lines_on_request(
    server: Server, environment: dict[str, str]
) -> None:
    error = failing(
        422, "application", "GONE", "42P01", message="[GONE] no x;\n'Project ['x]\n+- y"
    )
    server.script.append(error)
    with HaclientTerminal("sql", environment=environment) as terminal:
        terminal.enter("SELECT x;\r")
        shown = terminal.see("\\errors full")
        assert "error: [GONE] no x;" in shown and "class GONE" in shown and "Project" not in shown
        terminal.enter("\\errors full\r")
        assert "'Project ['x]" in terminal.see("+- y")
        terminal.enter("\\q\r")
        assert terminal.ended() == 0


def test_ctrl_c_cancels_the_statement_and_keeps_the_prompt(
    server: Server, environment: dict[str, str]
) -> None:
    server.script.extend([until_cancelled, slow(0.0)])
    with HaclientTerminal("sql", environment=environment) as terminal:
        terminal.enter("SELECT 1;\r")
        assert re.search(r"\d\.\d s \(Ctrl-C", terminal.see("s (Ctrl-C cancels)"))
        terminal.type("\x03")
        terminal.see("cancelled · request")
        terminal.enter("SELECT 2;\r")
        terminal.see("1 row · ")
        terminal.enter("\x04")
        assert terminal.ended() == 0
    assert len(server.cancelled) == 1


def test_long_result_uses_the_pager_on_a_terminal_only(
    server: Server, environment: dict[str, str], tmp_path: Path
) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho through the pager\ncat\n")
    pager.chmod(0o700)
    numbers = pa.table({"n": range(40)})
    server.script.extend([answering(numbers), answering(numbers.slice(0, 5))])
    with HaclientTerminal("sql", environment={**environment, "PAGER": str(pager)}) as terminal:
        terminal.enter("SELECT 1;\r")
        assert "\n 39\n" in terminal.see("40 rows")
        terminal.enter("SELECT 2;\r")
        assert "through the pager" not in terminal.see("5 rows")
    out = io.StringIO()
    output.show("n\n" * 1000, out)
    assert out.getvalue() == "n\n" * 1000


class NoRunner:
    """A runner that has only a connection."""

    full_errors = muted = False
    last_error: haclient.Error | None = None

    def __init__(self, connection: haclient.Connection) -> None:
        self.connection = connection

    def show(self, text: str) -> None: ...
    def show_error(self, error: haclient.Error) -> None: ...
    def run_and_show(self, statement: str, *, vertical: bool = False) -> bool:
        return vertical


def test_ring_names_are_queried_once_until_they_may_have_changed(server: Server) -> None:
    at = [0.0]
    tables = [pa.table({"namespace": ["s"], "tableName": [name]}) for name in "abc"]
    server.script.extend([failing(422, "application", "X"), *map(answering, tables)])
    with haclient.connect(server.url) as connection:
        names = RingNames(NoRunner(connection), lambda: at[0])
        assert names.tables("s") == [], "an error is not kept"
        assert names.tables("s") == names.tables("s") == ["a"]
        names.changed_by("SELECT 1")
        assert names.tables("s") == ["a"]
        names.changed_by("CREATE TABLE b (n INT)")
        assert names.tables("s") == ["b"]
        at[0] = 61.0
        assert names.tables("s") == ["c"]
    assert {each["statement"] for each in server.seen} == {"SHOW TABLES IN s"}


def test_failover_is_shown_on_its_own_line_while_the_spinner_runs(
    server: Server, environment: dict[str, str]
) -> None:

    async def late(*request: Any) -> Any:
        await asyncio.sleep(0.8)
        return await UNAVAILABLE(*request)

    server.script.append(late)
    with serving("b") as (other,):
        servers = {"HACLIENT_SERVERS": f"{server.url},{other.url}"}
        given = {**environment, **servers}
        with HaclientTerminal("sql", "SELECT 1", environment=given) as terminal:
            terminal.see("(Ctrl-C cancels)")
            failover = f"failover: {server.url} → {other.url} ("
            shown = terminal.see(failover) + terminal.see(")\n")
            assert shown.splitlines()[-1].split("\r")[-1].startswith(failover)
            terminal.see("cluster b · 1 row")
            assert terminal.ended() == 0


def test_prompt_without_prompt_toolkit_reads_plain_lines(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "prompt_toolkit", None)
    typed = iter(["SELECT", "1;", "\\q"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    monkeypatch.setattr("sys.stdin", FakeTerminal())
    assert cli.main(["sql", "--server", server.url]) == 0
    assert [each["statement"] for each in server.seen] == ["SELECT\n1"]
    capsys.readouterr()


def test_pager_is_that_of_the_user_or_less_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: name != "nowhere")
    assert output.pager_of({}) == ["less", "-FRX"]
    assert output.pager_of({"PAGER": "more -d"}) == ["more", "-d"]
    assert output.pager_of({"PAGER": ""}) == output.pager_of({"PAGER": "nowhere"}) == []


def test_pager_that_cannot_run_leaves_the_text_to_the_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pager = tmp_path / "pager"
    pager.write_text("no program")
    pager.chmod(0o700)
    monkeypatch.setenv("PAGER", str(pager))
    out = FakeTerminal()
    output.show("n\n" * 1000, out)
    assert out.getvalue() == "n\n" * 1000
    assert "the pager" in capsys.readouterr().err


def test_spinner_writes_only_to_a_terminal_and_clears_its_line() -> None:
    silent = io.StringIO()
    with output.Waiting(silent, False) as waiting:
        waiting.print_line("line")
    assert silent.getvalue() == "line\n"
    out = io.StringIO()
    line = output.Line(out, True)
    line.write("| 1 s")
    line.end()
    assert out.getvalue() == "\r| 1 s\r     \r"


class CannedNames:
    def schemas(self) -> list[str]:
        return ["sales", "default"]

    def tables(self, schema: str) -> list[str]:
        return {"": ["orders", "Odd name"], "sales": ["orders_2026"]}[schema]

    def columns(self, table: str) -> list[str]:
        return {"orders": ["id", "item"], "sales.orders_2026": ["idem"]}[table]


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("SELECT * FROM o", ["`Odd name`", "orders"]),
        ("SELECT * FROM ", ["`Odd name`", "default", "orders", "sales"]),
        ("SELECT * FROM orders o, sal", ["sales"]),
        ("SELECT * FROM `Od", ["`Odd name`"]),
        ("SELECT 1; DROP TABLE ord", ["orders"]),
        ("SELECT * FROM sales.", ["orders_2026"]),
        ("SELECT * FROM sales.orders_2026 x WHERE x.", ["idem"]),
        ("SELECT * FROM sales.orders_2026 WHERE Sales.orders_2026.", ["idem"]),
        ("SELECT * FROM orders JOIN sales.orders_2026 AS x WHERE id", ["id", "idem"]),
        ("SELECT * FROM orders WHERE id", ["id"]),
        ("UPDATE orders SET it", ["item"]),
        ("INSERT INTO orders (", ["id", "item"]),
        ("SELECT id FROM orders ORDER BY id DESC LIM", ["LIMIT"]),
        ("USE sa", ["sales"]),
        ("sel", ["select"]),
        ("SELECT 'FROM o", None),
        ("SELECT 1 -- FROM o", None),
        ("", []),
    ],
)
def test_tab_completes_the_names_that_are_valid_at_the_cursor(
    before: str, expected: list[str] | None
) -> None:
    want = wanted(before)
    assert (None if want is None else completions(want, CannedNames())) == expected


def test_tab_knows_the_tables_after_the_cursor() -> None:
    want = wanted("SELECT o.i", " FROM orders AS o; SELECT * FROM other")
    assert want == Wanted("i", "o", "SELECT", {"orders": "orders", "o": "orders"})
    assert completions(want, CannedNames()) == ["id", "item"]


def test_tables_of_a_merge_are_its_tables_and_aliases() -> None:
    merged = "MERGE INTO `a b`.t AS x USING s ON true WHEN MATCHED THEN UPDATE SET v = 1"
    assert tables_of(merged) == {"t": "`a b`.t", "x": "`a b`.t"}
    assert statements.as_typed("a`b") == "`a``b`" and unquoted("`a``b") == "a`b"
