"""Cached answers, while a log is read and applied around them in any order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from haproc.classify.model import Classified, Kind, OperationClass
from haproc.config.model import Consistency
from haproc.config.sections import Cache
from haproc.engine.interface import Chunk, Settings
from haproc.membership.state import State
from haproc.replicate.log_state.definitions import Written, defines
from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.queue.units import BatchLimits, Unit
from haproc.replicate.records.operation import DecisionKind, Operation
from haproc.replicate.records.progress import Progress
from haproc.route import caching
from haproc.route.caching import Caching, NoCounts, Reading
from haproc.route.classifying import Understood
from haproc.route.kept_answers import OVERHEAD_BYTES, KeptAnswer, KeptAnswers, Key, key_of
from haproc.route.model import Answer, Freshness, HaReport, Request, SentSql
from haproc.route.ruling import always
from tests.unit.operations import computed, copy, ddl, insert, unknown_tables, update

TABLES = "xyz"


def query_of(tables: str = "x", user: str = "u", **request: Any) -> Understood:
    sql = f"SELECT {tables}"
    given: dict[str, Any] = {"cache": True, **request}
    statement = Classified(
        sql, Kind.SELECT, OperationClass.QUERY, frozenset(), frozenset(), True, "default"
    )
    return Understood(Request("r", SentSql(sql), "", user, **given), None, Settings(), statement)


@dataclass(eq=False)
class Sent:
    """A result that the test releases step by step: a chunk for each table."""

    tables: str
    shows: Callable[[str], bytes]
    steps: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        for table in self.tables:
            await self.steps.acquire()
            yield Chunk(self.shows(table), 1)
        await self.steps.acquire()

    async def aclose(self) -> None: ...


class Member:
    """A member with only the parts that cached answers need."""

    def __init__(self, limits: Cache | None = None) -> None:
        self.log: list[Operation | None] = []
        self.schedule = Schedule("a", Progress(), 0, BatchLimits())
        self.written = Written()
        self.applied: dict[str, set[int]] = {table: set() for table in TABLES}
        self.ignored: set[int] = set()
        self.core: Any = SimpleNamespace(
            me="a",
            schedule=self.schedule,
            log_state=SimpleNamespace(written=self.written),
            condition=SimpleNamespace(departures=0, state=State.READY),
            own_log=SimpleNamespace(seen=True),
        )
        self.limits = limits or Cache()
        self.caching = Caching(self.core, self.limits, self, NoCounts())  # type: ignore[arg-type]
        self.sent: list[Sent] = []
        self.repeatable = True

    # -- stands for haproc.route.caching

    async def reading(self, statement: Classified, settings: Settings, user: str) -> Reading:
        since = self.schedule.done_below(defines)
        await asyncio.sleep(0)
        tables = frozenset(statement.sql.removeprefix("SELECT ").strip())
        return Reading(since, tables, "" if self.repeatable else "it asks for the clock")

    def holds(self, reading: Reading) -> bool:
        return not self.written.defined(reading.since)

    # -- the log and the cluster

    def append(self, op: Operation, *, ignored: bool = False) -> int:
        self.log.append(op)
        if ignored:
            self.ignored.add(len(self.log) - 1)
        return len(self.log) - 1

    def read(self) -> None:
        """Read the next record, as `replicate.reader` does."""
        offset = self.schedule.read_to
        op = self.log[offset]
        assert op is not None
        self.written.note(offset, op)
        if offset in self.ignored or not self.schedule.enter_operation(offset, op):
            self.schedule.passed(offset)
        elif op.synchronous:
            self.schedule.decide(offset, DecisionKind.COMMIT)
        elif op.computed:
            self.schedule.provide(offset)

    def commit(self, unit: Unit) -> None:
        for offset, op in zip(unit.offsets, unit.operations, strict=True):
            touched = op.writes if op.tables_known else frozenset(TABLES)
            for table in touched & self.applied.keys():
                self.applied[table].add(offset)

    def finish(self, unit: Unit) -> None:
        self.schedule.complete(unit)
        self.schedule.release(unit)

    def apply_all(self) -> None:
        while self.schedule.read_to < len(self.log):
            self.read()
        while units := self.schedule.take(4):
            for unit in units:
                self.commit(unit)
                self.finish(unit)

    def shown(self, table: str) -> bytes:
        return f"{table}{sorted(self.applied[table])}".encode()

    def answer_by_log(self, tables: str) -> bytes:
        """Return the rows that a query shows when all records that were read are applied."""
        found = []
        for table in tables:
            offsets = [
                offset
                for offset, op in enumerate(self.log[: self.schedule.read_to])
                if op and offset not in self.ignored and (table in op.writes or not op.tables_known)
            ]
            found.append(f"{table}{offsets}")
        return "".join(found).encode()

    # -- queries

    async def query(self, question: Understood) -> tuple[bytes, HaReport]:
        tables = question.statement.sql.removeprefix("SELECT ")

        async def run() -> Answer:
            await asyncio.sleep(0)
            sent = Sent(tables, self.shown)
            self.sent.append(sent)
            report = HaReport("a", OperationClass.QUERY, after_offset=self.schedule.high)
            return Answer(report, sent)

        answer = self.caching.held(question, always) or await self.caching.answer(
            question, run, always
        )
        data = b"".join([chunk.data async for chunk in answer.result])
        return data, answer.report

    async def ask(self, question: Understood) -> tuple[bytes, HaReport]:
        """Send a query, and release all steps until it ends."""
        task = asyncio.ensure_future(self.query(question))
        while not task.done():
            await self.step()
            for sent in self.sent:
                sent.steps.release()
        return task.result()

    @staticmethod
    async def step() -> None:
        for _ in range(4):
            await asyncio.sleep(0)


def hit(report: HaReport) -> bool:
    assert report.cache is not None
    return report.cache.hit


def kept(report: HaReport) -> bool:
    assert report.cache is not None
    return report.cache.kept


async def test_equal_query_is_answered_from_the_cache_in_the_same_chunks() -> None:
    member = Member()
    first, report = await member.ask(query_of("xy"))
    again, cached_report = await member.ask(query_of("xy", user="v"))
    assert again == first and len(member.sent) == 1
    assert (hit(report), kept(report), hit(cached_report)) == (False, True, True)
    assert cached_report.after_offset == report.after_offset
    other_settings = replace(query_of("xy"), settings=Settings(time_zone="Europe/Zurich"))
    assert not hit((await member.ask(other_settings))[1])


async def test_equal_queries_of_different_users_do_not_wait_for_each_other() -> None:
    member = Member()
    first = asyncio.ensure_future(member.query(query_of("x", user="u")))
    await member.step()
    await member.ask(query_of("x", user="v"))
    assert len(member.sent) == 2
    await first


async def test_cached_answer_is_dropped_when_a_write_to_its_table_is_read() -> None:
    member = Member()
    await member.ask(query_of("x"))
    member.append(insert("1", "y"))
    assert hit((await member.ask(query_of("x")))[1])  # it is not read yet, so nobody was shown it
    member.apply_all()
    assert hit((await member.ask(query_of("x")))[1])
    member.append(insert("2", "x"))
    member.read()
    data, report = await member.ask(query_of("x"))
    assert report.cache and not report.cache.hit
    assert report.cache.reason == "a table that it reads was being written" and data == b"x[]"
    member.apply_all()
    assert not hit((await member.ask(query_of("x")))[1])
    data, report = await member.ask(query_of("x"))
    assert hit(report) and data == b"x[1]"


@pytest.mark.parametrize(
    "op",
    [
        ddl("1", "a"),
        unknown_tables("1"),
        replace(insert("1", "z"), redefines=frozenset("z")),
    ],
)
async def test_operation_that_may_change_a_definition_empties_the_cache(op: Operation) -> None:
    member = Member()
    await member.ask(query_of("x"))
    member.append(op)
    member.read()
    assert not hit((await member.ask(query_of("x")))[1])


async def test_write_that_is_read_while_the_query_runs_keeps_its_answer_out_of_the_cache() -> None:
    member = Member()
    task = asyncio.ensure_future(member.query(query_of("xy")))
    await member.step()
    member.sent[0].steps.release()
    await member.step()
    member.append(insert("1", "x"))
    member.read()
    for _ in range(3):
        member.sent[0].steps.release()
    data, report = await task
    assert data == b"x[]y[]" and report.cache and not report.cache.kept


async def test_equal_queries_at_the_same_time_run_once() -> None:
    member = Member()
    tasks = [asyncio.ensure_future(member.query(query_of("x"))) for _ in range(5)]
    await member.step()
    assert len(member.sent) == 1
    for _ in range(2):
        member.sent[0].steps.release()
    answers = [await task for task in tasks]
    assert sorted(hit(report) for _, report in answers) == [False, True, True, True, True]


async def test_equal_queries_with_an_unrepeatable_answer_do_not_wait() -> None:
    member = Member()
    member.repeatable = False
    tasks = [asyncio.ensure_future(member.query(query_of("x"))) for _ in range(3)]
    for _ in range(3):
        await member.step()
    assert len(member.sent) == 3
    for sent in member.sent:
        sent.steps.release()
        sent.steps.release()
    reasons = {(await task)[1].cache for task in tasks}
    assert {report.reason for report in reasons if report} == {"it asks for the clock"}


async def test_query_whose_first_client_leaves_is_run_by_the_next_one() -> None:
    member = Member()
    first = asyncio.ensure_future(member.query(query_of("x")))
    await member.step()
    second = asyncio.ensure_future(member.ask(query_of("x")))
    await member.step()
    first.cancel()
    assert kept((await second)[1]) and len(member.sent) == 2
    assert member.caching._kept.bytes_used == OVERHEAD_BYTES + len(b"x[]")


async def test_answer_that_is_too_large_is_delivered_but_not_kept() -> None:
    member = Member(Cache(answer_bytes_max=OVERHEAD_BYTES + 40))
    member.applied["x"] = set(range(40))
    data, report = await member.ask(query_of("xy"))
    assert data == member.shown("x") + member.shown("y")
    assert report.cache and report.cache.reason == "it is larger than cache.answer_bytes_max"
    assert member.caching._kept.bytes_used == 0 and len(member.caching._kept) == 0


async def test_cached_answers_stay_within_the_byte_limit() -> None:
    member = Member(Cache(bytes_max=3 * (OVERHEAD_BYTES + 100)))
    for tables in ("x", "y", "z", "xy", "xz"):
        assert kept((await member.ask(query_of(tables)))[1])
        assert member.caching._kept.bytes_used <= member.limits.bytes_max
    assert not hit((await member.ask(query_of("x")))[1])  # the first to go
    assert hit((await member.ask(query_of("xz")))[1])


@pytest.mark.parametrize(
    ("request_says", "rule_says", "by_default", "counts"),
    [
        (None, None, False, False),
        (None, None, True, True),
        (True, None, False, True),
        (None, True, False, True),
        (False, True, True, False),
        (True, False, True, False),
        (None, False, True, False),
    ],
)
def test_cache_is_used_where_request_rule_or_default_allows_and_none_forbids(
    request_says: bool | None, rule_says: bool | None, by_default: bool, counts: bool
) -> None:
    question = query_of(cache=request_says)
    statement = replace(question.statement, cache=rule_says)
    assert caching.wanted(question.request, statement, by_default) is counts


async def test_cached_answer_is_not_used_when_this_process_cannot_vouch_for_it() -> None:
    member = Member()
    await member.ask(query_of("x"))
    seen = Freshness(after_offset=0, seen=(("a", 3),))
    session = replace(seen, level=Consistency.SESSION)
    shown = query_of("x", freshness=session)  # by a successor
    assert member.caching.held(shown, always) is None
    member.core.own_log.seen = False
    assert member.caching.held(query_of("x"), always) is None
    member.core.own_log.seen = True
    assert member.caching.held(query_of("x"), always) is not None
    assert member.caching.held(query_of("x"), lambda: False) is None  # a rule might refuse it now
    member.core.condition.departures += 1
    assert member.caching.held(query_of("x"), always) is None


def test_written_tables_beyond_the_limit_all_count_as_changed() -> None:
    written = Written(tables_max=3)
    for offset, table in enumerate(["x", "y", "z", "x"]):
        written.note(offset, insert(str(offset), table))
    assert not written.changed({"y"}, 2) and written.changed({"x"}, 3)
    written.note(4, insert("4", "w"))
    assert written.changed({"y"}, 4) and not written.changed({"y"}, 5)


def test_new_answer_replaces_an_earlier_one_of_the_same_query() -> None:
    answers = KeptAnswers(Written(), 10_000)
    key = key_of("SELECT 1", Settings())
    for data in (b"one", b"two"):
        answer = KeptAnswer((Chunk(data, 1),), frozenset(), 0, 0, 0, 0.0)
        assert answers.reserve(OVERHEAD_BYTES + 3)
        answers.keep(key, answer)
    assert len(answers) == 1 and answers.bytes_used == OVERHEAD_BYTES + 3
    assert answers.find(key, 0) == answer


# -- any order of writing, reading, applying and asking --------------------------------------------


class Interleaved:
    """One run: everything that can happen, in a random order."""

    MAKES: ClassVar = (insert, insert, insert, update)

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.member = Member(Cache(bytes_max=4 * (OVERHEAD_BYTES + 400)))
        self.running: list[Unit] = []
        self.committed: list[Unit] = []
        self.queries: list[tuple[str, asyncio.Task[tuple[bytes, HaReport]]]] = []
        self.hits = 0

    async def run(self, steps: int) -> None:
        actions = [self.write, self.read, self.read, self.start, self.commit, self.finish]
        for n in range(steps):
            busy = n % 40 < 25  # writes pause now and then, or little would be kept
            action = self.rng.choice(actions if busy else actions[1:])
            action()
            if self.rng.random() < 0.5:
                self.ask()
            for sent in self.member.sent:
                if self.rng.random() < 0.6:
                    sent.steps.release()
            await self.member.step()
            self.judge()
        for _, task in self.queries:
            task.cancel()

    def write(self) -> None:
        rng, op_id = self.rng, str(len(self.member.log))
        chance, table = rng.random(), rng.choice(TABLES)
        if chance < 0.04:
            self.member.append(ddl(op_id, "a"))
        elif chance < 0.08:
            self.member.append(unknown_tables(op_id))
        elif chance < 0.2:
            make = rng.choice((copy, computed))
            self.member.append(make(op_id, table, rng.choice(TABLES)))
        else:
            make_one = rng.choice(self.MAKES)
            self.member.append(make_one(op_id, table), ignored=rng.random() < 0.1)

    def read(self) -> None:
        if self.member.schedule.read_to < len(self.member.log):
            self.member.read()

    def start(self) -> None:
        self.running += self.member.schedule.take(3)

    def commit(self) -> None:
        if self.running:
            unit = self.running.pop(self.rng.randrange(len(self.running)))
            self.member.commit(unit)
            self.committed.append(unit)

    def finish(self) -> None:
        if self.committed:
            self.member.finish(self.committed.pop(self.rng.randrange(len(self.committed))))

    def ask(self) -> None:
        tables = self.rng.choice(("x", "y", "xy", "yz"))
        question = query_of(tables)
        held = self.member.caching.held(question, always)
        if held is not None:
            self.hits += 1
            data = b"".join(chunk.data for chunk in held.result._chunks)  # type: ignore[attr-defined]
            assert data == self.member.answer_by_log(tables), "stale"
            return
        task = asyncio.ensure_future(self.member.query(question))
        self.queries.append((tables, task))

    def judge(self) -> None:
        """Compare the queries that ended in this step with the log; nothing was read since."""
        for tables, task in [each for each in self.queries if each[1].done()]:
            data, report = task.result()
            if report.cache is not None and report.cache.hit:
                assert data == self.member.answer_by_log(tables), "stale"
        self.queries = [each for each in self.queries if not each[1].done()]


async def interleave(seeds: range, steps: int = 200) -> int:
    hits = 0
    for seed in seeds:
        run = Interleaved(seed)
        await run.run(steps)
        hits += run.hits
    return hits


async def test_cache_never_returns_a_stale_answer_in_any_order_of_events() -> None:
    assert await interleave(range(12)) > 100


def begin_ignored(patch: pytest.MonkeyPatch) -> None:
    """Let an answer cover all records that were read when its query began."""
    patch.setattr(Schedule, "done_below", lambda self, concerned: self.read_to)


def end_ignored(patch: pytest.MonkeyPatch) -> None:
    """Keep an answer as if it had been computed when it was complete."""
    original = KeptAnswers.keep

    def late(self: KeptAnswers, key: Key, answer: KeptAnswer) -> None:
        original(self, key, replace(answer, since=answer.since + 3))

    patch.setattr(KeptAnswers, "keep", late)


def definitions_ignored(patch: pytest.MonkeyPatch) -> None:
    """Notice only the tables that a record names."""
    patch.setattr("haproc.replicate.log_state.definitions.defines", lambda op: False)


def log_writes_ignored(patch: pytest.MonkeyPatch) -> None:
    """Ignore the writes in the log; use only the order of the answers."""
    patch.setattr(Written, "changed", lambda self, tables, since: False)


@pytest.mark.parametrize(
    "break_rule", [begin_ignored, end_ignored, definitions_ignored, log_writes_ignored]
)
async def test_cache_rule_broken_on_purpose_is_found(
    break_rule: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)
    with pytest.raises(AssertionError, match="stale"):
        await interleave(range(40))
