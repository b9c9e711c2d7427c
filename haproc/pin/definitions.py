"""Definitions: expressions in DDL are computed later, on each cluster, whenever rows are written.

So nothing in them can become a literal now, and nothing that differs may stand in them. Column
defaults, generated columns, checks and the bodies of SQL functions are looked at; the words around
them (types, options, partition transforms) are not expressions.
"""

from __future__ import annotations

from collections.abc import Iterator

from haproc.pin.examine import Examination, Finding
from haproc.pin.functions import Nature
from haproc.pin.scan import Scan

_VERSIONS = frozenset({"VERSION", "SYSTEM_VERSION", "TIMESTAMP", "SYSTEM_TIME"})
_WATCHED = frozenset({Nature.CLOCK, Nature.IDENTITY, Nature.RANDOM, Nature.CONTEXT})


def examine_definition(examination: Examination) -> list[Finding]:
    """Return why a CREATE or ALTER TABLE, or other DDL, may not be replicated."""
    scan = examination.scan
    found = [Finding(reason) for reason in _versions(scan) + _identity_columns(scan)]
    for start, end in expressions(scan):
        found += _differing(examination, start, end)
    for call in scan.calls(1, len(scan.tokens)):
        if call.nature in _WATCHED and scan.word(call.first - 1) != "EXISTS":
            found.append(Finding(f"{call.name}() would be another value on every cluster"))
    return list(dict.fromkeys(found))


def examine_function(examination: Examination) -> list[Finding]:
    """Return why a CREATE FUNCTION may not be replicated."""
    scan = examination.scan
    body = next((at for at in range(len(scan.tokens)) if scan.word(at) == "RETURN"), -1)
    language = next(
        (scan.word(at + 1) for at in range(len(scan.tokens)) if scan.word(at) == "LANGUAGE"), "SQL"
    )
    if body < 0 or language != "SQL":
        return [Finding("the function runs code that HAProc cannot look into")]
    found = _differing(examination, body + 1, len(scan.tokens))
    for start, end in expressions(scan, body):
        found += _differing(examination, start, end)
    return list(dict.fromkeys(found))


def _differing(examination: Examination, start: int, end: int) -> list[Finding]:
    """Return what differs in a stretch, what would otherwise become a literal included."""
    part = Examination(examination.scan, examination.moment)
    part.stretch(start, end)
    examination.unknown |= part.unknown
    found = list(part.findings)
    for replacement in part.replacements:
        text = examination.scan.sql[replacement.start : replacement.end]
        reason = f"{text} is computed anew by every cluster, whenever rows are written"
        found.append(Finding(reason))
    return found


def expressions(scan: Scan, end: int = -1) -> Iterator[tuple[int, int]]:
    """Yield where the expressions of DEFAULT, GENERATED ALWAYS AS and CHECK stand."""
    stop = len(scan.tokens) if end < 0 else end
    behind = 0  # what lies in an expression is looked at with it, and not once more
    for at in range(1, stop):
        if at < behind:
            continue
        word = scan.word(at)
        opening = scan.symbol(at + 1) == "("
        is_generated = word == "AS" and scan.word(at - 1) in ("ALWAYS", "GENERATED")
        is_name = "." in (scan.symbol(at - 1), scan.symbol(at + 1))  # the schema of that name
        if word == "DEFAULT" and scan.symbol(at + 1) != "=" and not is_name:
            behind = _default_end(scan, at + 1, stop)
        elif opening and (is_generated or word == "CHECK"):
            behind = scan.closing[at + 1] + 1
        else:
            continue
        yield at + 1, behind


def _default_end(scan: Scan, start: int, stop: int) -> int:
    """Return the place behind a default's expression."""
    if start >= stop:
        return stop
    depth = scan.depth[start]
    for at in range(start, stop):
        if scan.depth[at] < depth or (scan.depth[at] == depth and scan.symbol(at) == ","):
            return at
    return stop


def _identity_columns(scan: Scan) -> list[str]:
    for at in range(1, len(scan.tokens)):
        if scan.word(at) == "IDENTITY" and scan.word(at - 1) == "AS":
            return ["every cluster numbers the rows of an IDENTITY column itself"]
    return []


def _versions(scan: Scan) -> list[str]:
    for at in range(len(scan.tokens)):
        words = [scan.word(at + i) for i in range(3)]
        if words[0] in _VERSIONS and words[1:] == ["AS", "OF"]:
            return [f"{words[0]} AS OF: each cluster numbers and dates its versions itself"]
    return []
