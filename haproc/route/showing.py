"""Tells what would become of a statement that is sent now, and runs nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime

from dmq import Json
from haproc.classify.described import described
from haproc.classify.model import OperationClass, RefusedError
from haproc.engine.errors import EngineError
from haproc.engine.statement import SqlText
from haproc.failure import FailureKind, RequestError, WriteOutcome
from haproc.pin.model import Moment
from haproc.reading.judge import OF_ROWS
from haproc.reading.tree import TextRange
from haproc.replicate.member.core import Core
from haproc.route.answering import failed
from haproc.route.classifying import Understood, with_bound
from haproc.route.failing import refused, timed_out
from haproc.route.model import Request
from haproc.route.offload import Texts
from haproc.route.own_settings import own_of
from haproc.route.readings import Readings
from haproc.route.ruling import Ruling


class Showing:
    """See the module. ``understood`` says what a request is."""

    def __init__(
        self,
        core: Core,
        texts: Texts,
        understood: Callable[[Request], Awaitable[Understood]],
        readings: Readings,
        ruling: Ruling,
    ) -> None:
        self._core = core
        self._texts = texts
        self._understood = understood
        self._readings = readings
        self._ruling = ruling

    async def shown(self, request: Request, *, tree: bool) -> Mapping[str, Json]:
        """Return what a SQL text is and what would become of it, with its ``tree`` if wanted.

        What would be refused is told, too. Raises RequestError, also for a text that is wrong.
        """
        try:
            async with asyncio.timeout(request.timeout_s):
                return await self._shown(await with_bound(request, self._texts), tree)
        except RequestError as error:
            if error.kind is not FailureKind.REFUSED:
                raise
            return _refused(error)
        except TimeoutError as error:
            raise timed_out(request.timeout_s, self._core.me, WriteOutcome.NOT_SENT) from error

    async def _shown(self, request: Request, tree: bool) -> Mapping[str, Json]:
        asked = await self._understood(request)
        if asked.statement.operation_class in (OperationClass.QUERY, OperationClass.SESSION):
            asked = (await self._ruling.settled(asked)).asked
        said: dict[str, Json] = described(asked.statement)
        try:
            said |= await self._judged(asked)
            if tree:
                args = asked.statement.sql, asked.settings, asked.session, request.user
                said["tree"] = [*await self._readings.outline(*args)]
        except EngineError as error:
            raise failed(error, self._core, WriteOutcome.NOT_SENT) from error
        except RefusedError as error:
            return {**said, **_refused(refused(error))}
        return said

    async def _judged(self, asked: Understood) -> dict[str, Json]:
        statement, settings, session = asked.statement, asked.settings, asked.session
        user, readings = asked.request.user, self._readings
        if statement.operation_class is OperationClass.QUERY:
            query = await readings.query(SqlText(statement.sql), settings, user)
            return {
                **_read(query.reads, query.known),
                "same_everywhere": not query.reasons,
                "reasons": [*query.reasons],
            }
        is_plain = statement.insert is not None and not own_of(settings)
        if statement.operation_class is OperationClass.SESSION or is_plain:
            return {}
        moment = Moment(
            datetime.now(UTC), settings.time_zone, user, settings.catalog, settings.schema
        )
        of_rows = statement.kind in OF_ROWS
        judge = readings.judged if of_rows else readings.definition
        found = await judge(statement, settings, session, moment)
        return {
            **described(await self._ruling.written(asked, statement, found.touched)),
            **_read(found.reads, statement.tables_known and found.known),
            "travels": found.treatment.value,
            "becomes": found.sql,
            "replaced": [_replaced(statement.sql, at, literal) for at, literal in found.literals],
            "rests_on": [*sorted(found.rests_on)],
            "reasons": [*found.reasons],
            "hint": found.hint,
        }


def _read(reads: frozenset[str], known: bool) -> dict[str, Json]:
    return {"reads": [*sorted(reads)], "tables_known": known}


def _replaced(text: str, at: TextRange, literal: str) -> dict[str, Json]:
    said = {"text": text[at.start : at.end], "literal": literal}
    return {"start": at.start, "end": at.end, **said}


def _refused(error: RequestError) -> dict[str, Json]:
    why = {"reason": error.message, "hint": error.hint}
    return {"refused": {"error_class": str(error.error_class), **why}}
