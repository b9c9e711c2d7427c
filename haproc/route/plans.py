"""Turns a plan that writes into an operation: Spark reads it, the judge decides about it.

A plan that gives the same everywhere, and needs no session, goes into the log as it is; every
cluster's own Spark computes it. Otherwise the rows of its input are computed once. All parts beside
the input (conditions, the values of a merge) must be the same everywhere, as in SQL's UPDATE,
DELETE and MERGE, or the plan is refused.

The plan alone does not show this: the effect of a save depends on the table's existence, and the
table's columns decide if texts would be completed by today's date.

Rows in the plan itself that are only appended are like those of an INSERT: only texts among them
need a check (`haproc.route.stand_in`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from msgspec import structs

from haproc import protos
from haproc.classify.model import Classified, Kind, RefusedError
from haproc.classify.names import Context
from haproc.classify.plans.commands import read_plan
from haproc.classify.plans.parsing import Mode, PlanReading
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Column, Engine
from haproc.engine.placeholder import placeholder
from haproc.engine.statement import SparkPlan
from haproc.engine.table import metadata_of
from haproc.failure import ErrorClass
from haproc.pin.literals import Treatment
from haproc.pin.plan_parts import called, inlined, input_of, with_input
from haproc.reading.frames import hidden, hidden_in
from haproc.reading.judge import JudgedQuery
from haproc.reading.tree import WriteVerdict
from haproc.replicate.records.rows import ComputedPlan, SessionRef, Write
from haproc.route.classifying import Classifying, Understood, only_selects, read_of
from haproc.route.kept_answers import Remembered
from haproc.route.model import SentPlan
from haproc.route.offload import Texts, plan_work
from haproc.route.own_settings import check_carrying_out, own_of, reasons
from haproc.route.plan_questions import (
    ColumnTypes,
    completes_texts,
    condition_questions,
    defined_by,
    empty_rows,
    input_question,
)
from haproc.route.readings import Frames, Readings
from haproc.route.stand_in import has_texts, local_rows
from haproc.sessions.client import ClientSession
from haproc.sessions.journal import ArtifactEntry

T = TypeVar("T")

_NOT_THERE: Final = frozenset({"TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND"})
_INTO: Final = frozenset({Kind.INSERT, Kind.INSERT_OVERWRITE})
_BY_POSITION: Final = frozenset({Mode.INSERT, Mode.INSERT_OVERWRITE})
_CACHE: Final = "cache/"
_CACHED: Final = frozenset({"cached_local_relation", "chunked_cached_local_relation"})
COLUMNS_REMEMBERED_MAX: Final = 1_000
"""The most tables whose columns are kept in memory. Chosen."""
COLUMNS_TEXT_MAX: Final = 16 << 10
"""The most characters of the columns of one table that are kept. Chosen."""
_CREATING: Final = frozenset({Kind.CREATE_TABLE, Kind.CREATE_TABLE_AS})
HINT_CONDITION: Final = "compute the values first, into a table, and write by those"
HINT_INPUT: Final = "write a DataFrame made of tables, rows and functions of SQL"
HINT_COMPLETED: Final = "convert it in the query: to_timestamp(text, 'yyyy-MM-dd HH:mm:ss')"
HINT_SESSION: Final = "send it in the session that has what it reads"
HINT_METADATA: Final = "create the table in SQL, then append to it"


@dataclass(frozen=True, slots=True)
class Taken:
    """A plan, with rows that its client had sent before put into it.

    ``reading``: what was found in the plan. ``rows``: the columns of its rows if the plan only
    appends rows that it contains (`local_rows`); else None.
    """

    plan: Any
    reading: PlanReading
    rows: ColumnTypes | None

    @property
    def stands_alone(self) -> bool:
        """True if the plan goes into the log without a look at its target table."""
        needs_look = self.reading.kind_if_there is not None
        return self.rows is not None and not needs_look and not has_texts(self.rows)


class Plans:
    """Makes the writes for the log from plans that write."""

    def __init__(
        self,
        engine: Engine,
        texts: Texts,
        readings: Readings,
        classifying: Classifying,
        get_blob: Callable[[str], Awaitable[bytes]],
        inlined_bytes_max: int,
    ) -> None:
        """``get_blob`` returns a piece of a session's file by its SHA-256.

        ``inlined_bytes_max``: the most bytes of rows put into a plan; each cluster's driver holds
        them as objects.
        """
        self._engine = engine
        self._texts = texts
        self._readings = readings
        self._classifying = classifying
        self._get_blob = get_blob
        self._inlined_bytes_max = inlined_bytes_max
        self._remembered = Remembered[str, list[Column]](readings.epoch, COLUMNS_REMEMBERED_MAX)

    async def taken(self, understood: Understood) -> Taken:
        """Return a request's plan, with the rows that its client has sent before put into it."""
        sent = understood.request.statement
        assert isinstance(sent, SentPlan)
        read = read_of(sent)
        whole, reading = await self._inlined(read.message, read.reading, understood.session)
        return Taken(whole, reading, local_rows(whole, reading))

    async def target(
        self, understood: Understood, taken: Taken
    ) -> tuple[Classified, list[Column] | None]:
        """Find out if a plan's target table exists; return the statement and the table's columns.

        The statement's class depends on that. The columns are None if there is no table, or they
        are not needed. Raises RequestError, EngineError.
        """
        statement, reading = understood.statement, taken.reading
        if reading.kind_if_there is None and statement.kind not in _INTO:
            return statement, None
        columns = await self._columns(statement)
        if columns is not None:
            request = understood.request
            statement = await self._classifying.plan(
                reading, understood.settings, request, there=True
            )
        return statement, columns

    async def examined(
        self,
        understood: Understood,
        taken: Taken,
        statement: Classified,
        columns: list[Column] | None,
    ) -> tuple[WriteVerdict, Write]:
        """Let Spark read a plan; return the judge's verdict, and the write for the log.

        ``statement`` and ``columns``: as `target` returned them. Raises RefusedError if the plan
        cannot give the same rows everywhere; RequestError, EngineError.
        """
        plan, reading = taken.plan, taken.reading
        if _fit(taken, columns):
            rests_on = statement.reads | statement.writes
            verdict = WriteVerdict(Treatment.REPLICATE, rests_on=rests_on)
            return verdict, SparkPlan(plan.SerializeToString())
        check_definition(plan)
        of_input, beside = await self._work(plan, hidden_of)
        check_carrying_out(statement.kind, understood.settings)
        own = reasons(understood.settings)
        look = _Look(self._readings, understood, statement, reading, plan, of_input, own)
        if beside:
            _refuse(beside, HINT_CONDITION)
        verdict, rows = await look.verdict(columns)
        if verdict.treatment is not Treatment.MATERIALISE:
            return verdict, SparkPlan(plan.SerializeToString())
        rests, session = (
            verdict.of_session or reading.user_code or look.of_session,
            understood.session,
        )
        if rests and session is None:
            _refuse(verdict.reasons, HINT_SESSION)
        write = computed(plan, session if rests else None, look.called(rows, placeholder()))
        return verdict, structs.replace(write, confs=own_of(understood.settings))

    async def _work(self, plan: Any, work: Callable[[Any], T]) -> T:
        return await plan_work(self._texts, plan.ByteSize(), work, plan)

    async def _inlined(
        self, plan: Any, reading: PlanReading, session: ClientSession | None
    ) -> tuple[Any, PlanReading]:
        """Put the rows that a client has sent before into its plan, if they are few.

        Otherwise the plan is returned unchanged, and needs its client's session.
        """
        wanted = reading.blobs
        if not wanted or session is None:
            return plan, reading
        entries = [each.entry for each in session.entries]
        files = {
            each.name.removeprefix(_CACHE): each
            for each in entries
            if isinstance(each, ArtifactEntry) and each.name.startswith(_CACHE)
        }
        if not wanted <= files.keys():
            return plan, reading
        if sum(files[each].size for each in wanted) > self._inlined_bytes_max:
            return plan, reading
        found = {}
        for each in wanted:
            found[each] = b"".join([await self._get_blob(part) for part in files[each].blobs])
        # Only the hashes of the rows are replaced, by the rows themselves.
        relations = (reading.relations - _CACHED) | {"local_relation"}
        changed = replace(reading, blobs=frozenset(), relations=relations)
        return inlined(plan, found), changed

    async def with_frames(self, understood: Understood) -> Frames:
        """Return the DataFrames that come with the request's SQL text, and why they may differ."""
        plan = (await self.taken(understood)).plan
        frames = plan.command.sql_command.input.with_relations.references
        found = [each for frame in frames for each in await self._work(frame, hidden_in)]
        reading = read_plan(plan)
        of_session = bool(reading.user_code or reading.blobs or reading.handles)
        return Frames(plan, tuple(found), of_session)

    async def _columns(self, statement: Classified) -> list[Column] | None:
        """Return the columns of the statement's target table; None if there is no such table.

        They are kept until a definition changes on this cluster.
        """
        (target,) = statement.writes
        epoch = self._readings.epoch()
        if (known := self._remembered.find(target)) is not None:
            return known
        try:
            columns = await self._engine.table_columns(target)
        except EngineError as error:
            if error.kind is ErrorKind.APPLICATION and error.error_class in _NOT_THERE:
                return None
            raise
        if sum(len(each.name) + len(each.type_text) for each in columns) <= COLUMNS_TEXT_MAX:
            self._remembered.keep(target, columns, epoch)
        return columns


