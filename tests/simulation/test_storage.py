"""Storage outages and DDL in doubt: the errors of a cluster about its tables can be wrong.

Docs: docs/proofs/exactly-once.md, "Storage that is away"; docs/proofs/fences.md, "DDL in doubt".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from haproc.classify.model import Kind
from haproc.config.model import Writes
from haproc.engine.errors import EngineError
from haproc.membership.state import State
from haproc.replicate.apply import applier
from haproc.replicate.apply.doubts import Doubts
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OutcomeStatus
from tests.simulation.directed import Stage, as_story, ddl, story
from tests.simulation.ring import Node
from tests.simulation.scenario import insert
from tests.simulation.violations import Violation, found_by


def away(node: Node) -> None:
    node.spark.storage_away = True


def away_for(seconds: float) -> Callable[[Node], None]:
    """Return the fault of a storage outage of so many seconds."""

    def fault(node: Node) -> None:
        away(node)
        asyncio.get_running_loop().call_later(seconds, back, node)

    return fault


def back(node: Node) -> None:
    node.spark.storage_away = False


async def some_writes(stage: Stage, name: str) -> None:
    for number in range(4):
        await stage.submit("a", insert(f"{name}{number}", "t", "a"))


@pytest.mark.parametrize("restarted", [False, True])
@as_story()
async def test_storage_outage_takes_the_cluster_down_and_loses_no_queued_write(
    stage: Stage, restarted: bool
) -> None:
    await stage.submit("a", ddl("a"))
    await some_writes(stage, "before")
    node = stage.node("c")
    await stage.ready("c")
    away(node)
    if restarted:
        node.restart()
    await some_writes(stage, "meanwhile")
    expected = State.STARTING if restarted else State.DOWN
    await stage.until(lambda: stage.state("c") is expected and bool(stage.reason("c")))
    assert "HAPROC_STORAGE_AWAY" in stage.reason("c")
    back(node)
    await stage.settle()
    assert len(node.spark.dump()["t"]) == 8


@as_story()
async def test_short_storage_outage_loses_no_queued_write(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    await stage.ready("c")
    stage.at("c", Step.APPLY_BEFORE, away_for(3))
    await some_writes(stage, "m")
    await stage.settle()
    assert ("c", Step.APPLY_BEFORE) in stage.struck
    assert len(stage.node("c").spark.dump()["t"]) == 4


def test_unchecked_statement_error_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def believes(self: applier.Applier, unit: object) -> EngineError | None:
        return None

    async def does_not_look(self: Doubts, unit: object) -> bool:
        return False

    monkeypatch.setattr(applier.Applier, "_refuted", believes)
    monkeypatch.setattr(Doubts, "committed", does_not_look)
    found_by(
        test_short_storage_outage_loses_no_queued_write,
        Violation.DIVERGED,
    )


@pytest.mark.parametrize("step", [Step.APPLY_BEFORE, Step.APPLY_AFTER])
@as_story()
async def test_create_of_an_existing_table_fails_even_if_it_was_in_doubt(
    stage: Stage, step: Step
) -> None:
    await stage.submit("a", ddl("a"))
    await stage.ready("a", "b", "c")
    stage.at("a", step, Node.restart)
    again = asyncio.ensure_future(stage.submit("a", ddl("a", "again")))
    await asyncio.wait([again])
    again.exception()
    await stage.settle()
    outcome = await stage.submit("a", ddl("a", "again"))
    assert outcome.status in (OutcomeStatus.FAILED, OutcomeStatus.REJECTED)
    assert outcome.failure is not None and outcome.failure.sqlstate == "42P07"


@pytest.mark.parametrize("killed", ["haproc", "spark"])
@pytest.mark.parametrize("seed", range(8))
def test_create_and_drop_in_doubt_are_done_once(killed: str, seed: int) -> None:
    async def script(stage: Stage) -> None:
        node = stage.node("b")
        for number, (kind, sql) in enumerate(
            (
                (Kind.CREATE_TABLE, "CREATE TABLE t (x)"),
                (Kind.DROP_TABLE, "DROP TABLE t"),
                (Kind.CREATE_TABLE, "CREATE TABLE t (y)"),
            )
        ):

            def strike(struck: Node = node) -> None:
                if killed == "haproc":
                    struck.kill()
                else:
                    struck.spark.kill()

            asyncio.get_running_loop().call_later(0.05 + 0.09 * seed, strike)
            await stage.apply("a", ddl("a", f"ddl{number}", sql, kind=kind))
            await stage.settle()
        assert all(stage.order(f"CREATE TABLE t ({x})").count("b") == 1 for x in "xy")

    story(script, seed)


@as_story()
async def test_create_that_ran_before_its_process_died_is_not_run_again(stage: Stage) -> None:
    stage.at("b", Step.APPLY_AFTER, Node.kill)
    await stage.submit("a", ddl("a"))
    await stage.settle()
    assert ("b", Step.APPLY_AFTER) in stage.struck
    assert stage.order().count("b") == 1


def test_check_of_a_create_without_the_earlier_state_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def forgets(self: Doubts, unit: object) -> None:
        return None

    monkeypatch.setattr(Doubts, "note", forgets)
    found_by(
        test_create_that_ran_before_its_process_died_is_not_run_again,
        Violation.DIVERGED,
    )


@pytest.mark.parametrize("always", [False, True])
@as_story()
async def test_first_attempt_of_an_insert_is_guarded_only_if_configured(
    stage: Stage, always: bool
) -> None:
    await stage.submit("a", ddl("a"))
    stage.node("a").kill()
    stage.ring.configure(writes=Writes(guard_always=always))
    stage.node("a").start()
    await stage.ready("a")
    offset, _ = await stage.ring.submit("a", insert("one", "t", "a"), 30)
    spark = stage.node("a").spark
    assert spark._notes["t"] == offset
    assert ("t" in spark._marks) is always
