"""Operations that somebody wants back: taken back everywhere, or nowhere.

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
from tests.simulation.directed import Stage, ddl, story
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
    """Two tables, one with a row; from here on each statement takes for ever."""
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
    """Send it, and wait until it is in the log; return its offset, and who waits for it."""
    at = stage.ring.store.end
    waiting = asyncio.ensure_future(stage.submit(name, op, CLIENT_S))
    await stage.until(lambda: stage.ring.store.end > at)
    await asyncio.sleep(3)  # and it runs
    return at, waiting


async def revoke(stage: Stage, name: str, offset: int) -> Revoked:
    return await stage.replica(name).revoking.revoke(offset, "its sender")


def taken_back(outcome: OperationOutcome) -> None:
    assert outcome.status is OutcomeStatus.REJECTED
    assert outcome.failure is not None and outcome.failure.error_class == ErrorClass.REVOKED
    assert outcome.failure.sqlstate == "57014" and "its sender" in outcome.failure.message


def test_what_runs_everywhere_is_stopped_and_taken_back_within_seconds() -> None:
    async def tell(stage: Stage) -> None:
        await begin(stage)
        slow(stage, *"abc")
        offset, waiting = await send(stage, update())
        before = stage.now
        assert (await revoke(stage, "b", offset)).fate is Fate.REVOKED
        assert stage.now - before < 3
        taken_back(await waiting)
        slow(stage)
        await stage.submit("b", insert("two", "t", "b"))
        await stage.settle()
        assert rows(stage, "c") == ["one", "two"]
        assert all(stage.state(name) is State.READY for name in "abc")

    story(tell, timeouts=PATIENT)


def test_what_holds_all_cores_is_taken_back_though_spark_reads_no_history_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def no_core(self: SimEngine, named: Sequence[Named]) -> str:
        await asyncio.sleep(10 * REVOKE_WAIT_S)
        raise EngineError(ErrorKind.AVAILABILITY, "no answer")

    async def tell(stage: Stage) -> None:
        await begin(stage)
        monkeypatch.setattr(SimEngine, "object_fingerprint", no_core)
        slow(stage, *"abc")
        offset, waiting = await send(stage, update())
        assert (await revoke(stage, "a", offset)).fate is Fate.REVOKED
        taken_back(await waiting)
        slow(stage)
        await stage.settle()

    story(tell, timeouts=PATIENT)


def test_whether_a_table_keeps_marks_is_asked_once_until_it_is_defined_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Counter[str]()
    original = SimEngine.keeps_marks

    async def counted(self: SimEngine, table: str) -> bool:
        asked[table] += 1
        return await original(self, table)

    monkeypatch.setattr(SimEngine, "keeps_marks", counted)

    async def tell(stage: Stage) -> None:
        await begin(stage)
        for number in range(3):
            await stage.submit("a", update(f"u{number}"))
        await stage.settle()
        assert asked == {"t": 3}  # each cluster for itself
        await stage.submit("a", ddl("a", "anew", ALTER, writes=frozenset({"t"})))
        await stage.submit("a", update("last"))
        await stage.settle()
        assert asked == {"t": 6}

    story(tell, timeouts=PATIENT)


def test_what_waits_is_taken_back_and_what_runs_before_it_goes_on() -> None:
    async def tell(stage: Stage) -> None:
        await begin(stage)
        slow(stage, *"abc")
        _, first = await send(stage, update("first"))
        offset, second = await send(stage, update("second"), "b")
        before = stage.now
        assert (await revoke(stage, "c", offset)).fate is Fate.REVOKED
        taken_back(await second)
        assert stage.now - before < 3
        slow(stage)
        assert (await first).status is OutcomeStatus.APPLIED
        await stage.settle()
        assert rows(stage, "b") == ["one!"]

    story(tell, timeouts=PATIENT)


def test_one_that_was_committed_anywhere_stands_and_the_others_run_it() -> None:
    async def tell(stage: Stage) -> None:
        await begin(stage)
        slow(stage, *"ab")
        offset, waiting = await send(stage, update())
        assert rows(stage, "c") == ["one!"]
        assert (await revoke(stage, "a", offset)).fate is Fate.COMMITTED
        for name in "ac":
            told = await stage.replica(name).operators.revoke(offset, "slow", ())
            assert told["status"] == "committed"
        slow(stage)
        assert (await waiting).status is OutcomeStatus.APPLIED
        await stage.settle()
        assert kinds(stage, Abandon) == kinds(stage, Revoke) == []

    story(tell, timeouts=PATIENT)


def test_wish_that_meets_a_commit_is_void_and_those_who_stopped_run_it_again() -> None:
    async def tell(stage: Stage) -> None:
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
        done = [m for m in stage.messages() if isinstance(m, VoteWithdrawal) and m.done]
        assert [m.cluster for m in done] == ["c"]
        assert kinds(stage, Abandon) == []
        assert rows(stage, "a") == ["one!"]

    story(tell, timeouts=PATIENT)


def test_process_that_begins_does_not_take_for_committed_what_it_has_yet_to_hear_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its cursor is beyond what was taken back, but not beyond the record that says so."""
    hear = PoisonRejection.replay_votes

    async def hear_later(self: PoisonRejection, end: int) -> None:
        await asyncio.sleep(5)
        await hear(self, end)

    async def tell(stage: Stage) -> None:
        await begin(stage)
        slow(stage, "c")
        stage.node("a").spark.query_s = SLOW_S
        op = computed("x", Kind.INSERT, "INSERT INTO v ", "SELECT 'x' AS x FROM v", "a", "v", "v")
        offset, taken = await send(stage, op)
        _, behind = await send(stage, update("behind"))
        assert (await revoke(stage, "a", offset)).fate is Fate.REVOKED
        taken_back(await taken)
        await behind
        stored = stage.replica("c").core
        await asyncio.sleep(1)
        await stored.store()
        assert stored.schedule.low == offset + 1, "its cursor is where this is about it"
        stage.node("c").kill()
        monkeypatch.setattr(PoisonRejection, "replay_votes", hear_later)
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

    story(tell, timeouts=PATIENT)


