"""Tests of revoking an operation: it is revoked on every cluster, or on none.

Docs: docs/proofs/fences.md, "Taking back".
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from haproc.classify.model import Kind
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Named
from haproc.failure import ErrorClass, RequestError
from haproc.membership.state import State
from haproc.replicate.agree.poison_rejection import REVOKE_WAIT_S, PoisonRejection
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.facts import Fate, Revoked
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus
from haproc.replicate.records.control import Abandon, Revoke, VoteWithdrawal
from haproc.replicate.records.operation import Operation
from tests.simulation.computed import computed
from tests.simulation.directed import Stage, as_story, ddl, story
from tests.simulation.ring import MEMBERSHIP, TIMEOUTS, Node
from tests.simulation.scenario import insert, operation
from tests.simulation.spark import SimEngine
from tests.simulation.test_poison import rows
from tests.simulation.test_poison_rejection import kinds

SLOW_S = 100
CLIENT_S = 1000
PATIENT = replace(TIMEOUTS, apply_s=3600)
UPDATE = "UPDATE t SET x = x || '!'"
CREATE_U = "CREATE TABLE u (x)"
ALTER = "ALTER TABLE t ADD COLUMN y"


def update(op_id: str = "slow", origin: str = "a", **fields: object) -> Operation:
    return operation(op_id, Kind.UPDATE, UPDATE, origin, writes=frozenset({"t"}), **fields)


async def begin(stage: Stage) -> None:
    """Make two tables, one of them with a row, and wait until all clusters are ready."""
    await stage.submit("a", ddl("a"))
    await stage.submit("a", ddl("a", "other", "CREATE TABLE v (x)"))
    await stage.submit("a", insert("one", "t", "a"))
    await stage.ready(*"abc")


def slow(stage: Stage, *names: str) -> None:
    for node in stage.ring.nodes.values():
        node.spark.statement_s = SLOW_S if node.name in names else 0


async def send(
    stage: Stage, op: Operation, name: str = "a"
) -> tuple[int, asyncio.Future[OperationOutcome]]:
    """Submit an operation and wait until it is in the log; return its offset and the waiting
    task.
    """
    at = stage.ring.store.end
    waiting = asyncio.ensure_future(stage.submit(name, op, CLIENT_S))
    await stage.until(lambda: stage.ring.store.end > at)
    await asyncio.sleep(3)  # and it runs
    return at, waiting


async def revoke(stage: Stage, name: str, offset: int) -> Revoked:
    return await stage.replica(name).revoking.revoke(offset, "its sender")


def assert_revoked(outcome: OperationOutcome) -> None:
    assert outcome.status is OutcomeStatus.REJECTED
    assert outcome.failure is not None and outcome.failure.error_class == ErrorClass.REVOKED
    assert outcome.failure.sqlstate == "57014" and "its sender" in outcome.failure.message


@as_story(timeouts=PATIENT)
async def test_operation_that_runs_on_all_clusters_is_stopped_and_revoked_within_seconds(
    stage: Stage,
) -> None:
    await begin(stage)
    slow(stage, *"abc")
    offset, waiting = await send(stage, update())
    before = stage.now
    assert (await revoke(stage, "b", offset)).fate is Fate.REVOKED
    assert stage.now - before < 3
    assert_revoked(await waiting)
    slow(stage)
    await stage.submit("b", insert("two", "t", "b"))
    await stage.settle()
    assert rows(stage, "c") == ["one", "two"]
    assert all(stage.state(name) is State.READY for name in "abc")


@as_story(timeouts=PATIENT)
async def test_revoke_succeeds_while_spark_cannot_read_the_table_history(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_core(self: SimEngine, named: Sequence[Named]) -> str:
        await asyncio.sleep(10 * REVOKE_WAIT_S)
        raise EngineError(ErrorKind.AVAILABILITY, "no answer")

    await begin(stage)
    monkeypatch.setattr(SimEngine, "object_fingerprint", no_core)
    slow(stage, *"abc")
    offset, waiting = await send(stage, update())
    assert (await revoke(stage, "a", offset)).fate is Fate.REVOKED
    assert_revoked(await waiting)
    slow(stage)
    await stage.settle()


@as_story(timeouts=PATIENT)
async def test_marker_support_of_a_table_is_queried_once_per_definition(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    queried = Counter[str]()
    original = SimEngine.keeps_marks

    async def counted(self: SimEngine, table: str) -> bool:
        queried[table] += 1
        return await original(self, table)

    monkeypatch.setattr(SimEngine, "keeps_marks", counted)

    await begin(stage)
    for number in range(3):
        await stage.submit("a", update(f"u{number}"))
    await stage.settle()
    assert queried == {"t": 3}  # each cluster for itself
    await stage.submit("a", ddl("a", "anew", ALTER, writes=frozenset({"t"})))
    await stage.submit("a", update("last"))
    await stage.settle()
    assert queried == {"t": 6}


@as_story(timeouts=PATIENT)
async def test_waiting_operation_is_revoked_and_the_running_one_before_it_completes(
    stage: Stage,
) -> None:
    await begin(stage)
    slow(stage, *"abc")
    _, first = await send(stage, update("first"))
    offset, second = await send(stage, update("second"), "b")
    before = stage.now
    assert (await revoke(stage, "c", offset)).fate is Fate.REVOKED
    assert_revoked(await second)
    assert stage.now - before < 3
    slow(stage)
    assert (await first).status is OutcomeStatus.APPLIED
    await stage.settle()
    assert rows(stage, "b") == ["one!"]


@as_story(timeouts=PATIENT)
async def test_operation_committed_on_one_cluster_is_not_revoked_and_the_others_apply_it(
    stage: Stage,
) -> None:
    await begin(stage)
    slow(stage, *"ab")
    offset, waiting = await send(stage, update())
    assert rows(stage, "c") == ["one!"]
    assert (await revoke(stage, "a", offset)).fate is Fate.COMMITTED
    for name in "ac":
        answer = await stage.replica(name).operators.revoke(offset, "slow", ())
        assert answer["status"] == "committed"
    slow(stage)
    assert (await waiting).status is OutcomeStatus.APPLIED
    await stage.settle()
    assert kinds(stage, Abandon) == kinds(stage, Revoke) == []


@as_story(timeouts=PATIENT)
async def test_revoke_record_that_meets_a_commit_is_void_and_stopped_clusters_apply_the_operation(
    stage: Stage,
) -> None:
    await begin(stage)
    slow(stage, *"ab")
    offset, waiting = await send(stage, update())
    poison_rejection = stage.replica("a").revoking._poison_rejection
    await poison_rejection.append_revoke(
        offset, "slow", "its sender"
    )  # without asking the others first
    slow(stage)
    assert (await waiting).status is OutcomeStatus.APPLIED
    await stage.settle()
    done = [m for m in stage.records(VoteWithdrawal) if m.done]
    assert [m.cluster for m in done] == ["c"]
    assert kinds(stage, Abandon) == []
    assert rows(stage, "a") == ["one!"]


@as_story(timeouts=PATIENT)
async def test_restarted_process_reports_no_fate_of_a_revoked_operation_before_votes_are_replayed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cursor is beyond the revoked operation, but not beyond the record that revokes it."""

    replay = PoisonRejection.replay_votes

    async def replay_later(self: PoisonRejection, end: int) -> None:
        await asyncio.sleep(5)
        await replay(self, end)

    await begin(stage)
    slow(stage, "c")
    stage.node("a").spark.query_s = SLOW_S
    op = computed("x", Kind.INSERT, "INSERT INTO v ", "SELECT 'x' AS x FROM v", "a", "v", "v")
    offset, taken = await send(stage, op)
    _, behind = await send(stage, update("behind"))
    assert (await revoke(stage, "a", offset)).fate is Fate.REVOKED
    assert_revoked(await taken)
    await behind
    stored = stage.replica("c").core
    await asyncio.sleep(1)
    await stored.store()
    assert stored.schedule.low == offset + 1, "its cursor is where this is about it"
    stage.node("c").kill()
    monkeypatch.setattr(PoisonRejection, "replay_votes", replay_later)
    stage.node("c").start()
    seen: list[Revoked | None] = []
    while not seen or seen[-1] is None:
        await asyncio.sleep(0.001)
        again = stage.replica("c")
        if again.core is not stored and again.core.outcomes.at(offset) is not None:
            seen.append(again.revoking.fate(offset))
            assert (await again.outcome(offset)).status in ("pending", "rejected")
    assert seen[0] is None, "it was known at once: this shows nothing"
    assert seen[-1].fate is Fate.REVOKED
    slow(stage)
    stage.node("a").spark.query_s = 0
    await stage.settle()
    assert rows(stage, "c") == ["one!"]


