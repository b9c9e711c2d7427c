"""Lets Spark read statements, and lets the judge decide about them.

A statement is read in its client's session if that has temporary objects, because names may mean
these; otherwise in a session of HAProc's own with the same settings. A judgement is kept until a
definition changes on this cluster, unless the statement depends on the moment, as now() does.
Judgements of parts of plans are kept, too: a program that appends piece after piece asks the same
question each time, because the rows are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, TypeVar

from haproc import protos, wire
from haproc.classify.model import Classified, Kind, Recognised, RefusedError
from haproc.classify.names import Context
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Session, Settings
from haproc.engine.statement import SparkPlan, SqlText
from haproc.engine.table import columns_of
from haproc.failure import ErrorClass
from haproc.pin.literals import Moment, Treatment
from haproc.reading.anatomy import BY_TEXT
from haproc.reading.definitions import function_queries, schemas
from haproc.reading.judge import (
    Judged,
    JudgedQuery,
    as_rows,
    confirm_query,
    judge,
    judge_definition,
    judge_query,
    with_part,
)
from haproc.reading.settled import alike, unsettled
from haproc.reading.summary import NOTHING, Touches, outline, recognise, touches
from haproc.reading.tree import PLAINER, Facts, Node, Reading, TextRange, read, readable
from haproc.route.classifying import Asker
from haproc.route.kept_answers import Key, Remembered, key_of
from haproc.route.offload import Texts
from haproc.route.own_settings import check_definition, own_of, refusal, travelling, with_own
from haproc.route.plan_questions import empty_rows, shape_of, text_question
from haproc.route.planning import Planning
from haproc.route.shared_sessions import ReadingSessions
from haproc.route.stand_in import merge_over, source_query
from haproc.sessions.client import ClientSession

T = TypeVar("T")
_Sent: TypeAlias = Callable[[str], SqlText | SparkPlan]
JUDGED_MAX: Final = 2_000
_CHARACTERS_PER_BYTE: Final = 8
"""So many characters of Spark's answer take as long as one of a text. Chosen: a reading of 14 kB
takes 1 ms."""
FRAMES_MAX: Final = 1_000
FRAME_BYTES_MAX: Final = 16 << 10
"""The most DataFrames whose judgement is kept, and the most bytes of one. Chosen."""
PARSES_MAX: Final = 64
PARSE_MAX: Final = 64 << 10
"""The most answers of Spark's parser that are kept, and the most characters of one: DDL needs its
answer again soon. Chosen."""
ANY_MOMENT: Final = Moment(datetime(2000, 1, 1, tzinfo=UTC), "UTC", "", "", "")
"""Stands for the moment when queries are judged: only whether they depend on it is of interest."""
_PARSER: Final = "spark.sql.legacy.timeparserpolicy"
_HINT_MERGE: Final = "give the source an alias, and its columns names of their own"


@dataclass(frozen=True, slots=True)
class Frames:
    """The DataFrames that come with a SQL text; ``plan``: the text's plan.

    ``hidden``: reasons why they may differ between clusters that Spark's reading does not show.
    ``of_session``: True if only the client's session can read them.
    """

    plan: Any
    hidden: tuple[str, ...]
    of_session: bool

    def sent(self, text: str) -> SparkPlan:
        """Return ``text``, with the DataFrames, as a query that Spark can read."""
        return SparkPlan(text_question(self.plan, text))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why rows must replace the DataFrames in the log; empty if they need not."""
        only_there = "it reads a DataFrame that only the client's session has"
        return (*self.hidden, only_there) if self.of_session else self.hidden


