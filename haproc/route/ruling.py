"""Finds the operator's rule that decides about a statement, by the tables that Spark reads in it.

Spark is asked only where a rule could decide by table, so other queries cost nothing more. Writes
are read anyway (`haproc.route.making`). Queries and session statements are read here, in the
client's session if that holds temporary objects. If Spark computes a part of a DataFrame while it
reads it, so that the reading has nothing but rows, that part is read by itself.

Names may mean something else by the time a query runs. So it is checked again, once Spark has begun
to answer, that nothing was redefined (`Ruled.still`). A session statement is checked after it has
run; if the check fails, its effect is undone. When in doubt, the check fails: a redefinition that
runs at either moment, or between them, counts as a change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Final

from haproc.classify.classifier import ruled
from haproc.classify.model import Classified, Kind, RefusedError, Touched
from haproc.classify.names import Context, qualified
from haproc.classify.plans import delta
from haproc.classify.plans.classifying import check_class
from haproc.classify.plans.parsing import Does
from haproc.classify.rules import ASYNCHRONOUS_KINDS, CACHEABLE_KINDS
from haproc.engine.errors import EngineError
from haproc.engine.interface import Settings
from haproc.engine.statement import SparkPlan, SqlText
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome
from haproc.reading.frames import SHOWN
from haproc.reading.judge import JudgedQuery
from haproc.reading.summary import NOTHING, Touches, explained
from haproc.replicate.log_state.definitions import redefined
from haproc.replicate.member.core import Core
from haproc.replicate.records.operation import Operation
from haproc.route.answering import failed
from haproc.route.classifying import Asker, Understood, only_selects, read_of
from haproc.route.model import ReadPlan, SentPlan
from haproc.route.offload import Texts, plan_work
from haproc.route.plan_questions import input_questions, table_questions, text_question
from haproc.route.readings import Readings
from haproc.route.streams import Running, refused
from haproc.sessions.client import ClientSession

_DESCRIBING: Final = frozenset({"catalog", delta.VERSIONS})
"""Relations of a plan that describe a table: Spark's reading of them does not name the table."""


def always() -> bool:
    """Return True. It stands for `Ruled.still` where no rule decides by table."""
    return True


@dataclass(frozen=True, slots=True)
class Ruled:
    """A request, with its class and so on as the operator's rules decide.

    ``still`` returns True as long as the rules would decide the same now.
    """

    understood: Understood
    still: Callable[[], bool] = always

    async def check(self, result: Running) -> None:
        """Raise RequestError if names may mean other tables now than when the rules decided.

        ``result``: the query's result, which is closed then.
        """
        if not self.still():
            await result.aclose()
            raise defined_anew()


def defined_anew() -> RequestError:
    """Return the error for a statement that may have read other tables than the rules know of."""
    return RequestError(
        FailureKind.AVAILABILITY,
        "what the statement reads was defined anew while the rules were asked about it",
        error_class=ErrorClass.NOT_FRESH,
        hint="send it again",
    )


