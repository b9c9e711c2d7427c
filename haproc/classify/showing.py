"""Statements in a form that may be shown: as plain values, without literals or without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from haproc.classify.model import Classified
from haproc.classify.tokens import LexicalError, Token, TokenKind, literals, tokenize

# A classified statement as plain values for people and machines.


def described(statement: Classified) -> dict[str, Any]:
    """Return what is known of a statement without Spark's reading, as values for JSON."""
    insert, concern = statement.insert, statement.write_concern
    names = [each.name for each in statement.rules]
    return {
        "statement": statement.sql,
        "class": statement.operation_class.value,
        "kind": statement.kind.value,
        "rule": statement.rule if not names else f"its plan reading decides: {' or '.join(names)}",
        "writes": sorted(statement.writes),
        "write_concern": concern.value if concern else None,
        "apply_budget_s": statement.apply_budget_s,
        "cache": statement.cache,
        "combinable": None
        if insert is None
        else {"rows": insert.rows, "types": insert.signature.split(",")},
    }


# Statements in a form for others: without their literals, or without secrets.
#
# Literals may be private data, and comments and hints may contain anything: so they are removed. A
# text that cannot be read as tokens is not shown at all.


MASKED: Final = "?"
CUT: Final = " …"
_LITERALS: Final = (TokenKind.STRING, TokenKind.NUMBER)
_SECRET: Final = re.compile(
    r"passw|pwd|secret|token|credential|private|signature|(?:^|[._-])sas(?:$|[._-])|key$|\bkey\b",
    re.IGNORECASE,
)
_BETWEEN: Final = frozenset({"=", "==", "=>", ",", "(", ":", "."})
_URL_USER: Final = re.compile(r"(://[^/@\s:'\"]*):[^/@\s'\"]*@")


def masked(sql: str, characters_max: int, *, secrets_only: bool = False) -> str | None:
    """Return a statement with ``?`` in place of its literals; None if it can't be read as tokens.

    ``secrets_only``: replace only literals after a word that names a secret, and passwords in URLs.
    A result longer than ``characters_max`` is cut; the rest of the statement is not read.
    """
    if secrets_only:
        parts = _secrets_masked(sql)
    else:
        parts = _masked_commented(sql) if "--" in sql or "/*" in sql else _masked(sql)
    found: list[str] = []
    size = 0
    try:
        for part in parts:
            found.append(part)
            size += len(part)
            if size > characters_max:
                return "".join(found)[:characters_max].rstrip() + CUT
    except LexicalError:
        return None
    return "".join(found).strip()


def masked_insert(
    sql: str, values_at: int, rows: int, columns: int, characters_max: int
) -> str | None:
    """Return an INSERT of literals in the form of `masked`, with one row and the number of rows.

    ``values_at``: the start of the rows; ``columns``: the number of literals in each row.
    """
    head = _head(sql[:values_at], characters_max)
    if head is None:
        return None
    more = f", … {rows:,} rows" if rows > 1 else ""
    whole = f"{head} ({', '.join(MASKED * columns)}){more}"
    return whole if len(whole) <= characters_max else whole[:characters_max] + CUT


@lru_cache(maxsize=4096)
def _head(text: str, characters_max: int) -> str | None:
    return masked(text, characters_max)


def _masked(sql: str) -> Iterator[str]:
    """Yield the parts of a text, with ``?`` in place of each literal; the text has no comments."""
    end = 0
    for start, following in literals(sql):
        yield sql[end:start]
        yield MASKED
        end = following
    yield sql[end:]


def _masked_commented(sql: str) -> Iterator[str]:
    for space, token in _spaced(sql):
        yield space
        yield MASKED if token.kind in _LITERALS else token.text


def _secrets_masked(sql: str) -> Iterator[str]:
    """Yield the parts of a text, with ``?`` for each literal that follows the name of a secret."""
    named = False
    for space, token in _spaced(sql):
        yield space
        if token.kind in _LITERALS:
            yield MASKED if named else _URL_USER.sub(r"\1:?@", token.text)
        else:
            yield token.text
        if token.kind is TokenKind.SYMBOL and token.text in _BETWEEN:
            continue
        name = token.text.strip("'\"`")
        named = token.kind is not TokenKind.NUMBER and _SECRET.search(name) is not None


def _spaced(sql: str) -> Iterator[tuple[str, Token]]:
    """Yield each token without comments and hints, with a space if there was a gap before it."""
    end = 0
    for token in tokenize(sql):
        space = " " if end and token.start > end else ""
        end = token.end
        if token.kind is not TokenKind.HINT:
            yield space, token
