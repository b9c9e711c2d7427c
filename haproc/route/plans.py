"""Makes a plan that writes an operation: read, examined by both witnesses, ready for the log.

A plan that is the same everywhere and stands alone goes into the log as it is, and every cluster's
own Spark computes it. One whose input is not, or does not, has its rows computed once. Everything
else beside the input (conditions, the values of a merge) has to be the same everywhere, as in SQL's
UPDATE, DELETE and MERGE, or the plan is refused.

What is written says more than the plan does: whether the table is there decides what a save comes
to, and what its columns are decides whether texts would be read by the clock as they are fitted in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from haproc import protos, wire
from haproc.classify.model import Classified, Kind, RefusedError
from haproc.classify.names import Context
from haproc.classify.plans.commands import read_plan
from haproc.classify.plans.parsing import opened, parse
from haproc.classify.plans.reading import Mode, PlanReading
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.holes import hole
from haproc.engine.interface import Analyzed, Column, Engine
from haproc.engine.statement import SparkPlan
from haproc.engine.table import metadata_of
from haproc.failure import ErrorClass
from haproc.pin.called import called
from haproc.pin.model import Pinned, Source, Treatment
from haproc.pin.plan_parts import inlined, input_of, with_input
from haproc.pin.plans import PlanReasons, plan_reasons
from haproc.pin.queries import Differing
from haproc.replicate.records.rows import ComputedPlan, SessionRef, Write
from haproc.route.analysis import HINT_COMPLETED
from haproc.route.classifying import Classifying, Understood
from haproc.route.explain import Carried
from haproc.route.offload import Texts, plan_work
from haproc.route.plan_analysis import Looked, PlanAnalysis
from haproc.sessions.client import ClientSession
from haproc.sessions.journal import ArtifactEntry
from haproc.witness.judge import Verdict
from haproc.witness.plans import (
    ColumnTypes,
    completes_texts,
    condition_questions,
    defined_by,
    empty_rows,
    frames_of,
    input_question,
    text_over,
    text_question,
    with_text,
)

_NOT_THERE: Final = frozenset({"TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND"})
_INTO: Final = frozenset({Kind.INSERT, Kind.INSERT_OVERWRITE})
_BY_POSITION: Final = frozenset({Mode.INSERT, Mode.INSERT_OVERWRITE})
_CACHE: Final = "cache/"
_CREATING: Final = frozenset({Kind.CREATE_TABLE, Kind.CREATE_TABLE_AS})
HINT_CONDITION: Final = "compute the values first, into a table, and write by those"
HINT_FRAMES: Final = "write the DataFrame to a table first, then read that in the statement"
HINT_SESSION: Final = "send it in the session that has what it reads"
HINT_METADATA: Final = "create the table in SQL, then append to it"


@dataclass(frozen=True, slots=True)
class Examined:
    """A plan, what it is, and what becomes of it; ``verdict`` never says that it is refused."""

    statement: Classified
    verdict: Verdict
    write: Write


@dataclass(frozen=True, slots=True)
class Frames:
    """A SQL text's plan with the DataFrames that it reads, of which ``differing`` could differ."""

    plan: Any
    differing: Differing
    session: ClientSession | None

    @property
    def carried(self) -> Carried:
        """How the text is explained."""
        return Carried(lambda text: SparkPlan(text_question(self.plan, text)), frames_of(self.plan))

    def with_text(self, pinned: Pinned) -> Pinned:
        """Return what the first reading makes of the text and its DataFrames together."""
        found = self.differing
        if not found.reasons or (pinned.treatment is Treatment.REFUSE and not pinned.dispellable):
            return pinned
        return replace(
            pinned,
            treatment=pinned.otherwise,
            reasons=(*pinned.reasons, *found.reasons),
            hint=pinned.hint or HINT_FRAMES,
            dispellable=found.dispellable and (not pinned.reasons or pinned.dispellable),
            unknown=pinned.unknown | found.unknown,
        )

    def write(self, pinned: Pinned, verdict: Verdict) -> Write:
        """Return what a text with its DataFrames is in the log."""
        if pinned.treatment is not Treatment.MATERIALISE:
            return SparkPlan(with_text(self.plan, pinned.sql))
        source, reading = pinned.source, read_plan(self.plan)
        assert source is not None
        query = wire.parsed(
            protos.base.Plan, text_question(self.plan, source.query, rows=True)
        ).root
        rests = verdict.of_session or reading.user_code or reading.blobs or reading.handles
        ref = session_ref(self.session) if rests else None
        template = text_over(source.head, hole())
        return ComputedPlan(query.SerializeToString(), template, ref)


