"""Texts of programs and users are shown, and have no effect on the terminal."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from haclient import output as haclient_output
from haclient import ring_commands
from haclient.sync.documents import Jobs
from haproc.cli import output

ATTACK = "a\x1b]0;title\x07\x9b2J\r\x00\u202eb\ud800"
SHOWN = "a\\u001b]0;title\\u0007\\u009b2J\\u000d\\u0000\\u202eb\\ud800"


def test_control_characters_in_printed_texts_are_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.line(ATTACK)
    output.table(("NAME",), [(ATTACK,)])
    output.error(ATTACK)
    captured = capsys.readouterr()
    assert captured.out == f"{SHOWN}\nNAME\n{SHOWN}\n"
    assert captured.err == f"haproc: {SHOWN}\n"
    output.dump({"name": ATTACK})
    dumped = capsys.readouterr().out
    assert dumped.isprintable() or set(dumped) - {"\n"} <= set(map(chr, range(0x20, 0x7F)))
    assert json.loads(dumped) == {"name": ATTACK}


def test_newline_in_a_line_is_escaped_and_letters_are_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.line("Zürich\t東京 👩‍👩‍👧\nsecond")
    assert capsys.readouterr().out == "Zürich\t東京 👩‍👩‍👧\\nsecond\n"


class OneJob:
    """A ring's answers about a job whose program sends control characters."""

    def job(self, job_id: int) -> dict[str, Any]:
        ours = {"attempts": 1, "cluster": "a", "outcome": "failure", "exit_code": 7, "why": ATTACK}
        return {"state": "dead", "haproc": ours}

    def log(self, job_id: int, start: int) -> dict[str, Any]:
        return {"from": start, "total": 2, "log": [ATTACK, "Zürich\t東京"]}


def test_control_characters_in_the_log_of_a_followed_job_are_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    notes: list[str] = []
    assert ring_commands.follow(cast(Jobs, OneJob()), 1, notes.append) == 7
    assert capsys.readouterr().out == f"{SHOWN}\nZürich\t東京\n"
    assert notes[-1] == SHOWN


def test_haclient_and_haproc_escape_the_same_characters() -> None:
    every = "".join(map(chr, range(0x110000)))
    assert haclient_output.harmless(every) == output.harmless(every)
