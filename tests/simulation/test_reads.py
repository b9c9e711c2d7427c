"""Tests that reads keep their levels, over many seeds; rules broken on purpose are found."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from haclient.settings import NOTHING_SEEN, SeenOffsets
from haproc.classify.model import Kind
from haproc.config.model import Consistency
from haproc.failure import FailureKind, RequestError, WriteOutcome
from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.records.operation import Operation
from haproc.route import freshness, reads
from haproc.route.freshness import Serve
from haproc.route.model import Freshness, Request, SentSql
from haproc.route.reads import Reads
from tests.simulation.broken import BreakRule
from tests.simulation.directed import Stage, as_story, ddl, story
from tests.simulation.reads import Counted, Doors, simulate_reads
from tests.simulation.ring import MEMBERSHIP, READS
from tests.simulation.scenario import insert, operation
from tests.simulation.seeds import SEEDS
from tests.simulation.test_beside import begun, let
from tests.simulation.violations import Violation, found_by, found_in

pytestmark = pytest.mark.usefixtures("quiet")
RUNS = max(4, SEEDS // 2)


def test_reads_under_all_faults_keep_their_levels() -> None:
    found, total = [], Counted()
    for seed in range(RUNS):
        report, counted = simulate_reads(seed)
        found += [(seed, report.problems[:3])] if report.problems else []
        total.waits += counted.waits
        total.forwarded += counted.forwarded
        for level, count in counted.levels.items():
            total.levels[level] = total.levels.get(level, 0) + count
    assert found == []
    # The runs were not idle.
    assert min(total.levels[level] for level in Consistency) > 5 * RUNS
    assert total.waits > 5 * RUNS and total.forwarded > 0


def nothing_waited_for(patch: pytest.MonkeyPatch) -> None:
    """Run each query at once, at the cluster where it came."""
    patch.setattr(reads, "decide", lambda *given, **named: Serve())


def end_known_before(patch: pytest.MonkeyPatch) -> None:
    """Use the end of the log that this HAProc knows, without reading it."""

    async def known_end(self: Reads, wanted: Freshness, ends_at: float) -> int:
        return self._replica.core.watermarks.log_end

    patch.setattr(Reads, "_end", known_end)


def tokens_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """Take offsets that other clusters have shown for shown here, too."""
    original = freshness.need

    def careless(wanted: Freshness, cluster: str, log_end: int) -> int:
        return original(Freshness(wanted.level, wanted.lag_max), cluster, log_end)

    for module in (freshness, reads):
        patch.setattr(module, "need", careless)


@pytest.mark.parametrize(
    ("break_rule", "first"),
    [(nothing_waited_for, 0), (end_known_before, 29), (tokens_not_looked_at, 10)],
)
def test_rule_of_reading_broken_on_purpose_is_found(
    break_rule: BreakRule, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)
    found_in((simulate_reads(n)[0].problems for n in range(first, first + 60)), Violation.STALE)


# -- stories ------------------------------------------------------------------------------------


def query(level: Consistency, seen: SeenOffsets = NOTHING_SEEN, timeout_s: float = 30) -> Request:
    tokens = tuple(sorted(seen.by_cluster.items()))
    wanted = Freshness(level, 2, seen.after_offset, tokens)
    return Request("r", SentSql("SELECT"), "", freshness=wanted, timeout_s=timeout_s)


async def tables(stage: Stage) -> Doors:
    for n, sql in enumerate(("CREATE TABLE ids (id)", "CREATE TABLE copies (n)")):
        await stage.submit("a", ddl("a", f"setup{n}", sql))
    await stage.ready("a", "b", "c")
    return Doors(stage.ring, random.Random(1))


async def out_of_order(stage: Stage) -> None:
    """One cluster shows an operation while an earlier one still runs there."""
    doors = await tables(stage)
    stage.node("a").spark.poison_word = "first"
    for name in "bc":
        stage.node(name).spark.statement_s = 2
    ends = stage.ring.store.end
    first = asyncio.ensure_future(stage.submit("a", insert("first", "ids", "a")))
    await stage.until(lambda: stage.ring.store.end > ends)
    await stage.submit("a", insert("second", "copies", "a"))
    shown, report = await doors.ask("a", query(Consistency.ANY))
    assert shown == {"second"}
    seen = SeenOffsets().after(report.cluster, report.after_offset)
    # The same cluster does not wait for what it is at: it has shown what it has shown.
    began = stage.now
    shown, _ = await doors.ask("a", query(Consistency.SESSION, seen))
    assert shown == {"second"} and stage.now - began < 1
    stage.node("a").kill()
    stage.node("c").kill()
    await asyncio.gather(first, return_exceptions=True)
    # Another one that has not got there yet waits for both.
    behind = stage.node("b").replica
    assert behind is not None and behind.core.schedule.low < stage.ring.store.end
    shown, _ = await doors.ask("b", query(Consistency.SESSION, seen))
    assert shown == {"first", "second"}


def test_session_read_after_a_failover_shows_operations_seen_out_of_order() -> None:
    story(out_of_order)


def test_token_without_operations_applied_out_of_order_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Schedule, "high", property(lambda self: self.low))
    found_by(lambda: story(out_of_order), 'shown == {"first", "second"}')


@as_story()
async def test_read_stops_waiting_when_its_tables_have_no_running_operation(
    stage: Stage,
) -> None:
    """Also if that is known late, because the running statement uses all of Spark's cores."""
    made = await begun(stage)
    doors, life = Doors(stage.ring, random.Random(1)), stage.life("a")
    request = query(Consistency.LINEARIZABLE, timeout_s=100)

    async def shows_ids() -> Callable[[], int]:
        await asyncio.sleep(4 * reads.NARROW_S)
        schedule = stage.replica("a").core.schedule
        return lambda: schedule.applied_of(frozenset({"ids"}))

    async def is_unavailable() -> Callable[[], int]:
        await asyncio.sleep(1)
        raise RequestError(FailureKind.AVAILABILITY, "not now", error_class="SIM")

    began = stage.now
    find_answer = doors.reads(life).from_cache_or_peer
    assert await life.call(lambda _: find_answer(request, narrow=shows_ids)) is None
    assert stage.now - began < 5 * reads.NARROW_S
    waits = asyncio.create_task(life.call(lambda _: find_answer(request, narrow=is_unavailable)))
    await asyncio.sleep(5 * reads.NARROW_S)
    assert not made.done() and not waits.done()
    let(stage)
    await made
    assert await waits is None