class Readings:
    """Lets Spark read statements and judges them. ``epoch`` counts changed definitions here."""

    def __init__(
        self,
        sessions: ReadingSessions,
        epoch: Callable[[], int],
        texts: Texts,
        planning: Planning,
        timeout_s: float,
    ) -> None:
        self._shared = sessions.shared
        self._parsing = sessions.parsing
        self.epoch = epoch
        self._texts = texts
        self._planning = planning
        self._timeout_s = timeout_s
        self._parses = Remembered[Key, str](lambda: 0, PARSES_MAX)
        self._recognised = Remembered[Key, Recognised](lambda: 0, JUDGED_MAX)
        self._judged = Remembered[Key, Judged](epoch, JUDGED_MAX)
        self._queries = Remembered[Key, JudgedQuery](epoch, JUDGED_MAX)
        self._frames = Remembered[tuple[bytes, Settings], JudgedQuery](epoch, FRAMES_MAX)

    async def recognised(self, text: str, settings: Settings, user: str) -> Recognised:
        """Let Spark's parser find out what a text is; raises RefusedError, EngineError."""
        key = key_of(text, settings)
        if (known := self._recognised.find(key)) is not None:
            return known
        # Without the session's own settings: one that stops Spark's parser can still be reset.
        plain = Settings(time_zone=settings.time_zone, ansi=settings.ansi)
        data = await self._parsed(plain, text, user)
        context = Context(settings.catalog, settings.schema, user)
        found = await self._work(user, data, text, recognise, context)
        self._recognised.keep(key, found, 0)
        return found

    async def judged(
        self,
        statement: Classified,
        asker: Asker,
        moment: Moment,
        frames: Frames | None = None,
    ) -> Judged:
        """Let Spark read a statement that changes rows; return the judge's decision.

        ``frames``: the DataFrames that come with it. Raises RefusedError if it cannot be the same
        on every cluster, EngineError of kind APPLICATION if Spark finds it wrong.
        """
        settings = asker.settings
        key, epoch = key_of(statement.sql, settings), self.epoch()
        is_kept = not asker.has_temporaries and frames is None
        known = self._judged.find(key) if is_kept else None
        if known is not None:
            return known
        spark = await self._session(asker)
        sent: _Sent = frames.sent if frames is not None else SqlText
        data = await self._reading(spark, sent(statement.sql), statement.sql, moment.user)
        found = await self._judge(data, statement.sql, settings, moment)
        as_sent = data, statement.sql
        if frames is not None and frames.reasons and found.treatment is not Treatment.REFUSE:
            found = as_rows(found, frames.reasons)
            found = replace(found, of_session=found.of_session or frames.of_session)
        if found.treatment is not Treatment.REFUSE:
            found = with_own(found, settings)
        _check(statement, found)
        if found.treatment is Treatment.MATERIALISE and found.kind is Kind.MERGE:
            await self._confirmed(spark, found, settings, moment, sent, as_sent)
        elif found.computes:
            await self._confirm_in_lanes(
                as_sent, (sent(found.sql), found.sql), settings, moment.user, _places_of(found)
            )
        if is_kept and not found.moved:
            self._judged.keep(key, found, epoch)
        return found

    async def definition(
        self,
        statement: Classified,
        asker: Asker,
        moment: Moment,
        frames: Frames | None = None,
    ) -> Judged:
        """Do as `judged` for a statement that changes no rows, such as CREATE VIEW.

        ``frames`` and errors are as for `judged`.
        """
        text, settings, user = statement.sql, asker.settings, asker.user
        has_own = bool(own_of(settings))
        rests = asker.has_temporaries or has_own or frames is not None
        by_text = statement.kind in BY_TEXT and not rests
        sent: SqlText | SparkPlan = frames.sent(text) if frames is not None else SqlText(text)
        facts = Facts(is_legacy(settings), vouched=statement.kind is Kind.UNKNOWN)
        values = (asker.context, facts, moment)
        if by_text:
            data = await self._parsed(settings, text, user)
            found = await self._work(user, data, text, judge_definition, *values)
            if found is not None:
                _check(statement, found.judged)
                return found.judged
        spark = await self._session(asker)
        data = await self._reading(spark, sent, text, user)
        found = await self._work(user, data, text, judge_definition, *values)
        assert found is not None
        judged, queries = found.judged, found.queries
        _check(statement, judged)
        if has_own:
            check_definition(judged, settings)
            lanes = await self._read_in_lanes(sent, text, settings, user)
            if not await self._work(user, data, text, is_settled, lanes, text):
                raise refusal(settings, "make something else")
        if found.function is not None:
            queries = await self.computed_by(found.function, settings, user)
            judged = replace(judged, known=True)  # as far as these show the names it touches
        for query in queries:
            data = await self._reading(spark, SqlText(query), query, user)
            judged = await self._work(user, data, query, with_part, judged, *values)
            _check(statement, judged)
        return judged

    async def computed_by(self, function: Node, settings: Settings, user: str) -> tuple[str, ...]:
        """Return a function's body and its parameters' defaults, as queries to read and judge."""
        texts = schemas(function)
        tables = [(await self._parsed(settings, text, user), text) for text in texts]
        size = sum(len(data) for data, _ in tables) // _CHARACTERS_PER_BYTE
        return await self._texts.work_on_text(user, size, texts_of_function, function, tables)

    async def of_session(self, statement: Classified, session: ClientSession) -> Touches:
        """Return the names that a statement uses which changes its client's session.

        Spark reads it only if it makes a view or a cache, or if operators' rules need that. Raises
        as `judged` does, also if the new object contains code other than SQL.
        """
        if statement.kind not in (Kind.TEMPORARY_VIEW, Kind.CACHE) and not statement.rules:
            return NOTHING
        text, asker = statement.sql, Asker(session.settings, session, session.user)
        found = await self.touches(SqlText(text), text, asker)
        if found.refusal is not None:
            raise found.refusal
        if found.function is not None:
            for each in await self.computed_by(found.function, session.settings, session.user):
                found |= await self.touches(SqlText(each), each, asker, is_query=True)
        return found

    async def touches(
        self,
        statement: SqlText | SparkPlan,
        text: str,
        asker: Asker,
        *,
        is_query: bool = False,
    ) -> Touches:
        """Return the names that a statement uses; ``statement``: the form in which it is sent.

        Raises as `judged` does, also if ``is_query`` and the statement is no query.
        """
        spark = await self._session(asker)
        data = await self._reading(spark, statement, text, asker.user)
        return await self._work(asker.user, data, text, touched_by, asker.context, is_query)

    async def _parsed(self, settings: Settings, text: str, user: str) -> str:
        default = Settings()
        settings = replace(settings, catalog=default.catalog, schema=default.schema)
        key = key_of(text, settings)
        if (known := self._parses.find(key)) is not None:
            return known
        spark = await self._parsing(settings)
        data = await self._reading(spark, SqlText(text), text, user, parsed_only=True)
        if len(data) <= PARSE_MAX:
            self._parses.keep(key, data, 0)
        return data

    async def _work(
        self, user: str, data: str, text: str, work: Callable[..., T], *values: Any
    ) -> T:
        """Call `on_reading`, outside the event loop if ``data``, Spark's answer, is long."""
        size = len(data) // _CHARACTERS_PER_BYTE
        return await self._texts.work_on_text(user, size, on_reading, data, text, work, *values)

    async def _reading(
        self,
        spark: Session,
        statement: SqlText | SparkPlan,
        text: str,
        user: str,
        *,
        parsed_only: bool = False,
    ) -> str:
        size = len(statement.plan) if isinstance(statement, SparkPlan) else len(text)
        async with self._planning.turn(user, self._timeout_s, size):
            return await spark.reading(
                statement, timeout_s=self._timeout_s, parsed_only=parsed_only
            )

    async def query(
        self, statement: SqlText | SparkPlan, settings: Settings, user: str
    ) -> JudgedQuery:
        """Let Spark read a query; return the judge's decision. Raises RefusedError, EngineError.

        Spark reads it in a session without temporary objects. The decision on a text is kept.
        """
        epoch = self.epoch()
        known = (
            self.known_query(statement.sql, settings) if isinstance(statement, SqlText) else None
        )
        if known is not None:
            return known
        found = await self._query(await self._shared(settings), statement, settings, user)
        if isinstance(statement, SqlText):
            self._queries.keep(key_of(statement.sql, settings), found, epoch)
        return found

    def known_query(self, sql: str, settings: Settings) -> JudgedQuery | None:
        """Return the kept decision on a query; None if there is none that is still valid."""
        return self._queries.find(key_of(sql, settings))

    async def frame(
        self,
        query: bytes,
        asker: Asker,
        *,
        only_there: bool = False,
        keeps: bool = True,
    ) -> JudgedQuery:
        """Let Spark read a part of a plan, given as a query; return the judge's decision.

        ``only_there``: only the client's session can read it. ``keeps``: the decision may be kept.
        Raises as `judged` does.
        """
        epoch = self.epoch()
        shape = shape_of(query) if len(query) <= FRAME_BYTES_MAX else None
        own = asker.has_temporaries or (only_there and asker.session is not None)
        key = (shape, asker.settings) if keeps and not own and shape is not None else None
        known = self._frames.find(key) if key is not None else None
        if known is not None:
            return known
        spark = await self._session(asker, only_there=only_there)
        # Without step numbers Spark cannot answer with a plan that it has kept under a number.
        found = await self._query(spark, SparkPlan(shape or query), asker.settings, asker.user)
        if key is not None and not found.reasons:
            self._frames.keep(key, found, epoch)
        return found

    async def _query(
        self, spark: Session, statement: SqlText | SparkPlan, settings: Settings, user: str
    ) -> JudgedQuery:
        text = statement.sql if isinstance(statement, SqlText) else ""
        data = await self._reading(spark, statement, text, user)
        facts = Facts(is_legacy(settings))
        return await self._work(user, data, text, judge_query, facts, ANY_MOMENT)

    async def outline(self, sql: str, asker: Asker) -> list[str]:
        """Return Spark's reading of a text as lines for people (`haproc.reading.summary`)."""
        spark = await self._session(asker)
        data = await self._reading(spark, SqlText(sql), sql, asker.user)
        return await self._work(asker.user, data, sql, outline)

    async def _session(self, asker: Asker, *, only_there: bool = False) -> Session:
        session = asker.session
        if session is not None and (only_there or session.holds_temporaries):
            await session.spark.ready()
            return session.spark
        return await self._shared(asker.settings)

    async def _judge(self, data: str, text: str, settings: Settings, moment: Moment) -> Judged:
        context = Context(settings.catalog, settings.schema, moment.user)
        values = context, Facts(is_legacy(settings)), moment
        return await self._work(moment.user, data, text, judge, *values)

    async def confirm_settled(self, query: bytes, asker: Asker) -> None:
        """Refuse a query beside a plan's input if it depends on the session's own settings."""
        if own_of(asker.settings):
            spark, plan = await self._session(asker), SparkPlan(query)
            data = await self._reading(spark, plan, "", asker.user)
            await self._confirm_in_lanes((data, ""), (plan, ""), asker.settings, asker.user)

    async def _confirm_in_lanes(
        self,
        own: tuple[str, str],
        again: tuple[SqlText | SparkPlan, str],
        settings: Settings,
        user: str,
        values: Sequence[TextRange] = (),
    ) -> None:
        """Raise RefusedError if a part of a write has another result in the lanes.

        ``own``: Spark's answer under the session's own settings, and its text. ``again``: the
        statement to read as in a lane, and its text. ``values``: the places that become literals.
        """
        if not own_of(settings):
            return
        lanes = await self._read_in_lanes(*again, settings, user)
        context = Context(settings.catalog, settings.schema, user)
        part = await self._work(user, *own, unsettled_part, lanes, again[1], context, values)
        if part is not None:
            raise refusal(settings, f"compute {part}")

    async def _read_in_lanes(
        self, statement: SqlText | SparkPlan, text: str, settings: Settings, user: str
    ) -> str:
        """Let Spark read a statement as in a lane, and return Spark's answer.

        The lanes lack the settings that only one session has, and its temporary objects.
        """
        spark = await self._shared(travelling(settings))
        try:
            return await self._reading(spark, statement, text, user)
        except EngineError as error:
            if error.kind is not ErrorKind.APPLICATION:
                raise
            raise refusal(settings, f"give an error: {error.message}") from error

    async def _confirmed(
        self,
        spark: Session,
        found: Judged,
        settings: Settings,
        moment: Moment,
        sent: _Sent,
        as_sent: tuple[str, str],
    ) -> None:
        """Raise RefusedError if a MERGE changes its meaning when rows replace its source.

        ``as_sent``: Spark's answer about the MERGE as it was sent, and its text.
        """
        assert found.cut is not None
        schema = await spark.schema(sent(source_query(found.cut)))
        columns = columns_of(wire.parsed(protos.data_types.DataType, schema))
        rows = empty_rows([(column.name, column.type_text) for column in columns])
        text, plan = merge_over(found.cut, rows)
        try:
            read_again = await self._reading(spark, plan, text, moment.user)
        except EngineError as error:
            if error.kind is not ErrorKind.APPLICATION:
                raise
            reasons = (*found.reasons, f"rows can't stand for its source: {error.message}")
            raise RefusedError(
                ErrorClass.NONDETERMINISTIC, "; ".join(reasons), _HINT_MERGE
            ) from error
        again = await self._judge(read_again, text, settings, moment)
        places = _places_of(found)
        await self._confirm_in_lanes(as_sent, (plan, text), settings, moment.user, places)
        if again.treatment is not Treatment.REPLICATE or again.moved:
            reasons = (*found.reasons, *again.reasons)
            raise RefusedError(ErrorClass.NONDETERMINISTIC, "; ".join(reasons), _HINT_MERGE)


