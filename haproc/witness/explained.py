"""A statement behind EXPLAIN EXTENDED, and what Spark says of it, as if nothing stood before it.

Spark tells where in a text an error is, and shows the lines around it. The words in front of the
statement have a line of their own: so in the statement's lines every place is its own, and only the
number of the line is one too high. What does not have a form of Spark's is left as it is.
"""

from __future__ import annotations

import re

_WORDS = "EXPLAIN EXTENDED"
_PARSING = re.compile(
    rf"\(line (?P<line>\d+), pos (?P<at>\d+)\)\n\n== SQL ==\n{_WORDS}\n(?P<mark>-*\^\^\^\n)?"
)
"""Of the parser itself, with the whole text behind it."""
_CONTEXT = re.compile(
    rf"^== SQL \(line (?P<line>\d+), position (?P<at>\d+)\) ==\n(?P<mark>{_WORDS}\n\^+\n)?",
    re.MULTILINE,
)
"""Of everyone else, with the lines of the error behind it."""
_ORIGIN = re.compile(r"(?P<before>; line )(?P<line>\d+)(?P<behind> pos \d+;?$)", re.MULTILINE)
"""Of the analyzer."""


def explaining(sql: str) -> str:
    """Return the text that asks Spark what it makes of a statement."""
    return f"{_WORDS}\n{sql}"


def in_own_lines(message: str) -> str:
    """Return a message about such a text as one about the statement alone."""
    message = _PARSING.sub(_parsed, message, count=1)
    message = _CONTEXT.sub(_shown, message, count=1)
    return _ORIGIN.sub(lambda m: f"{m['before']}{_line(m)}{m['behind']}", message, count=1)


def _line(match: re.Match[str]) -> int:
    return max(int(match["line"]) - 1, 1)


def _parsed(match: re.Match[str]) -> str:
    before, at = match["line"] == "1", match["at"]
    mark = "" if before else match["mark"] or ""
    return f"(line {_line(match)}, pos {0 if before else at})\n\n== SQL ==\n{mark}"


def _shown(match: re.Match[str]) -> str:
    return f"== SQL (line {_line(match)}, position {match['at']}) ==\n"
