"""Decides which queries may be answered from the cache, keeps their answers and gives them out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol

from haproc import protos
from haproc.classify.model import Classified, OperationClass, RefusedError
from haproc.classify.plans.commands import read_opened
from haproc.classify.plans.parsing import Does, members
from haproc.classify.rules import CACHEABLE_KINDS
from haproc.config.sections import Cache
from haproc.engine.errors import EngineError
from haproc.engine.interface import Chunk, Settings
from haproc.engine.pieces import CATALOG
from haproc.engine.statement import SparkPlan, SqlText
from haproc.membership.state import SERVING
from haproc.replicate.log_state.definitions import defines, touches
from haproc.replicate.member.core import Core
from haproc.route.classifying import Understood, only_selects, read_of
from haproc.route.freshness import EVERYBODY, need
from haproc.route.kept_answers import KeptAnswer, KeptAnswers, Key, key_of, weight
from haproc.route.model import Answer, CacheReport, HaReport, Request, SentPlan, SentSql
from haproc.route.readings import Readings
from haproc.route.streams import Replayed, Resumed
from haproc.sessions.client import ClientSession

OURS: Final = f"{CATALOG}."


@dataclass(frozen=True, slots=True)
class Reading:
    """What Spark's analysis shows about a query.

    ``tables``: the tables it reads. ``reason``: why its answer must not be kept; empty if it may
    be. ``since``: all definitions below this offset were applied when Spark was asked.
    """

    since: int
    tables: frozenset[str] = frozenset()
    reason: str = ""


class Repeatable:
    """Finds the queries whose answers change only if their tables change, and finds these tables.

    Spark reads the query in a session of HAProc's own, without temporary objects. This reading must
    prove it, by the rules for a write that is replicated as it is. What cannot be proved is not
    kept: a query that may depend on more than Delta tables of the catalog, or a query of a table
    with a LOCATION of its own, because a write to another table there would change it, too.
    """

    def __init__(self, core: Core, readings: Readings) -> None:
        self._core = core
        self._readings = readings

    async def reading(self, statement: Classified, settings: Settings, user: str) -> Reading:
        """Let Spark read the query; return its `Reading`. Raises EngineError."""
        since = self._core.schedule.done_below(defines)
        try:
            found = await self._readings.query(SqlText(statement.sql), settings, user)
        except RefusedError as error:
            return Reading(since, reason=error.message)
        if found.reasons:
            return Reading(since, reason=found.reasons[0])
        strange = [*found.unmanaged, *(each for each in found.reads if not each.startswith(OURS))]
        if strange:
            return Reading(since, reason=f"{min(strange)} is no managed Delta table of {CATALOG}")
        return Reading(since, found.reads)

    def holds(self, reading: Reading) -> bool:
        """True if no table, view or function was redefined since the query was read."""
        return not self._core.log_state.written.defined(reading.since)


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables that a query reads (``names``).

    ``rests_on``: the views, functions and tables whose redefinition could make it read other
    tables. ``since``: all records below this offset that may redefine one of these were applied.
    """

    names: frozenset[str]
    rests_on: frozenset[str]
    since: int


LAZY: Final = members(
    """
    read sql project filter join set_op sort aggregate local_relation range subquery_alias hint
    repartition repartition_by_expression to_df to_schema with_columns with_columns_renamed drop
    unpivot deduplicate fill_na drop_na replace limit offset tail
    """
)
"""Relations of a plan that Spark only analyzes, and does not run, when it is asked for the plan's
tree."""
_SHOWN: Final = ("show_string", "html_string")
"""Relations of a plan that show the rows of another relation as text."""


