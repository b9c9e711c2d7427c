"""Tests of a recovering cluster that copies tables with a long replay, and replays the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from haproc.classify.model import Kind
from haproc.engine.errors import EngineError, ErrorKind
from haproc.failure import RequestError
from haproc.membership.state import State
from haproc.replicate import catching_up
from haproc.replicate.agree.rebuilding import ask_for
from haproc.replicate.member.steps import Step
from haproc.replicate.queue import backlog
from haproc.replicate.queue.backlog import Backlog, CopiedAhead
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.records.control import Copy
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.progress import CopyRequest, Progress, from_cursor
from tests.simulation.ahead import simulate_ahead
from tests.simulation.broken import BreakRule
from tests.simulation.copies import SimCopies
from tests.simulation.directed import CREATE, Stage, as_story, ddl, story
from tests.simulation.ring import LIMITS, Node
from tests.simulation.scenario import insert, operation
from tests.simulation.seeds import SEEDS, judged
from tests.simulation.violations import Violation, found_by

MANY = 60
SLOW_S = 2.0


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog of seconds is enough for a copy."""
    monkeypatch.setattr(backlog, "WORTH_S", 5.0)
    monkeypatch.setattr(backlog, "COPY_TABLE_S", 2.0)
    monkeypatch.setattr(catching_up, "LOOK_EVERY_S", 4.0)
    monkeypatch.setattr(catching_up, "CONSIDER_EVERY_S", 3.0)


def append(op_id: str, table: str, origin: str = "a") -> Operation:
    sql = f"UPDATE {table} SET x = x || ',{op_id}'"  # runs alone: its columns are not known
    return operation(op_id, Kind.UPDATE, sql, origin, writes=frozenset({table}))


def select(op_id: str, source: str, target: str) -> Operation:
    sql = f"INSERT INTO {target} SELECT x FROM {source}"
    read, written = frozenset({source}), frozenset({target})
    return operation(op_id, Kind.INSERT, sql, "a", reads=read, writes=written)


async def tables(stage: Stage, *names: str) -> None:
    """Create tables with one row each."""
    for name in names:
        await stage.submit("a", ddl("a", f"create {name}", CREATE.replace(" t ", f" {name} ")))
        await stage.submit("a", insert(f"first {name}", name, "a"))
    await stage.ready(*"abc")


async def left_behind(stage: Stage, *names: str, clusters: str = "c", count: int = MANY) -> None:
    """Make tables; these clusters are stopped, miss UPDATEs of t, and will be slow."""
    await tables(stage, *names)
    for name in clusters:
        stage.node(name).kill()
        stage.node(name).spark.statement_s = SLOW_S
    for n in range(count):
        await stage.submit("a", append(f"t{n}", "t"))


async def two_missed(stage: Stage, *names: str) -> None:
    """Have c miss UPDATEs of t and of u."""
    await left_behind(stage, *names)
    for n in range(MANY):
        await stage.submit("a", append(f"u{n}", "u"))


def copied(stage: Stage, name: str) -> list[str]:
    return sorted(stage.node(name).spark.shelf.copied)


def donor_of(node: Node) -> str:
    assert node.replica is not None and node.replica.taking.progress is not None
    return node.replica.taking.progress.donor


@as_story()
async def test_table_with_a_long_replay_is_copied(stage: Stage) -> None:
    await left_behind(stage, "t", "u")
    await stage.submit("a", insert("other", "u", "a"))
    began = stage.now
    stage.node("c").start()
    await stage.ready(*"abc")
    assert stage.now - began < MANY * SLOW_S / 2
    assert copied(stage, "c") == ["t"]
    (record,) = stage.records(Copy)
    assert record.ahead and record.tables == ("default.t",)
    stage.check_equal(*"abc")
    await stage.submit("c", append("later", "t", "c"), 60)
    await stage.equal(*"abc")
    assert stage.replica("c").core.notes.idle(stage.replica("c").core.schedule.low)


