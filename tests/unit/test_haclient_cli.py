"""`haclient sql`: forms of input and output, exit codes, messages on standard error."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from haclient import cli, output, prompt
from haproc.membership.clusters import ClusterView
from tests.unit.haclient_rig import UNAVAILABLE, serving
from tests.unit.haclient_server import Server, answering, failing
from tests.unit.pseudo_terminal import FakeTerminal

TABLE = pa.table(
    {
        "name": ["a\nb", None],
        "price": pa.array([Decimal("1.50"), Decimal("20.00")], pa.decimal128(10, 2)),
        "day": [dt.date(2026, 1, 2), None],
        "tags": [["x"], []],
    }
)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving("a") as (made,):
        monkeypatch.setenv("HACLIENT_SERVERS", made.url)
        yield made


Capture = pytest.CaptureFixture[str]


def prompted(monkeypatch: pytest.MonkeyPatch, state: Path, keys: str) -> int:
    """Return the exit code of a prompt at which these keys are pressed; its history is below."""
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.setattr("sys.stdin", FakeTerminal())
    with create_pipe_input() as pressed, create_app_session(input=pressed, output=DummyOutput()):
        pressed.send_text(keys)
        return cli.main(["sql"])


def test_sql_as_table_aligns_columns_and_reports_on_stderr(server: Server, capsys: Capture) -> None:
    server.script.append(answering(TABLE))
    assert cli.main(["sql", "SELECT 1"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        " name | price | day        | tags",
        "------+-------+------------+-------",
        r" a\nb |  1.50 | 2026-01-02 | " + '["x"]',
        " NULL | 20.00 | NULL       | []",
    ]
    assert err.startswith("cluster a · 2 rows · ")


def test_sql_as_csv_and_json_is_machine_readable(server: Server, capsys: Capture) -> None:
    server.script.extend([answering(TABLE)] * 3)
    assert cli.main(["sql", "--format", "csv", "--quiet", "SELECT 1"]) == 0
    assert capsys.readouterr() == (
        'name,price,day,tags\n"a\nb",1.50,2026-01-02,"[""x""]"\n,20.00,,[]\n',
        "",
    )
    assert cli.main(["sql", "--json", "SELECT 1"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["rows"][0] == ["a\nb", "1.50", "2026-01-02", ["x"]]
    assert printed["ha"]["cluster"] == "a"
    assert cli.main(["sql", "--format", "jsonl", "SELECT 1"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first["price"] == "1.50"


def test_sql_table_longer_than_the_limit_is_reported_as_cut(
    server: Server, capsys: Capture
) -> None:
    server.script.append(answering(pa.table({"n": range(10)})))
    assert cli.main(["sql", "--rows", "3", "SELECT 1"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 5
    assert "the first 3 rows" in err


def test_sql_file_runs_its_statements_up_to_the_first_failure(
    server: Server, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "statements.sql"
    file.write_text("USE x; -- ; no\nWRONG; SELECT 1")
    assert cli.main(["sql", "--file", str(file)]) == output.EXIT_REJECTED
    assert server.seen[-1]["statement"] == "-- ; no\nWRONG"
    assert cli.main(["sql", "--file", str(file), "--keep-going"]) == output.EXIT_REJECTED
    assert server.seen[-1]["statement"] == "SELECT 1"
    capsys.readouterr()


def test_sql_reads_the_statement_from_stdin_and_the_token_from_a_file(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT 1;"))
    assert cli.main(["sql", "--token-file", str(tmp_path / "token")]) == 0
    assert server.headers[0]["Authorization"] == "Bearer secret"
    capsys.readouterr()


def test_sql_error_shows_all_its_fields(server: Server, capsys: Capture) -> None:
    server.script.extend([failing(422, "application", "GONE", "42P01", hint="look")] * 2)
    assert cli.main(["sql", "SELECT 1", "--request-id", "r1"]) == output.EXIT_REJECTED
    assert capsys.readouterr().err == (
        "error: said by a\n"
        "  class GONE · SQLSTATE 42P01 · kind application · outcome REJECTED · request r1\n"
        "  hint: look\n"
    )
    cli.main(["sql", "SELECT 1", "--json"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["error_class"], error["outcome"]) == ("GONE", "REJECTED")


def test_sql_failover_is_shown(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    server.script.append(UNAVAILABLE)
    with serving("b") as (other,):
        assert cli.main(["sql", "--server", f"{server.url},{other.url}", "SELECT 1"]) == 0
        err = capsys.readouterr().err.splitlines()
        assert err[0] == f"failover: {server.url} → {other.url} (said by a)"
        assert err[1].startswith("cluster b")


def test_repeated_sql_failover_is_shown_once_per_statement(capsys: Capture) -> None:
    server = "http://host.invalid:1"
    given = ["sql", "--wait", "1", "--server", server, "--keep-going", "SELECT 1; SELECT 2"]
    assert cli.main(given) == output.EXIT_UNAVAILABLE
    reported_output = [line for line in capsys.readouterr().err.splitlines() if "failover" in line]
    assert len(reported_output) == 2 and all(
        f"{server} asked again" in line for line in reported_output
    )


def test_prompt_help_and_quit_commands_are_not_sent_to_the_server(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert prompted(monkeypatch, tmp_path, "\\help\rhelp;\r\\x\rquit ;\r") == 0
    assert server.seen == []
    assert capsys.readouterr().err.count(prompt.HELP) == 3


def test_prompt_without_a_place_for_its_history_shows_a_message(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "file").write_text("")
    assert prompted(monkeypatch, tmp_path / "file", "SELECT 1;\rquit\r") == 0
    assert "the history is not kept" in capsys.readouterr().err
    assert len(server.seen) == 1


def test_sql_exit_codes_show_the_outcome(server: Server, capsys: Capture) -> None:
    server.script.append(failing(503, "availability", "X", outcome="UNKNOWN"))
    assert cli.main(["sql", "--wait", "0", "INSERT"]) == output.EXIT_UNKNOWN
    server.stop()
    assert cli.main(["sql", "--wait", "0", "INSERT"]) == output.EXIT_UNAVAILABLE
    assert cli.main(["sql", "--server", "ftp://a", "INSERT"]) == output.EXIT_USAGE
    assert cli.main(["sql", "--file", "/nowhere", "--wait", "0"]) == output.EXIT_USAGE
    assert cli.main(["sql", "--request-id", "x", "SELECT 1; SELECT 2"]) == output.EXIT_USAGE
    capsys.readouterr()


def test_prompt_runs_statements_over_several_lines_and_keeps_its_history(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert prompted(monkeypatch, tmp_path, "SELECT\r1; WRONG;\rquit\r") == 0
    assert [body["statement"] for body in server.seen] == ["SELECT\n1", "WRONG"]
    out, err = capsys.readouterr()
    assert out.splitlines()[-1].strip() == "1"
    assert "TABLE_OR_VIEW_NOT_FOUND" in err
    history = tmp_path / "haclient" / "history"
    assert "+1; WRONG;" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def test_sql_with_a_read_level_sends_it(server: Server, capsys: Capture) -> None:
    words = ["--consistency", "bounded", "--acceptable-offset-lag", "7"]
    assert cli.main(["sql", *words, "SELECT 1"]) == 0
    assert server.seen[0]["consistency"] == "bounded"
    assert server.seen[0]["acceptable_offset_lag"] == 7
    capsys.readouterr()


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ("localhost", ["server localhost has no scheme and no port: taken as http://localhost:80"]),
        ("localhost:1", ["server localhost:1 has no scheme: taken as http://localhost:1"]),
        ("http://a:1,b:2,c", ["server c has no port: taken as http://c:80"]),
    ],
)
def test_server_without_scheme_or_port_is_reported_with_the_assumed_url(
    given: str, reported: list[str], capsys: Capture
) -> None:
    shown: list[str] = []
    options = cli.parser().parse_args(["status", "--server", given])
    assert cli._servers(options, shown.append) == given
    assert shown == reported


def test_status_shows_the_clusters_from_the_first_server_that_answers(
    server: Server, capsys: Capture
) -> None:
    with serving("b") as (other,):
        server.ring = other.ring = [server, other]
        server.stop()
        other.state = "RECOVERING"
        servers = ["--server", f"{server.url},{other.url}"]
        assert cli.main(["status", *servers]) == 0
        out, err = capsys.readouterr()
        assert [line.split(" | ")[1].strip() for line in out.splitlines()[2:]] == [
            *("READY", "RECOVERING")
        ]
        assert [cell.strip() for cell in out.splitlines()[3].split("|")] == [
            *("b", "RECOVERING", "2", "yes", "2026-01-02T03:04:05.000Z", other.url)
        ]
        assert f"failover: {server.url} → {other.url}" in err
        assert "ring ring, as cluster b sees it" in err
        server.state = "DOWN"
        assert cli.main(["status", "--json", *servers]) == output.EXIT_UNAVAILABLE
        reported_output = json.loads(capsys.readouterr().out)["clusters"][1]
        assert reported_output["state"] == "RECOVERING"
        assert reported_output.keys() <= {*ClusterView.__slots__}, "a HAProc reports these"
        other.stop()
        assert cli.main(["status", "--wait", "0", *servers]) == output.EXIT_UNAVAILABLE
        assert "no server was available" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["status"], ["sql", "SELECT 1"]])
def test_closed_standard_output_ends_a_command_without_a_message(
    server: Server, command: list[str]
) -> None:
    server.ring = [server]
    program = "import sys; from haclient import cli; sys.exit(cli.main(sys.argv[1:]))"
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as nobody:
        done = subprocess.run(
            [sys.executable, "-c", program, *command, "--quiet"],
            stdout=nobody,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (1, "")


def test_version_is_that_of_the_package(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"haclient {version('haproc')}\n"


def test_completion_script_completes_subcommands_and_files(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--print-completion", "bash"])
    script = capsys.readouterr().out
    assert ended.value.code == 0
    completion = (
        'COMP_WORDS=(haclient jobs ""); COMP_CWORD=2; _shtab_haclient; echo ${COMPREPLY[*]}'
    )
    shown = subprocess.run(
        ["bash", "-c", f"{script}\n{completion}"], capture_output=True, text=True
    )
    assert {"list", "log", "kill"} <= set(shown.stdout.split()), shown
    assert "_shtab_haclient_load_pos_0_COMPGEN=_shtab_compgen_files" in script


@pytest.mark.parametrize("command", ["sql", "submit", "load", "jobs", "status"])
def test_help_of_each_command_contains_its_exit_codes(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        cli.parser().parse_args([command, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 wrong usage, 3 " in shown and "server" in shown
