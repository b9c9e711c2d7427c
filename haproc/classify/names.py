"""Table names: read from tokens, completed from the session's catalog and schema.

A name is kept in lower case, its parts joined by dots; a part that itself holds a dot or a
backquote stays backquoted, so that different names never get the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from haproc.classify.strings import decoded
from haproc.classify.tokens import Token, TokenKind, UnclosedError, tokenize

# `delta.`/path`` names files instead of a table, when the first part is one of these.
PATH_FORMATS = frozenset(
    ["avro", "binaryfile", "csv", "delta", "iceberg", "json", "orc", "parquet", "text", "xml"]
)


@dataclass(frozen=True, slots=True)
class Context:
    """Where a statement's unqualified names belong, and who sent it."""

    catalog: str = "spark_catalog"
    schema: str = "default"
    user: str = ""


def plain(token: Token) -> str:
    """Return the text of a name token without its backquotes."""
    if token.kind is TokenKind.QUOTED_NAME:
        return token.text[1:-1].replace("``", "`")
    return token.text


def joined(parts: Sequence[str]) -> str:
    """Return the parts as one normalised name."""
    return ".".join(
        f"`{part.replace('`', '``')}`" if "." in part or "`" in part else part
        for part in (part.lower() for part in parts)
    )


def qualified(parts: Sequence[str], context: Context) -> str:
    """Return the full normalised name of the table that ``parts`` means in this context."""
    if len(parts) == 1:
        parts = (context.catalog, context.schema, *parts)
    elif len(parts) == 2:
        parts = (context.catalog, *parts)
    return joined(parts)


def is_path(parts: Sequence[str]) -> bool:
    """Whether the name means files (``delta.`/x```), which can belong to any table."""
    return len(parts) == 2 and (parts[0].lower() in PATH_FORMATS or "/" in parts[1])


def name_in_literal(text: str) -> tuple[str, ...] | None:
    """Return the name that ``IDENTIFIER('…')`` means; None where that is not plain to see."""
    return parts_of(decoded(text))


def parts_of(text: str) -> tuple[str, ...] | None:
    """Return the parts of a text that is one name, quoted or not; None if it is anything else."""
    try:
        tokens = list(tokenize(text))
    except UnclosedError:
        return None
    names, dots = tokens[::2], tokens[1::2]
    if len(names) != len(dots) + 1 or not all(dot.is_symbol(".") for dot in dots):
        return None
    if any(name.kind not in (TokenKind.WORD, TokenKind.QUOTED_NAME) for name in names):
        return None
    return tuple(plain(name) for name in names)
