"""A statement behind EXPLAIN EXTENDED, and what Spark says of it, as if nothing stood before it.

Spark tells where in a text an error is, and shows the lines around it. The words in front of the
statement have a line of their own: so in the statement's lines every place is its own, and only the
number of the line is one too high. What does not have a form of Spark's is left as it is.
"""

from __future__ import annotations

import re
from dataclasses import replace

from haproc.spark_error import Context, Details

_WORDS = "EXPLAIN EXTENDED"
_LINE, _AT = r"line (?P<line>\d{1,9})", r"(?P<at>\d{1,9})"
_PARSING = re.compile(rf"\({_LINE}, pos {_AT}\)\n\n== SQL ==\n{_WORDS}\n(?P<mark>-*\^\^\^\n)?")
"""Of the parser itself, with the whole text behind it."""
_CONTEXT = re.compile(
    rf"^== SQL \({_LINE}, position {_AT}\) ==\n(?P<mark>{_WORDS}\n\^+\n)?",
    re.MULTILINE,
)
"""Of everyone else, with the lines of the error behind it."""
_LINES_SHOWN = re.compile("^== SQL", re.MULTILINE)
"""A name or a value has it in the middle of a line."""
_ORIGIN = re.compile(rf"; {_LINE} pos {_AT}(?P<end>;?$)", re.MULTILINE)
"""Of the analyzer."""


def explaining(sql: str) -> str:
    """Return the text that asks Spark what it makes of a statement."""
    return f"{_WORDS}\n{sql}"


def in_own_lines(message: str) -> str:
    """Return a message about such a text as one about the statement alone."""
    told, is_parsers = _PARSING.subn(_parsed, message, count=1)
    if is_parsers:  # with the statement as it stands, which may look like any of these
        return told
    begins = _LINES_SHOWN.search(message)
    at = len(message) if begins is None else begins.start()
    said, shown = message[:at], message[at:]
    said = _ORIGIN.sub(lambda m: f"; line {_line(m)} pos {m['at']}{m['end']}", said, count=1)
    return said + _CONTEXT.sub(_shown, shown, count=1)


def details_in_own_lines(said: Details) -> Details:
    """Return the same of what else an error about such a text says."""
    return replace(said, contexts=tuple(map(_in_own_text, said.contexts)))


def _in_own_text(context: Context) -> Context:
    if context.of_frame or context.object_type:  # one in a view's text
        return context
    before = len(explaining(""))
    return replace(
        context,
        start=max(context.start - before, 0),
        stop=max(context.stop - before, 0),
        summary=in_own_lines(context.summary),
    )


def _line(match: re.Match[str]) -> int:
    return max(int(match["line"]) - 1, 1)


def _parsed(match: re.Match[str]) -> str:
    before, at = match["line"] == "1", match["at"]
    mark = "" if before else match["mark"] or ""
    return f"(line {_line(match)}, pos {0 if before else at})\n\n== SQL ==\n{mark}"


def _shown(match: re.Match[str]) -> str:
    return f"== SQL (line {_line(match)}, position {match['at']}) ==\n"
