"""Answers queries from what is kept, and keeps what they are answered: the shell of `kept_answers`.

A query that the cache may answer is read to its end before its answer begins, unless it is too
large to be kept. While it runs, an equal one of its user waits for it, once; then it runs by
itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from haproc.classify.model import Classified, OperationClass
from haproc.classify.rules import CACHEABLE_KINDS
from haproc.config.cache import Cache
from haproc.engine.errors import EngineError
from haproc.engine.interface import Chunk
from haproc.membership.state import SERVING
from haproc.replicate.log_state.written import touches
from haproc.replicate.member.core import Core
from haproc.route.classifying import Understood
from haproc.route.freshness import EVERYBODY, need
from haproc.route.kept_answers import KeptAnswer, KeptAnswers, Key, key_of, weight
from haproc.route.model import Answer, CacheReport, HaReport, Request, SentSql
from haproc.route.repeatable import Repeatable
from haproc.route.streams import Replayed, Resumed

TEXT_MAX: Final = 100_000
"""Longer texts are no dashboard's, and looking for them would hold up everybody. Chosen."""
_WRITTEN: Final = "a table that it reads was being written"


class Counts(Protocol):
    """What is counted of the cache."""

    def cached(self, outcome: str) -> None:
        """A query was answered for which the cache counts: hit, kept, or not_kept."""
        ...

    def cache(self, answers: int, bytes_used: int, given_up: Mapping[str, int]) -> None:
        """So much is kept; so many answers were given up so far, and why."""
        ...


class NoCounts:
    """Counts nothing."""

    def cached(self, outcome: str) -> None:
        """See Counts."""

    def cache(self, answers: int, bytes_used: int, given_up: Mapping[str, int]) -> None:
        """See Counts."""


def wanted(request: Request, statement: Classified, by_default: bool) -> bool:
    """Whether the cache counts for a query: who says no is obeyed, whatever others say."""
    said = {request.cache, statement.cache}
    if False in said:
        return False
    return True in said or by_default


def unfit(asked: Understood) -> str:
    """Say why a query's answer is never kept, by its form alone; empty if it may be."""
    return "it runs in a session" if asked.session is not None else unfit_text(asked)


def unfit_text(asked: Understood) -> str:
    """Say it of a query's text, wherever it runs."""
    statement = asked.statement
    if not isinstance(asked.request.statement, SentSql) or statement.kind not in CACHEABLE_KINDS:
        return "it is no SELECT"
    if len(statement.sql) > TEXT_MAX:
        return f"its text has more than {TEXT_MAX:,} characters"
    return ""


class Caching:
    """See the module. ``repeatable`` says which answers may be kept, and what they rest on."""

    def __init__(self, core: Core, limits: Cache, repeatable: Repeatable, counts: Counts) -> None:
        self._core = core
        self._limits = limits
        self._repeatable = repeatable
        self._counts = counts
        self._kept = KeptAnswers(core.log_state.written, limits.bytes_max)
        self._under_way: dict[tuple[str, Key], asyncio.Event] = {}

    def held(self, asked: Understood, still: Callable[[], bool]) -> Answer | None:
        """Return the kept answer, if it is the one that the query would get here now.

        ``still``: whether the rules would decide about the query as they have.

        Whoever counts by the log's end sees to it that this HAProc has read so far. What the client
        has seen counts even if it was here: a process that was replaced and does not know it must
        not go behind what its successor showed.
        """
        core = self._core
        if not self._asked_for(asked) or unfit(asked) or core.condition.state not in SERVING:
            return None
        seen = need(asked.request.freshness, EVERYBODY, log_end=0)
        if core.schedule.read_to < seen or not core.own_log.seen:
            return None
        answer = self._kept.find(_key(asked), core.condition.departures)
        if answer is None or not still():
            return None
        cache_report = CacheReport(hit=True, age_s=self._now() - answer.at_s, kept=True)
        report = HaReport(
            core.me, OperationClass.QUERY, after_offset=answer.after_offset, cache=cache_report
        )
        return Answer(report, Replayed(answer.chunks))

    async def answer(
        self,
        asked: Understood,
        run: Callable[[], Awaitable[Answer]],
        still: Callable[[], bool],
    ) -> Answer:
        """Run a query of which nothing is held, and keep its answer if that may be."""
        if not self._asked_for(asked):
            return await run()
        if reason := unfit(asked):
            return _with_report(await run(), reason)
        key = _key(asked)
        of_user = asked.request.user, key  # who waits in line waits for its own user's turn
        if (other := self._under_way.get(of_user)) is not None:
            await other.wait()
        if (held := self.held(asked, still)) is not None:
            return held
        ended = self._under_way[of_user] = asyncio.Event()
        try:
            return await self._first(asked, key, run, ended)
        finally:
            ended.set()
            if self._under_way.get(of_user) is ended:
                del self._under_way[of_user]

    def count(self, answer: Answer) -> None:
        """Count an answer that is given to a client."""
        cache_report = answer.report.cache
        if cache_report is not None:
            self._counts.cached(
                "hit" if cache_report.hit else "kept" if cache_report.kept else "not_kept"
            )
            kept = self._kept
            self._counts.cache(len(kept), kept.bytes_used, kept.given_up)

    def _asked_for(self, asked: Understood) -> bool:
        return wanted(asked.request, asked.statement, self._limits.by_default)

    async def _first(
        self,
        asked: Understood,
        key: Key,
        run: Callable[[], Awaitable[Answer]],
        ended: asyncio.Event,
    ) -> Answer:
        """Run it; ``ended`` is set as soon as nobody has anything to wait for."""
        begun = await self._begun(asked)
        if isinstance(begun, str):
            ended.set()
            return _with_report(await run(), begun)
        answer = await run()
        return await self._taken(key, begun, answer)

    async def _begun(self, asked: Understood) -> KeptAnswer | str:
        """Return what is to be kept of a query that begins now, or why nothing is.

        Nothing is waited for between the last look and the query's start: what comes later is seen
        by its offset, and what the query reads is what it did when Spark was asked.
        """
        core, user = self._core, asked.request.user
        try:
            reading = await self._repeatable.reading(asked.statement, asked.settings, user)
        except EngineError as error:  # running it tells what is wrong
            return f"Spark did not analyze it: {error.message}"
        if reading.reason:
            return reading.reason
        since = core.schedule.done_below(lambda op: touches(op, reading.tables))
        departures = core.condition.departures
        begun = KeptAnswer((), reading.tables, since, departures, 0, self._now())
        holds = self._repeatable.holds(reading) and not self._kept.outdated(begun, departures)
        return begun if holds else _WRITTEN

    async def _taken(self, key: Key, begun: KeptAnswer, answer: Answer) -> Answer:
        """Read an answer's result to its end and keep it, unless it becomes too large for that."""
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
        """Reserve so much more for an answer of this size, or say why it cannot be kept."""
        if size + more > self._limits.answer_bytes_max:
            return "it is larger than cache.answer_bytes_max"
        return "" if self._kept.reserve(more) else "answers on their way fill cache.bytes_max"

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _key(asked: Understood) -> Key:
    return key_of(asked.statement.sql, asked.settings)


def _with_report(answer: Answer, reason: str) -> Answer:
    """Return an answer that a query gave just now; ``reason``: why it is not kept."""
    cache_report = CacheReport(hit=False, kept=not reason, reason=reason)
    return replace(answer, report=replace(answer.report, cache=cache_report))
