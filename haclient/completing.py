"""What Tab completes in the prompt: tables after FROM and the like, columns, words of SQL.

Read from the statement's pieces alone: which table a name before a dot stands for, and which tables
the statement names. So a CTE or a subquery has no columns to offer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from haclient.statements import pieces, quoted, unquoted

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
    """The ring's names, as far as it gives them; none if it does not answer."""

    def schemas(self) -> list[str]:
        """Return the schemas of the current catalog."""

    def tables(self, schema: str) -> list[str]:
        """Return the tables and views of a schema, as SQL has it; empty: of the current one."""

    def columns(self, table: str) -> list[str]:
        """Return the columns of a table, as SQL has it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The name before the cursor, and what may stand there.

    ``typed`` is its last part, with a leading backquote if it has one; ``before_dot`` the parts
    before. ``expects``: the word before it that names come after. ``tables``: those of the
    statement, by their aliases, too.
    """

    typed: str
    before_dot: str
    expects: str
    tables: Mapping[str, str]


Piece = tuple[str, str]
"""A piece's kind and text."""


def wanted(before: str, after: str = "") -> Wanted | None:
    """Return what is wanted at the cursor; None within a text or a comment."""
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
    """Return the pieces that are no space and no comment, words in capitals."""
    return [
        (kind, text.upper() if kind == "word" else text)
        for kind, text in found
        if kind not in ("space", "line", "block")
    ]


def _expected(spoken: Sequence[Piece]) -> str:
    """Return the word that says what comes behind these pieces; empty if it says nothing."""
    words = [text for _, text in spoken]
    last = words[-1] if words else ""
    if last == ",":
        clauses = [word for word in words if word in _CLAUSES]
        return "FROM" if clauses and clauses[-1] == "FROM" else ""
    return "" if last == "DESC" and len(words) > 1 else last


def tables_of(sql: str) -> dict[str, str]:
    """Return the tables of the first statement, as SQL has them, by name and by alias."""
    found = [(kind, sql[start:end]) for kind, start, end in pieces(sql)]
    found = found[: found.index(("symbol", ";"))] if ("symbol", ";") in found else found
    texts = [text for kind, text in found if kind not in ("space", "line", "block")]
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
    """Return what fits, as SQL has it: in alphabetical order, columns and tables before words."""
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
    """Return a name as SQL has it: in backquotes if it needs them."""
    return name if _PLAIN.fullmatch(name) else quoted(name)