@as_story()
async def test_bounded_read_on_a_lagging_cluster_is_forwarded_to_the_least_lagging(
    stage: Stage,
) -> None:
    doors = await tables(stage)
    for name in "bc":
        stage.node(name).spark.statement_s = 20
    written = [f"w{n}" for n in range(12)]
    for op_id in written:
        await stage.submit("a", insert(op_id, "ids", "a"))
    await asyncio.sleep(2 * MEMBERSHIP.report_interval_s)
    shown, report = await doors.ask("c", query(Consistency.BOUNDED))
    assert report.cluster == "a" and shown == set(written)
    assert doors.counted.forwarded == 1 and doors.counted.waits == 0
    # A linearizable one waits first; then it is forwarded, too.
    began = stage.now
    shown, report = await doors.ask("c", query(Consistency.LINEARIZABLE))
    assert report.cluster == "a" and shown == set(written)
    assert READS.wait_s <= stage.now - began < READS.wait_s + 1
    # What is in a session stays there.
    submitted = replace(query(Consistency.BOUNDED), session_id="s")
    with pytest.raises(RequestError, match=r"c lacks .* a has what is needed"):
        await doors.ask("c", submitted)
    # At level any nothing is asked or waited for.
    shown, report = await doors.ask("c", query(Consistency.ANY))
    assert report.cluster == "c" and shown < set(written)


