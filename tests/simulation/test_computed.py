"""Writes whose rows are computed at their place (docs/proofs/staging.md, "How rows are computed").

The ring is a, b, c in this order, and a is the origin unless a story says otherwise. Each query
draws a number by chance, so clusters that did not take the same rows differ.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from haproc.classify.model import Kind
from haproc.failure import ErrorClass
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import Passed, QueryWrite, Rows
from tests.simulation.computed import SETUP, gather, make, tally
from tests.simulation.directed import Stage, story
from tests.simulation.network import Refused
from tests.simulation.queries import SimReading
from tests.simulation.ring import LIMITS, TIMEOUTS, Node
from tests.simulation.scenario import insert, operation
from tests.simulation.seeds import SEEDS

RUNS = max(4, SEEDS // 2)


async def tables(stage: Stage) -> None:
    """Make the tables of the stories, with one id in them."""
    for n, sql in enumerate(("CREATE TABLE ids (id)", *SETUP)):
        await stage.submit("b", operation(f"setup{n}", Kind.CREATE_TABLE, sql, "b"))
    await stage.submit("b", insert("one", "ids", "b"))
    await stage.ready("a", "b", "c")


def rows_records(stage: Stage) -> list[Rows]:
    return [message for message in stage.messages() if isinstance(message, Rows)]


def seen(stage: Stage, name: str, op_id: str) -> list[object]:
    """Return the ids that a gather found, as a cluster has it."""
    return [x for by, x, _ in stage.node(name).spark.dump()["gathered"] if by == op_id]


# -- at its place ------------------------------------------------------------------------------


def test_computed_write_on_a_lagging_cluster_sees_what_was_acknowledged_elsewhere() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)
        stage.node("a").spark.held.add("ids")
        for n in range(3):
            assert (
                await stage.submit("b", insert(f"b{n}", "ids", "b"))
            ).status is OutcomeStatus.APPLIED
        write = asyncio.ensure_future(stage.submit("a", gather("g", "a")))
        await asyncio.sleep(TIMEOUTS.takeover_s / 2)
        assert rows_records(stage) == []
        stage.node("a").spark.held.clear()
        outcome = await write
        assert (outcome.status, outcome.applied.affected_rows) == (OutcomeStatus.APPLIED, 4)
        await stage.settle()
        assert seen(stage, "a", "g") == ["b0", "b1", "b2", "one"]

    story(tell)


def test_origin_that_lags_long_holds_up_nobody_else() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)
        stage.node("a").spark.held.add("ids")
        await stage.submit("b", insert("two", "ids", "b"))
        write = asyncio.ensure_future(stage.submit("a", gather("g", "a"), 100))
        await asyncio.sleep(1)
        outcome = await stage.submit("b", insert("three", "ids", "b"))
        assert outcome.status is OutcomeStatus.APPLIED
        assert "a" not in {rows.by for rows in rows_records(stage)}
        stage.node("a").spark.held.clear()
        assert (await write).status is OutcomeStatus.APPLIED
        await stage.settle()
        assert seen(stage, "a", "g") == ["one", "two"]

    story(tell)


def test_computed_write_does_not_see_what_stands_behind_it() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)
        stage.node("a").spark.query_s = 3
        write = asyncio.ensure_future(stage.submit("a", gather("g", "a")))
        await asyncio.sleep(1)
        await stage.submit("b", insert("late", "ids", "b"))
        await write
        await stage.settle()
        assert seen(stage, "b", "g") == ["one"]

    story(tell)


def test_computed_write_reads_its_own_target() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)
        await asyncio.gather(
            *(stage.submit("abc"[n % 3], tally(f"t{n}", "abc"[n % 3])) for n in range(6))
        )
        await stage.settle()
        assert sorted(row[1] for row in stage.node("c").spark.dump()["tallies"]) == [*range(6)]  # type: ignore[type-var]

    story(tell)


def test_only_what_touches_its_tables_waits_for_its_rows() -> None:
    async def tell(stage: Stage) -> None:
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

    story(tell)


def test_exclusive_computed_write_and_what_waits_behind_it() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)
        hidden = replace(gather("g", "a"), tables_known=False)
        await asyncio.gather(
            *(stage.submit(name, insert(name, "ids", name)) for name in "abc"),
            stage.submit("a", hidden),
            stage.submit("c", make("m", "c", "m0")),
        )
        await stage.settle()
        assert "m0" in stage.tables("b")

    story(tell)


def test_rows_far_behind_a_full_queue_are_found() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)
        stage.node("a").spark.query_s = 10
        count = 2 * LIMITS.look_ahead_records_max
        write = asyncio.ensure_future(stage.submit("a", gather("g", "a"), 100))
        await stage.until(lambda: Step.ROWS_BEFORE in stage.ring.steps)
        others = [stage.submit("b", insert(f"i{n}", "ids", "b"), 100) for n in range(count)]
        await asyncio.gather(write, *others)
        await stage.settle()
        assert seen(stage, "c", "g") == ["one"]

    story(tell)


# -- what the query comes to -------------------------------------------------------------------


def wrong(op_id: str) -> Operation:
    op = gather(op_id, "a")
    assert isinstance(op.write, QueryWrite)
    sql = op.write.sql.replace("FROM ids", "FROM nil")
    return replace(op, write=structs.replace(op.write, sql=sql))


def test_error_of_the_query_rejects_it_everywhere_and_a_retry_hears_of_it() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)
        for name in "ab":
            outcome = await stage.submit(name, wrong("g"))
            assert outcome.status is OutcomeStatus.REJECTED
            assert outcome.failure is not None and outcome.failure.sqlstate == "42P01"
        await stage.submit("c", gather("next", "c"))
        await stage.settle()
        assert seen(stage, "a", "g") == [] and seen(stage, "a", "next") == ["one"]

    story(tell)


def test_rejection_is_known_after_a_restart() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)
        await stage.submit("a", wrong("g"))
        await stage.ready("a", "b", "c")
        stage.node("b").kill()
        stage.node("b").start()
        await stage.ready("b")
        outcome = await stage.submit("b", wrong("g"))
        assert outcome.status is OutcomeStatus.REJECTED
        assert outcome.failure is not None and outcome.failure.sqlstate == "42P01"

    story(tell)


def test_cluster_that_cannot_passes_and_the_next_one_computes() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)
        stage.node("a").spark.poison_word = "'g' AS id"
        assert (await stage.submit("a", gather("g", "a"))).status is OutcomeStatus.APPLIED
        await stage.settle()
        passed = [message.by for message in stage.messages() if isinstance(message, Passed)]
        assert (passed, [rows.by for rows in rows_records(stage)]) == (["a"], ["b"])
        assert seen(stage, "a", "g") == ["one"]

    story(tell)


def test_query_that_no_cluster_can_run_is_rejected() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)
        for node in stage.ring.nodes.values():
            node.spark.poison_word = "'g' AS id"
        outcome = await stage.submit("a", gather("g", "a"), 300)
        assert outcome.status is OutcomeStatus.REJECTED
        assert outcome.failure is not None and outcome.failure.error_class == "OOM"
        passed = [message.by for message in stage.messages() if isinstance(message, Passed)]
        attempts_max = TIMEOUTS.stuck_after_attempts
        assert len(passed) == 3 * attempts_max - 1
        assert {name: passed.count(name) for name in "ab"} == dict.fromkeys("ab", attempts_max)
        await stage.settle()

    story(tell)


def test_query_that_the_last_cluster_cannot_run_is_rejected() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)
        for name in "bc":
            stage.node(name).kill()
        stage.node("a").spark.poison_word = "'g' AS id"
        assert (await stage.submit("a", gather("g", "a"), 300)).status is OutcomeStatus.REJECTED
        stage.node("a").spark.poison_word = ""
        await stage.settle()

    story(tell)


def test_query_that_takes_too_long_is_rejected_by_an_operator() -> None:
    async def tell(stage: Stage) -> None:
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

    story(tell)


def test_query_of_a_session_runs_in_it_or_is_rejected() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)
        for op_id, lent in (("lent", True), ("lost", False)):
            op = gather(op_id, "a")
            op = replace(op, write=structs.replace(op.write, of_session=True))
            if lent:
                life = stage.node("a").life
                assert life is not None
                reading = SimReading(stage.node("a").spark, life.check)
                stage.replica("a").computing.attach_session(op.key, reading)  # type: ignore[arg-type]
            outcome = await stage.submit("a", op)
            assert outcome.status is (OutcomeStatus.APPLIED if lent else OutcomeStatus.REJECTED)
            if outcome.failure is not None:
                assert outcome.failure.error_class == ErrorClass.SESSION_GONE
        await stage.settle()
        assert seen(stage, "b", "lent") == ["one"] and seen(stage, "b", "lost") == []

    story(tell)


def test_queries_of_sessions_run_in_them_though_as_many_writes_wait_as_may() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)
        op, life = gather("g", "a"), stage.node("a").life
        op = replace(op, write=structs.replace(op.write, of_session=True))
        assert life is not None
        reading: Any = SimReading(stage.node("a").spark, life.check)
        computing, limits = stage.replica("a").computing, stage.replica("a").core.limits
        computing.attach_session(op.key, reading)
        for number in range(1, limits.statements_max + limits.writes_waiting_max):
            computing.attach_session((op.key[0], f"later {number}"), reading)
        assert (await stage.submit("a", op)).status is OutcomeStatus.APPLIED
        await stage.settle()

    story(tell)


def test_query_of_a_session_whose_origin_died_is_rejected_not_waited_for() -> None:
    async def tell(stage: Stage) -> None:
        await tables(stage)
        op = gather("g", "a")
        op = replace(op, write=structs.replace(op.write, of_session=True))
        stage.at("a", Step.ROWS_BEFORE, Node.kill)
        with pytest.raises(Refused):
            await stage.submit("a", op)
        outcome = await stage.submit("b", op)
        assert outcome.status is OutcomeStatus.REJECTED
        assert (
            outcome.failure is not None and outcome.failure.error_class == ErrorClass.SESSION_GONE
        )
        await stage.settle()

    story(tell)
