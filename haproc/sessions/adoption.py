"""Making a session anew from its journal, in a Spark session that holds nothing yet.

Entries are run in their order, each under the settings as they are at its place; files that stand
side by side go in one call. Of settings only those are sent that something is run under.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Final, TypeAlias

from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import File, Fresh, Settings
from haproc.engine.statement import SparkPlan, SqlText, Statement
from haproc.failure import ErrorClass, FailureKind, RequestError
from haproc.sessions.journal import ArtifactEntry, Entry, PlanEntry, SqlEntry, State, after, shown

FILES_BYTES_MAX: Final = 64 << 20
"""Files that are in memory at a time while they are added; one alone may have more."""

Blob: TypeAlias = Callable[[str], Awaitable[bytes]]
"""Returns a piece of a file by its SHA-256; raises RequestError."""


async def restore(
    fresh: Fresh,
    begins: State,
    entries: Sequence[Entry],
    defaults: Settings,
    blob: Blob,
    timeout_s: float,
) -> State:
    """Bring a session to the state behind its entries; return what of it are values.

    Raises EngineError if the cluster is to blame, and RequestError if an entry can't be run again.
    """
    state, place = begins, 0
    for are_files, run in groupby(entries, lambda entry: isinstance(entry, ArtifactEntry)):
        group = list(run)
        if are_files:
            await fresh.configure(state.settings)
            await _add(fresh, [e for e in group if isinstance(e, ArtifactEntry)], blob)
            place += len(group)
            continue
        for entry in group:
            place += 1
            state = after(state, entry, defaults)
            if (statement := _statement(entry)) is not None:
                await fresh.configure(state.settings)
                try:
                    await fresh.run(statement, timeout_s=timeout_s)
                except EngineError as error:
                    if error.kind is ErrorKind.APPLICATION:
                        raise _not_rebuilt(place, len(entries), entry, error) from error
                    raise
    await fresh.configure(state.settings)
    return state


def _statement(entry: Entry) -> Statement | None:
    """Return what an entry runs; None for values."""
    match entry:
        case SqlEntry(text):
            return SqlText(text)
        case PlanEntry(plan):
            return SparkPlan(plan)
        case _:
            return None


async def _add(fresh: Fresh, entries: Sequence[ArtifactEntry], blob: Blob) -> None:
    """Add files, so many bytes at a time."""
    files: list[File] = []
    size = 0
    for entry in entries:
        pieces = tuple([await blob(each) for each in entry.blobs])
        files.append(File(entry.name, pieces or (b"",)))
        size += sum(map(len, pieces))
        if size >= FILES_BYTES_MAX:
            await fresh.add_files(files)
            files, size = [], 0
    if files:
        await fresh.add_files(files)


def _not_rebuilt(place: int, entries: int, entry: Entry, error: EngineError) -> RequestError:
    return RequestError(
        FailureKind.APPLICATION,
        f"the session cannot be made anew on this cluster: step {place} of {entries} of its "
        f"journal ({shown(entry)}) fails: {error.message}",
        error_class=ErrorClass.SESSION_NOT_REBUILT,
        sqlstate=error.sqlstate,
        hint="bring back what it rests on and repeat the statement, or go on in a new session",
    )