class Ruling:
    """Asks the operator's rules about a request.

    Methods raise RequestError, unless they say otherwise.
    """

    def __init__(self, core: Core, readings: Readings, texts: Texts) -> None:
        self._core = core
        self._readings = readings
        self._texts = texts

    def remembered(self, understood: Understood) -> Ruled | None:
        """Return the rules' decision if Spark need not be asked for it; otherwise None."""
        if not understood.statement.rules:
            return Ruled(understood)
        is_text = not isinstance(understood.request.statement, SentPlan)
        if (
            not is_text
            or understood.statement.kind not in CACHEABLE_KINDS
            or _is_own(understood.session)
        ):
            return None
        unchanged = _unchanged(understood.session)
        known = self._readings.known_query(understood.statement.sql, understood.settings)
        if known is None:
            return None
        found = _read(known)
        still = self._ground(found, self._readings.epoch(), self._core.schedule.low)
        return self._ruled(understood, found, lambda: unchanged() and still())

    async def settled(self, understood: Understood) -> Ruled:
        """Return the rules' decision about a query or a session statement."""
        if (known := self.remembered(understood)) is not None:
            return known
        epoch, unchanged = (
            self._readings.epoch(),
            _unchanged(understood.session, _changes(understood)),
        )
        since = self._core.schedule.low
        try:
            found = await self._touches(understood)
        except RefusedError as error:
            raise refused(error) from error
        except EngineError as error:
            raise failed(error, self._core, WriteOutcome.NOT_SENT) from error
        still = self._ground(found, epoch, since)
        return self._ruled(understood, found, lambda: unchanged() and still())

    def _ruled(self, understood: Understood, found: Touches, still: Callable[[], bool]) -> Ruled:
        request = understood.request
        try:
            statement = ruled(understood.statement, found.touched, request.operation_class)
            if isinstance(request.statement, SentPlan) and not statement.sql:
                check_class(statement, read_of(request.statement).reading.does)
        except RefusedError as error:
            raise refused(error) from error
        return Ruled(replace(understood, statement=statement), still)

    async def of_session(
        self, statement: Classified, session: ClientSession
    ) -> tuple[Classified, Callable[[], bool]]:
        """Return the rules' decision about a statement that changes its client's session.

        Call the returned function after the statement has run: True if the rules would still decide
        the same, and nothing else has changed the session. Raises EngineError, and RefusedError
        also for a new object that runs code other than SQL.
        """
        epoch, unchanged = self._readings.epoch(), session.unchanged(own=1)
        since = self._core.schedule.low
        found = await self._readings.of_session(statement, session)
        if not statement.rules:
            return statement, always
        still = self._ground(found, epoch, since)
        return ruled(statement, found.touched), lambda: unchanged() and still()

    async def check_frames(self, understood: Understood) -> None:
        """Raise RefusedError if the user may not read a table in the DataFrames that a write takes.

        This is checked before Spark reads the whole write: Spark runs some parts of it then. Raises
        EngineError, too.
        """
        sent = understood.request.statement
        if understood.statement.rules and isinstance(sent, SentPlan):
            await self._of_parts(understood, sent, input_questions, NOTHING)

    async def written(
        self, understood: Understood, statement: Classified, seen: Touched
    ) -> Classified:
        """Return a write as the operator's rules decide about it.

        ``seen``: the names that Spark found in the write itself. Raises RefusedError, EngineError.
        """
        if not statement.rules:
            return statement
        found, sent = Touches(seen), understood.request.statement
        if isinstance(sent, SentPlan) and read_of(sent).reading.relations - SHOWN:
            found |= await self._of_plan(understood, sent)
        return ruled(statement, found.touched, understood.request.operation_class)

    async def _touches(self, understood: Understood) -> Touches:
        sent, statement, asker = (
            understood.request.statement,
            understood.statement,
            understood.asker,
        )
        if not isinstance(sent, SentPlan):
            sql = SqlText(statement.sql)
            return await self._of_text(statement.kind, sql, statement.sql, asker)
        found = await self._of_plan(understood, sent)
        if not statement.sql:
            return found
        carried = SparkPlan(text_question(read_of(sent).message, statement.sql))
        return found | await self._of_text(statement.kind, carried, statement.sql, asker)

    async def _of_text(
        self,
        kind: Kind,
        query: SqlText | SparkPlan,
        text: str,
        asker: Asker,
    ) -> Touches:
        """Return the names that a text uses; ``query``: the form in which it is sent to Spark."""
        is_text = isinstance(query, SqlText)
        if kind in CACHEABLE_KINDS and is_text and not asker.has_temporaries:
            return _read(await self._readings.query(query, asker.settings, asker.user))
        if kind is Kind.EXPLAIN:
            text = explained(text)
            query = SqlText(text)
        found = await self._readings.touches(query, text, asker)
        if found.inner:
            found = await self._readings.touches(SqlText(found.inner), found.inner, asker)
        if found.function is not None:  # its body is not read
            found |= Touches(Touched(known=False, expressions=None))
        return found

    async def _of_plan(self, understood: Understood, sent: SentPlan) -> Touches:
        """Return the names that the DataFrames of a plan use, whatever the plan does with them."""
        found = _of_reading(read_of(sent), understood.settings)
        return await self._of_parts(understood, sent, table_questions, found)

    async def _of_parts(
        self,
        understood: Understood,
        sent: SentPlan,
        questions: Callable[[Any], tuple[bytes, ...]],
        found: Touches,
    ) -> Touches:
        """Let Spark read parts of a plan; return the names that they use, with those in ``found``.

        ``questions`` returns the parts of a plan, as queries. Raises RefusedError, without reading
        further parts, once the names found so far are enough for a rule to refuse the statement.
        """
        read = read_of(sent)
        only_there = bool(read.reading.blobs or read.reading.handles)
        for each in await plan_work(self._texts, len(sent.plan), questions, read.message):
            part = await self._readings.frame(each, understood.asker, only_there=only_there)
            found |= _read(part)
            _check_refusals(understood.statement, found.touched)
        return found

    def _ground(self, found: Touches, epoch: int, since: int) -> Callable[[], bool]:
        """Return a function that returns True until a name is redefined on which the tables depend.

        ``epoch``, ``since``: the number of redefinitions, and the offset applied, before Spark was
        asked.
        """
        core, names = self._core, found.rests_on | found.touched.tables
        quiet = not self._is_defined(names)

        def still() -> bool:
            if not quiet or self._is_defined(names):
                return False
            same = self._readings.epoch() == epoch
            return same or core.log_state.definitions.unchanged(names, since)

        return still

    def _is_defined(self, names: frozenset[str]) -> bool:
        """True if this cluster is running an operation that may redefine one of these names."""
        unfinished = self._core.schedule.unfinished()
        return any(each.running and _defines(each.op, names) for each in unfinished)