class Plans:
    """See the module."""

    def __init__(
        self,
        engine: Engine,
        texts: Texts,
        analysis: PlanAnalysis,
        classifying: Classifying,
        get_blob: Callable[[str], Awaitable[bytes]],
        inlined_bytes_max: int,
    ) -> None:
        """``get_blob`` returns a piece of a session's file by its hash, as its journal has it.

        ``inlined_bytes_max``: of rows that each cluster's driver is to hold as objects.
        """
        self._engine = engine
        self._texts = texts
        self._analysis = analysis
        self._classifying = classifying
        self._get_blob = get_blob
        self._inlined_bytes_max = inlined_bytes_max

    async def examined(self, asked: Understood, data: bytes) -> Examined:
        """Return what becomes of a plan; raises RefusedError, RequestError, EngineError."""
        plan, reading, found = await self._read(asked, data)
        check_definition(plan)
        statement, columns = asked.statement, None
        if reading.kind_if_there is not None or statement.kind in _INTO:
            columns = await self._columns(statement)
        if columns is not None:
            request = asked.request
            statement = await self._classifying.plan(
                data, asked.settings, request.user, request.operation_class, there=True
            )
        look = _Look(self._analysis, asked, statement, reading, plan, found)
        verdict, rows = await look.verdict(columns)
        if verdict.treatment is not Treatment.MATERIALISE:
            return Examined(statement, verdict, SparkPlan(plan.SerializeToString()))
        rests = verdict.of_session or reading.user_code or look.of_session
        session = asked.session if rests else None
        if rests and session is None:
            _refuse(verdict.reasons, HINT_SESSION)
        return Examined(statement, verdict, computed(plan, session, look.called(rows, hole())))

    async def _read(self, asked: Understood, data: bytes) -> tuple[Any, PlanReading, PlanReasons]:
        """Return a plan with the rows that its client has sent before, and what it is."""
        texts, size = self._texts, len(data)
        plan, reading = await plan_work(texts, size, _opened, data)
        whole = await self._inlined(plan, reading.blobs, asked.session)
        if whole is not plan:
            reading = await plan_work(texts, size, read_plan, whole)
        return whole, reading, await plan_work(texts, size, plan_reasons, whole)

    async def _inlined(
        self, plan: Any, wanted: frozenset[str], session: ClientSession | None
    ) -> Any:
        """Return the plan with the rows that its client has sent before, if that is not too much.

        Else it stays one that rests on its session.
        """
        if not wanted or session is None:
            return plan
        entries = [each.entry for each in session.entries]
        files = {
            each.name.removeprefix(_CACHE): each
            for each in entries
            if isinstance(each, ArtifactEntry) and each.name.startswith(_CACHE)
        }
        if not wanted <= files.keys():
            return plan
        if sum(files[each].size for each in wanted) > self._inlined_bytes_max:
            return plan
        found = {}
        for each in wanted:
            found[each] = b"".join([await self._get_blob(part) for part in files[each].blobs])
        return inlined(plan, found)

    async def with_frames(self, asked: Understood, data: bytes) -> Frames:
        """Return a SQL text's plan, and what could differ of the DataFrames that it reads."""
        plan, _, found = await self._read(asked, data)
        return Frames(plan, found.input, asked.session)

    async def _columns(self, statement: Classified) -> list[Column] | None:
        """Return the columns of what is written; None if it is not there."""
        (target,) = statement.writes
        try:
            return await self._engine.table_columns(target)
        except EngineError as error:
            if error.kind is ErrorKind.APPLICATION and error.error_class in _NOT_THERE:
                return None
            raise


