"""Rebuilds a client's session from its journal, in an empty Spark session.

Entries run in their order, each under its own settings; successive files are added in one call. A
view gets back the columns that it had. If a view or function cannot be made, another one takes its
name: a view whose rows, or a function whose calls, are an error with the reason. So no other object
of that name is used by mistake. A variable that cannot be made is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias

from haproc import protos
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Fresh, SessionFile, Settings
from haproc.engine.statement import SparkPlan, SqlText
from haproc.failure import ErrorClass, FailureKind, RequestError
from haproc.pin.sqltypes import quote_name
from haproc.sessions.effects import makes_table_function, with_columns
from haproc.sessions.journal import (
    ArtifactEntry,
    Effect,
    Kept,
    PlanEntry,
    SqlEntry,
    StateEntry,
    Variable,
    VariablesEntry,
    shown,
)

_LOG = logging.getLogger(__name__)

FILES_BYTES_MAX: Final = 64 << 20
"""The most bytes of files that are in memory while they are added; a single file may have more."""
REASON_CHARS: Final = 500
"""The most characters of Spark's error that a broken view or function shows."""
PARAMETERS_MAX: Final = 32
"""The most arguments of a broken function; a call with more gets another error than the reason."""
_NO_COLUMNS: Final = (("not_rebuilt", "string"),)
"""The columns of a view that stands for a broken one of which no columns are known."""
_VALUES: Final = "haproc_value"

Blob: TypeAlias = Callable[[str], Awaitable[bytes]]
"""Returns a piece of a file by its SHA-256; raises RequestError."""


async def restore(
    fresh: Fresh,
    settings: Settings,
    entries: Sequence[Kept],
    blob: Blob,
    timeout_s: float,
) -> None:
    """Bring an empty Spark session to the state after all ``entries`` of a journal.

    ``settings``: those with which the session begins. Raises EngineError if the cluster fails, and
    RequestError if an entry that is neither a view nor a function cannot be run again.
    """
    place = 0
    known: frozenset[str] = frozenset()
    for are_files, run in groupby(entries, lambda entry: isinstance(entry, ArtifactEntry)):
        group = list(run)
        if are_files:
            await fresh.configure(settings)
            await _add(fresh, [e for e in group if isinstance(e, ArtifactEntry)], blob)
            place += len(group)
            continue
        for entry in group:
            place += 1
            try:
                match entry:
                    case StateEntry():
                        settings = entry.settings
                    case VariablesEntry(variables):
                        await _set(fresh, variables, known, timeout_s)
                        known = frozenset(each.name for each in variables)
                    case SqlEntry() | PlanEntry():
                        await fresh.configure(entry.effect.settings or settings)
                        await _make(fresh, entry, timeout_s)
            except EngineError as error:
                if error.kind is ErrorKind.APPLICATION:
                    raise _not_rebuilt(place, len(entries), entry, error) from error
                raise
    await fresh.configure(settings)


async def _make(fresh: Fresh, entry: SqlEntry | PlanEntry, timeout_s: float) -> None:
    """Run an entry that makes or drops a view or function.

    If Spark refuses to make it, a broken one takes its place.
    """
    effect = entry.effect
    kind, _, name = effect.name.partition(" ")
    statement = SqlText(entry.text) if isinstance(entry, SqlEntry) else SparkPlan(entry.plan)
    try:
        await fresh.run_change(statement, timeout_s=timeout_s)
        if kind == "view" and effect.columns is not None:
            text = entry.text if isinstance(entry, SqlEntry) else ""
            await _give_columns(fresh, text, name, effect.columns, timeout_s)
    except EngineError as error:
        if error.kind is not ErrorKind.APPLICATION or not (kind or effect.removes):
            raise
        if effect.removes:  # a missing object need not be dropped
            return
        message = _broken_message(kind, name, error.message)
        if kind == "view":
            await _break_view(fresh, name, effect, message, timeout_s)
        else:
            of_rows = makes_table_function(entry)
            await _break_function(fresh, name, message, timeout_s, of_rows=of_rows)


async def _give_columns(
    fresh: Fresh, text: str, name: str, columns: tuple[tuple[str, str], ...], timeout_s: float
) -> None:
    """Restore the columns that a view had; raises EngineError if some of them are gone.

    ``text``: the statement that made the view; empty if a plan made it. ``columns``: names and
    types.
    """
    now = await fresh.columns(f"SELECT * FROM {quote_name(name)}")
    found = tuple((each.name, each.type_text) for each in now)
    if found == columns:
        return
    if lost := [column for column in columns if found.count(column) != 1]:
        raise EngineError(
            ErrorKind.APPLICATION,
            "it had the columns " + ", ".join(f"{column} {kind}" for column, kind in lost),
            error_class=ErrorClass.SESSION_NOT_REBUILT,
        )
    names = [column for column, _ in columns]
    if made := with_columns(text, name, names):
        # Dropped first: the query may name a table that is called like the view.
        for each in (f"DROP VIEW {quote_name(name)}", made):
            await fresh.run_change(SqlText(each), timeout_s=timeout_s)
        return
    chosen = ", ".join(map(quote_name, names))
    frame = _frame(name, f"SELECT {chosen} FROM {quote_name(name)}")
    await fresh.run_change(frame, timeout_s=timeout_s)


def _frame(name: str, query: str) -> SparkPlan:
    """Return the plan that makes a temporary view of ``query``; column names may be there twice."""
    plan = protos.base.Plan()
    view = plan.command.create_dataframe_view
    view.name, view.replace, view.input.sql.query = name, True, query
    return SparkPlan(plan.SerializeToString())


