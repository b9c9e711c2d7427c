"""A session's temporary views, and small results read as plain values."""

from __future__ import annotations

import io

import pyarrow as pa

from haproc.classify.model import Classified, Kind, RefusedError
from haproc.classify.names import joined
from haproc.classify.tokens import TokenKind, tokenize
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import ResultStream, Session
from haproc.engine.statement import SqlText
from haproc.failure import ErrorClass
from haproc.pin.sqltypes import quote_name

_MEANS_EITHER = frozenset({Kind.DROP_VIEW, Kind.DROP_TABLE, Kind.ALTER_VIEW, Kind.ALTER_TABLE})


def changes_temporary(statement: Classified, temporary: frozenset[str]) -> bool:
    """True if a write changes only one of the session's temporary views, of these names.

    Spark takes the temporary view wherever a name could mean one: then dropping or altering it
    changes the session. Any other write to such a name would do something else on the other
    clusters, which don't have the view: RefusedError.
    """
    hidden = {table for table in statement.bare if last_part(table) in temporary}
    if hidden and statement.kind not in _MEANS_EITHER:
        name = last_part(min(hidden))
        raise RefusedError(
            ErrorClass.TEMPORARY_VIEW,
            f"{name} is a temporary view of this session, which the other clusters do not have",
            f"write the schema in front of {name} to mean a table or a permanent view",
        )
    return bool(hidden)


async def temporary_views(session: Session, timeout_s: float) -> frozenset[str]:
    """Return the names of a session's temporary views, in lower case."""
    views = await show_views(session, "", timeout_s)
    return frozenset(view for view, temporary in views or [] if temporary)


def last_part(table: str) -> str:
    """Return a table's own name, without its catalog and schema."""
    return _split(table)[1]


def _split(table: str) -> tuple[str, str]:
    """Return the namespace, quoted for SQL, and the plain name of a normalised table name."""
    parts = [
        token.text[1:-1].replace("``", "`") if token.kind is TokenKind.QUOTED_NAME else token.text
        for token in tokenize(table)
        if not token.is_symbol(".")
    ]
    return ".".join(quote_name(part) for part in parts[:-1]), joined(parts[-1:])


async def show_views(
    session: Session, namespace: str, timeout_s: float
) -> list[tuple[str, bool]] | None:
    """Return (name, is temporary) of the views there; None if the catalog does not show it."""
    where = f" IN {namespace}" if namespace else ""
    try:
        rows = await rows_of(
            await session.query(SqlText(f"SHOW VIEWS{where}"), timeout_s=timeout_s)
        )
    except EngineError as error:
        if error.kind is ErrorKind.APPLICATION:
            return None
        raise
    return [(joined([str(row[1])]), bool(row[2])) for row in rows]


async def rows_of(result: ResultStream) -> list[tuple[object, ...]]:
    """Read a small result wholly, as plain values."""
    rows: list[tuple[object, ...]] = []
    try:
        async for chunk in result:
            table = pa.ipc.open_stream(io.BytesIO(chunk.data)).read_all()
            rows.extend(zip(*(column.to_pylist() for column in table.columns), strict=True))
    finally:
        await result.aclose()
    return rows
