"""Tests of mechanisms together: rejected, computed and doubtful operations, and leaving members.

Docs: docs/proofs/exactly-once.md and the others in docs/proofs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from haproc.classify.model import Kind
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Named
from haproc.failure import ErrorClass, RequestError
from haproc.membership.state import Cause, Divergence, State
from haproc.replicate.apply import computing
from haproc.replicate.apply.materialise import ComputedRows
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.records.control import Abandon
from haproc.replicate.records.rows import Passed
from tests.simulation.computed import gather, make, of_session
from tests.simulation.directed import Stage, as_story, ddl
from tests.simulation.network import Refused
from tests.simulation.ring import MEMBERSHIP, Node
from tests.simulation.scenario import insert, operation
from tests.simulation.spark import SimEngine, SimSpark
from tests.simulation.test_computed import rows_records, seen, tables
from tests.simulation.test_poison import rows
from tests.simulation.test_poison_rejection import (
    LONG_S,
    PATIENT,
    begin,
    given_up,
    kinds,
    patient,
    revoke,
    sent,
)
from tests.simulation.test_storage import away_for

# -- what is given up --------------------------------------------------------------------------


@as_story()
async def test_cluster_with_a_rejected_operation_above_its_cursor_knows_it_after_a_restart(
    stage: Stage,
) -> None:
    await stage.submit("a", operation("u", Kind.CREATE_TABLE, "CREATE TABLE u (x)", "a"))
    await begin(stage, *"abc")
    stage.node("b").spark.held.add("u")
    slow = asyncio.ensure_future(stage.submit("a", insert("slow", "u", "a"), LONG_S))
    await asyncio.sleep(1)
    at = await sent(stage)
    await stage.until(lambda: bool(kinds(stage, Abandon)), LONG_S)
    await stage.until(lambda: stage.state("a") is State.READY, LONG_S)
    await stage.submit("a", insert("two", "t", "a"), LONG_S)
    await stage.until(lambda: rows(stage, "b") == ["one", "two"], LONG_S)
    await asyncio.sleep(3)
    assert stage.replica("b").core.schedule.low < at
    stage.node("b").kill()
    await slow
    stage.node("b").spark.held.clear()
    await stage.settle()
    await given_up(stage, "b")


@as_story(timeouts=PATIENT)
async def test_operation_from_before_a_dead_member_left_is_revoked_if_an_operator_vouches(
    stage: Stage,
) -> None:
    offset = await patient(stage)
    stage.node("c").kill()
    await asyncio.sleep(1.5 * MEMBERSHIP.window_s)  # a is not STUCK yet
    await stage.replica("a").admission.leave("c")
    await asyncio.sleep(3)
    assert await revoke(stage, "a", offset, "c") == "revoked"
    with pytest.raises(RequestError, match="no peer d"):
        await stage.operators("a")._vouched(["d"], offset)
    await stage.ready("a", "b")


@as_story()
async def test_ddl_whose_objects_no_cluster_can_look_up_is_rejected(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = SimEngine.object_fingerprint

    async def object_fingerprint(self: SimEngine, named: Sequence[Named]) -> str:
        if any("unread" in each.name for each in named):
            raise EngineError(ErrorKind.ENVIRONMENT, "out of memory", error_class="OOM")
        return await original(self, named)

    monkeypatch.setattr(SimEngine, "object_fingerprint", object_fingerprint)

    op = ddl("a", "poison", "CREATE TABLE unread (x)", writes=frozenset({"unread"}))
    with pytest.raises(RequestError):
        await stage.submit("a", op, 5)
    await stage.until(lambda: bool(kinds(stage, Abandon)), LONG_S)
    await stage.settle()
    assert (await stage.submit("b", op)).status is OutcomeStatus.REJECTED


# -- computed ----------------------------------------------------------------------------------


@as_story(timeouts=PATIENT)
async def test_computed_write_on_a_ring_of_diverged_clusters_is_rejected_before_a_verification(
    stage: Stage,
) -> None:
    await tables(stage)
    at, bad = stage.ring.store.end, "UPDATE ids SET id = id || '!'"
    for name in "abc":
        stage.node(name).spark.poison = {bad}
    op = operation("bad", Kind.UPDATE, bad, "a", writes=frozenset({"ids"}))
    for each in (op, gather("g", "a")):
        with pytest.raises(RequestError):
            await stage.submit("a", each, 2)
    await stage.until(lambda: all(stage.state(n) is State.STUCK for n in "abc"), LONG_S)
    for name in "abc":
        await stage.operators(name).skip(name, at, "")
    await stage.verify("a")
    await stage.settle()
    outcome = await stage.submit("b", gather("g", "a"))
    assert outcome.failure is not None and outcome.failure.error_class == ErrorClass.NO_ROWS


@pytest.mark.parametrize("step", [Step.APPLY_BEFORE, Step.APPLY_AFTER, Step.CURSOR_AFTER])
@pytest.mark.parametrize("who", ["a", "b"])
@as_story()
async def test_computed_create_whose_cluster_dies_at_any_step_leaves_all_clusters_equal(
    stage: Stage, who: str, step: Step
) -> None:
    await tables(stage)
    stage.at(who, step, Node.kill)
    with contextlib.suppress(Refused, RequestError):
        await stage.submit("a", make("m", "a", "made"), 10)
    await stage.settle()
    assert "made" in stage.tables("c")


@as_story()
async def test_computed_create_whose_answer_is_lost_is_not_run_again(stage: Stage) -> None:
    await tables(stage)
    spark, died = stage.node("a").spark, list[str]()

    def die(cluster: str, sql: str) -> None:
        if sql.startswith("CREATE TABLE made") and not died:
            died.append(sql)
            spark.kill()
            asyncio.get_running_loop().call_later(3, spark.restart)

    spark.on_commit = die
    with contextlib.suppress(RequestError):
        await stage.submit("a", make("m", "a", "made"), 10)
    await stage.settle()
    assert died and "made" in stage.tables("c")


@pytest.mark.parametrize("empty", [False, True])
@as_story()
async def test_query_that_runs_while_storage_is_away_is_computed_again(
    stage: Stage, empty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tables are then not found, or have no rows."""

    original = SimSpark.read

    async def read(
        self: SimSpark, sql: str, *table: Any
    ) -> tuple[list[str], list[tuple[object, ...]]]:
        names, found = await original(self, sql, *table)
        if self.storage_away and not empty:
            raise EngineError(
                ErrorKind.APPLICATION, "no table", error_class="DELTA_TABLE_NOT_FOUND"
            )
        return names, [] if self.storage_away else found

    monkeypatch.setattr(SimSpark, "read", read)

    await tables(stage)
    stage.at("a", Step.ROWS_BEFORE, away_for(3))
    with contextlib.suppress(RequestError):
        await stage.submit("a", gather("g", "a"))
    await stage.settle()
    assert seen(stage, "b", "g") == ["one"]


