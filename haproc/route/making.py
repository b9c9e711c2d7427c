"""Turns a statement into an operation for the log, or shows its classification."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, assert_never

from dmq import Json
from haproc.audit import note_if_refusal
from haproc.classify.classifier import ruled
from haproc.classify.insert import plain_insert
from haproc.classify.model import Classified, Kind, OperationClass, RefusedError, Touched
from haproc.classify.names import Context
from haproc.classify.showing import described
from haproc.engine.errors import EngineError
from haproc.engine.interface import Engine
from haproc.engine.statement import ArrowRows, SparkPlan, SqlText
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome
from haproc.offloop import by_size
from haproc.pin.literals import Moment, Treatment
from haproc.reading.judge import OF_ROWS, Judged
from haproc.reading.tree import TextRange, WriteVerdict
from haproc.replicate.log_state.definitions import ANYTHING, redefined_by
from haproc.replicate.member.core import Core
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import SpooledRows, Write
from haproc.replicate.writes import now_ms
from haproc.route.answering import failed
from haproc.route.attempts import Ground
from haproc.route.classifying import Classifying, Understood, with_bound
from haproc.route.model import Fanout, Request, SentPlan, SentRows, SentSql
from haproc.route.offload import Texts
from haproc.route.own_settings import own_of, travelling
from haproc.route.plans import Plans, session_ref
from haproc.route.readings import Frames, Readings
from haproc.route.rows.reading import fitted
from haproc.route.ruling import Ruling
from haproc.route.stand_in import as_written
from haproc.route.streams import refused, timed_out


class Showing:
    """Tells a client how a SQL text would be treated, without running the text.

    ``understood`` returns a request with its classification.
    """

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
        """Return a SQL text's kind, its classification, and how it would travel.

        With ``tree``, also Spark's reading of the text. If the statement would be refused, the
        reason is returned. Raises RequestError for other errors, such as a wrong text.
        """
        try:
            async with asyncio.timeout(request.timeout_s):
                return await self._shown(await with_bound(request, self._texts), tree)
        except RequestError as error:
            if error.kind is not FailureKind.REFUSED:
                raise
            note_if_refusal(error)
            return _refused(error)
        except TimeoutError as error:
            raise timed_out(request.timeout_s, self._core.me, WriteOutcome.NOT_SENT) from error

    async def _shown(self, request: Request, tree: bool) -> Mapping[str, Json]:
        understood = await self._understood(request)
        if understood.statement.operation_class in (OperationClass.QUERY, OperationClass.SESSION):
            understood = (await self._ruling.settled(understood)).understood
        fields: dict[str, Json] = described(understood.statement)
        try:
            fields |= await self._judged(understood)
            if tree:
                lines = await self._readings.outline(understood.statement.sql, understood.asker)
                fields["tree"] = [*lines]
        except EngineError as error:
            raise failed(error, self._core, WriteOutcome.NOT_SENT) from error
        except RefusedError as error:
            return {**fields, **_refused(refused(error))}
        return fields

    async def _judged(self, understood: Understood) -> dict[str, Json]:
        statement, settings = understood.statement, understood.settings
        user, readings = understood.request.user, self._readings
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
        of_rows = statement.kind in OF_ROWS
        judge = readings.judged if of_rows else readings.definition
        found = await judge(statement, understood.asker, _moment(understood))
        return {
            **described(await self._ruling.written(understood, statement, found.touched)),
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
    fields = {"text": text[at.start : at.end], "literal": literal}
    return {"start": at.start, "end": at.end, **fields}


def _refused(error: RequestError) -> dict[str, Json]:
    why = {"reason": error.message, "hint": error.hint}
    return {"refused": {"error_class": str(error.error_class), **why}}


_RESTORED: Final = "each cluster numbers and dates the versions of its tables itself"
_HINT_RESTORE: Final = "write the rows that the table should hold"


@dataclass(frozen=True, slots=True)
class Made:
    """A new operation, and its statement as the operators' rules decide about it.

    ``evolves``: True if the plan shows that the write may change its table's columns; None: no plan
    was read. ``writes_known``: True if all tables that it writes are known, even if those that it
    reads are not.
    """

    operation: Operation
    statement: Classified
    evolves: bool | None = None
    writes_known: bool = False


class Making:
    """Turns a statement into an operation: Spark reads it, and the judge decides about it.

    Operators' rules decide, too, by the tables that Spark reads in it (`haproc.route.ruling`).

    ``ground`` gets the written tables, and returns how far this cluster has applied the log for
    them; the tables that are read are not known yet. If the cluster is far behind with those, the
    operation becomes stale, and is made again when the cluster has caught up.

    ``foresee`` receives a first form of each operation, before Spark has read the statement.
    """

    def __init__(
        self,
        core: Core,
        engine: Engine,
        readings: Readings,
        texts: Texts,
        classifying: Classifying,
        ground: Callable[[frozenset[str]], Awaitable[Ground]],
        get_blob: Callable[[str], Awaitable[bytes]],
        foresee: Callable[[Operation], None],
        ruling: Ruling,
        *,
        fanout_parallel: bool,
    ) -> None:
        self._me = core.me
        self._bytes_max = core.limits.operation_bytes_max
        self._engine = engine
        self.readings = readings
        self._plans = Plans(
            engine,
            texts,
            self.readings,
            classifying,
            get_blob,
            core.limits.part_bytes_max,
        )
        self._texts = texts
        self._ground = ground
        self._foresee = foresee
        self._ruling = ruling
        self._fanout_parallel = fanout_parallel

    async def operation(self, understood: Understood) -> Made:
        """Make the operation of a write.

        Raises RefusedError, RequestError or EngineError if that is not possible.
        """
        made = await self._operation(understood)
        assert not made.statement.rules, "the rules decide before anything is appended"
        authorization, operation = understood.request.authorization, made.operation
        redefines = await by_size(
            operation.size_bytes,
            redefined_by,
            operation,
            made.evolves,
            writes_known=made.writes_known,
        )
        operation = replace(operation, redefines=redefines)
        if authorization is None:
            return replace(made, operation=operation)
        analyzed_to = operation.analyzed_to
        if analyzed_to is None:
            analyzed_to = (await self._ground(frozenset())).low
        # Last: a later fence of the authorization then has an offset above what is applied here.
        await authorization.check()
        rests_on = operation.rests_on | {authorization.name}
        operation = replace(operation, analyzed_to=analyzed_to, rests_on=rests_on)
        return replace(made, operation=operation)

    async def _operation(self, understood: Understood) -> Made:
        match understood.request.statement:
            case SentSql():
                return await self._of_text(understood)
            case SentRows() as rows:
                return await self._of_rows(understood, rows)
            case SentPlan(plan) if understood.statement.sql:
                return await self._of_text_with_frames(understood, plan)
            case SentPlan(plan):
                return await self._of_plan(understood, plan)
            case _:
                assert_never(understood.request.statement)

    async def _of_rows(self, understood: Understood, rows: SentRows) -> Made:
        (name,) = understood.statement.writes
        columns = await self._engine.table_columns(name)
        if not isinstance(rows.stream, bytes):
            found = await rows.stream.fit(columns)
            write: Write = SpooledRows(rows.table, found.schema)
            if found.few is not None:
                write = ArrowRows(rows.table, found.few)
            return self._plain(understood, write)
        # In a thread even if short: compressed or with dictionaries, it may grow a thousand times.
        stream = await self._texts.beside(fitted, rows.stream, columns, self._bytes_max, rows.form)
        return self._plain(understood, ArrowRows(rows.table, stream))

    async def _of_text(self, understood: Understood) -> Made:
        statement = understood.statement
        # The session's own settings affect how literals are read.
        if own_of(understood.settings):
            statement = replace(statement, insert=None)
            understood = replace(understood, statement=statement)
        ground = None if statement.insert else await self._ground(statement.writes)
        self._foresee(self._made(understood, statement, SqlText(statement.sql)))
        if statement.insert is not None:  # of literals
            verdict = WriteVerdict(Treatment.REPLICATE)
            return self._resting(understood, statement, SqlText(statement.sql), verdict, ground)
        return await self._judged(understood, ground)

    async def _of_plan(self, understood: Understood, data: bytes) -> Made:
        taken = await self._plans.taken(understood)
        evolves = taken.reading.evolves
        if taken.stands_alone:
            sent = SparkPlan(taken.plan.SerializeToString())
            return self._plain(understood, sent, evolves=evolves)
        ground = await self._ground(understood.statement.writes)
        await self._ruling.check_frames(understood)
        statement, columns = await self._plans.target(understood, taken)
        self._foresee(self._made(understood, statement, SparkPlan(data)))
        verdict, write = await self._plans.examined(understood, taken, statement, columns)
        names = verdict.reads | statement.reads | statement.writes
        touched = Touched(names, verdict.known, expressions=verdict.expressions)
        statement = await self._ruling.written(understood, statement, touched)
        made = self._resting(understood, statement, write, verdict, ground)
        return replace(made, evolves=evolves)

    async def _of_text_with_frames(self, understood: Understood, data: bytes) -> Made:
        """Make the operation of a SQL text that comes with DataFrames; ``data`` is its plan."""
        ground = await self._ground(understood.statement.writes)
        await self._ruling.check_frames(understood)
        self._foresee(self._made(understood, understood.statement, SparkPlan(data)))
        return await self._judged(understood, ground, await self._plans.with_frames(understood))

    async def _judged(
        self, understood: Understood, ground: Ground | None, frames: Frames | None = None
    ) -> Made:
        """Let Spark read a SQL text and the judge decide about it; make its operation.

        ``ground``: how far this cluster had applied the log before. ``frames``: the DataFrames that
        come with the text.
        """
        statement, session, moment = understood.statement, understood.session, _moment(understood)
        if statement.kind is Kind.RESTORE:
            raise RefusedError(ErrorClass.NONDETERMINISTIC, _RESTORED, _HINT_RESTORE)
        of_rows = statement.kind in OF_ROWS
        judge = self.readings.judged if of_rows else self.readings.definition
        found = await judge(statement, understood.asker, moment, frames)
        statement = await self._ruling.written(understood, statement, found.touched)
        if found.moved and frames is None:  # it may insert nothing but literals now
            context = Context(understood.settings.catalog, understood.settings.schema)
            user, size = understood.request.user, len(found.sql)
            now = await self._texts.work_on_text(user, size, plain_insert, found.sql, context)
            statement = replace(statement, sql=found.sql, insert=None if now is None else now.shape)
        if found.treatment is Treatment.MATERIALISE:  # rows replace whatever it inserts
            statement = replace(statement, insert=None)
        ref, plan = session_ref(session), frames.plan if frames is not None else None
        write = as_written(found, ref, plan, own_of(understood.settings))
        return self._resting(understood, statement, write, found, ground)

    def _resting(
        self,
        understood: Understood,
        statement: Classified,
        write: Write,
        verdict: WriteVerdict | Judged,
        ground: Ground | None,
    ) -> Made:
        """Make the operation, with the names whose redefinition makes it stale."""
        rests_on = _rests_on(statement, verdict)
        operation = replace(
            self._made(understood, statement, write),
            reads=statement.reads | verdict.reads,
            tables_known=statement.tables_known and verdict.known,
            analyzed_to=ground.below(rests_on) if ground is not None and rests_on else None,
            rests_on=rests_on,
        )
        return Made(operation, statement, writes_known=statement.tables_known)

    def _plain(self, understood: Understood, write: Write, *, evolves: bool | None = None) -> Made:
        """Make the operation of rows that come with the request; raises RefusedError.

        Spark does not read it: the request names its only table. ``evolves``: see `Made`.
        """
        statement = understood.statement
        if statement.rules:
            statement = ruled(statement, statement.touched, understood.request.operation_class)
        operation = self._made(understood, statement, write)
        return Made(operation, statement, evolves)

    def _made(self, understood: Understood, statement: Classified, write: Write) -> Operation:
        request = understood.request
        return Operation(
            id=request.id,
            operation_class=self._class_of(request, statement),
            kind=statement.kind,
            origin=self._me,
            fingerprint=request.fingerprint,
            write=write,
            settings=travelling(understood.settings),
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


def _moment(understood: Understood) -> Moment:
    settings = understood.settings
    return Moment(
        now=datetime.now(UTC),
        time_zone=settings.time_zone,
        user=understood.request.user,
        catalog=settings.catalog,
        schema=settings.schema,
    )


def _budget_s(*allowed: float | None) -> float | None:
    """Return the smallest of these budgets; None if all are None."""
    return min((each for each in allowed if each is not None), default=None)


def _rests_on(statement: Classified, verdict: WriteVerdict | Judged) -> frozenset[str]:
    """Return the tables, views and functions whose redefinition makes the operation stale.

    An INSERT of literals rests on nothing: its rows are the same for any table. DDL does not rest
    on the tables that it writes: the cluster that receives it tries it first.
    """
    if statement.insert is not None:
        return frozenset()
    asynchronous = statement.operation_class is OperationClass.ASYNCHRONOUS
    named = verdict.rests_on | statement.reads | statement.writes
    if not verdict.known:
        named |= {ANYTHING}
    return named if asynchronous else named - statement.writes
