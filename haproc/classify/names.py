"""Names of tables and other objects: read from tokens, completed, checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from haproc.classify.model import RefusedError
from haproc.classify.rights import UNBOUNDED, Rights
from haproc.classify.tokens import LexicalError, Token, TokenKind, tokenize
from haproc.failure import ErrorClass

# The object that a definition (CREATE, ALTER or DROP) names.


NAMESPACES: Final = ("SCHEMA", "DATABASE", "NAMESPACE")
_OBJECTS: Final = ("TABLE", "VIEW", "FUNCTION", *NAMESPACES)
_BETWEEN: Final = frozenset({"OR", "REPLACE", "EXTERNAL"})
_BEFORE_NAMES: Final = frozenset({"IF", "NOT", "EXISTS"})
_NAMES: Final = (TokenKind.WORD, TokenKind.QUOTED_NAME)


def defined_object(sql: str, context: Context) -> tuple[str, str] | None:
    """Return the word for the kind of object that a definition defines, and its full name.

    None if the statement is no CREATE, ALTER or DROP, or if its object's name must be computed.
    """
    tokens = tokenize(sql)
    try:
        if (first := next(tokens, None)) is None or first.upper not in ("CREATE", "ALTER", "DROP"):
            return None
        what = next((each.upper for each in tokens if each.upper not in _BETWEEN), "")
        parts = _next_name(tokens) if what in _OBJECTS else ()
    except LexicalError:
        return None
    if not parts:
        return None
    if what in NAMESPACES:
        return what, joined(parts if len(parts) > 1 else (context.catalog, *parts))
    return what, qualified(parts, context)


def _next_name(tokens: Iterator[Token]) -> tuple[str, ...]:
    """Return the parts of the next name; empty if there is none, or if it must be computed."""
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


# Table names: read from tokens, completed from the session's catalog and schema.
#
# A name is in lower case, its parts joined by dots. A part with a dot or a backquote is in
# backquotes, so that different names never get the same text.


# `delta.`/path`` names files instead of a table, if the first part is one of these.
_FORMATS = "avro binaryfile csv delta iceberg image json libsvm orc parquet text xml"
PATH_FORMATS = frozenset(_FORMATS.split())
FILE_SOURCES = PATH_FORMATS | {"hive"}
"""The sources that a table may have: formats of files. Any other source may be a class that Spark
loads, or another database."""
_SESSION = (("session",), ("system", "session"))
_GLOBAL = "global_temp"
OWN_SCHEMA = "haproc_warm_up"
"""The schema in which HAProc tests a server that has just started. It is dropped, and never
compared with other clusters."""
STAGING_SCHEMA = "haproc_staging"
"""The schema of staging tables, see `haproc.engine.pieces`; never compared either."""
OWN_SCHEMAS = frozenset({OWN_SCHEMA, STAGING_SCHEMA})


@dataclass(frozen=True, slots=True)
class Context:
    """The catalog and schema that complete a statement's names, and the statement's sender."""

    catalog: str = "spark_catalog"
    schema: str = "default"
    user: str = ""
    rights: Rights = UNBOUNDED


def plain(token: Token) -> str:
    """Return the name that a token means: its text without backquotes."""
    if token.kind is TokenKind.QUOTED_NAME:
        return token.text[1:-1].replace("``", "`")
    return token.text


def joined(parts: Sequence[str]) -> str:
    """Return the parts as one name: in lower case, with dots, and backquotes where needed."""
    return ".".join(
        f"`{part.replace('`', '``')}`" if "." in part or "`" in part else part
        for part in (part.lower() for part in parts)
    )


def qualified(parts: Sequence[str], context: Context) -> str:
    """Return the full name of the table that ``parts`` means in this context: see `joined`."""
    return joined(completed(parts, context))


def completed(parts: Sequence[str], context: Context) -> Sequence[str]:
    """Return the parts with catalog and schema before them where they are missing."""
    if len(parts) == 1:
        return (context.catalog, context.schema, *parts)
    return (context.catalog, *parts) if len(parts) == 2 else parts


def path_of(parts: Sequence[str]) -> str:
    """Return the path of the files that Spark reads under this name; empty if it means a table.

    Files are ``delta.`/x``` and ``spark_catalog.delta.`/x```; a format may be named by its class. A
    name of two parts means files, too, if the first part is a format; so a schema called ``json``
    needs its catalog before it. No catalog allows a slash in a table's name.
    """
    if any("/" in part for part in parts):
        return parts[-1] if "/" in parts[-1] else joined(parts)
    # As Spark compares them: ſ and ı are letters of such names, too.
    plain_first = parts[0].upper().lower()
    is_format = len(parts) == 2 and (plain_first in PATH_FORMATS or "." in parts[0])
    return parts[1] if is_format else ""


def may_be_temporary(parts: Sequence[str]) -> bool:
    """True if a temporary view of the session could have this name, and hide the table."""
    return len(parts) == 1 or tuple(part.lower() for part in parts[:-1]) in _SESSION


def target(parts: Sequence[str], context: Context) -> str:
    """Return the full name of the table that a statement changes.

    Raises RefusedError if the parts name no table that clients may change, or if the name has to be
    computed. Every name of a table to be changed is checked here: HAProc finds a transaction marker
    by the table's name, and without it could not find out whether the write was applied.
    """
    if not parts:
        raise RefusedError(
            ErrorClass.TABLE_NAME,
            "the name of what is written has to be computed",
            "write the name itself; IDENTIFIER('catalog.schema.table') is fine, too",
        )
    if any("/" in part for part in parts):
        raise RefusedError(
            ErrorClass.PATH,
            f"{joined(parts)} names files, not a table: HAProc could not find out whether a "
            "write was applied",
            "write to a table by its name",
        )
    refuse_global(parts)
    refuse_own(parts, context)
    return qualified(parts, context)


def refuse_own(parts: Sequence[str], context: Context) -> None:
    """Raise RefusedError if a table is in one of the schemas that HAProc uses itself."""
    refuse_own_schema(parts[-2:-1] if len(parts) > 1 else (context.schema,))


def refuse_own_schema(schema: Sequence[str]) -> None:
    """Raise RefusedError if HAProc itself uses one of these schemas."""
    if any(name.lower() in OWN_SCHEMAS for name in schema):
        raise RefusedError(
            ErrorClass.TABLE_NAME,
            f"the schema {schema[0]} is HAProc's own, and dropped whenever a cluster starts",
            "use another schema",
        )


def refuse_global(parts: Sequence[str]) -> None:
    """Raise RefusedError if this is the name of a global temporary view."""
    if len(parts) > 1 and parts[-2].lower() == _GLOBAL:
        raise RefusedError(
            ErrorClass.GLOBAL_TEMPORARY,
            f"{joined(parts)} would be on one cluster only, and there for all its sessions",
            "use a temporary view of the session, or a permanent view",
        )


def parts_of(text: str) -> tuple[str, ...] | None:
    """Return the parts of a text that is one name, quoted or not; None if it is anything else."""
    try:
        tokens = list(tokenize(text))
    except LexicalError:
        return None
    names, dots = tokens[::2], tokens[1::2]
    if len(names) != len(dots) + 1 or not all(dot.is_symbol(".") for dot in dots):
        return None
    if any(name.kind not in (TokenKind.WORD, TokenKind.QUOTED_NAME) for name in names):
        return None
    return tuple(plain(name) for name in names)
