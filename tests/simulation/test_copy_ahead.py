"""A cluster that recovers copies the tables whose replay takes longer, and replays the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
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
from haproc.replicate.records.progress import CopyRequest, from_cursor
from tests.simulation.ahead import simulate_ahead
from tests.simulation.copies import SimCopies
from tests.simulation.directed import CREATE, Stage, ddl, story
from tests.simulation.ring import Node
from tests.simulation.scenario import insert, operation
from tests.simulation.seeds import SEEDS, judged
from tests.simulation.violations import Violation, found_by

MANY = 60
SLOW_S = 2.0


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A backlog of seconds is worth a copy."""
    monkeypatch.setattr(backlog, "WORTH_S", 5.0)
    monkeypatch.setattr(backlog, "COPY_TABLE_S", 2.0)
    monkeypatch.setattr(catching_up, "LOOK_EVERY_S", 4.0)
    monkeypatch.setattr(catching_up, "CONSIDER_EVERY_S", 3.0)
    yield


def append(op_id: str, table: str, origin: str = "a") -> Operation:
    sql = f"UPDATE {table} SET x = x || ',{op_id}'"  # runs alone: its columns are not known
    return operation(op_id, Kind.UPDATE, sql, origin, writes=frozenset({table}))


def select(op_id: str, source: str, target: str, origin: str = "a") -> Operation:
    sql = f"INSERT INTO {target} SELECT x FROM {source}"
    return operation(
        op_id, Kind.INSERT, sql, origin, reads=frozenset({source}), writes=frozenset({target})
    )


async def tables(stage: Stage, *names: str) -> None:
    """Make tables with a row each."""
    for name in names:
        await stage.submit("a", ddl("a", f"create {name}", CREATE.replace(" t ", f" {name} ")))
        await stage.submit("a", insert(f"first {name}", name, "a"))
    await stage.ready(*"abc")


async def missed(stage: Stage, *names: str, count: int = MANY, table: str = "t") -> None:
    """Have clusters miss so many UPDATEs of a table; the others have them applied."""
    for name in names:
        stage.node(name).kill()
    for n in range(count):
        await stage.submit("a", append(f"{table}{n}", table))


async def two_missed(stage: Stage, *names: str) -> None:
    """Make these tables; have c miss UPDATEs of t and u, and be slow."""
    await tables(stage, *names)
    await missed(stage, "c")
    for n in range(MANY):
        await stage.submit("a", append(f"u{n}", "u"))
    slow(stage, "c")


def slow(stage: Stage, *names: str) -> None:
    """Have every statement take long there."""
    for name in names:
        stage.node(name).spark.statement_s = SLOW_S


def copied(stage: Stage, name: str) -> list[str]:
    return sorted(stage.node(name).spark.shelf.copied)


def donor_of(node: Node) -> str:
    assert node.replica is not None and node.replica.taking.progress is not None
    return node.replica.taking.progress.donor


def records(stage: Stage) -> list[Copy]:
    return [message for message in stage.messages() if isinstance(message, Copy)]


def test_table_whose_replay_takes_long_is_copied() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage, "t", "u")
        await missed(stage, "c")
        await stage.submit("a", insert("other", "u", "a"))
        slow(stage, "c")
        began = stage.now
        stage.node("c").start()
        await stage.ready(*"abc")
        assert stage.now - began < MANY * SLOW_S / 2
        assert copied(stage, "c") == ["t"]
        (record,) = records(stage)
        assert record.ahead and record.tables == ("default.t",)
        stage.check_equal(*"abc")
        await stage.submit("c", append("later", "t", "c"), 60)
        await stage.ready(*"abc")
        stage.check_equal(*"abc")
        assert stage.replica("c").core.notes.idle(stage.replica("c").core.schedule.low)

    story(tell)


STEPS = [Step.AHEAD_MARKED, Step.AHEAD_ASKED, Step.COPIED_TABLE, Step.COPIED]


@pytest.mark.parametrize("step", STEPS)
def test_process_that_is_killed_on_the_way_goes_on(step: Step) -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage, "t", "u")
        await missed(stage, "c")
        slow(stage, "c")
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

    story(tell)


async def mixed(stage: Stage) -> None:
    """A backlog of which some is copied, and some replayed; more comes meanwhile."""
    await tables(stage, "t", "u", "v", "w")
    await missed(stage, "c")
    await stage.submit("a", select("from v", "v", "w"))
    await stage.submit("a", select("from t", "t", "u"))
    await stage.submit("a", append("v 1", "v"))
    for n in range(MANY // 2):
        await stage.submit("a", append(f"again {n}", "t"))
    slow(stage, "c")
    stage.node("c").start()
    await stage.until(lambda: bool(records(stage)), 120)
    for n in range(3):
        await stage.submit("a", append(f"meanwhile {n}", "t"))
    await stage.settle()


def test_rest_of_the_backlog_is_replayed_in_its_order() -> None:
    """The INSERT ... SELECT from a copied table takes its target into the copy."""

    async def tell(stage: Stage) -> None:
        await mixed(stage)
        assert copied(stage, "c") == ["t", "u"]

    story(tell)


def test_write_that_reads_a_copied_table_into_one_that_cannot_be_copied_is_replayed() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage, "t", "u")
        await missed(stage, "c")
        await stage.submit("a", select("from t", "t", "u"))
        await stage.submit("a", operation("drop", Kind.DROP_TABLE, "DROP TABLE u", "a"))
        await stage.submit("a", append("again", "t"))
        slow(stage, "c")
        stage.node("c").start()
        await stage.until(lambda: stage.ring.settled_node(stage.node("c")), 400)
        await stage.settle()
        assert copied(stage, "c") == []

    story(tell)


