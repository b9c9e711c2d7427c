"""What a definition defines: the object that CREATE, ALTER or DROP names."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from haproc.classify.names import Context, joined, plain, qualified
from haproc.classify.tokens import LexicalError, Token, TokenKind, tokenize

NAMESPACES: Final = ("SCHEMA", "DATABASE", "NAMESPACE")
_OBJECTS: Final = ("TABLE", "VIEW", "FUNCTION", *NAMESPACES)
_BETWEEN: Final = frozenset({"OR", "REPLACE", "EXTERNAL"})
_BEFORE_NAMES: Final = frozenset({"IF", "NOT", "EXISTS"})
_NAMES: Final = (TokenKind.WORD, TokenKind.QUOTED_NAME)


def target(sql: str, context: Context) -> tuple[str, str] | None:
    """Return the word for what a definition is about, and its full name.

    None if the statement is no definition, or does not say plainly what it names.
    """
    tokens = tokenize(sql)
    try:
        if (first := next(tokens, None)) is None or first.upper not in ("CREATE", "ALTER", "DROP"):
            return None
        what = next((each.upper for each in tokens if each.upper not in _BETWEEN), "")
        parts = _name(tokens) if what in _OBJECTS else ()
    except LexicalError:
        return None
    if not parts:
        return None
    if what in NAMESPACES:
        return what, joined(parts if len(parts) > 1 else (context.catalog, *parts))
    return what, qualified(parts, context)


def _name(tokens: Iterator[Token]) -> tuple[str, ...]:
    """Read the name that comes next; none if it has to be computed."""
    first = next((each for each in tokens if each.upper not in _BEFORE_NAMES), None)
    parts: list[str] = []
    names = chain([] if first is None else [first], tokens)
    while (token := next(names, None)) is not None and token.kind in _NAMES:
        parts.append(plain(token))
        behind = next(names, None)
        if behind is not None and behind.is_symbol("."):
            continue
        opens = behind is not None and behind.is_symbol("(")
        return () if opens and parts[0].upper() == "IDENTIFIER" else tuple(parts)
    return ()
