"""Just enough of Spark's SQL to find where a statement ends, and to know a one-row INSERT.

Quotes, quoted names and comments are passed over as Spark's lexer does: backslash escapes in
strings but not in raw ones (``r'…'``), doubled backquotes, nested bracket comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_PIECE = re.compile(
    r"""(?P<raw>\b[rR](?:'[^']*(?:'|\Z)|"[^"]*(?:"|\Z)))
      | (?P<string>'(?:\\.|[^'\\])*(?:'|\Z|\\\Z)|"(?:\\.|[^"\\])*(?:"|\Z|\\\Z))
      | (?P<name>`(?:[^`]|``)*(?:`|\Z))
      | (?P<line>--[^\n]*)
      | (?P<block>/\*)
      | (?P<word>\w+)
      | (?P<space>\s+)
      | (?P<symbol>.)""",
    re.VERBOSE | re.DOTALL,
)
_BLOCK_EDGE = re.compile(r"/\*|\*/")
_BLANK = frozenset({"line", "block", "space"})
_WRITING = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "INTO", "OVERWRITE", "CREATE", "CALL"})


@dataclass(frozen=True, slots=True)
class Split:
    """``statements`` are complete; ``rest`` is what follows the last ``;``."""

    statements: tuple[str, ...]
    rest: str


def _pieces(sql: str) -> Iterator[tuple[str, int, int]]:
    """Yield (kind, start, end) over the whole text."""
    position = 0
    while match := _PIECE.match(sql, position):
        kind, position = match.lastgroup or "symbol", match.end()
        if kind == "block":
            position = _block_end(sql, position)
        yield kind, match.start(), position


def _block_end(sql: str, position: int) -> int:
    depth = 1
    while depth:
        edge = _BLOCK_EDGE.search(sql, position)
        if edge is None:
            return len(sql)
        depth += 1 if edge.group() == "/*" else -1
        position = edge.end()
    return position


def split(sql: str) -> Split:
    """Cut a text into its statements at the ``;`` between them; blank ones are left out."""
    found: list[str] = []
    start, blank = 0, True
    for kind, begin, end in _pieces(sql):
        if kind == "symbol" and sql[begin] == ";":
            if not blank:
                found.append(sql[start:begin].strip())
            start, blank = end, True
        elif kind not in _BLANK:
            blank = False
    return Split(tuple(found), "" if blank else sql[start:].strip())


def is_row_insert(sql: str) -> bool:
    """Whether this is an ``INSERT … VALUES (…)`` with exactly one row."""
    depth, rows, values, first = 0, 0, False, True
    for kind, begin, end in _pieces(sql):
        text = sql[begin:end].upper()
        if kind in _BLANK or text == ";":
            continue
        if first and text != "INSERT":
            return False
        first = False
        if rows and not depth:
            return False  # something follows the row
        if kind == "symbol":
            depth += (text == "(") - (text == ")")
            rows += values and text == ")" and not depth
        elif not depth and kind == "word":
            if values or text in ("SELECT", "FROM"):
                return False
            values = text == "VALUES"
    return rows == 1


def reads_only(sql: str) -> bool:
    """Whether this is surely a query: SELECT, or WITH and no word in it that writes."""
    words = [sql[b:e].upper() for kind, b, e in _pieces(sql) if kind == "word"]
    if not words or words[0] not in ("SELECT", "WITH"):
        return False
    return not _WRITING.intersection(words)
