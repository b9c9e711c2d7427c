"""Looking at what a statement has left in a session, for the journal: columns and values."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import pyarrow as pa

from haproc.classify.tokens import tokenize
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
    first = next((token.upper for token in tokenize(sql)), "")
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
    defaults = _defaults(session)
    defaults |= dict.fromkeys(new, default)
    defaults.pop(dropped, None)
    if not defaults:
        return VariablesEntry(())
    try:
        return VariablesEntry(tuple(await _values(session, defaults, timeout_s)))
    except EngineError as error:
        if error.kind is not ErrorKind.APPLICATION:
            raise
    # One of them could not be made anew, and stays in the journal as it was.
    was = {each.name: each for each in session.variables if each.name not in new}
    found = []
    for name, text in defaults.items():
        try:
            found += await _values(session, {name: text}, timeout_s)
        except EngineError as error:
            if error.kind is not ErrorKind.APPLICATION or name not in was:
                raise
            found.append(was[name])
    return VariablesEntry(tuple(found))


def _defaults(session: ClientSession) -> dict[str, str]:
    """Return the session's variables with their defaults, also of statements kept as they were."""
    found: dict[str, str] = {}
    for each in session.entries:
        if isinstance(each.entry, VariablesEntry):
            found = {variable.name: variable.default for variable in each.entry.variables}
        elif isinstance(each.entry, SqlEntry):
            names, default = declared(each.entry.text)
            found |= dict.fromkeys(names, default)
            found.pop(dropped_variable(each.entry.text), None)
    return found


async def _values(
    session: ClientSession, defaults: Mapping[str, str], timeout_s: float
) -> list[Variable]:
    """Return these variables as they are now, each with its default."""
    query = "SELECT " + ", ".join(f"session.{quote_name(name)}" for name in defaults)
    columns = await session.spark.columns(query)
    stream = await session.spark.query(SqlText(query), timeout_s=timeout_s)
    chunks = [chunk.data async for chunk in stream]
    [row] = [batch for chunk in chunks for batch in pa.ipc.open_stream(chunk) if batch.num_rows]
    return [
        Variable(name, column.type_text, stream_of(row.select([at]).rename_columns(["v"])), text)
        for at, ((name, text), column) in enumerate(zip(defaults.items(), columns, strict=True))
    ]


def stream_of(batch: pa.RecordBatch) -> bytes:
    """Return a batch as an Arrow stream."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()