def on_reading(data: str, text: str, work: Callable[..., T], *values: Any) -> T:
    """Return ``work(reading, *values)`` for the reading in Spark's answer about ``text``.

    ``data``: that answer. Raises RefusedError if it cannot be understood.
    """
    with readable():
        return work(read(data, text), *values)


def is_settled(own: Reading, lanes: str, text: str) -> bool:
    """True if ``lanes``, Spark's answer in a lane, shows the same definition as ``own``."""
    return alike(own, read(lanes, text))


def unsettled_part(
    own: Reading, lanes: str, text: str, context: Context, values: Sequence[TextRange]
) -> str | None:
    """Return a part, as text, whose result in the lanes may differ; None if there is none."""
    return unsettled(own, read(lanes, text), context, values)


def texts_of_function(function: Node, tables: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the queries that show what a function computes; raises RefusedError.

    ``tables``: Spark's answers about the function's `schemas`, with the texts of these.
    """
    with readable():
        return tuple(function_queries(function, [read(data, text) for data, text in tables]))


def touched_by(reading: Reading, context: Context, is_query: bool) -> Touches:
    """Return the names that a statement uses; refuse it if ``is_query`` and it is no query."""
    if is_query:
        confirm_query(reading, context)
    return touches(reading, context)


def _check(statement: Classified, found: Judged) -> None:
    """Raise RefusedError if the judge refuses, or Spark's parser sees another statement."""
    is_other = found.kind is not statement.kind or found.writes != statement.writes
    if is_other and statement.kind is not Kind.UNKNOWN:
        theirs, ours = (", ".join(sorted(names)) for names in (found.writes, statement.writes))
        raise RefusedError(
            ErrorClass.NONDETERMINISTIC,
            f"Spark's analyzer takes the statement for {found.kind.value} of "
            f"{theirs or 'no table'}, its parser for {statement.kind.value} of "
            f"{ours or 'an unknown table'}",
            PLAINER,
        )
    if found.treatment is Treatment.REFUSE:
        raise RefusedError(ErrorClass.NONDETERMINISTIC, "; ".join(found.reasons), found.hint)


def _places_of(judged: Judged) -> tuple[TextRange, ...]:
    """Return the places in the statement's text that become literals."""
    return tuple(place for place, _ in judged.literals)


def is_legacy(settings: Settings) -> bool:
    """True if dates may be parsed as before Spark 3; the setting's name may be in any case."""
    values = [value for name, value in settings.confs if name.lower() == _PARSER]
    return not {each.strip().upper() for each in values} <= {"CORRECTED", "EXCEPTION"}