class Narrowing:
    """Finds a query's tables, so that the query need not wait for writes to other tables.

    A query is fresh enough once all records that may change its own tables are applied, even while
    an earlier operation on other tables still runs, perhaps for an hour. Its tables are those that
    Spark reads in it, in a session without temporary objects.

    When in doubt, the query waits for all records: if its session holds a temporary object, if it
    reads other than managed Delta tables, or if a table, view or function that it uses may have
    been redefined since. If a statement changes the session meanwhile, names may mean something
    else when the query runs: so the caller checks again once Spark has begun to answer.
    """

    def __init__(self, core: Core, readings: Readings) -> None:
        self._core = core
        self._readings = readings

    async def applied(self, understood: Understood) -> Callable[[], int] | None:
        """Return a function for the offset below which all writes to its tables are applied.

        None if the query runs in a session, or its tables cannot be found out.
        """
        if understood.session is not None or unfit(understood):
            return None
        try:
            tables = await self._tables(understood)
        except (EngineError, RefusedError):
            return None  # running the query shows the error
        if tables is None:
            return None
        found, schedule = tables, self._core.schedule
        return lambda: schedule.applied_of(found.names) if self._hold(found) else schedule.low

    async def applied_in(
        self, understood: Understood, session: ClientSession | None
    ) -> Callable[[], int] | None:
        """Do as `applied`, also for a query that runs in the client's ``session``."""
        if session is None:
            return await self.applied(understood)
        if session.holds_temporaries or session.handles:
            return None
        unchanged = session.unchanged()
        try:
            query = query_in(understood)
            shown = query is not None or not unfit_text(understood)
            tables = await self._tables(understood, query) if shown else None
        except (EngineError, RefusedError):
            return None  # running the query shows the error
        if tables is None:
            return None
        found, schedule = tables, self._core.schedule
        return lambda: (
            schedule.applied_of(found.names) if unchanged() and self._hold(found) else schedule.low
        )

    def _hold(self, tables: Tables) -> bool:
        return self._core.log_state.definitions.unchanged(tables.rests_on, tables.since)

    async def _tables(
        self, understood: Understood, query: SparkPlan | None = None
    ) -> Tables | None:
        """Return the tables that a query reads; None if they cannot be found out.

        ``query``: the query as a plan; None: its SQL text is used.
        """
        core, user = self._core, understood.request.user
        definitions = core.watermarks.definitions_applied
        found = await self._readings.query(
            query or SqlText(understood.statement.sql), understood.settings, user
        )
        if not found.known or found.of_session or found.unmanaged:
            return None
        if not (query is None or understood.statement.reads <= found.reads):
            return None
        if not all(each.startswith(OURS) for each in found.reads):
            return None
        if core.watermarks.definitions_applied != definitions:
            return None  # the reading may show the earlier definition
        applied = core.schedule.applied_of(found.rests_on)
        return Tables(found.reads, found.rests_on, applied)


def query_in(understood: Understood) -> SparkPlan | None:
    """Return the query inside a client's plan, as a plan whose analysis shows every table it reads.

    None if the request is no such plan. Raises RefusedError.
    """
    sent, settings = understood.request.statement, understood.settings
    if not isinstance(sent, SentPlan) or len(sent.plan) > TEXT_MAX:
        return None
    read = read_of(sent)
    plan, reading = read.message, read.reading
    shown = plan.root.WhichOneof("rel_type")
    if shown in _SHOWN:
        inner = protos.base.Plan()
        inner.root.CopyFrom(getattr(plan.root, shown).input)
        plan, reading = inner, read_opened(inner)
    if reading.does is not Does.QUERIES or not reading.relations <= LAZY:
        return None
    if reading.user_code or reading.paths or reading.blobs or reading.handles or reading.options:
        return None
    return SparkPlan(plan.SerializeToString()) if only_selects(reading, settings) else None


TEXT_MAX: Final = 100_000
"""Longer texts do not use the cache: no dashboard sends them, and looking them up would block other
requests. Chosen."""
_WRITTEN: Final = "a table that it reads was being written"


class Counts(Protocol):
    """Receives the metrics of the cache."""

    def cached(self, outcome: str) -> None:
        """Count an answer to a query that may use the cache.

        ``outcome``: hit (it came from the cache), kept (it is in the cache now), or not_kept.
        """
        ...

    def cache(self, answers: int, bytes_used: int, evicted: Mapping[str, int]) -> None:
        """Report the present number of kept answers, their bytes, and all evictions by reason."""
        ...


