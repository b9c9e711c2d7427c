"""Operations in a log, as clients' statements leave them there, made without a ring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dmq import Log
from haproc.classify.insert import plain_insert
from haproc.classify.model import Kind
from haproc.classify.names import Context, qualified
from haproc.classify.rules import DEFAULT_CLASSES
from haproc.engine.statement import SqlText
from haproc.replicate.records.operation import Operation, to_record

WINDOW: Final = 65_536
_AT_ONCE: Final = 2_000
_FIRST_MS: Final = 1_700_000_000_000
_KINDS: Final = {
    "INSERT": Kind.INSERT,
    "UPDATE": Kind.UPDATE,
    "DELETE": Kind.DELETE,
    "CREATE": Kind.CREATE_TABLE,
}


def operation(number: int, sql: str) -> Operation:
    """Return the operation of a statement of cluster a; numbers are offsets, or about so."""
    found = plain_insert(sql, Context())
    words = sql.split()
    table = words[1 if words[0] == "UPDATE" else 2]
    return Operation(
        f"request-{number}",
        DEFAULT_CLASSES[_KINDS[words[0]]],
        _KINDS[words[0]],
        "a",
        "f",
        SqlText(sql),
        user="etl",
        writes=frozenset({qualified(table.split("."), Context())}),
        insert=None if found is None else found.shape,
        created_ms=_FIRST_MS + number,
        since=max(0, number - 1000),
        window=WINDOW,
        own_id=True,
    )


async def fill(log: Log, statements: Sequence[str]) -> None:
    """Append the operations of these statements."""
    for start in range(0, len(statements), _AT_ONCE):
        few = statements[start : start + _AT_ONCE]
        await log.append([to_record(operation(start + n, sql)) for n, sql in enumerate(few)])