@as_story(timeouts=PATIENT)
async def test_ddl_that_its_origin_runs_is_revoked_by_the_origin_alone(stage: Stage) -> None:
    await begin(stage)
    slow(stage, *"abc")
    offset, waiting = await send(stage, ddl("a", "make", CREATE_U))
    behind = asyncio.ensure_future(stage.submit("b", insert("two", "v", "b"), CLIENT_S))
    stage.node("c").kill()
    assert (await revoke(stage, "b", offset)).fate is Fate.REVOKED
    assert_revoked(await waiting)
    slow(stage)
    assert (await behind).status is OutcomeStatus.APPLIED
    assert ("a", "reject") in stage.decisions()
    await stage.settle()
    assert stage.tables("a") == {"t", "v"}
    await stage.submit("c", ddl("c", "again", CREATE_U))
    await stage.settle()


@as_story(timeouts=PATIENT)
async def test_revoke_while_a_member_is_down_is_refused_and_stops_nothing(stage: Stage) -> None:
    await begin(stage)
    slow(stage, *"ab")
    offset, waiting = await send(stage, update())
    stage.node("c").kill()
    await asyncio.sleep(2 * MEMBERSHIP.window_s)
    with pytest.raises(RequestError, match="c does not answer"):
        await revoke(stage, "a", offset)
    assert kinds(stage, Revoke) == []
    slow(stage)
    assert (await waiting).status is OutcomeStatus.APPLIED
    await stage.settle()