STEPS = [Step.AHEAD_MARKED, Step.AHEAD_ASKED, Step.COPIED_TABLE, Step.COPIED]


@pytest.mark.parametrize("step", STEPS)
@as_story()
async def test_process_killed_during_a_copy_ahead_continues(stage: Stage, step: Step) -> None:
    await left_behind(stage, "t", "u")
    stage.at("c", step, Node.kill)
    stage.node("c").start()
    await stage.until(lambda: ("c", step) in stage.struck, 120)
    await stage.submit("a", insert("meanwhile", "u", "a"))
    await stage.submit("a", append("meanwhile t", "t"))
    stage.node("c").start()
    await stage.until(
        lambda: not stage.node("c").alive or stage.ring.settled_node(stage.node("c")), 200
    )
    stage.node("c").start()
    await stage.settle()
    assert "t" in copied(stage, "c")


async def mixed(stage: Stage) -> None:
    """A backlog that is partly copied and partly replayed, while more operations come."""
    await left_behind(stage, "t", "u", "v", "w")
    await stage.submit("a", select("from v", "v", "w"))
    await stage.submit("a", select("from t", "t", "u"))
    await stage.submit("a", append("v 1", "v"))
    for n in range(MANY // 2):
        await stage.submit("a", append(f"again {n}", "t"))
    stage.node("c").start()
    await stage.until(lambda: bool(stage.records(Copy)), 120)
    for n in range(3):
        await stage.submit("a", append(f"meanwhile {n}", "t"))
    await stage.settle()


@as_story()
async def test_rest_of_the_backlog_is_replayed_in_order(stage: Stage) -> None:
    """The INSERT ... SELECT from a copied table adds its target to the copy."""
    await mixed(stage)
    assert copied(stage, "c") == ["t", "u"]


@as_story()
async def test_write_from_a_copied_table_into_a_dropped_one_causes_a_replay(
    stage: Stage,
) -> None:
    await left_behind(stage, "t", "u")
    await stage.submit("a", select("from t", "t", "u"))
    await stage.submit("a", operation("drop", Kind.DROP_TABLE, "DROP TABLE u", "a"))
    await stage.submit("a", append("again", "t"))
    stage.node("c").start()
    await stage.until(lambda: stage.ring.settled_node(stage.node("c")), 400)
    await stage.settle()
    assert copied(stage, "c") == []


@as_story()
async def test_operation_that_failed_on_the_donor_is_failed_on_the_copy_too(stage: Stage) -> None:
    await left_behind(stage, "t", count=MANY // 2)
    bad = operation("bad", Kind.UPDATE, "UPDATE t SET y = 1", "a", writes=frozenset({"t"}))
    assert (await stage.submit("a", bad)).status is OutcomeStatus.FAILED
    for n in range(MANY):
        await stage.submit("a", append(f"more {n}", "t"))
    stage.node("c").start()
    await stage.settle()
    assert copied(stage, "c") == ["t"]
    for _ in range(2):
        assert (await stage.submit("c", bad, 60)).status is OutcomeStatus.FAILED
        stage.node("c").restart()
        await stage.settle()
    report = stage.report_of("c")
    assert report is not None and report.failure.error_class == "SIM"


@as_story()
async def test_donor_that_dies_before_a_table_is_touched_leaves_the_replay(stage: Stage) -> None:
    await left_behind(stage, "t")

    def donors_die(node: Node) -> None:
        for name in "ab":
            stage.node(name).kill()

    stage.at("c", Step.AHEAD_ASKED, donors_die)
    stage.node("c").start()
    await stage.until(lambda: ("c", Step.AHEAD_ASKED) in stage.struck, 120)
    await stage.until(lambda: stage.ring.settled_node(stage.node("c")), 600)
    assert copied(stage, "c") == []
    await stage.settle()


@as_story()
async def test_donor_that_dies_during_the_copy_is_replaced_by_another_donor(stage: Stage) -> None:
    await two_missed(stage, "t", "u")

    def donor_dies(node: Node) -> None:
        stage.node(donor_of(node)).kill()

    stage.at("c", Step.COPIED_TABLE, donor_dies)
    stage.node("c").start()
    await stage.until(lambda: len(stage.records(Copy)) == 2, 300)
    await stage.until(lambda: stage.alive_state("c") is State.READY, 300)
    await stage.settle()
    assert {record.donor for record in stage.records(Copy)} == {"a", "b"}
    assert set(copied(stage, "c")) == {"t", "u"}


@as_story()
async def test_ddl_before_another_donor_is_found_causes_a_copy_of_the_whole_cluster(
    stage: Stage,
) -> None:
    await two_missed(stage, "t", "u", "v")
    stage.at("c", Step.COPIED_TABLE, Node.kill)
    stage.node("c").start()
    await stage.until(lambda: ("c", Step.COPIED_TABLE) in stage.struck, 300)
    donor = stage.records(Copy)[0].donor
    await stage.submit("ab".replace(donor, ""), ddl("a", "new", "CREATE TABLE new (x)"))
    stage.node(donor).kill()
    stage.node("c").start()
    await stage.until(lambda: stage.alive_state("c") is State.READY, 300)
    await stage.settle()
    assert not stage.records(Copy)[-1].tables and "v" in copied(stage, "c")


@as_story()
async def test_two_clusters_copy_ahead_at_once(stage: Stage) -> None:
    await left_behind(stage, "t", "u", clusters="bc")
    stage.node("b").start()
    stage.node("c").start()
    await stage.settle()
    assert copied(stage, "b") == copied(stage, "c") == ["t"]


async def verification(stage: Stage) -> None:
    await stage.operators("a").verify()


async def definition(stage: Stage) -> None:
    await stage.submit("a", operation("drop", Kind.DROP_TABLE, "DROP TABLE t", "a"))
    await stage.submit("a", ddl("a", "again"))


async def unknown(stage: Stage) -> None:
    op = replace(insert("unknown", "u", "a"), tables_known=False, writes=frozenset())
    await stage.submit("a", op)


@pytest.mark.parametrize("hinders", [verification, definition, unknown])
@as_story()
async def test_backlog_with_a_hindrance_is_replayed(
    stage: Stage, hinders: Callable[[Stage], Awaitable[None]]
) -> None:
    await left_behind(stage, "t", "u")
    await hinders(stage)
    stage.node("c").start()
    await stage.until(lambda: stage.ring.settled_node(stage.node("c")), 600)
    await stage.settle()
    assert stage.records(Copy) == []


@as_story()
async def test_backlog_with_a_hindrance_after_the_choice_is_replayed(stage: Stage) -> None:
    """The copy record is in the log by then; no table is touched."""
    await left_behind(stage, "t", "u")
    stage.node("c").start()
    replica = stage.replica("c")
    append_ = replica.core.own_log.append

    async def late(*messages: object) -> int:
        if isinstance(messages[0], Copy):
            await definition(stage)
        return await append_(*messages)  # type: ignore[arg-type]

    object.__setattr__(replica.core.own_log, "append", late)
    await stage.until(lambda: bool(stage.records(Copy)), 120)
    await stage.until(lambda: stage.ring.settled_node(stage.node("c")), 600)
    await stage.settle()
    assert copied(stage, "c") == []


def test_runs_with_all_faults_keep_the_promises() -> None:
    found = [judged(lambda seed: simulate_ahead(seed)[0], seed) for seed in range(SEEDS)]
    assert [(r.seed, r.problems[:3]) for r in found if r.problems] == []
    assert sum(report.steps.get(Step.AHEAD_ASKED, 0) for report in found) > 0
    assert sum(report.steps.get(Step.COPIED, 0) for report in found) > 0


def not_closed(patch: pytest.MonkeyPatch) -> None:
    """Copy a table without the tables that are written from it."""
    patch.setattr(Backlog, "_with_written", lambda self, table: frozenset({table}))
    patch.setattr(Backlog, "hindrance", lambda self, tables: "")


def passed_over_too_far(patch: pytest.MonkeyPatch) -> None:
    """Skip operations that the copies do not contain."""
    original = CopiedAhead.stands_for

    def further(self: CopiedAhead, offset: int, op: Operation) -> bool:
        return original(replace(self, marker=self.marker + 9), offset, op)

    patch.setattr(CopiedAhead, "stands_for", further)


@pytest.mark.parametrize("break_rule", [not_closed, passed_over_too_far])
def test_rule_of_copying_ahead_broken_on_purpose_is_found(
    break_rule: BreakRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)
    found_by(lambda: story(mixed), Violation.UNEQUAL)


@as_story()
async def test_rebuild_requested_during_a_copy_ahead_records_that_tables_were_touched(
    stage: Stage,
) -> None:
    """Otherwise it could be withdrawn, and would leave the tables as they are."""
    await left_behind(stage, "t")
    stage.node("c").start()
    await stage.until(lambda: "t" in stage.node("c").spark.shelf.half, 300)
    core = stage.replica("c").core
    await ask_for(core, CopyRequest())
    cursor = await core.own_log.unless_replaced()
    assert cursor is not None
    copying = from_cursor(cursor).copying
    assert copying is not None and copying.marker == -1 and copying.first >= 0
    stage.node("c").kill()
    await stage.settle()
    assert not stage.records(Copy)[-1].tables


@as_story()
async def test_spare_with_a_later_copy_of_a_table_does_not_continue_the_donors_copy(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """b copies the donor, which dies; in the spare t was copied ahead meanwhile."""
    await tables(stage, "t", "u")
    for name in "ac":
        stage.node(name).spark.statement_s = SLOW_S
    for n in range(MANY):
        await stage.submit("b", append(f"before{n}", "t", "b"))
    await stage.operators("b").rebuild("b", "")
    await stage.until(lambda: bool(stage.records(Copy)), 300)
    donor, spare = stage.records(Copy)[0].donor, stage.records(Copy)[0].spare
    stage.node(spare).kill()
    stage.node(donor).spark.statement_s = 0.01
    await stage.until(lambda: bool(stage.replica(donor).donor._notes), 300)
    stage.node("b").kill()
    for n in range(MANY):
        await stage.submit(donor, append(f"t{n}", "t", donor))
    stage.node(spare).start()
    await stage.until(lambda: stage.ring.settled_node(stage.node(spare)), 600)
    stage.node(donor).kill()
    monkeypatch.setattr(backlog, "WORTH_S", 1e9)  # b copies as a whole
    stage.node("b").start()
    await asyncio.sleep(600)
    stage.node(donor).start()
    await stage.settle()
    stage.check_equal(*"abc")


@as_story()
async def test_unreadable_storage_is_found_before_a_table_is_touched(stage: Stage) -> None:
    stage.ring.storage = {name: ((f"/{name}", "/mnt/elsewhere"),) for name in "abc"}
    await left_behind(stage, "t", "u")
    stage.node("c").start()
    await stage.until(lambda: bool(stage.records(Copy)), 600)
    await stage.until(lambda: stage.ring.settled_node(stage.node("c")), 600)
    await stage.settle()
    assert copied(stage, "c") == []


@as_story()
async def test_donor_with_unreadable_files_is_replaced_by_another_donor(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, bad = SimCopies.read_file_part, list[str]()

    async def read(self: SimCopies, location: str, *part: Any) -> tuple[int, bytes]:
        bad[:] = bad or [self._spark.name]
        if self._spark.name == bad[0] and "t@" in location:
            raise EngineError(ErrorKind.APPLICATION, "a file is gone")
        return await original(self, location, *part)

    monkeypatch.setattr(SimCopies, "read_file_part", read)

    await left_behind(stage, "t", "u")
    stage.node("c").start()
    await stage.until(lambda: stage.alive_state("c") is State.READY, 600)
    assert copied(stage, "c") == ["t"]
    assert [record.donor for record in stage.records(Copy)] == [*bad, *{*"ab"} - {*bad}]


@as_story()
async def test_copy_of_the_whole_cluster_after_touched_tables_cannot_be_withdrawn(
    stage: Stage,
) -> None:
    await two_missed(stage, "t", "u", "v")
    donors, failed_donors = list[str](), list[str]()

    def donor_dies(node: Node) -> None:
        donors.append(donor_of(node))
        stage.node(donors[0]).kill()

    stage.at("c", Step.COPIED_TABLE, donor_dies)
    stage.node("c").start()
    await stage.until(lambda: bool(donors), 300)
    (other,) = {*"ab"} - {*donors}
    await stage.submit(other, ddl(other, "new", "CREATE TABLE new (x)"))
    receiver = stage.replica("c").receiver
    chosen = receiver._chosen

    async def nobody_is_left(wanted: str, failed: str) -> tuple[str, str]:
        failed_donors.append(failed)
        stage.node(other).kill()
        return await chosen(wanted, failed)

    receiver._chosen = nobody_is_left  # type: ignore[method-assign]
    await stage.until(lambda: bool(failed_donors), 600)
    with pytest.raises(RequestError):
        stage.operators("c").withdraw("c")
    await asyncio.sleep(20)
    await stage.settle()


# -- what a cluster says of itself, and stores, at each moment -------------------------------------


@as_story()
async def test_failed_operation_is_never_reported_as_applied(stage: Stage) -> None:
    """The cluster receives its report before it has read the operation: its queue has no room."""
    await left_behind(stage, "t", "u")
    full = LIMITS.look_ahead_records_max + 5
    await asyncio.gather(*(stage.submit("a", insert(f"u{n}", "u", "a")) for n in range(full)))
    bad = operation("bad", Kind.UPDATE, "UPDATE t SET y = 1", "a", writes=frozenset({"t"}))
    assert (await stage.submit("a", bad)).status is OutcomeStatus.FAILED
    known = stage.replica("a").core.outcomes.find(bad.key)
    assert known is not None
    await asyncio.gather(*(stage.submit("a", insert(f"v{n}", "u", "a")) for n in range(full)))
    stage.node("c").start()
    statuses = set[str]()

    async def ask() -> None:
        while True:
            if stage.node("c").alive:
                statuses.add((await stage.replica("c").outcome(known.offset)).status)
            await asyncio.sleep(0.05)

    asking = asyncio.ensure_future(ask())
    await stage.until(lambda: bool(stage.records(Copy)), 300)
    await stage.until(lambda: stage.alive_state("c") is State.READY, 300)
    asking.cancel()
    await stage.settle()
    assert copied(stage, "c") == ["t"]
    assert OutcomeStatus.FAILED.value in statuses
    assert OutcomeStatus.APPLIED.value not in statuses


@as_story()
async def test_rebuild_requested_while_the_touch_is_stored_records_that_tables_were_touched(
    stage: Stage,
) -> None:
    await left_behind(stage, "t")
    stage.node("c").start()
    await stage.until(lambda: bool(stage.records(Copy)), 300)
    await stage.until(lambda: stage.alive_state("c") is State.COPYING, 300)
    core = stage.replica("c").core
    commit, failed_donors = core.own_log._commit, list[asyncio.Future[None]]()

    async def slowly(progress: Progress) -> None:
        if progress.copying is not None and progress.copying.first >= 0 and not failed_donors:
            failed_donors.append(asyncio.ensure_future(ask_for(core, CopyRequest())))
            await asyncio.sleep(1)
        await commit(progress)

    core.own_log._commit = slowly  # type: ignore[method-assign]
    await stage.until(lambda: bool(failed_donors), 300)
    await failed_donors[0]
    cursor = await core.own_log.unless_replaced()
    assert cursor is not None
    copying = from_cursor(cursor).copying
    assert copying is not None and copying.marker == -1 and copying.first >= 0
    stage.node("c").kill()
    await stage.settle()
