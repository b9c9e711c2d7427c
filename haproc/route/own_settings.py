"""Sessions' own settings: their effect on writes, and readings in lanes, which lack them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from haproc.classify.model import Kind, RefusedError
from haproc.classify.names import Context
from haproc.classify.session_settings import is_own
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Session, Settings
from haproc.engine.statement import SparkPlan, SqlText
from haproc.failure import ErrorClass
from haproc.reading.judge import Judged, as_rows
from haproc.reading.settled import alike, unsettled
from haproc.reading.tree import TextRange, read, readable
from haproc.replicate.records.rows import Confs

T = TypeVar("T")
Readable: TypeAlias = SqlText | SparkPlan


class Reader(Protocol):
    """Returns Spark's reading of a statement with this text, for a user; raises EngineError."""

    async def __call__(self, spark: Session, statement: Readable, text: str, user: str) -> str: ...


class Work(Protocol):
    """Does work on a reading, outside the event loop if the reading is long."""

    async def __call__(self, user: str, data: str, work: Callable[..., T], *values: Any) -> T: ...


class AsLanes:
    """Reads statements as the lanes do: without settings that only one session has.

    Methods raise RefusedError, EngineError.

    ``shared`` returns a Spark session with these settings and without temporary objects.
    """

    def __init__(
        self, shared: Callable[[Settings], Awaitable[Session]], reader: Reader, work: Work
    ) -> None:
        self._shared = shared
        self._reader = reader
        self._work = work

    async def confirm(
        self,
        own: tuple[str, str],
        again: tuple[Readable, str],
        settings: Settings,
        user: str,
        values: Sequence[TextRange] = (),
    ) -> None:
        """Refuse a statement if clusters compute a part differently without the own settings.

        ``own``: the reading under these settings, and its text. ``again``: the statement to read
        without them, and its text. ``values``: the places that become literals.
        """
        if not own_of(settings):
            return
        lanes = await self._read(*again, settings, user)
        context = Context(settings.catalog, settings.schema, user)
        values_ = own[1], lanes, again[1], context, tuple(values)
        part = await self._work(user, own[0], unsettled_part, *values_)
        if part is not None:
            raise refusal(settings, f"compute {part}")

    async def confirm_alike(
        self, own: tuple[str, str], statement: Readable, settings: Settings, user: str
    ) -> None:
        """Refuse a definition that has another meaning without the session's own settings."""
        lanes = await self._read(statement, own[1], settings, user)
        if not await self._work(user, own[0], is_alike, own[1], lanes):
            raise refusal(settings, "make something else")

    async def _read(self, statement: Readable, text: str, settings: Settings, user: str) -> str:
        spark = await self._shared(travelling(settings))
        try:
            return await self._reader(spark, statement, text, user)
        except EngineError as error:
            if error.kind is not ErrorKind.APPLICATION:
                raise
            raise refusal(settings, f"give an error: {error.message}") from error


def places_of(judged: Judged) -> tuple[TextRange, ...]:
    """Return the places that become literals."""
    return tuple(place for place, _ in judged.literals)


def unsettled_part(
    own: str, text: str, lanes: str, lanes_text: str, context: Context, values: Sequence[TextRange]
) -> str | None:
    """Return a part that may have another result in the lanes; raises RefusedError."""
    with readable():
        return unsettled(read(own, text), read(lanes, lanes_text), context, values)


def is_alike(own: str, text: str, lanes: str) -> bool:
    """True if a definition is the same with the session's settings and in the lanes.

    ``own``, ``lanes``: its two readings. Raises RefusedError if one of them cannot be judged.
    """
    with readable():
        return alike(read(own, text), read(lanes, text))


# The rules for a write whose session has settings of its own.
#
# Its query runs under these settings, on one cluster, and its rows go into the log. Each cluster
# computes the other parts without these settings. So these parts are read a second time, as in the
# lanes, and must be the same; otherwise the write is refused, and the error names the setting. A
# write without such rows is refused if the setting is Delta's: it may change how Delta writes.


NAMED_MAX: Final = 5
"""The most settings that a reason names."""
WHAT_CHARS: Final = 200
"""The number of characters shown of a statement's part."""
_FILLING: Final = frozenset({Kind.INSERT, Kind.INSERT_OVERWRITE, Kind.CREATE_TABLE_AS})
_WITH_QUERY: Final = _FILLING | {Kind.MERGE}
_KEEPING: Final = frozenset({Kind.CREATE_VIEW, Kind.ALTER_VIEW, Kind.UNKNOWN})
"""Kinds of objects that keep the settings under which they are made, or that are unknown."""
_DELTAS: Final = "spark.databricks."


def own_of(settings: Settings) -> Confs:
    """Return the settings that are a session's own; they do not go with its writes."""
    return tuple(pair for pair in settings.confs if is_own(pair[0]))


def travelling(settings: Settings) -> Settings:
    """Return the settings that travel with a write: every cluster runs it under them."""
    return replace(settings, confs=tuple(pair for pair in settings.confs if not is_own(pair[0])))


def reasons(settings: Settings) -> tuple[str, ...]:
    """Return why a session's write differs on other clusters; empty if no setting is its own."""
    names = [key for key, _ in own_of(settings)]
    return (_named(names),) if names else ()


def _named(names: Sequence[str]) -> str:
    listed = names[:NAMED_MAX]
    more = len(names) - len(listed)
    shown = " and ".join([*listed, *([f"{more} other settings"] if more else [])])
    return f"the session has its own {shown}"


def refusal(settings: Settings, what: str) -> RefusedError:
    """Return the error of a write that every cluster would run without its session's settings.

    ``what``: the effect of that, in words.
    """
    return _refused([key for key, _ in own_of(settings)], what)


def _refused(names: Sequence[str], what: str) -> RefusedError:
    return RefusedError(
        ErrorClass.NONDETERMINISTIC,
        f"{_named(names)}, without which every cluster would {what[:WHAT_CHARS]}",
        f"RESET {names[0]} first, or compute the values in the query of an INSERT or MERGE",
    )


def with_own(judged: Judged, settings: Settings) -> Judged:
    """Return the judgement of a write that changes rows; raises RefusedError.

    Its query, if it has one, is replaced by rows.
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
    """Refuse a definition that keeps settings, or computes something under them later."""
    check_carrying_out(judged.kind, settings)
    if judged.computes or judged.kind in _KEEPING:
        raise refusal(settings, "make what it defines")


def check_carrying_out(kind: Kind, settings: Settings) -> None:
    """Refuse a write that does more than add rows, if an own setting is Delta's."""
    if kind in _FILLING - {Kind.INSERT_OVERWRITE}:  # Delta may overwrite in several ways
        return
    names = [key for key, _ in own_of(settings) if key.lower().startswith(_DELTAS)]
    if names:
        raise _refused(names, "carry it out")
