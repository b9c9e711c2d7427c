"""Just enough of Spark's SQL to find where a statement ends, and to know a one-row INSERT.

Quotes, quoted names and comments are passed over as Spark's lexer does: backslash escapes in
strings but not in raw ones (``r'…'``), doubled backquotes, nested bracket comments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
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
_NO_NAMES = frozenset({"TABLE", "VALUES", "SELECT", "BY", "IDENTIFIER"})
_WRITING = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "INTO", "OVERWRITE", "CREATE", "CALL"})


@dataclass(frozen=True, slots=True)
class Split:
    """``statements`` are complete; ``rest`` is what follows the last ``;``.

    ``vertical``: the places of those that end with ``\\G``, whose rows are shown one below another.
    """

    statements: tuple[str, ...]
    rest: str
    vertical: frozenset[int] = frozenset()


def pieces(sql: str) -> Iterator[tuple[str, int, int]]:
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
    """Cut a text into its statements at the ``;`` or ``\\G`` between them, without blank ones."""
    found: list[str] = []
    vertical: set[int] = set()
    start, blank, before, blank_before = 0, True, "", True
    for kind, begin, end in pieces(sql):
        text = sql[begin:end]
        is_vertical = before == "\\" and text == "G"
        if is_vertical or text == ";":
            if not (blank_before if is_vertical else blank):
                if is_vertical:
                    vertical.add(len(found))
                found.append(sql[start : begin - is_vertical].strip())
            start, blank, before = end, True, ""
            continue
        blank_before, before = blank, text
        blank = blank and kind in _BLANK
    rest = "" if blank else sql[start:].strip()
    return Split(tuple(found), rest, frozenset(vertical))


def is_row_insert(sql: str) -> bool:
    """True if this is an ``INSERT … VALUES (…)`` with exactly one row."""
    depth, rows, values, first = 0, 0, False, True
    for kind, begin, end in pieces(sql):
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


@dataclass(frozen=True, slots=True)
class ValueInsert:
    """An ``INSERT INTO table [(columns)] VALUES (…)`` of one row, of markers alone.

    ``table`` is as written. ``columns`` is empty where none are named. ``markers`` are the names of
    ``:name``, empty texts for ``?``.
    """

    table: str
    columns: tuple[str, ...]
    markers: tuple[str, ...]


def value_insert(sql: str) -> ValueInsert | None:
    """Return the parts of an INSERT, if it is of exactly that form."""
    found = [(kind, sql[b:e]) for kind, b, e in pieces(sql) if kind not in _BLANK]
    words = _Words(found[:-1] if found and found[-1][1] == ";" else found)
    if not (words.take("INSERT") and words.take("INTO")):
        return None
    parts = [words.name()]
    while words.take("."):
        parts.append(words.name())
    columns = words.listed(words.name) if words.is_next("(") else ()
    markers = words.listed(words.marker) if words.take("VALUES") else None
    if None in parts or columns is None or not markers or not words.at_end:
        return None
    if len(set(map(bool, markers))) > 1 or (columns and len(columns) != len(markers)):
        return None
    plain = tuple(map(unquoted, columns))
    return ValueInsert(".".join(part for part in parts if part), plain, markers)


class _Words:
    """Reads pieces one after another."""

    def __init__(self, found: list[tuple[str, str]]) -> None:
        self._found = found
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._found)

    def is_next(self, text: str) -> bool:
        return not self.at_end and self._found[self._at][1].upper() == text

    def take(self, text: str) -> bool:
        taken = self.is_next(text)
        self._at += taken
        return taken

    def name(self) -> str | None:
        """Take a name: quoted, or a word that is no word of the statement."""
        if self.at_end:
            return None
        kind, text = self._found[self._at]
        if kind != "name" and (kind != "word" or text.upper() in _NO_NAMES):
            return None
        self._at += 1
        return text

    def marker(self) -> str | None:
        """Take a marker: its name, nothing for ``?``."""
        if self.take("?"):
            return ""
        if self.take(":") and not self.at_end and self._found[self._at][0] == "word":
            self._at += 1
            return self._found[self._at - 1][1]
        return None

    def listed(self, item: Callable[[], str | None]) -> tuple[str, ...] | None:
        """Take a list in brackets; None if there is none."""
        found: list[str] = []
        if not self.take("("):
            return None
        while (one := item()) is not None:
            found.append(one)
            if self.take(")"):
                return tuple(found)
            if not self.take(","):
                return None
        return None


def unquoted(name: str) -> str:
    """Return a name without its backquotes, of which the last one may not be there yet."""
    if not name.startswith("`"):
        return name
    return name[1:].removesuffix("`").replace("``", "`")


def quoted(name: str) -> str:
    """Return a name in backquotes."""
    return "`" + name.replace("`", "``") + "`"


def reads_only(sql: str) -> bool:
    """True if this is surely a query: SELECT, or WITH without a word that writes."""
    words = [sql[b:e].upper() for kind, b, e in pieces(sql) if kind == "word"]
    if not words or words[0] not in ("SELECT", "WITH"):
        return False
    return not _WRITING.intersection(words)
