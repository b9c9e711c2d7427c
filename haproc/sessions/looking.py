"""Looking at what a statement has left in a session, for the journal: columns and values."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Final

import pyarrow as pa

from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.statement import SqlText
from haproc.pin.sqltypes import quote_name
from haproc.sessions.client import ClientSession
from haproc.sessions.effects import (
    as_made,
    declared,
    dropped_variable,
    effect_of_plan,
    effect_of_sql,
)
from haproc.sessions.journal import (
    Effect,
    PlanEntry,
    SqlEntry,
    Variable,
    VariablesEntry,
)

_OF_VARIABLES: Final = ("DECLARE", "SET")


async def left_by(session: ClientSession, sql: str, timeout_s: float) -> SqlEntry | VariablesEntry:
    """Return what a statement has left that was run in the session; raises EngineError.

    ``sql`` makes or drops a temporary view, function or variable, or sets variables.
    """
    first = sql.split(None, 1)[0].upper() if sql.strip() else ""
    dropped = dropped_variable(sql)
    if first in _OF_VARIABLES or dropped:
        return await _variables(session, sql, dropped, timeout_s)
    made = as_made(sql)
    return SqlEntry(made, await _with_columns(session, effect_of_sql(made)))


async def left_by_plan(session: ClientSession, plan: bytes) -> PlanEntry:
    """Return what a plan has left that was run in the session; raises EngineError."""
    return PlanEntry(plan, await _with_columns(session, effect_of_plan(plan)))


async def _with_columns(session: ClientSession, effect: Effect) -> Effect:
    kind, _, name = effect.name.partition(" ")
    if kind != "view" or effect.removes:
        return effect
    try:
        columns = await session.spark.columns(f"SELECT * FROM {quote_name(name)}")
    except EngineError as error:
        if error.kind is ErrorKind.APPLICATION:  # it was made all the same
            return effect
        raise
    return replace(effect, columns=tuple((each.name, each.type_text) for each in columns))


async def _variables(
    session: ClientSession, sql: str, dropped: str, timeout_s: float
) -> VariablesEntry:
    """Return all variables of the session as they are now."""
    new, default = declared(sql)
    defaults = {each.name: each.default for each in session.variables}
    defaults |= dict.fromkeys(new, default)
    defaults.pop(dropped, None)
    if not defaults:
        return VariablesEntry(())
    asked = ", ".join(
        f"session.{quote_name(name)}, typeof(session.{quote_name(name)})" for name in defaults
    )
    stream = await session.spark.query(SqlText(f"SELECT {asked}"), timeout_s=timeout_s)
    chunks = [chunk.data async for chunk in stream]
    [row] = [batch for chunk in chunks for batch in pa.ipc.open_stream(chunk) if batch.num_rows]
    found = []
    for at, (name, text) in enumerate(defaults.items()):
        value = row.select([2 * at]).rename_columns(["v"])
        kind = row.column(2 * at + 1)[0].as_py()
        found.append(Variable(name, kind, _stream(value), text))
    return VariablesEntry(tuple(found))


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()