class NoCounts:
    """Implements `Counts`, and counts nothing."""

    def cached(self, outcome: str) -> None:
        """Do nothing."""

    def cache(self, answers: int, bytes_used: int, evicted: Mapping[str, int]) -> None:
        """Do nothing."""


def wanted(request: Request, statement: Classified, by_default: bool) -> bool:
    """True if a query may use the cache.

    The request and the operator's rule may each say yes or no: one "no" decides, then one "yes". If
    neither says anything, the answer is ``by_default``.
    """
    choices = {request.cache, statement.cache}
    if False in choices:
        return False
    return True in choices or by_default


def unfit(understood: Understood) -> str:
    """Return why the answer to this request is never kept; empty if it may be kept.

    Looks only at the session and the statement's form.
    """
    return "it runs in a session" if understood.session is not None else unfit_text(understood)


def unfit_text(understood: Understood) -> str:
    """Return why the answer to such a statement is never kept; empty if it may be kept."""
    statement = understood.statement
    if (
        not isinstance(understood.request.statement, SentSql)
        or statement.kind not in CACHEABLE_KINDS
    ):
        return "it is no SELECT"
    if len(statement.sql) > TEXT_MAX:
        return f"its text has more than {TEXT_MAX:,} characters"
    return ""


class Caching:
    """Answers queries from kept answers, and keeps new ones; `kept_answers` says when one is valid.

    The result of a query that may use the cache is read to its end before the client gets it,
    unless it becomes too large to be kept. Meanwhile an equal query of the same user waits for it,
    but only once: if there is no kept answer then, that query runs by itself.

    ``repeatable`` decides which answers may be kept, and finds their tables.
    """

    def __init__(self, core: Core, limits: Cache, repeatable: Repeatable, counts: Counts) -> None:
        self._core = core
        self._limits = limits
        self._repeatable = repeatable
        self._counts = counts
        self._kept = KeptAnswers(core.log_state.written, limits.bytes_max)
        self._under_way: dict[tuple[str, Key], asyncio.Event] = {}

    def held(self, understood: Understood, still: Callable[[], bool]) -> Answer | None:
        """Return the kept answer to a query, if running the query here now would give the same one.

        Otherwise None. ``still`` returns True if the operator's rules would decide about the query
        as before.

        If the read level needs the log's end, the caller has made sure that this HAProc has read up
        to it. This HAProc must also have read all that the client has seen, even what the client
        saw here: a process that was replaced, and does not know it, must not show less than its
        successor did.
        """
        core = self._core
        if not self._wanted(understood) or unfit(understood) or core.condition.state not in SERVING:
            return None
        seen = need(understood.request.freshness, EVERYBODY, log_end=0)
        if core.schedule.read_to < seen or not core.own_log.seen:
            return None
        answer = self._kept.find(_key(understood), core.condition.departures)
        if answer is None or not still():
            return None
        cache_report = CacheReport(hit=True, age_s=self._now() - answer.at_s, kept=True)
        report = HaReport(
            core.me, OperationClass.QUERY, after_offset=answer.after_offset, cache=cache_report
        )
        return Answer(report, Replayed(answer.chunks))

    async def answer(
        self,
        understood: Understood,
        run: Callable[[], Awaitable[Answer]],
        still: Callable[[], bool],
    ) -> Answer:
        """Answer a query for which `held` returned None: call ``run``, and keep its answer.

        It is kept only if that is allowed. If an equal query of the user is under way, waits for
        its answer first. ``still``: see `held`.
        """
        if not self._wanted(understood):
            return await run()
        if reason := unfit(understood):
            return _with_report(await run(), reason)
        key = _key(understood)
        of_user = understood.request.user, key  # a query waits only for its user's equal ones
        if (other := self._under_way.get(of_user)) is not None:
            await other.wait()
        if (held := self.held(understood, still)) is not None:
            return held
        ended = self._under_way[of_user] = asyncio.Event()
        try:
            return await self._first(understood, key, run, ended)
        finally:
            ended.set()
            if self._under_way.get(of_user) is ended:
                del self._under_way[of_user]

    def count(self, answer: Answer) -> None:
        """Count an answer that a client receives, by whether it came from the cache."""
        cache_report = answer.report.cache
        if cache_report is not None:
            self._counts.cached(
                "hit" if cache_report.hit else "kept" if cache_report.kept else "not_kept"
            )
            kept = self._kept
            self._counts.cache(len(kept), kept.bytes_used, kept.evicted)

    def _wanted(self, understood: Understood) -> bool:
        return wanted(understood.request, understood.statement, self._limits.by_default)

    async def _first(
        self,
        understood: Understood,
        key: Key,
        run: Callable[[], Awaitable[Answer]],
        ended: asyncio.Event,
    ) -> Answer:
        """Run a query and keep its answer.

        ``ended``: set at once if the answer cannot be kept, so that equal queries stop waiting for
        it.
        """
        begun = await self._begun(understood)
        if isinstance(begun, str):
            ended.set()
            return _with_report(await run(), begun)
        answer = await run()
        return await self._taken(key, begun, answer)

    async def _begun(self, understood: Understood) -> KeptAnswer | str:
        """Prepare the answer that will be kept for a query that begins now, still without rows.

        If the answer may not be kept, returns the reason (a text) instead.

        Nothing is awaited between the last check and the query's start. So later writes have
        offsets from ``since`` on, and the query reads the tables that Spark's reading showed.
        """
        core, user = self._core, understood.request.user
        try:
            reading = await self._repeatable.reading(
                understood.statement, understood.settings, user
            )
        except EngineError as error:  # running it shows the fault
            return f"Spark did not analyze it: {error.message}"
        if reading.reason:
            return reading.reason
        since = core.schedule.done_below(lambda op: touches(op, reading.tables))
        departures = core.condition.departures
        begun = KeptAnswer((), reading.tables, since, departures, 0, self._now())
        holds = self._repeatable.holds(reading) and not self._kept.outdated(begun, departures)
        return begun if holds else _WRITTEN

    async def _taken(self, key: Key, begun: KeptAnswer, answer: Answer) -> Answer:
        """Read an answer's result to its end, keep it in the cache, and return it with its rows.

        If it becomes too large, the returned answer streams the rest, and is not kept.
        """
        chunks: list[Chunk] = []
        size, more = 0, weight()
        result = answer.result
        rest = aiter(result)
        try:
            while True:
                if reason := self._no_room(size, more):
                    release = partial(self._kept.give_back, size)
                    return _with_report(
                        replace(answer, result=Resumed(chunks, rest, result, release)), reason
                    )
                size += more
                chunk = await anext(rest, None)
                if chunk is None:
                    break
                chunks.append(chunk)
                more = len(chunk.data)
        except BaseException:
            self._kept.give_back(size)
            await result.aclose()
            raise
        await result.aclose()
        after = answer.report.after_offset or 0
        kept = replace(begun, chunks=tuple(chunks), after_offset=after)
        outdated = self._kept.outdated(kept, self._core.condition.departures)
        if outdated:
            self._kept.give_back(size)
        else:
            self._kept.keep(key, kept)
        return _with_report(replace(answer, result=Replayed(chunks)), _WRITTEN * outdated)

    def _no_room(self, size: int, more: int) -> str:
        """Reserve ``more`` bytes for an answer that has ``size`` bytes already.

        Returns an empty text if they are reserved; otherwise the reason why not.
        """
        if size + more > self._limits.answer_bytes_max:
            return "it is larger than cache.answer_bytes_max"
        return "" if self._kept.reserve(more) else "answers on their way fill cache.bytes_max"

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _key(understood: Understood) -> Key:
    return key_of(understood.statement.sql, understood.settings)


def _with_report(answer: Answer, reason: str) -> Answer:
    """Return the answer with a `CacheReport`.

    ``reason``: why the answer is not kept; empty if it is kept.
    """
    cache_report = CacheReport(hit=False, kept=not reason, reason=reason)
    return replace(answer, report=replace(answer.report, cache=cache_report))