def _broken_message(kind: str, name: str, reason: str) -> str:
    """Return the error text that a broken view or function shows; ``kind``: view or function."""
    text = " ".join(reason.split())[:REASON_CHARS]
    return (
        f"{ErrorClass.SESSION_NOT_REBUILT}: the temporary {kind} {name} could not be made anew for "
        f"this session: {text}. Bring back what it rests on and make the {kind} again."
    )


async def _break_function(
    fresh: Fresh, name: str, message: str, timeout_s: float, *, of_rows: bool
) -> None:
    """Make a function in place of one that cannot be made: each call of it is an error.

    ``message``: the error's text. The function reads a dropped view of that name, and Spark's error
    shows the name. So no call is ever analysed, and none gives a table a column of a type that the
    real function did not have. ``of_rows``: True if the function returns rows.
    """
    gone = quote_name(message)
    takes = ", ".join(f"a{at} STRING DEFAULT NULL" for at in range(PARAMETERS_MAX))
    returns = "TABLE (v STRING)" if of_rows else "STRING"
    body = f"SELECT v FROM {gone}" if of_rows else f"(SELECT max(v) FROM {gone})"
    for text in (
        f"CREATE OR REPLACE TEMPORARY VIEW {gone} AS SELECT '' AS v",
        f"CREATE OR REPLACE TEMPORARY FUNCTION {quote_name(name)}({takes}) RETURNS {returns} "
        f"RETURN {body}",
        f"DROP VIEW {gone}",
    ):
        await fresh.run_change(SqlText(text), timeout_s=timeout_s)


async def _break_view(
    fresh: Fresh, name: str, effect: Effect, message: str, timeout_s: float
) -> None:
    """Make a view in place of one that cannot be made: reading it is an error with ``message``."""
    literal = "'" + message.replace("\\", "\\\\").replace("'", "\\'") + "'"
    for columns in (effect.columns or _NO_COLUMNS, _NO_COLUMNS):
        chosen = ", ".join(f"CAST(NULL AS {kind}) AS {quote_name(each)}" for each, kind in columns)
        rows = f"SELECT {chosen} FROM range(1) WHERE CAST(raise_error({literal}) AS BOOLEAN)"
        try:
            await fresh.run_change(_frame(name, rows), timeout_s=timeout_s)
            return
        except EngineError as error:  # a type that Spark writes and does not read
            if error.kind is not ErrorKind.APPLICATION or columns is _NO_COLUMNS:
                raise


async def _set(
    fresh: Fresh, variables: Sequence[Variable], known: frozenset[str], timeout_s: float
) -> None:
    """Give the session these variables and no others; ``known``: the names of those it has.

    A variable that cannot be made is missing; Spark then reports that wherever it is used.
    """
    for name in sorted(known.difference(each.name for each in variables)):
        drop = f"DROP TEMPORARY VARIABLE IF EXISTS {quote_name(name)}"
        await fresh.run_change(SqlText(drop), timeout_s=timeout_s)
    for each in variables:
        try:
            await _declare(fresh, each, timeout_s)
        except EngineError as error:
            if error.kind is not ErrorKind.APPLICATION:
                raise
            _LOG.warning("variable %s could not be made anew: %s", each.name, error.message)
            drop = f"DROP TEMPORARY VARIABLE IF EXISTS {quote_name(each.name)}"
            await fresh.run_change(SqlText(drop), timeout_s=timeout_s)


async def _declare(fresh: Fresh, variable: Variable, timeout_s: float) -> None:
    declare = f"DECLARE OR REPLACE VARIABLE {quote_name(variable.name)} {variable.type}"
    try:
        default = f" DEFAULT {variable.default}" if variable.default else ""
        await fresh.run_change(SqlText(declare + default), timeout_s=timeout_s)
    except EngineError as error:
        if error.kind is not ErrorKind.APPLICATION or not variable.default:
            raise
        await fresh.run_change(SqlText(declare), timeout_s=timeout_s)
    await fresh.run_change(SparkPlan(_setting(variable)), timeout_s=timeout_s)


def _setting(variable: Variable) -> bytes:
    """Return the plan that sets a session variable to its value."""
    plan: Any = protos.base.Plan()
    held = plan.command.sql_command.input.with_relations
    held.root.sql.query = (
        f"SET VARIABLE {quote_name(variable.name)} = "
        f"(SELECT CAST(v AS {variable.type}) FROM {_VALUES})"
    )
    rows = held.references.add().subquery_alias
    rows.alias = _VALUES
    rows.input.local_relation.data = variable.value
    return bytes(plan.SerializeToString())


async def _add(fresh: Fresh, entries: Sequence[ArtifactEntry], blob: Blob) -> None:
    """Add files to the Spark session, about `FILES_BYTES_MAX` bytes at a time."""
    files: list[SessionFile] = []
    size = 0
    for entry in entries:
        pieces = tuple([await blob(each) for each in entry.blobs])
        files.append(SessionFile(entry.name, pieces or (b"",)))
        size += sum(map(len, pieces))
        if size >= FILES_BYTES_MAX:
            await fresh.add_files(files)
            files, size = [], 0
    if files:
        await fresh.add_files(files)


def _not_rebuilt(place: int, entries: int, entry: Kept, error: EngineError) -> RequestError:
    return RequestError(
        FailureKind.APPLICATION,
        f"the session cannot be made anew on this cluster: step {place} of {entries} of its "
        f"journal ({shown(entry)}) fails: {error.message}",
        error_class=ErrorClass.SESSION_NOT_REBUILT,
        sqlstate=error.sqlstate,
        hint="bring back what it rests on and repeat the statement, or go on in a new session",
    )
