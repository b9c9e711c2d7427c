"""Operations in a log, as clients' statements leave them there, made without a ring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dmq import Log
from haproc.classify.classifier import classify
from haproc.classify.names import Context
from haproc.classify.rules import Rules
from haproc.engine.statement import SqlText
from haproc.replicate.records.operation import Operation, to_record

WINDOW: Final = 65_536
_AT_ONCE: Final = 2_000
_FIRST_MS: Final = 1_700_000_000_000


def operation(number: int, sql: str) -> Operation:
    """Return the operation of a statement of cluster a; numbers are offsets, or about so."""
    found = classify(sql, Context(), Rules.builtin())
    return Operation(
        f"request-{number}",
        found.operation_class,
        found.kind,
        "a",
        "f",
        SqlText(found.sql),
        user="etl",
        reads=found.reads,
        writes=found.writes,
        insert=found.insert,
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
