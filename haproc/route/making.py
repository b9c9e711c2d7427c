"""Makes a statement an operation: pinned, looked at by Spark, ready for the log."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, assert_never

from haproc.classify.model import Classified, Kind, OperationClass, RefusedError
from haproc.engine.interface import Engine
from haproc.engine.statement import ArrowRows, SparkPlan, SqlText
from haproc.failure import ErrorClass
from haproc.pin.determinism import pin
from haproc.pin.model import Moment, Pinned, Treatment
from haproc.replicate.heard.definitions import ANYTHING
from haproc.replicate.member.core import Core
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import SpooledRows, Write
from haproc.replicate.writes import now_ms
from haproc.route.analysis import Analysis
from haproc.route.classifying import Classifying, Understood, texts_of
from haproc.route.ground import Ground
from haproc.route.model import Fanout, Request, SentPlan, SentRows, SentSql
from haproc.route.offload import Texts
from haproc.route.plans import HINT_FRAMES, Frames, Plans, session_ref
from haproc.route.rows.reading import fitted
from haproc.route.stand_in import as_written
from haproc.witness.judge import OF_ROWS, Verdict

DEFINING: Final = frozenset(
    {Kind.CREATE_TABLE, Kind.ALTER_TABLE, Kind.DROP_TABLE, Kind.CREATE_VIEW, Kind.ALTER_VIEW}
    | {Kind.DROP_VIEW, Kind.CREATE_NAMESPACE, Kind.ALTER_NAMESPACE, Kind.DROP_NAMESPACE}
    | {Kind.DROP_FUNCTION, Kind.COMMENT}
)
"""DDL that Spark reads; if it computes something, that is explained."""


class Making:
    """See the module. ``ground`` returns what stands here when something is looked up.

    ``foresee`` is told of each statement, as far as it is known before Spark has looked at it.
    """

    def __init__(
        self,
        core: Core,
        engine: Engine,
        analysis: Analysis,
        texts: Texts,
        classifying: Classifying,
        ground: Callable[[frozenset[str]], Awaitable[Ground]],
        get_blob: Callable[[str], Awaitable[bytes]],
        foresee: Callable[[Operation], None],
        *,
        fanout_parallel: bool,
        paths: tuple[str, ...] = (),
    ) -> None:
        self._me = core.me
        self._bytes_max = core.limits.operation_bytes_max
        self._engine = engine
        self.analysis = analysis
        self.readings = analysis.readings(paths)
        self._plans = Plans(
            engine,
            texts,
            self.readings,
            lambda: analysis.epoch,
            classifying,
            get_blob,
            core.limits.part_bytes_max,
        )
        self._texts = texts
        self._classifying = classifying
        self._ground = ground
        self._foresee = foresee
        self._fanout_parallel = fanout_parallel

    async def operation(self, asked: Understood) -> Operation:
        """Return the statement as an operation; raises RefusedError, RequestError, EngineError."""
        operation = await self._operation(asked)
        standing = asked.request.standing
        if standing is None:
            return operation
        analyzed_to = operation.analyzed_to
        if analyzed_to is None:
            analyzed_to = (await self._ground(frozenset())).low
        # Last: a fence that it is to stand in front of is then above what is applied here.
        await standing.check()
        rests_on = operation.rests_on | {standing.name}
        return replace(operation, analyzed_to=analyzed_to, rests_on=rests_on)

    async def _operation(self, asked: Understood) -> Operation:
        match asked.request.statement:
            case SentSql():
                return await self._of_text(asked)
            case SentRows() as rows:
                return await self._of_rows(asked, rows)
            case SentPlan(plan) if asked.statement.sql:
                return await self._of_text_with_frames(asked, plan)
            case SentPlan(plan):
                return await self._of_plan(asked, plan)
            case _:
                assert_never(asked.request.statement)

    async def _of_rows(self, asked: Understood, rows: SentRows) -> Operation:
        (name,) = asked.statement.writes
        columns = await self._engine.table_columns(name)
        if not isinstance(rows.stream, bytes):
            found = await rows.stream.fit(columns)
            write: Write = SpooledRows(rows.table, found.schema)
            if found.few is not None:
                write = ArrowRows(rows.table, found.few)
            return self._made(asked, asked.statement, write)
        # However short it is: compressed, or with dictionaries, it may be a thousand times as long.
        stream = await self._texts.beside(fitted, rows.stream, columns, self._bytes_max, rows.form)
        return self._made(asked, asked.statement, ArrowRows(rows.table, stream))

    async def _of_text(self, asked: Understood) -> Operation:
        statement = asked.statement
        ground = None if statement.insert else await self._ground(_named(statement))
        self._foresee(self._made(asked, statement, SqlText(statement.sql)))
        if statement.insert is None and statement.kind in OF_ROWS:
            return await self._judged(asked, ground)
        pinned, verdict = await self._pinned(asked)
        if pinned.sql != statement.sql:
            override = statement.operation_class
            statement = await self._classifying.text(
                pinned.sql, asked.settings, asked.request.user, override
            )
        return self._resting(asked, statement, SqlText(pinned.sql), verdict, ground)

    async def _of_plan(self, asked: Understood, data: bytes) -> Operation:
        taken = await self._plans.taken(asked)
        evolves = taken.reading.evolves
        if taken.stands_alone:
            write = SparkPlan(taken.plan.SerializeToString())
            return replace(self._made(asked, asked.statement, write), evolves=evolves)
        ground = await self._ground(_named(asked.statement))
        statement, columns = await self._plans.target(asked, taken)
        self._foresee(self._made(asked, statement, SparkPlan(data)))
        for text in texts_of(asked.request.statement, asked.statement):
            read = replace(asked.statement, sql=text)  # Spark runs what it is to explain otherwise
            await self.analysis.confirm_query(
                read, asked.settings, asked.session, asked.request.user
            )
        found = await self._plans.examined(asked, taken, statement, columns)
        operation = self._resting(asked, statement, found.write, found.verdict, ground)
        return replace(operation, evolves=evolves)

    async def _of_text_with_frames(self, asked: Understood, data: bytes) -> Operation:
        """A SQL text that reads DataFrames which came with it: judged like any other text."""
        if asked.statement.kind not in OF_ROWS:
            raise RefusedError(
                ErrorClass.NONDETERMINISTIC,
                f"{asked.statement.kind.value} comes with DataFrames, which only statements that "
                "change rows may read",
                HINT_FRAMES,
            )
        ground = await self._ground(_named(asked.statement))
        self._foresee(self._made(asked, asked.statement, SparkPlan(data)))
        frames = await self._plans.with_frames(asked)
        return await self._judged(asked, ground, frames)

    async def _judged(
        self, asked: Understood, ground: Ground | None, frames: Frames | None = None
    ) -> Operation:
        """Return a text that changes rows as an operation, by what Spark reads in it."""
        statement, session = asked.statement, asked.session
        frames_of = () if frames is None else (frames.sent, frames.rests, frames.hidden)
        found = await self.readings.judged(
            statement, asked.settings, session, _moment(asked), *frames_of
        )
        if found.moved and frames is None:  # it may insert nothing but literals now
            statement = await self._classifying.text(
                found.sql, asked.settings, asked.request.user, statement.operation_class
            )
        ref, plan = session_ref(session), frames.plan if frames is not None else None
        write = as_written(found, ref, plan)
        verdict = Verdict(
            found.treatment, found.reasons, found.reads, found.rests_on, known=found.known
        )
        return self._resting(asked, statement, write, verdict, ground)

    def _resting(
        self,
        asked: Understood,
        statement: Classified,
        write: Write,
        verdict: Verdict,
        ground: Ground | None,
    ) -> Operation:
        """Return the operation with what its analysis rests on."""
        rests_on = _rests_on(statement, verdict)
        return replace(
            self._made(asked, statement, write),
            reads=statement.reads | verdict.reads,
            tables_known=statement.tables_known and verdict.known,
            writes_known=statement.tables_known,
            analyzed_to=ground.below(rests_on) if ground is not None and rests_on else None,
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
            apply_budget_s=_budget_s(request.apply_budget_s, statement.apply_budget_s),
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
        pinned = await self._pin(statement, _moment(asked))
        if pinned.treatment is Treatment.REFUSE and not pinned.dispellable:
            raise RefusedError(ErrorClass.NONDETERMINISTIC, "; ".join(pinned.reasons), pinned.hint)
        verdict = None
        if statement.kind in DEFINING and not pinned.reasons:
            verdict = await self._defined(asked)
        if verdict is None:
            verdict = await self.analysis.verdict(statement, pinned, settings, asked.session, user)
        if verdict.treatment is Treatment.REFUSE:
            raise RefusedError(
                ErrorClass.NONDETERMINISTIC, "; ".join(verdict.reasons), verdict.hint
            )
        return replace(pinned, treatment=verdict.treatment, reasons=verdict.reasons), verdict

    async def _defined(self, asked: Understood) -> Verdict | None:
        """Return the verdict on DDL that computes nothing; None: it may compute something."""
        found = await self.readings.definition(
            asked.statement, asked.settings, asked.session, asked.request.user
        )
        if found is None:
            return None
        return Verdict(found.treatment, rests_on=found.rests_on, known=found.known)

    async def _pin(self, statement: Classified, moment: Moment) -> Pinned:
        # An INSERT of literals is not looked at, however long.
        size = len(statement.sql) if statement.insert is None else 0
        return await self._texts.run(moment.user, size, pin, statement, moment)


def _moment(asked: Understood) -> Moment:
    settings = asked.settings
    return Moment(
        now=datetime.now(UTC),
        random=secrets.randbits(64),
        time_zone=settings.time_zone,
        user=asked.request.user,
        catalog=settings.catalog,
        schema=settings.schema,
    )


def _named(statement: Classified) -> frozenset[str]:
    return statement.reads | statement.writes


def _budget_s(*allowed: float | None) -> float | None:
    """Return the least that anybody allows; None: nobody says."""
    return min((each for each in allowed if each is not None), default=None)


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
