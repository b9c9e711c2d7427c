"""What a definition defines: the object that CREATE, ALTER or DROP names."""

from __future__ import annotations

from haproc.classify.names import Context, joined, qualified
from haproc.classify.reader import Reader
from haproc.classify.tokens import UnclosedError, tokenize

NAMESPACES = ("SCHEMA", "DATABASE", "NAMESPACE")
_OBJECTS = ("TABLE", "VIEW", "FUNCTION", *NAMESPACES)


def target(sql: str, context: Context) -> tuple[str, str] | None:
    """Return the word for what a definition is about, and its full name.

    None if the statement is no definition, or does not say plainly what it names.
    """
    try:
        tokens = list(tokenize(sql))
    except UnclosedError:
        return None
    reader = Reader(sql, tokens, context)
    if not reader.take_one("CREATE", "ALTER", "DROP"):
        return None
    reader.take("OR", "REPLACE")
    reader.take("EXTERNAL")
    what = reader.take_one(*_OBJECTS)
    _ = reader.take("IF", "NOT", "EXISTS") or reader.take("IF", "EXISTS")
    parts = reader.parts() if what and reader.is_name() else ()
    if not parts:
        return None
    if what in NAMESPACES:
        return what, joined(parts if len(parts) > 1 else (context.catalog, *parts))
    return what, qualified(parts, context)