def test_ddl_that_its_origin_runs_is_rejected_by_it_alone() -> None:
    async def tell(stage: Stage) -> None:
        await begin(stage)
        slow(stage, *"abc")
        offset, waiting = await send(stage, ddl("a", "make", CREATE_U))
        behind = asyncio.ensure_future(stage.submit("b", insert("two", "v", "b"), CLIENT_S))
        stage.node("c").kill()
        assert (await revoke(stage, "b", offset)).fate is Fate.REVOKED
        taken_back(await waiting)
        slow(stage)
        assert (await behind).status is OutcomeStatus.APPLIED
        assert ("a", "reject") in stage.decisions()
        await stage.settle()
        assert stage.tables("a") == {"t", "v"}
        await stage.submit("c", ddl("c", "again", CREATE_U))
        await stage.settle()

    story(tell, timeouts=PATIENT)


def test_member_that_is_away_may_have_applied_it_so_nothing_is_stopped() -> None:
    async def tell(stage: Stage) -> None:
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

    story(tell, timeouts=PATIENT)


def test_wish_that_not_all_answer_is_void_after_a_while_and_it_goes_on() -> None:
    async def tell(stage: Stage) -> None:
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

    story(tell, timeouts=PATIENT)


def test_one_of_a_combined_statement_is_taken_back_alone() -> None:
    async def tell(stage: Stage) -> None:
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

    story(tell, timeouts=PATIENT)


def test_operation_whose_budget_is_spent_is_taken_back_by_the_ring() -> None:
    async def tell(stage: Stage) -> None:
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

    story(tell, timeouts=PATIENT)


def test_budget_that_only_one_cluster_exceeds_does_not_stop_it_there() -> None:
    async def tell(stage: Stage) -> None:
        await begin(stage)
        slow(stage, "c")
        assert (await stage.submit("a", update(apply_budget_s=20))).status is OutcomeStatus.APPLIED
        await asyncio.sleep(SLOW_S + 60)
        await stage.settle()
        assert rows(stage, "c") == ["one!"]
        assert kinds(stage, Revoke) == []  # the others have applied it

    story(tell, timeouts=PATIENT)


def kill(node: Node) -> None:
    node.kill()


@pytest.mark.parametrize("step", [Step.UNABLE_AFTER, Step.ABANDON_BEFORE])
@pytest.mark.parametrize("seed", range(3))
def test_process_that_dies_in_between_leaves_it_taken_back_or_applied(
    step: Step, seed: int
) -> None:
    async def tell(stage: Stage) -> None:
        await begin(stage)
        slow(stage, *"abc")
        offset, waiting = await send(stage, update())
        for name in "abc":
            stage.at(name, step, *([kill] if name == "abc"[seed] else []))
        asked = "abc"[(seed + 1) % 3]
        asking = asyncio.ensure_future(revoke(stage, asked, offset))
        await asyncio.sleep(5)
        for node in stage.ring.nodes.values():
            node.start()
        fate = (await asking).fate
        await asyncio.gather(waiting, return_exceptions=True)
        slow(stage)
        await stage.settle()
        applied = rows(stage, "a") == ["one!"]
        assert fate is not (Fate.REVOKED if applied else Fate.COMMITTED)

    story(tell, seed, timeouts=PATIENT)


def test_whole_ring_restarted_with_an_open_wish_settles_it() -> None:
    async def tell(stage: Stage) -> None:
        await begin(stage)
        slow(stage, *"abc")
        await send(stage, update())
        for name in "abc":
            stage.at(name, Step.UNABLE_AFTER, kill)
        offset = stage.replica("a").core.outcomes.find(("anonymous", "slow"))
        assert offset is not None
        asking = asyncio.ensure_future(revoke(stage, "a", offset.offset))
        await stage.until(lambda: not any(n.alive for n in stage.ring.nodes.values()))
        asking.cancel()
        slow(stage)
        await stage.settle()
        assert rows(stage, "a") == ["one"]
        taken_back(await stage.submit("b", update()))

    story(tell, timeouts=PATIENT)