@as_story()
async def test_read_that_no_cluster_can_answer_is_refused_with_the_lag_of_each(
    stage: Stage,
) -> None:
    doors = await tables(stage)
    for name in "bc":
        stage.node(name).spark.statement_s = 60
    for n in range(9):
        await stage.submit("a", insert(f"w{n}", "ids", "a"))
    stage.node("a").kill()
    await asyncio.sleep(2 * MEMBERSHIP.window_s)
    with pytest.raises(RequestError) as caught:
        await doors.ask("b", query(Consistency.BOUNDED))
    error = caught.value
    assert (error.kind, error.outcome) == (FailureKind.AVAILABILITY, WriteOutcome.NOT_SENT)
    assert error.error_class == "HAPROC_NOT_FRESH"
    assert "all clusters are down or too far behind" in error.message
    assert "acceptable_offset_lag 2" in error.message
    assert "b lacks 7 records, a is out of service, c lacks 7 records" in error.message


def alternating(origin: str, name: str) -> list[Operation]:
    """Return writes of which each waits for the one before it, and none is combined."""
    counted = "INSERT INTO copies SELECT count(*) FROM ids"
    tables = {"reads": frozenset({"ids"}), "writes": frozenset({"copies"})}
    pairs = [
        (
            insert(f"{name}{n}", "ids", origin),
            operation(f"{name}n{n}", Kind.INSERT, counted, origin, **tables),
        )
        for n in range(6)
    ]
    return [op for pair in pairs for op in pair]


@as_story()
async def test_read_keeps_waiting_while_its_cluster_applies_and_no_other_is_further(
    stage: Stage,
) -> None:
    doors = await tables(stage)
    for name in "bc":
        stage.node(name).spark.statement_s = 2
    for op in alternating("a", "w"):
        await stage.submit("a", op)
    stage.node("a").kill()
    began = stage.now
    shown, report = await doors.ask("b", query(Consistency.LINEARIZABLE, timeout_s=60))
    assert report.cluster == "b" and shown >= {f"w{n}" for n in range(6)}
    assert stage.now - began > 4 * READS.wait_s
    assert doors.counted.forwarded == 0
    # Its own time bounds it all the same.
    behind = [asyncio.ensure_future(stage.submit("b", op)) for op in alternating("b", "v")]
    await asyncio.sleep(1)
    began = stage.now
    with pytest.raises(RequestError, match=r"b lacks .* c lacks"):
        await doors.ask("b", query(Consistency.LINEARIZABLE, timeout_s=10))
    assert READS.wait_s < stage.now - began < 10
    await asyncio.gather(*behind)


@as_story()
async def test_read_that_needs_the_logs_end_is_refused_while_the_log_is_away(stage: Stage) -> None:
    doors = await tables(stage)
    await stage.submit("a", insert("mine", "ids", "a"))
    _, report = await doors.ask("a", query(Consistency.ANY))
    seen = SeenOffsets().after("b", report.after_offset)
    stage.ring.weather.log_away = True
    for level in (Consistency.BOUNDED, Consistency.LINEARIZABLE):
        with pytest.raises(RequestError, match="the log did not report its end"):
            await doors.ask("a", query(level))
    shown, _ = await doors.ask("a", query(Consistency.SESSION, seen))
    assert shown == {"mine"}


@as_story()
async def test_read_that_waits_fails_when_its_cluster_leaves_service(stage: Stage) -> None:
    doors = await tables(stage)
    stage.node("a").spark.poison_word = "w0"
    submitted = asyncio.ensure_future(stage.submit("b", insert("w0", "ids", "b")))
    await submitted
    read = asyncio.ensure_future(doors.ask("a", query(Consistency.LINEARIZABLE)))
    await asyncio.sleep(1)
    began = stage.now
    stage.node("a").spark.kill()
    with pytest.raises(RequestError, match="cluster a is DOWN"):
        await read
    assert stage.now - began < READS.wait_s - 1