def test_operation_that_failed_counts_as_failed_here_too() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage, "t")
        await missed(stage, "c", count=MANY // 2)
        bad = operation("bad", Kind.UPDATE, "UPDATE t SET y = 1", "a", writes=frozenset({"t"}))
        assert (await stage.submit("a", bad)).status is OutcomeStatus.FAILED
        for n in range(MANY):
            await stage.submit("a", append(f"more {n}", "t"))
        slow(stage, "c")
        stage.node("c").start()
        await stage.settle()
        assert copied(stage, "c") == ["t"]
        for _ in range(2):
            assert (await stage.submit("c", bad, 60)).status is OutcomeStatus.FAILED
            stage.node("c").kill()
            stage.node("c").start()
            await stage.settle()
        report = stage.report_of("c")
        assert report is not None and report.failure.error_class == "SIM"

    story(tell)


def test_donor_that_dies_before_a_table_is_touched_leaves_the_replay() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage, "t")
        await missed(stage, "c")
        slow(stage, "c")

        def donors_die(node: Node) -> None:
            for name in "ab":
                stage.node(name).kill()

        stage.at("c", Step.AHEAD_ASKED, donors_die)
        stage.node("c").start()
        await stage.until(lambda: ("c", Step.AHEAD_ASKED) in stage.struck, 120)
        await stage.until(lambda: stage.ring.settled_node(stage.node("c")), 600)
        assert copied(stage, "c") == []
        await stage.settle()

    story(tell)


def test_donor_that_dies_in_the_midst_is_replaced_by_another_one() -> None:
    async def tell(stage: Stage) -> None:
        await two_missed(stage, "t", "u")

        def donor_dies(node: Node) -> None:
            stage.node(donor_of(node)).kill()

        stage.at("c", Step.COPIED_TABLE, donor_dies)
        stage.node("c").start()
        await stage.until(lambda: len(records(stage)) == 2, 300)
        await stage.until(lambda: stage.alive_state("c") is State.READY, 300)
        await stage.settle()
        assert {record.donor for record in records(stage)} == {"a", "b"}
        assert set(copied(stage, "c")) == {"t", "u"}

    story(tell)


def test_ddl_that_comes_before_another_donor_is_found_has_the_whole_cluster_copied() -> None:
    async def tell(stage: Stage) -> None:
        await two_missed(stage, "t", "u", "v")
        stage.at("c", Step.COPIED_TABLE, Node.kill)
        stage.node("c").start()
        await stage.until(lambda: ("c", Step.COPIED_TABLE) in stage.struck, 300)
        donor = records(stage)[0].donor
        await stage.submit("ab".replace(donor, ""), ddl("a", "new", "CREATE TABLE new (x)"))
        stage.node(donor).kill()
        stage.node("c").start()
        await stage.until(lambda: stage.alive_state("c") is State.READY, 300)
        await stage.settle()
        assert not records(stage)[-1].tables and "v" in copied(stage, "c")

    story(tell)


def test_two_clusters_that_catch_up_at_once() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage, "t", "u")
        await missed(stage, "b", "c")
        slow(stage, "b", "c")
        stage.node("b").start()
        stage.node("c").start()
        await stage.settle()
        assert copied(stage, "b") == copied(stage, "c") == ["t"]

    story(tell)


async def verification(stage: Stage) -> None:
    await stage.operators("a").verify()


async def definition(stage: Stage) -> None:
    await stage.submit("a", operation("drop", Kind.DROP_TABLE, "DROP TABLE t", "a"))
    await stage.submit("a", ddl("a", "again"))


async def unknown(stage: Stage) -> None:
    op = replace(insert("unknown", "u", "a"), tables_known=False, writes=frozenset())
    await stage.submit("a", op)


@pytest.mark.parametrize("hinders", [verification, definition, unknown])
def test_backlog_with_what_hinders_a_copy_is_replayed(
    hinders: Callable[[Stage], Awaitable[None]],
) -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage, "t", "u")
        await missed(stage, "c")
        await hinders(stage)
        slow(stage, "c")
        stage.node("c").start()
        await stage.until(lambda: stage.ring.settled_node(stage.node("c")), 600)
        await stage.settle()
        assert records(stage) == []

    story(tell)