@as_story(timeouts=PATIENT)
async def test_revoke_without_an_answer_of_every_member_expires_and_the_operation_is_applied(
    stage: Stage,
) -> None:
    await begin(stage)
    slow(stage, *"abc")
    offset, waiting = await send(stage, update())
    stage.node("c").freeze()
    found = await revoke(stage, "a", offset)
    assert found.fate is Fate.UNDECIDED
    assert "c does not answer" in found.text
    slow(stage)
    assert (await waiting).status is OutcomeStatus.APPLIED
    stage.node("c").thaw()
    await stage.settle()
    assert rows(stage, "c") == ["one!"]
    assert stage.now > REVOKE_WAIT_S and kinds(stage, Abandon) == []


@as_story(timeouts=PATIENT)
async def test_operation_of_a_combined_statement_is_revoked_alone(stage: Stage) -> None:
    await begin(stage)
    for node in stage.ring.nodes.values():
        node.spark.held.add("v")
    ops = [insert(op_id, "v", "a") for op_id in ("zero", "first", "two", "three")]
    waiting = [asyncio.ensure_future(stage.submit("a", op, CLIENT_S)) for op in ops]
    await asyncio.sleep(3)
    known = stage.replica("a").core.outcomes.find(("anonymous", "two"))
    assert known is not None
    assert (await revoke(stage, "a", known.offset)).fate is Fate.REVOKED
    for node in stage.ring.nodes.values():
        node.spark.held.clear()
    outcomes = await asyncio.gather(*waiting)
    assert [o.status is OutcomeStatus.APPLIED for o in outcomes] == [True, True, False, True]
    await stage.settle()
    assert len(stage.node("c").spark.dump()["v"]) == 3


@as_story(timeouts=PATIENT)
async def test_operation_whose_apply_budget_is_spent_is_revoked_by_the_ring(stage: Stage) -> None:
    await begin(stage)
    slow(stage, *"abc")
    outcome = await stage.submit("a", update(apply_budget_s=20), CLIENT_S)
    assert outcome.failure is not None and outcome.failure.error_class == ErrorClass.REVOKED
    assert "time budget (20 s)" in outcome.failure.message
    assert stage.now < 60
    slow(stage)
    await stage.submit("b", insert("two", "t", "b"))
    await stage.settle()
    assert rows(stage, "c") == ["one", "two"]


@as_story(timeouts=PATIENT)
async def test_apply_budget_exceeded_on_one_cluster_only_does_not_stop_the_operation_there(
    stage: Stage,
) -> None:
    await begin(stage)
    slow(stage, "c")
    await stage.apply("a", update(apply_budget_s=20))
    await asyncio.sleep(SLOW_S + 60)
    await stage.settle()
    assert rows(stage, "c") == ["one!"]
    assert kinds(stage, Revoke) == []  # the others have applied it


@pytest.mark.parametrize("step", [Step.UNABLE_AFTER, Step.ABANDON_BEFORE])
@pytest.mark.parametrize("seed", range(3))
def test_process_death_during_a_revoke_leaves_the_operation_revoked_or_applied(
    step: Step, seed: int
) -> None:
    async def script(stage: Stage) -> None:
        await begin(stage)
        slow(stage, *"abc")
        offset, waiting = await send(stage, update())
        for name in "abc":
            stage.at(name, step, *([Node.kill] if name == "abc"[seed] else []))
        queried = "abc"[(seed + 1) % 3]
        asking = asyncio.ensure_future(revoke(stage, queried, offset))
        await asyncio.sleep(5)
        for node in stage.ring.nodes.values():
            node.start()
        fate = (await asking).fate
        await asyncio.gather(waiting, return_exceptions=True)
        slow(stage)
        await stage.settle()
        applied = rows(stage, "a") == ["one!"]
        assert fate is not (Fate.REVOKED if applied else Fate.COMMITTED)

    story(script, seed, timeouts=PATIENT)


@as_story(timeouts=PATIENT)
async def test_restart_of_the_whole_ring_with_an_open_revoke_revokes_the_operation(
    stage: Stage,
) -> None:
    await begin(stage)
    slow(stage, *"abc")
    await send(stage, update())
    for name in "abc":
        stage.at(name, Step.UNABLE_AFTER, Node.kill)
    offset = stage.replica("a").core.outcomes.find(("anonymous", "slow"))
    assert offset is not None
    asking = asyncio.ensure_future(revoke(stage, "a", offset.offset))
    await stage.until(lambda: not any(n.alive for n in stage.ring.nodes.values()))
    asking.cancel()
    slow(stage)
    await stage.settle()
    assert rows(stage, "a") == ["one"]
    assert_revoked(await stage.submit("b", update()))