@dataclass(frozen=True, slots=True)
class _Look:
    """One plan, and all that is known of it before Spark is asked."""

    analysis: PlanAnalysis
    asked: Understood
    statement: Classified
    reading: PlanReading
    plan: Any
    found: PlanReasons

    async def verdict(self, columns: list[Column] | None) -> tuple[Verdict, ColumnTypes]:
        """Return what becomes of the plan, with the columns of the rows that stand for its input.

        Raises RefusedError, EngineError.
        """
        beside = _pinned(self.found.beside, rows=False)
        is_shown = beside.dispellable and condition_questions(self.plan)
        if beside.treatment is Treatment.REFUSE and not is_shown:
            _refuse(beside.reasons, HINT_CONDITION)
        verdict, given = Verdict(Treatment.REPLICATE, rests_on=self._rests_on), None
        if (query := input_question(self.plan)) is not None:
            pinned = _pinned(self.found.input, rows=True)
            looked = await self._ask(query, pinned, only_there=self.of_session)
            verdict, given = looked.verdict, looked.analyzed
            _check(verdict)
        rows: ColumnTypes = ()
        if given is not None:
            self._check_columns(given, columns)
            rows = _types(given.columns)
        stand = verdict.treatment is Treatment.MATERIALISE
        stood_for = self.called(rows, empty_rows(rows)) if stand else None
        for each in condition_questions(self.plan, stood_for):
            looked = await self._ask(each, beside)
            _check(looked.verdict)
            verdict = _both(verdict, looked.verdict)
        return verdict, rows

    def called(self, columns: ColumnTypes, rows: Any) -> Any:
        """Return rows of these columns under the name by which a merge calls its source's."""
        if self.statement.kind is not Kind.MERGE:
            return rows
        settings = self.asked.settings
        found = called(input_of(self.plan), Context(settings.catalog, settings.schema))
        return rows if found is None else found.over(rows, [name for name, _ in columns])

    async def _ask(self, query: bytes, pinned: Pinned, *, only_there: bool = False) -> Looked:
        asked = self.asked
        return await self.analysis.verdict(
            self.statement,
            pinned,
            query,
            asked.settings,
            asked.session,
            asked.request.user,
            only_there=only_there,
        )

    @property
    def of_session(self) -> bool:
        """Whether only the client's session has what the plan reads."""
        return bool(self.reading.blobs or self.reading.handles)

    @property
    def _rests_on(self) -> frozenset[str]:
        return self.statement.reads | self.statement.writes

    def _check_columns(self, given: Analyzed, columns: list[Column] | None) -> None:
        """Refuse what each cluster would compute by itself as it fits the rows in."""
        by_name = self.reading.mode not in _BY_POSITION
        if columns is not None and completes_texts(
            _types(given.columns), _types(columns), by_name=by_name
        ):
            reason = "Spark completes texts by today's date as it makes TIMESTAMPs of them"
            _refuse((reason,), HINT_COMPLETED)
        if self.statement.kind in _CREATING or self.reading.evolves:
            _refuse_definitions(defined_by(given.metadata))


def _pinned(found: Differing, *, rows: bool) -> Pinned:
    """Return what the first reading makes of a part, for which ``rows`` can stand or not."""
    otherwise = Treatment.MATERIALISE if rows else Treatment.REFUSE
    return Pinned(
        otherwise if found.reasons else Treatment.REPLICATE,
        "",
        reasons=found.reasons,
        source=Source("", "") if rows else None,
        dispellable=found.dispellable,
        unknown=found.unknown,
    )


def _opened(data: bytes) -> tuple[Any, PlanReading]:
    plan = opened(parse(protos.base.Plan, data))
    return plan, read_plan(plan)


def computed(plan: Any, session: ClientSession | None, rows: Any) -> ComputedPlan:
    """Return the write whose rows are the plan's input; ``rows``, with a hole, stands there."""
    query = input_of(plan)
    template = with_input(plan, rows).SerializeToString()
    return ComputedPlan(query.SerializeToString(), template, session_ref(session))


def session_ref(session: ClientSession | None) -> SessionRef | None:
    """Return how a session is made anew as it is now."""
    if session is None:
        return None
    return SessionRef(session.user, session.id, session.next_ordinal, session.begun)


def check_definition(plan: Any) -> None:
    """Refuse a table whose columns say in their metadata what each cluster would compute."""
    catalog = plan.root.catalog
    if catalog.WhichOneof("cat_type") == "create_table":
        _refuse_definitions(defined_by(metadata_of(catalog.create_table.schema)))


def _refuse_definitions(keys: list[str]) -> None:
    if keys:
        _refuse((f"a column's metadata defines it by {keys[0]}",), HINT_METADATA)


def _types(columns: list[Column] | tuple[Column, ...]) -> ColumnTypes:
    return [(column.name, column.type_text) for column in columns]


def _check(verdict: Verdict) -> None:
    if verdict.treatment is Treatment.REFUSE:
        _refuse(verdict.reasons, verdict.hint or HINT_CONDITION)


def _refuse(why: tuple[str, ...], hint: str) -> None:
    if why:
        raise RefusedError(ErrorClass.NONDETERMINISTIC, "; ".join(why), hint)


def _both(one: Verdict, other: Verdict) -> Verdict:
    """Return the verdict on a plan of which another part is replicated as it stands."""
    return replace(
        one,
        reads=one.reads | other.reads,
        rests_on=one.rests_on | other.rests_on,
        known=one.known and other.known,
    )
