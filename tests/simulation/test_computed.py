"""Tests of writes with computed rows (docs/proofs/staging.md, "How rows are computed").

The ring is a, b, c in this order, and a is the origin unless a story differs. Each query draws a
random number, so clusters that did not take the same rows differ.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from msgspec import structs

from haproc.classify.model import Kind
from haproc.failure import ErrorClass
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import Passed, QueryWrite, Rows
from tests.simulation.computed import SETUP, gather, make, of_session, tally
from tests.simulation.directed import Stage, as_story
from tests.simulation.network import Refused
from tests.simulation.ring import LIMITS, TIMEOUTS, Node
from tests.simulation.scenario import insert, operation
from tests.simulation.seeds import SEEDS

RUNS = max(4, SEEDS // 2)


async def tables(stage: Stage) -> None:
    """Create the tables of the stories, with one id in them."""
    for n, sql in enumerate(("CREATE TABLE ids (id)", *SETUP)):
        await stage.submit("b", operation(f"setup{n}", Kind.CREATE_TABLE, sql, "b"))
    await stage.submit("b", insert("one", "ids", "b"))
    await stage.ready("a", "b", "c")


def rows_records(stage: Stage) -> list[Rows]:
    return stage.records(Rows)


def seen(stage: Stage, name: str, op_id: str) -> list[object]:
    """Return the ids that a gather found, as a cluster has them."""
    return [x for by, x, _ in stage.node(name).spark.dump()["gathered"] if by == op_id]


# -- at its place ------------------------------------------------------------------------------


@as_story()
async def test_computed_write_on_a_lagging_cluster_sees_acknowledged_writes_of_others(
    stage: Stage,
) -> None:
    await tables(stage)
    stage.node("a").spark.held.add("ids")
    for n in range(3):
        await stage.apply("b", insert(f"b{n}", "ids", "b"))
    write = asyncio.ensure_future(stage.submit("a", gather("g", "a")))
    await asyncio.sleep(TIMEOUTS.takeover_s / 2)
    assert rows_records(stage) == []
    stage.node("a").spark.held.clear()
    outcome = await write
    assert (outcome.status, outcome.applied.affected_rows) == (OutcomeStatus.APPLIED, 4)
    await stage.settle()
    assert seen(stage, "a", "g") == ["b0", "b1", "b2", "one"]


@as_story()
async def test_origin_that_lags_long_delays_no_other_cluster(stage: Stage) -> None:
    await tables(stage)
    stage.node("a").spark.held.add("ids")
    await stage.submit("b", insert("two", "ids", "b"))
    write = asyncio.ensure_future(stage.submit("a", gather("g", "a"), 100))
    await asyncio.sleep(1)
    await stage.apply("b", insert("three", "ids", "b"))
    assert "a" not in {rows.by for rows in rows_records(stage)}
    stage.node("a").spark.held.clear()
    assert (await write).status is OutcomeStatus.APPLIED
    await stage.settle()
    assert seen(stage, "a", "g") == ["one", "two"]


@as_story()
async def test_computed_write_does_not_see_later_operations(stage: Stage) -> None:
    await tables(stage)
    stage.node("a").spark.query_s = 3
    write = asyncio.ensure_future(stage.submit("a", gather("g", "a")))
    await asyncio.sleep(1)
    await stage.submit("b", insert("late", "ids", "b"))
    await write
    await stage.settle()
    assert seen(stage, "b", "g") == ["one"]


@as_story()
async def test_computed_write_sees_earlier_writes_to_its_own_target(stage: Stage) -> None:
    await tables(stage)
    await asyncio.gather(
        *(stage.submit("abc"[n % 3], tally(f"t{n}", "abc"[n % 3])) for n in range(6))
    )
    await stage.settle()
    assert sorted(row[1] for row in stage.node("c").spark.dump()["tallies"]) == [*range(6)]  # type: ignore[type-var]


@as_story()
async def test_write_without_rows_delays_only_operations_on_its_tables(stage: Stage) -> None:
    await tables(stage)
    await stage.submit("b", operation("u", Kind.CREATE_TABLE, "CREATE TABLE u (x)", "b"))
    stage.node("a").spark.query_s = 8
    write = asyncio.ensure_future(stage.submit("a", gather("g", "a"), 120))
    await stage.until(lambda: Step.ROWS_BEFORE in stage.ring.steps)
    began = stage.now
    await asyncio.gather(*(stage.submit(name, insert(name, "u", name)) for name in "abc"))
    assert stage.now - began < 10 and not write.done()
    shown = await stage.operators("b").show(stage.replica("b").core.schedule.low)
    assert shown["position"] == "waiting for its rows"
    await write
    await stage.settle()


@as_story()
async def test_computed_write_without_known_tables_is_applied_and_later_operations_follow(
    stage: Stage,
) -> None:
    await tables(stage)
    hidden = replace(gather("g", "a"), tables_known=False)
    await asyncio.gather(
        *(stage.submit(name, insert(name, "ids", name)) for name in "abc"),
        stage.submit("a", hidden),
        stage.submit("c", make("m", "c", "m0")),
    )
    await stage.settle()
    assert "m0" in stage.tables("b")


@as_story()
async def test_rows_far_behind_a_full_queue_are_found(stage: Stage) -> None:
    await tables(stage)
    stage.node("a").spark.query_s = 10
    count = 2 * LIMITS.look_ahead_records_max
    write = asyncio.ensure_future(stage.submit("a", gather("g", "a"), 100))
    await stage.until(lambda: Step.ROWS_BEFORE in stage.ring.steps)
    others = [stage.submit("b", insert(f"i{n}", "ids", "b"), 100) for n in range(count)]
    await asyncio.gather(write, *others)
    await stage.settle()
    assert seen(stage, "c", "g") == ["one"]


# -- what the query comes to -------------------------------------------------------------------


def wrong(op_id: str) -> Operation:
    op = gather(op_id, "a")
    assert isinstance(op.write, QueryWrite)
    sql = op.write.sql.replace("FROM ids", "FROM nil")
    return replace(op, write=structs.replace(op.write, sql=sql))


@as_story()
async def test_error_of_the_query_rejects_the_write_on_all_clusters_and_for_a_retry(
    stage: Stage,
) -> None:
    await tables(stage)
    for name in "ab":
        outcome = await stage.submit(name, wrong("g"))
        assert outcome.status is OutcomeStatus.REJECTED
        assert outcome.failure is not None and outcome.failure.sqlstate == "42P01"
    await stage.submit("c", gather("next", "c"))
    await stage.settle()
    assert seen(stage, "a", "g") == [] and seen(stage, "a", "next") == ["one"]


@as_story()
async def test_rejection_is_known_after_a_restart(stage: Stage) -> None:
    await tables(stage)
    await stage.submit("a", wrong("g"))
    await stage.ready("a", "b", "c")
    stage.node("b").restart()
    await stage.ready("b")
    outcome = await stage.submit("b", wrong("g"))
    assert outcome.status is OutcomeStatus.REJECTED
    assert outcome.failure is not None and outcome.failure.sqlstate == "42P01"


@as_story()
async def test_query_that_one_cluster_cannot_run_is_computed_by_the_next_cluster(
    stage: Stage,
) -> None:
    await tables(stage)
    stage.node("a").spark.poison_word = "'g' AS id"
    await stage.apply("a", gather("g", "a"))
    await stage.settle()
    passed = [message.by for message in stage.records(Passed)]
    assert (passed, [rows.by for rows in rows_records(stage)]) == (["a"], ["b"])
    assert seen(stage, "a", "g") == ["one"]


@as_story()
async def test_query_that_no_cluster_can_run_is_rejected(stage: Stage) -> None:
    await tables(stage)
    for node in stage.ring.nodes.values():
        node.spark.poison_word = "'g' AS id"
    outcome = await stage.submit("a", gather("g", "a"), 300)
    assert outcome.status is OutcomeStatus.REJECTED
    assert outcome.failure is not None and outcome.failure.error_class == "OOM"
    passed = [message.by for message in stage.records(Passed)]
    attempts_max = TIMEOUTS.stuck_after_attempts
    assert len(passed) == 3 * attempts_max - 1
    assert {name: passed.count(name) for name in "ab"} == dict.fromkeys("ab", attempts_max)
    await stage.settle()


@as_story()
async def test_query_that_the_only_running_cluster_cannot_run_is_rejected(stage: Stage) -> None:
    await tables(stage)
    for name in "bc":
        stage.node(name).kill()
    stage.node("a").spark.poison_word = "'g' AS id"
    assert (await stage.submit("a", gather("g", "a"), 300)).status is OutcomeStatus.REJECTED
    stage.node("a").spark.poison_word = ""
    await stage.settle()


@as_story()
async def test_query_that_takes_too_long_is_rejected_by_an_operators_revoke(stage: Stage) -> None:
    await tables(stage)
    stage.node("a").spark.query_s = 1000
    write = asyncio.ensure_future(stage.submit("a", gather("g", "a"), 100))
    await stage.until(lambda: Step.ROWS_BEFORE in stage.ring.steps)
    await asyncio.sleep(1)
    at = stage.replica("b").core.schedule.low
    assert (await stage.operators("b").revoke(at, "", ()))["status"] == "revoked"
    assert (await write).status is OutcomeStatus.REJECTED
    stage.node("a").spark.query_s = 0
    await stage.submit("c", gather("next", "c"))
    await stage.settle()
    assert seen(stage, "a", "g") == [] and seen(stage, "a", "next") == ["one"]


@as_story()
async def test_query_of_a_session_runs_in_its_attached_session_or_is_rejected(stage: Stage) -> None:
    await tables(stage)
    for op_id, lent in (("lent", True), ("lost", False)):
        op = of_session(op_id, "a")
        if lent:
            stage.replica("a").computing.attach_session(op.key, stage.reading("a"))
        outcome = await stage.submit("a", op)
        assert outcome.status is (OutcomeStatus.APPLIED if lent else OutcomeStatus.REJECTED)
        if outcome.failure is not None:
            assert outcome.failure.error_class == ErrorClass.SESSION_GONE
    await stage.settle()
    assert seen(stage, "b", "lent") == ["one"] and seen(stage, "b", "lost") == []


@as_story()
async def test_query_of_a_session_runs_although_the_maximum_of_writes_waits(
    stage: Stage,
) -> None:
    await tables(stage)
    op, reading = of_session("g", "a"), stage.reading("a")
    computing, limits = stage.replica("a").computing, stage.replica("a").core.limits
    computing.attach_session(op.key, reading)
    for number in range(1, limits.statements_max + limits.writes_waiting_max):
        computing.attach_session((op.key[0], f"later {number}"), reading)
    await stage.apply("a", op)
    await stage.settle()


@as_story()
async def test_query_of_a_session_whose_origin_died_is_rejected_at_once(
    stage: Stage,
) -> None:
    await tables(stage)
    op = of_session("g", "a")
    stage.at("a", Step.ROWS_BEFORE, Node.kill)
    with pytest.raises(Refused):
        await stage.submit("a", op)
    outcome = await stage.submit("b", op)
    assert outcome.status is OutcomeStatus.REJECTED
    assert outcome.failure is not None and outcome.failure.error_class == ErrorClass.SESSION_GONE
    await stage.settle()