def _fit(taken: Taken, columns: list[Column] | None) -> bool:
    """True if rows inside a plan fit an existing table without a question to Spark.

    False if Spark might convert a text among them to a TIMESTAMP.
    """
    if taken.rows is None or columns is None:
        return False
    by_name = taken.reading.mode not in _BY_POSITION
    return not completes_texts(taken.rows, _types(columns), by_name=by_name)


@dataclass(frozen=True, slots=True)
class _Look:
    """One plan that is being judged, with all that is known before Spark is asked.

    ``hidden``: reasons why its input may differ between clusters that Spark's reading does not
    show. ``own``: such reasons that lie in the session's own settings.
    """

    readings: Readings
    understood: Understood
    statement: Classified
    reading: PlanReading
    plan: Any
    hidden: tuple[str, ...]
    own: tuple[str, ...]

    async def verdict(self, columns: list[Column] | None) -> tuple[WriteVerdict, ColumnTypes]:
        """Return the verdict on the plan, and the columns of its input.

        ``columns``: those of the target table, if known. Raises RefusedError, EngineError.
        """
        rests_on = self.statement.reads | self.statement.writes
        known = only_selects(self.reading, self.understood.settings)
        verdict = WriteVerdict(Treatment.REPLICATE, rests_on=rests_on, known=known)
        rows: ColumnTypes = ()
        if (query := input_question(self.plan)) is not None:
            found = await self._judged(query, only_there=self.of_session, keeps=not self.hidden)
            _refuse(found.refused, HINT_INPUT)
            self._check_columns(found, columns)
            hidden = (*self.hidden, *self.own)
            verdict, rows = _of_input(verdict, found, hidden), found.columns
        stand = verdict.treatment is Treatment.MATERIALISE
        stood_for = self.called(rows, empty_rows(rows)) if stand else None
        for each in condition_questions(self.plan, stood_for):
            beside = await self._judged(each)
            _refuse(beside.reasons, HINT_CONDITION)
            await self.readings.confirm_settled(each, self.understood.asker)
            verdict = _with(verdict, beside)
        return verdict, rows

    def called(self, columns: ColumnTypes, rows: Any) -> Any:
        """Return ``rows`` under the name by which a MERGE refers to its source.

        For other statements, ``rows`` unchanged. ``columns``: those of the rows.
        """
        if self.statement.kind is not Kind.MERGE:
            return rows
        settings = self.understood.settings
        found = called(input_of(self.plan), Context(settings.catalog, settings.schema))
        return rows if found is None else found.over(rows, [name for name, _ in columns])

    async def _judged(
        self, query: bytes, *, only_there: bool = False, keeps: bool = True
    ) -> JudgedQuery:
        asker = self.understood.asker
        return await self.readings.frame(query, asker, only_there=only_there, keeps=keeps)

    @property
    def of_session(self) -> bool:
        """True if the plan uses something that only the client's session has, such as a model."""
        return bool(self.reading.blobs or self.reading.handles)

    def _check_columns(self, given: JudgedQuery, columns: list[Column] | None) -> None:
        """Raise RefusedError if each cluster would compute values when it inserts the rows.

        ``given``: the plan's input. ``columns``: those of the target table, if known.
        """
        by_name = self.reading.mode not in _BY_POSITION
        if columns is not None and completes_texts(given.columns, _types(columns), by_name=by_name):
            reason = "Spark completes texts by today's date as it makes TIMESTAMPs of them"
            _refuse((reason,), HINT_COMPLETED)
        if self.statement.kind in _CREATING or self.reading.evolves:
            _refuse_definitions(defined_by(given.metadata))


