"""Makes a statement an operation: pinned, looked at by Spark, ready for the log."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import assert_never

from haproc.classify.model import Classified, OperationClass, RefusedError
from haproc.engine.interface import Engine
from haproc.engine.statement import ArrowRows, SqlText
from haproc.failure import ErrorClass
from haproc.pin.determinism import pin
from haproc.pin.model import Moment, Pinned, Treatment
from haproc.replicate.heard.definitions import ANYTHING
from haproc.replicate.member.core import Core
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import QueryWrite, Write
from haproc.replicate.writes import now_ms
from haproc.route.analysis import Analysis
from haproc.route.classifying import Classifying, Understood
from haproc.route.model import Fanout, Request, SentRows, SentSql
from haproc.route.offload import Texts
from haproc.route.rows import fitted
from haproc.witness.judge import Verdict


class Making:
    """See the module. ``ground`` returns the offset below which this cluster shows everything."""

    def __init__(
        self,
        core: Core,
        engine: Engine,
        analysis: Analysis,
        texts: Texts,
        classifying: Classifying,
        ground: Callable[[], Awaitable[int]],
        *,
        fanout_parallel: bool,
    ) -> None:
        self._me = core.me
        self._bytes_max = core.limits.operation_bytes_max
        self._engine = engine
        self.analysis = analysis
        self._texts = texts
        self._classifying = classifying
        self._ground = ground
        self._fanout_parallel = fanout_parallel

    async def operation(self, asked: Understood) -> Operation:
        """Return the statement as an operation; raises RefusedError, RequestError, EngineError."""
        match asked.request.statement:
            case SentSql():
                return await self._of_text(asked)
            case SentRows() as rows:
                return await self._of_rows(asked, rows)
            case _:
                assert_never(asked.request.statement)

    async def _of_rows(self, asked: Understood, rows: SentRows) -> Operation:
        (name,) = asked.statement.writes
        columns = await self._engine.table_columns(name)
        # However short it is: compressed, or with dictionaries, it may be a thousand times as long.
        stream = await self._texts.beside(fitted, rows.stream, columns, self._bytes_max)
        return self._made(asked, asked.statement, ArrowRows(rows.table, stream))

    async def _of_text(self, asked: Understood) -> Operation:
        statement = asked.statement
        analyzed_to = None if statement.insert else await self._ground()
        pinned, verdict = await self._pinned(asked)
        if pinned.sql != statement.sql:
            override = statement.operation_class
            statement = await self._classifying.text(
                pinned.sql, asked.settings, asked.request.user, override
            )
        rests_on = _rests_on(statement, verdict)
        return replace(
            self._made(asked, statement, _as_written(pinned, verdict)),
            reads=statement.reads | verdict.reads,
            tables_known=statement.tables_known and verdict.known,
            analyzed_to=analyzed_to if rests_on else None,
            rests_on=rests_on,
        )

    def _made(self, asked: Understood, statement: Classified, write: Write) -> Operation:
        request = asked.request
        return Operation(
            id=request.id,
            operation_class=self._class_of(request, statement),
            kind=statement.kind,
            origin=self._me,
            fingerprint=request.fingerprint,
            write=write,
            settings=asked.settings,
            user=request.user,
            reads=statement.reads,
            writes=statement.writes,
            tables_known=statement.tables_known,
            insert=statement.insert,
            created_ms=now_ms(),
        )

    def _class_of(self, request: Request, statement: Classified) -> OperationClass:
        if statement.operation_class is not OperationClass.SYNCHRONOUS:
            return statement.operation_class
        parallel = self._fanout_parallel
        if request.fanout is not None:
            parallel = request.fanout is Fanout.PARALLEL
        return OperationClass.SYNCHRONOUS_PARALLEL if parallel else OperationClass.SYNCHRONOUS

    async def _pinned(self, asked: Understood) -> tuple[Pinned, Verdict]:
        """Return the statement made the same everywhere, and what Spark's analysis said of it."""
        statement, settings, user = asked.statement, asked.settings, asked.request.user
        moment = Moment(
            now=datetime.now(UTC),
            random=secrets.randbits(64),
            time_zone=settings.time_zone,
            user=user,
            catalog=settings.catalog,
            schema=settings.schema,
        )
        pinned = await self._pin(statement, moment)
        if pinned.treatment is Treatment.REFUSE and not pinned.dispellable:
            raise RefusedError(ErrorClass.NONDETERMINISTIC, "; ".join(pinned.reasons), pinned.hint)
        verdict = await self.analysis.verdict(statement, pinned, settings, asked.session, user)
        if verdict.treatment is Treatment.REFUSE:
            raise RefusedError(
                ErrorClass.NONDETERMINISTIC, "; ".join(verdict.reasons), verdict.hint
            )
        return replace(pinned, treatment=verdict.treatment, reasons=verdict.reasons), verdict

    async def _pin(self, statement: Classified, moment: Moment) -> Pinned:
        # An INSERT of literals is not looked at, however long.
        size = len(statement.sql) if statement.insert is None else 0
        return await self._texts.run(moment.user, size, pin, statement, moment)


def _rests_on(statement: Classified, verdict: Verdict) -> frozenset[str]:
    """Return the tables, views and functions that decide how the statement is replicated.

    Plain rows are the same whatever they go into. What DDL makes of its own table its origin finds
    out first.
    """
    if statement.insert is not None:
        return frozenset()
    asynchronous = statement.operation_class is OperationClass.ASYNCHRONOUS
    named = verdict.rests_on | statement.reads | statement.writes
    if not verdict.known:
        named |= {ANYTHING}
    return named if asynchronous else named - statement.writes


def _as_written(pinned: Pinned, verdict: Verdict) -> Write:
    """Return what a pinned statement is in the log."""
    if pinned.treatment is not Treatment.MATERIALISE:
        return SqlText(pinned.sql)
    source = pinned.source
    assert source is not None
    return QueryWrite(source.head + source.query, len(source.head), verdict.of_session)


def of_session(operation: Operation) -> bool:
    """Whether it rests on its client's session."""
    return isinstance(operation.write, QueryWrite) and operation.write.of_session
