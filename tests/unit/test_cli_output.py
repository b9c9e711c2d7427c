"""What a program or a user wrote is shown, and does nothing to the terminal."""

from __future__ import annotations

import json

import pytest

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
