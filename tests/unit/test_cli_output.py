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


def test_texts_of_others_do_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.line(ATTACK)
    output.table(("NAME",), [(ATTACK,)])
    output.error(ATTACK)
    told = capsys.readouterr()
    assert told.out == f"{SHOWN}\nNAME\n{SHOWN}\n"
    assert told.err == f"haproc: {SHOWN}\n"
    output.dump({"name": ATTACK})
    dumped = capsys.readouterr().out
    assert dumped.isprintable() or set(dumped) - {"\n"} <= set(map(chr, range(0x20, 0x7F)))
    assert json.loads(dumped) == {"name": ATTACK}


def test_text_of_a_line_stays_one_line_and_letters_stay_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.line("Zürich\t東京 👩‍👩‍👧\nsecond")
    assert capsys.readouterr().out == "Zürich\t東京 👩‍👩‍👧\\nsecond\n"


class OneJob:
    """A ring's answers about a job whose program attacks."""

    def job(self, job_id: int) -> dict[str, Any]:
        ours = {"attempts": 1, "cluster": "a", "outcome": "failure", "exit_code": 7, "why": ATTACK}
        return {"state": "dead", "haproc": ours}

    def log(self, job_id: int, start: int) -> dict[str, Any]:
        return {"from": start, "total": 2, "log": [ATTACK, "Zürich\t東京"]}


def test_followed_job_does_nothing_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    assert ring_commands.follow(cast(Jobs, OneJob()), 1, said.append) == 7
    assert capsys.readouterr().out == f"{SHOWN}\nZürich\t東京\n"
    assert said[-1] == SHOWN


def test_haclient_and_haproc_take_the_same_for_harmless() -> None:
    every = "".join(map(chr, range(0x110000)))
    assert haclient_output.harmless(every) == output.harmless(every)
