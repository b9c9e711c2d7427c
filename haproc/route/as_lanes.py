"""Reads statements as the lanes do, which lack the settings of one session alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from haproc.classify.names import Context
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Session, Settings
from haproc.engine.statement import SparkPlan, SqlText
from haproc.reading.judge import Judged
from haproc.reading.settled import alike, unsettled
from haproc.reading.tree import TextRange, read, readable
from haproc.route.own_settings import own_of, refusal, travelling

T = TypeVar("T")
Asked: TypeAlias = SqlText | SparkPlan


class Ask(Protocol):
    """Returns what Spark reads in a statement, of this text, for a user; raises EngineError."""

    async def __call__(self, spark: Session, asked: Asked, text: str, user: str) -> str: ...


class Work(Protocol):
    """Does work on that, beside the event loop if it is long."""

    async def __call__(self, user: str, data: str, work: Callable[..., T], *values: Any) -> T: ...


class AsLanes:
    """See the module. Methods raise RefusedError, EngineError.

    ``shared`` gives a session of these settings in which nothing temporary is.
    """

    def __init__(
        self, shared: Callable[[Settings], Awaitable[Session]], ask: Ask, work: Work
    ) -> None:
        self._shared = shared
        self._ask = ask
        self._work = work

    async def confirm(
        self,
        own: tuple[str, str],
        again: tuple[Asked, str],
        settings: Settings,
        user: str,
        values: Sequence[TextRange] = (),
    ) -> None:
        """Refuse what each cluster computes otherwise than the session's own settings have it.

        ``own``: the reading under them, and its text; ``again``: what is to be read in its place,
        and its text; ``values``: the places of what becomes a literal.
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
        self, own: tuple[str, str], asked: Asked, settings: Settings, user: str
    ) -> None:
        """Refuse a definition that is another one without the session's own settings."""
        lanes = await self._read(asked, own[1], settings, user)
        if not await self._work(user, own[0], is_alike, own[1], lanes):
            raise refusal(settings, "make something else")

    async def _read(self, asked: Asked, text: str, settings: Settings, user: str) -> str:
        spark = await self._shared(travelling(settings))
        try:
            return await self._ask(spark, asked, text, user)
        except EngineError as error:
            if error.kind is not ErrorKind.APPLICATION:
                raise
            raise refusal(settings, f"give an error: {error.message}") from error


def places_of(judged: Judged) -> tuple[TextRange, ...]:
    """Return the places of what becomes a literal."""
    return tuple(place for place, _ in judged.literals)


def unsettled_part(
    own: str, text: str, lanes: str, lanes_text: str, context: Context, values: Sequence[TextRange]
) -> str | None:
    """Return a part that may come to something else in the lanes; raises RefusedError."""
    with readable():
        return unsettled(read(own, text), read(lanes, lanes_text), context, values)


def is_alike(own: str, text: str, lanes: str) -> bool:
    """Tell whether a definition is the same in both readings; raises RefusedError."""
    with readable():
        return alike(read(own, text), read(lanes, text))
