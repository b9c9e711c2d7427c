"""Reads as much of Spark's SQL as a client needs: where statements end, completion by Tab.

Quotes, quoted names and comments are skipped as Spark's lexer does: backslash escapes in strings
but not in raw ones (``r'…'``), doubled backquotes, nested bracket comments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

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
    r"""The complete ``statements`` of a text, and the ``rest`` behind the last ``;``.

    ``vertical``: the indexes of the statements that end with ``\G``: their columns are shown one
    below another.
    """

    statements: tuple[str, ...]
    rest: str
    vertical: frozenset[int] = frozenset()


def pieces(sql: str) -> Iterator[tuple[str, int, int]]:
    """Yield the lexical pieces of a text (words, names, strings, comments): (kind, start, end)."""
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
    """True if the statement is an ``INSERT … VALUES (…)`` with exactly one row."""
    depth, rows, values, first = 0, 0, False, True
    for kind, begin, end in pieces(sql):
        text = sql[begin:end].upper()
        if kind in _BLANK or text == ";":
            continue
        if first and text != "INSERT":
            return False
        first = False
        if rows and not depth:
            return False  # there is more behind the row
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
    """An ``INSERT INTO table [(columns)] VALUES (…)`` of one row that has only markers.

    - ``table``: its name as written;
    - ``columns``: the column names; empty if the statement names none;
    - ``markers``: for each value the name in ``:name``, or an empty text for ``?``
    """

    table: str
    columns: tuple[str, ...]
    markers: tuple[str, ...]


def value_insert(sql: str) -> ValueInsert | None:
    """Read an INSERT of the form of `ValueInsert`; None for any other statement."""
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
    """Reads the pieces of a statement one after another."""

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
        """Read a name and return it; None if the next piece is none.

        A name is quoted, or a word that is no keyword of this statement.
        """
        if self.at_end:
            return None
        kind, text = self._found[self._at]
        if kind != "name" and (kind != "word" or text.upper() in _NO_NAMES):
            return None
        self._at += 1
        return text

    def marker(self) -> str | None:
        """Read a parameter marker and return its name; empty for ``?``, None if there is none."""
        if self.take("?"):
            return ""
        if self.take(":") and not self.at_end and self._found[self._at][0] == "word":
            self._at += 1
            return self._found[self._at - 1][1]
        return None

    def listed(self, item: Callable[[], str | None]) -> tuple[str, ...] | None:
        """Read a list in brackets, each part by ``item``; None if there is none."""
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
    """Return a name without its backquotes; the closing one may still be missing."""
    if not name.startswith("`"):
        return name
    return name[1:].removesuffix("`").replace("``", "`")


def quoted(name: str) -> str:
    """Return a name in backquotes."""
    return "`" + name.replace("`", "``") + "`"


def reads_only(sql: str) -> bool:
    """True if the statement is surely a query: SELECT, or WITH without a word that writes."""
    words = [sql[b:e].upper() for kind, b, e in pieces(sql) if kind == "word"]
    if not words or words[0] not in ("SELECT", "WITH"):
        return False
    return not _WRITING.intersection(words)


# Completion by Tab in the prompt: tables after FROM and similar words, columns, words of SQL.
#
# Only the statement's pieces are used: the table of a name before a dot, and the tables that the
# statement names. So a CTE or a subquery has no columns to offer.


_WORDS: Final = """
ALL ALTER ANALYZE AND ANY AS ASC BETWEEN BY CACHE CASE CAST CATALOG COLUMN COLUMNS COMMENT CREATE
CROSS CURRENT_DATE CURRENT_TIMESTAMP DATABASE DELETE DESC DESCRIBE DISTINCT DROP ELSE END EXCEPT
EXISTS EXPLAIN EXTENDED FALSE FIRST FROM FULL FUNCTION FUNCTIONS GROUP HAVING HISTORY IF IN INNER
INSERT INTERSECT INTERVAL INTO IS JOIN LAST LEFT LIKE LIMIT MATCHED MERGE NOT NULL NULLS OFFSET ON
OPTIMIZE OR ORDER OUTER OVER OVERWRITE PARTITION PARTITIONED QUALIFY REPLACE RIGHT SCHEMA SCHEMAS
SELECT SET SHOW TABLE TABLES TBLPROPERTIES TEMPORARY THEN TRUE TRUNCATE UNION UNSET UPDATE USE USING
VACUUM VALUES VIEW VIEWS WHEN WHERE WINDOW WITH
"""
WORDS: Final = frozenset(_WORDS.split())
_BEFORE_TABLE: Final = WORDS & {
    *("FROM", "JOIN", "INTO", "TABLE", "UPDATE", "DESCRIBE", "DESC"),
    *("OVERWRITE", "VIEW", "OPTIMIZE", "VACUUM", "COLUMNS"),
}
_BEFORE_SCHEMA: Final = WORDS & {"USE", "SCHEMA", "DATABASE"}
_CLAUSES: Final = WORDS & {
    *("SELECT", "FROM", "WHERE", "ON", "GROUP", "ORDER", "HAVING", "SET", "VALUES"),
    *("LIMIT", "USING", "QUALIFY", "WINDOW"),
}
_PLAIN: Final = re.compile(r"[A-Za-z_]\w*")


class Names(Protocol):
    """The names in the ring, for completion; empty lists if the ring does not answer."""

    def schemas(self) -> list[str]:
        """Return the schemas of the current catalog."""

    def tables(self, schema: str) -> list[str]:
        """Return the tables and views of a schema; for an empty text of the current schema.

        ``schema`` is written as in SQL.
        """

    def columns(self, table: str) -> list[str]:
        """Return the columns of a table; ``table`` is written as in SQL."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The unfinished name before the text cursor, and what is needed to complete it.

    - ``typed``: the last part of the name, with a leading backquote if it has one;
    - ``before_dot``: the parts before the last one;
    - ``expects``: the word before the name, which shows what kind of name must follow;
    - ``tables``: the tables of the statement, by their names and aliases
    """

    typed: str
    before_dot: str
    expects: str
    tables: Mapping[str, str]


Piece = tuple[str, str]
"""The kind and the text of a lexical piece."""


def wanted(before: str, after: str = "") -> Wanted | None:
    """Return the unfinished name at the text cursor; None inside a string or a comment.

    ``before``, ``after``: the text on both sides of the cursor.
    """
    found = [(kind, before[start:end]) for kind, start, end in pieces(before)]
    if found and found[-1][0] in ("string", "raw", "line", "block"):
        return None
    begins = max((at for at, (_, text) in enumerate(found, start=1) if text == ";"), default=0)
    found, typed, parts = found[begins:], "", []
    if found and found[-1][0] in ("word", "name"):
        typed = found.pop()[1]
    while len(found) > 1 and found[-1][1] == "." and found[-2][0] in ("word", "name"):
        parts.append(found[-2][1])
        del found[-2:]
    others = "".join(text for _, text in found) + f" {after}"
    return Wanted(typed, ".".join(reversed(parts)), _expected(_spoken(found)), tables_of(others))


def _spoken(found: Iterable[Piece]) -> list[Piece]:
    """Return the pieces without spaces and comments, and with words in capitals."""
    return [
        (kind, text.upper() if kind == "word" else text)
        for kind, text in found
        if kind not in _BLANK
    ]


def _expected(spoken: Sequence[Piece]) -> str:
    """Return the word that shows what must follow these pieces; empty if none does."""
    words = [text for _, text in spoken]
    last = words[-1] if words else ""
    if last == ",":
        clauses = [word for word in words if word in _CLAUSES]
        return "FROM" if clauses and clauses[-1] == "FROM" else ""
    return "" if last == "DESC" and len(words) > 1 else last


def tables_of(sql: str) -> dict[str, str]:
    """Return the tables of the first statement, as written in SQL, by their names and aliases."""
    found = [(kind, sql[start:end]) for kind, start, end in pieces(sql)]
    found = found[: found.index(("symbol", ";"))] if ("symbol", ";") in found else found
    texts = [text for kind, text in found if kind not in _BLANK]
    spoken = _spoken(found)
    tables: dict[str, str] = {}
    for at in range(1, len(spoken)):
        if _expected(spoken[:at]) not in _BEFORE_TABLE or not _is_name(spoken[at]):
            continue
        end = at + 1
        while spoken[end : end + 1] == [("symbol", ".")] and end + 1 < len(spoken):
            end += 2
        name = "".join(texts[at:end])
        tables[unquoted(texts[end - 1]).lower()] = name
        end += spoken[end : end + 1] == [("word", "AS")]
        if end < len(spoken) and _is_name(spoken[end]):
            tables[unquoted(texts[end]).lower()] = name
    return tables


def _is_name(piece: Piece) -> bool:
    kind, text = piece
    return kind == "name" or (kind == "word" and text not in WORDS)


def completions(want: Wanted, names: Names) -> list[str]:
    """Return the names and SQL words that complete the unfinished name: names first, sorted."""
    typed = unquoted(want.typed).lower()
    of_words: list[str] = []
    if want.before_dot:
        whole = {table.lower(): table for table in want.tables.values()}
        table = want.tables.get(unquoted(want.before_dot).lower())
        table = table or whole.get(want.before_dot.lower())
        found = names.columns(table) if table else names.tables(want.before_dot)
    elif want.expects in _BEFORE_SCHEMA:
        found = names.schemas()
    elif want.expects in _BEFORE_TABLE:
        found = [*names.tables(""), *names.schemas()]
    else:
        found = [name for table in set(want.tables.values()) for name in names.columns(table)]
        of_words = [] if want.typed.startswith("`") else sorted(WORDS)
        if want.typed.islower():
            of_words = [word.lower() for word in of_words]
    fitting = sorted({name for name in found if name.lower().startswith(typed)})
    words = [word for word in of_words if want.typed and word.lower().startswith(typed)]
    return [*map(as_typed, fitting), *words]


def as_typed(name: str) -> str:
    """Return a name as it is written in SQL: in backquotes if it needs them."""
    return name if _PLAIN.fullmatch(name) else quoted(name)