def _check_refusals(statement: Classified, touched: Touched) -> None:
    """Raise RefusedError if the names found so far are enough for a rule to refuse the statement.

    More names never take such a refusal back: only rules that refuse, too, come before that rule.
    """
    refusing = takewhile(lambda rule: rule.rights is not None or rule.refuse, statement.rules)
    ruled(replace(statement, rules=tuple(refusing)), touched)


def _defines(op: Operation, names: frozenset[str]) -> bool:
    """True if ``names`` may mean other tables after the operation; new columns do not count."""
    if op.kind in ASYNCHRONOUS_KINDS:
        return False
    defined = redefined(op)
    return defined is None or not defined.isdisjoint(names)


def _of_reading(read: ReadPlan, settings: Settings) -> Touches:
    """Return the names that a plan contains itself.

    They are needed for relations whose reading by Spark shows no names.
    """
    reading, context = read.reading, Context(settings.catalog, settings.schema)
    describes = (
        reading.relations & _DESCRIBING or read.message.root.WhichOneof("rel_type") in _DESCRIBING
    )
    names = reading.names if describes else ()
    known = reading.names_known and only_selects(reading, settings)
    return Touches(Touched(frozenset(qualified(name, context) for name in names), known))


def _read(query: JudgedQuery) -> Touches:
    """Return the names that a query or a part of a plan uses, from the judge's decision on it."""
    known = query.known and not query.refused
    touched = Touched(query.reads, known, expressions=query.expressions)
    return Touches(touched, query.rests_on)


def _is_own(session: ClientSession | None) -> bool:
    return session is not None and session.holds_temporaries


def _unchanged(session: ClientSession | None, own: int = 0) -> Callable[[], bool]:
    return always if session is None else session.unchanged(own)


def _changes(understood: Understood) -> int:
    """Return how many changes of its session the request itself makes: 0 or 1."""
    sent = understood.request.statement
    changes = isinstance(sent, SentPlan) and read_of(sent).reading.does is Does.CHANGES_SESSION
    return int(changes)