def hidden_of(plan: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return why a plan may differ between clusters, for causes that Spark's reading does not show.

    Two lists of reasons: for the plan's input, and for its other parts. Raises RefusedError.
    """
    source = input_of(plan)
    nothing = protos.relations.Relation()
    nothing.local_relation.SetInParent()
    beside = read_plan(plan if source is None else with_input(plan, nothing))
    computed_beside = beside.functions or beside.expressions
    unasked = computed_beside and not condition_questions(plan)
    unseen = (
        ["something is computed beside the rows, where Spark shows it nowhere"] if unasked else []
    )
    return () if source is None else hidden_in(source), (*hidden(beside), *unseen)


def _of_input(verdict: WriteVerdict, found: JudgedQuery, hidden: tuple[str, ...]) -> WriteVerdict:
    """Return the verdict with what Spark's reading of the plan's input, ``found``, adds to it.

    With any reason in ``hidden`` or ``found``, rows must replace the input.
    """
    reasons = tuple(dict.fromkeys((*hidden, *found.reasons)))
    treatment = Treatment.MATERIALISE if reasons else Treatment.REPLICATE
    read = _with(verdict, found)
    return replace(read, treatment=treatment, reasons=reasons, of_session=found.of_session)


def _with(verdict: WriteVerdict, found: JudgedQuery) -> WriteVerdict:
    """Return the verdict with the tables and functions that a further part of the plan uses."""
    return replace(
        verdict,
        reads=verdict.reads | found.reads,
        rests_on=verdict.rests_on | found.rests_on,
        known=verdict.known and found.known,
        expressions=verdict.expressions | found.expressions,
    )


def computed(plan: Any, session: ClientSession | None, rows: Any) -> ComputedPlan:
    """Return the write whose input is computed on one cluster, as rows.

    ``rows``: the placeholder for these rows. ``session``: where the input is computed, if it needs
    one.
    """
    query = input_of(plan)
    template = with_input(plan, rows).SerializeToString()
    return ComputedPlan(query.SerializeToString(), template, session_ref(session))


def session_ref(session: ClientSession | None) -> SessionRef | None:
    """Return a reference to the session in its present state; None if ``session`` is None."""
    if session is None:
        return None
    return SessionRef(session.user, session.id, session.next_ordinal, session.begun)


def check_definition(plan: Any) -> None:
    """Raise RefusedError if a plan creates a table with a column that each cluster would compute.

    The metadata of the column shows that.
    """
    catalog = plan.root.catalog
    if catalog.WhichOneof("cat_type") == "create_table":
        _refuse_definitions(defined_by(metadata_of(catalog.create_table.schema)))


def _refuse_definitions(keys: list[str]) -> None:
    if keys:
        _refuse((f"a column's metadata defines it by {keys[0]}",), HINT_METADATA)


def _types(columns: list[Column] | tuple[Column, ...]) -> ColumnTypes:
    return [(column.name, column.type_text) for column in columns]


def _refuse(why: tuple[str, ...], hint: str) -> None:
    if why:
        raise RefusedError(ErrorClass.NONDETERMINISTIC, "; ".join(why), hint)