def test_backlog_that_is_hindered_behind_the_choice_is_replayed() -> None:
    """The record is in the log by then; nothing is touched."""

    async def tell(stage: Stage) -> None:
        await tables(stage, "t", "u")
        await missed(stage, "c")
        slow(stage, "c")
        stage.node("c").start()
        replica = stage.replica("c")
        append_ = replica.core.own_log.append

        async def late(*messages: object) -> int:
            if isinstance(messages[0], Copy):
                await definition(stage)
            return await append_(*messages)  # type: ignore[arg-type]

        object.__setattr__(replica.core.own_log, "append", late)
        await stage.until(lambda: bool(records(stage)), 120)
        await stage.until(lambda: stage.ring.settled_node(stage.node("c")), 600)
        await stage.settle()
        assert copied(stage, "c") == []

    story(tell)


def test_runs_with_every_kind_of_fault_keep_the_promises() -> None:
    found = [judged(lambda seed: simulate_ahead(seed)[0], seed) for seed in range(SEEDS)]
    assert [(r.seed, r.problems[:3]) for r in found if r.problems] == []
    assert sum(report.steps.get(Step.AHEAD_ASKED, 0) for report in found) > 0
    assert sum(report.steps.get(Step.COPIED, 0) for report in found) > 0


def not_closed(patch: pytest.MonkeyPatch) -> None:
    """Copy a table without those that are written from it."""
    patch.setattr(Backlog, "_with_written", lambda self, table: frozenset({table}))
    patch.setattr(Backlog, "hindrance", lambda self, tables: "")


def passed_over_too_far(patch: pytest.MonkeyPatch) -> None:
    """Pass over what the copies have not."""
    original = CopiedAhead.stands_for

    def further(self: CopiedAhead, offset: int, op: Operation) -> bool:
        return original(replace(self, marker=self.marker + 9), offset, op)

    patch.setattr(CopiedAhead, "stands_for", further)


@pytest.mark.parametrize("break_rule", [not_closed, passed_over_too_far])
def test_rule_broken_on_purpose_is_found(
    break_rule: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)
    found_by(lambda: story(mixed), Violation.UNEQUAL)


def test_rebuild_that_is_asked_for_meanwhile_knows_that_tables_were_touched() -> None:
    """Else it could be withdrawn, and would leave them as they are."""

    async def tell(stage: Stage) -> None:
        await tables(stage, "t")
        await missed(stage, "c")
        slow(stage, "c")
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
        assert not records(stage)[-1].tables

    story(tell)


def test_spare_that_copied_a_table_behind_its_place_does_not_take_the_donors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """b copies the donor, which dies; in the spare t was copied ahead meanwhile."""

    async def tell(stage: Stage) -> None:
        await tables(stage, "t", "u")
        slow(stage, "a", "c")
        for n in range(MANY):
            await stage.submit("b", append(f"before{n}", "t", "b"))
        await stage.operators("b").rebuild("b", "")
        await stage.until(lambda: bool(records(stage)), 300)
        donor, spare = records(stage)[0].donor, records(stage)[0].spare
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

    story(tell)


def test_storage_that_cannot_be_read_is_found_before_a_table_is_touched() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage, "t", "u")
        stage.ring.storage = {name: ((f"/{name}", "/mnt/elsewhere"),) for name in "abc"}
        await missed(stage, "c")
        slow(stage, "c")
        stage.node("c").start()
        await stage.until(lambda: bool(records(stage)), 600)
        await stage.until(lambda: stage.ring.settled_node(stage.node("c")), 600)
        await stage.settle()
        assert copied(stage, "c") == []

    story(tell)


def test_donor_whose_files_cannot_be_read_is_replaced_by_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, bad = SimCopies.read_file_part, list[str]()

    async def read(self: SimCopies, location: str, *part: Any) -> tuple[int, bytes]:
        bad[:] = bad or [self._spark.name]
        if self._spark.name == bad[0] and "t@" in location:
            raise EngineError(ErrorKind.APPLICATION, "a file is gone")
        return await original(self, location, *part)

    monkeypatch.setattr(SimCopies, "read_file_part", read)

    async def tell(stage: Stage) -> None:
        await tables(stage, "t", "u")
        await missed(stage, "c")
        slow(stage, "c")
        stage.node("c").start()
        await stage.until(lambda: stage.alive_state("c") is State.READY, 600)
        assert copied(stage, "c") == ["t"]
        assert [record.donor for record in records(stage)] == [*bad, *{*"ab"} - {*bad}]

    story(tell)


def test_copy_of_the_whole_cluster_behind_touched_tables_cannot_be_withdrawn() -> None:
    async def tell(stage: Stage) -> None:
        await two_missed(stage, "t", "u", "v")
        donors, asked = list[str](), list[str]()

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
            asked.append(failed)
            stage.node(other).kill()
            return await chosen(wanted, failed)

        receiver._chosen = nobody_is_left  # type: ignore[method-assign]
        await stage.until(lambda: bool(asked), 600)
        with pytest.raises(RequestError):
            stage.operators("c").withdraw("c")
        await asyncio.sleep(20)
        await stage.settle()

    story(tell)