@as_story()
async def test_memory_error_of_one_process_makes_another_cluster_compute_the_rows(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, failed = computing.materialise, list[bool]()  # type: ignore[attr-defined]

    async def materialise(*values: Any) -> ComputedRows:
        if not failed:
            failed.append(True)
            raise MemoryError
        return await original(*values)

    monkeypatch.setattr(computing, "materialise", materialise)

    await tables(stage)
    await stage.apply("a", gather("g", "a"))
    assert [m.by for m in stage.records(Passed)] == ["a"]
    assert [m.by for m in rows_records(stage)] == ["b"]
    await stage.settle()


@pytest.mark.parametrize("step", [Step.ROWS_BEFORE, None])
@as_story()
async def test_query_of_a_session_that_was_lost_and_rebuilt_is_rejected(
    stage: Stage, step: Step | None
) -> None:
    await tables(stage)
    op, reading = of_session("g", "a"), stage.reading("a")

    def lost(_: Node | None) -> None:
        reading.epoch += 1

    stage.replica("a").computing.attach_session(op.key, reading)
    if step is not None:
        stage.at("a", step, lost)
    else:
        lost(None)
        stage.replica("a").computing.attach_session(op.key, reading)  # by a retry
    outcome = await stage.submit("a", op)
    assert outcome.failure is not None and outcome.failure.error_class == ErrorClass.SESSION_GONE
    await stage.settle()


@as_story()
async def test_query_of_a_session_that_fails_for_a_moment_is_retried_in_it(
    stage: Stage,
) -> None:
    await tables(stage)
    op = of_session("g", "a")
    stage.replica("a").computing.attach_session(op.key, stage.reading("a"))

    def rate(rate: float) -> Callable[[Node], None]:
        return lambda node: setattr(node.spark, "environment_error_rate", rate)

    stage.at("a", Step.ROWS_BEFORE, rate(1.0), rate(0.0))
    await stage.apply("a", op)
    assert [m.by for m in stage.records(Passed)] == ["a"]
    await stage.settle()


@as_story()
async def test_query_of_a_session_that_always_fails_is_rejected_by_its_origin(stage: Stage) -> None:
    await tables(stage)
    op = of_session("g", "a")
    stage.replica("a").computing.attach_session(op.key, stage.reading("a"))
    stage.node("a").spark.poison_word = "SELECT 'g'"
    outcome = await stage.submit("a", op, LONG_S)
    assert outcome.failure is not None and outcome.failure.error_class == "OOM"
    assert {m.by for m in rows_records(stage)} == {"a"}
    await stage.settle()


@as_story()
async def test_cluster_that_becomes_diverged_while_it_computes_gives_no_rows(
    stage: Stage,
) -> None:
    await tables(stage)
    stage.node("a").spark.query_s = 3
    at = stage.replica("a").core.schedule.low

    def differs(node: Node) -> None:
        assert node.replica is not None
        node.replica.core.diverge(Divergence(at, Cause.SKIPPED, applies=True))

    stage.at("a", Step.ROWS_COMPUTED, differs)
    with contextlib.suppress(RequestError):
        await stage.submit("a", gather("g", "a"))
    await stage.apply("b", gather("g", "a"))
    assert "a" not in {message.by for message in rows_records(stage)}
