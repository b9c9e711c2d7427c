"""Tests of finality: when a rejection on one cluster holds for all clusters."""

from __future__ import annotations

import asyncio

from haproc.classify.model import Kind
from haproc.replicate.agree.revoking import is_final
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus
from haproc.replicate.records.operation import Operation
from tests.simulation.directed import Stage, as_story, ddl
from tests.simulation.scenario import operation

SQL = "INSERT INTO t VALUES ('piece 0')"
PIECE = operation("L.0", Kind.INSERT, SQL, "a")


async def rejected(stage: Stage, *clusters: str, wants: Operation = PIECE) -> OperationOutcome:
    """Submit an operation that fails on these clusters; the others run a long statement."""
    await stage.submit("a", ddl("a"))
    await stage.settle()
    for name in "abc":
        spark = stage.node(name).spark
        spark.refuses.add(SQL) if name in clusters else spark.held.add("t")
    return await stage.submit("a", wants)


async def final(stage: Stage, name: str = "a") -> bool:
    core = stage.replica(name).core
    found_outcome = core.outcomes.find(PIECE.key)
    assert found_outcome is not None
    return await is_final(core, found_outcome.offset, 1.0)


@as_story()
async def test_error_of_one_cluster_is_not_final_while_others_may_apply_the_operation(
    stage: Stage,
) -> None:
    outcome = await rejected(stage, "a")
    assert outcome.status is OutcomeStatus.FAILED
    await asyncio.sleep(5)
    assert not await final(stage)
    for name in "bc":
        stage.node(name).spark.held.clear()
    await asyncio.sleep(30)
    assert stage.node("b").spark.dump()["t"] == [("piece 0",)]
    assert not await final(stage)


@as_story()
async def test_error_that_all_clusters_have_reported_is_final(stage: Stage) -> None:
    await rejected(stage, "a", "b")
    await asyncio.sleep(5)
    assert not await final(stage), "c has not come so far"
    stage.node("c").spark.refuses.add(SQL)
    stage.node("c").spark.held.clear()
    await asyncio.sleep(5)
    assert [await final(stage, name) for name in "abc"] == [True, True, True]
    stage.ring.store.cursors.pop("b")
    assert not await final(stage)


@as_story()
async def test_error_that_an_earlier_process_reported_is_not_final(stage: Stage) -> None:
    """It may have died before it stored its progress, and the next process may have succeeded."""
    await rejected(stage, "a", "b", "c")
    await asyncio.sleep(5)
    assert await final(stage)
    stage.node("c").restart()
    await asyncio.sleep(30)
    assert stage.report_of("c") is not None and not await final(stage)


@as_story()
async def test_reject_decision_in_the_log_is_final_at_once(stage: Stage) -> None:
    made = ddl("a", "L.0", SQL)
    outcome = await rejected(stage, "a", wants=made)
    assert outcome.status is OutcomeStatus.REJECTED
    core = stage.replica("a").core
    found_outcome = core.outcomes.find(made.key)
    assert found_outcome is not None and await is_final(core, found_outcome.offset, 1.0)
