"""When an operation that was rejected on one cluster counts as rejected on all of them."""

from __future__ import annotations

import asyncio

from haproc.classify.model import Kind
from haproc.replicate.agree.revoking import is_final
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus
from haproc.replicate.records.operation import Operation
from tests.simulation.directed import Stage, ddl, story
from tests.simulation.scenario import operation

SQL = "INSERT INTO t VALUES ('piece 0')"
PIECE = operation("L.0", Kind.INSERT, SQL, "a")


async def rejected(stage: Stage, *clusters: str, wants: Operation = PIECE) -> OperationOutcome:
    """Have an operation that meets an error on these clusters; the others are at something long."""
    await stage.submit("a", ddl("a"))
    await stage.settle()
    for name in "abc":
        spark = stage.node(name).spark
        spark.refuses.add(SQL) if name in clusters else spark.held.add("t")
    return await stage.submit("a", wants)


async def final(stage: Stage, name: str = "a") -> bool:
    core = stage.replica(name).core
    known = core.outcomes.find(PIECE.key)
    assert known is not None
    return await is_final(core, known.offset, 1.0)


def test_error_of_one_cluster_is_not_final_while_others_may_yet_apply_it() -> None:
    async def tell(stage: Stage) -> None:
        outcome = await rejected(stage, "a")
        assert outcome.status is OutcomeStatus.FAILED
        await asyncio.sleep(5)
        assert not await final(stage)
        for name in "bc":
            stage.node(name).spark.held.clear()
        await asyncio.sleep(30)
        assert stage.node("b").spark.dump()["t"] == [("piece 0",)]
        assert not await final(stage)

    story(tell)


def test_error_that_every_cluster_has_met_is_final() -> None:
    async def tell(stage: Stage) -> None:
        await rejected(stage, "a", "b")
        await asyncio.sleep(5)
        assert not await final(stage), "c has not come so far"
        stage.node("c").spark.refuses.add(SQL)
        stage.node("c").spark.held.clear()
        await asyncio.sleep(5)
        assert [await final(stage, name) for name in "abc"] == [True, True, True]
        stage.ring.store.cursors.pop("b")
        assert not await final(stage)

    story(tell)


def test_error_that_an_earlier_process_reported_is_not_final() -> None:
    """It may have died before it stored its progress, and the next one have succeeded."""

    async def tell(stage: Stage) -> None:
        await rejected(stage, "a", "b", "c")
        await asyncio.sleep(5)
        assert await final(stage)
        stage.node("c").kill()
        stage.node("c").start()
        await asyncio.sleep(30)
        assert stage.report_of("c") is not None and not await final(stage)

    story(tell)


def test_reject_in_the_log_is_final_at_once() -> None:
    async def tell(stage: Stage) -> None:
        made = ddl("a", "L.0", SQL)
        outcome = await rejected(stage, "a", wants=made)
        assert outcome.status is OutcomeStatus.REJECTED
        core = stage.replica("a").core
        known = core.outcomes.find(made.key)
        assert known is not None and await is_final(core, known.offset, 1.0)

    story(tell)
