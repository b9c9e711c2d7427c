"""Rules for a write whose session has settings of its own, such as a Spark configuration by SET.

The write's query runs under these settings, on one cluster, and its rows go into the log. Each
cluster computes the other parts of the statement in a lane, without these settings. So these parts
are read a second time, as in a lane, and must be the same (`haproc.route.readings`). If not, the
write is refused, and the error names the setting. A write without a query is refused if the setting
is Delta's: it may change how Delta writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from haproc.classify.model import Kind, RefusedError
from haproc.classify.session_settings import is_own
from haproc.engine.interface import Settings
from haproc.failure import ErrorClass
from haproc.reading.judge import Judged, as_rows
from haproc.replicate.records.rows import Confs

NAMED_MAX: Final = 5
"""The most settings that an error names."""
WHAT_CHARS: Final = 200
"""The most characters of a part of the statement that an error shows."""
_FILLING: Final = frozenset({Kind.INSERT, Kind.INSERT_OVERWRITE, Kind.CREATE_TABLE_AS})
_WITH_QUERY: Final = _FILLING | {Kind.MERGE}
_KEEPING: Final = frozenset({Kind.CREATE_VIEW, Kind.ALTER_VIEW, Kind.UNKNOWN})
"""Statements whose object keeps the settings under which it is made, or may keep them."""
_DELTAS: Final = "spark.databricks."


def own_of(settings: Settings) -> Confs:
    """Return the settings that only this session has; the session's writes do not carry them."""
    return tuple(pair for pair in settings.confs if is_own(pair[0]))


def travelling(settings: Settings) -> Settings:
    """Return the settings without the session's own.

    These travel with a write: every cluster runs it under them.
    """
    return replace(settings, confs=tuple(pair for pair in settings.confs if not is_own(pair[0])))


def reasons(settings: Settings) -> tuple[str, ...]:
    """Return why a write of this session may differ on other clusters.

    Empty if the session has no settings of its own.
    """
    names = [key for key, _ in own_of(settings)]
    return (_named(names),) if names else ()


def _named(names: Sequence[str]) -> str:
    listed = names[:NAMED_MAX]
    more = len(names) - len(listed)
    shown = " and ".join([*listed, *([f"{more} other settings"] if more else [])])
    return f"the session has its own {shown}"


def refusal(settings: Settings, what: str) -> RefusedError:
    """Return the error for a write that the other clusters would run without the own settings.

    ``what``: what each cluster would do without them, for the message.
    """
    return _refused([key for key, _ in own_of(settings)], what)


def _refused(names: Sequence[str], what: str) -> RefusedError:
    return RefusedError(
        ErrorClass.NONDETERMINISTIC,
        f"{_named(names)}, without which every cluster would {what[:WHAT_CHARS]}",
        f"RESET {names[0]} first, or compute the values in the query of an INSERT or MERGE",
    )


def with_own(judged: Judged, settings: Settings) -> Judged:
    """Return the judgement of a write that changes rows, under a session's own settings.

    If it has a query, that will be replaced by the query's rows. Raises RefusedError if the query
    cannot be separated from the rest of the statement.
    """
    check_carrying_out(judged.kind, settings)
    found = reasons(settings)
    if not found or judged.kind not in _WITH_QUERY:
        return judged
    if judged.cut is None:
        raise refusal(
            settings, "compute its rows, whose query cannot be separated from its other parts"
        )
    return as_rows(judged, found)


def check_definition(judged: Judged, settings: Settings) -> None:
    """Raise RefusedError for a definition that depends on the session's own settings.

    It keeps them, as a view does, or computes something under them later.
    """
    check_carrying_out(judged.kind, settings)
    if judged.computes or judged.kind in _KEEPING:
        raise refusal(settings, "make what it defines")


def check_carrying_out(kind: Kind, settings: Settings) -> None:
    """Raise RefusedError if an own setting is Delta's, and the write does more than add rows."""
    if kind in _FILLING - {Kind.INSERT_OVERWRITE}:  # Delta may overwrite in several ways
        return
    names = [key for key, _ in own_of(settings) if key.lower().startswith(_DELTAS)]
    if names:
        raise _refused(names, "carry it out")
