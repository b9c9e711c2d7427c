"""Tests of operations that one cluster cannot apply: stuck, retried, skipped, verified.

Docs: docs/proofs/exactly-once.md, "Poison operations".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from haproc.classify.model import Kind
from haproc.failure import RequestError
from haproc.membership.state import State
from haproc.replicate.agree import comparing as verify
from haproc.replicate.agree.findings import Finding
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.records.control import Checksums, Skip
from haproc.replicate.records.operation import Operation
from tests.simulation.directed import Stage, as_story, ddl, story
from tests.simulation.network import Refused
from tests.simulation.ring import Node, Weather
from tests.simulation.scenario import insert, operation

POISON = "UPDATE t SET x = x || '!'"


def update(op_id: str, sql: str = POISON) -> Operation:
    return operation(op_id, Kind.UPDATE, sql, "a", writes=frozenset({"t"}))


async def stuck(stage: Stage, name: str = "c") -> int:
    """Make one cluster stuck at an operation that the others applied; return its offset."""
    await stage.submit("a", ddl("a"))
    await stage.submit("a", insert("one", "t", "a"))
    stage.node(name).spark.poison = {POISON}
    offset, _ = await stage.ring.submit("a", update("poison"), 30)
    await stage.submit("a", insert("after", "t", "a"))
    await stage.until(lambda: stage.state(name) is State.STUCK)
    return offset


def rows(stage: Stage, name: str) -> list[str]:
    return [str(row[0]) for row in stage.node(name).spark.dump()["t"]]


def findings(found: Mapping[str, Any]) -> dict[str, str]:
    return {name: each["finding"] for name, each in found["clusters"].items()}


def judging(stage: Stage, name: str) -> tuple[Finding, int, bool] | None:
    """Return a cluster's own finding, its number of different tables, and whether it is new."""
    found = stage.replica(name).verifier.judged
    if found is None:
        return None
    return found.finding, found.tables["different"], found.at_ms is not None


def skips(stage: Stage) -> list[tuple[str, int]]:
    return [(m.cluster, m.offset) for m in stage.records(Skip)]


@as_story()
async def test_stuck_cluster_shows_its_queue_and_the_possible_commands(stage: Stage) -> None:
    offset = await stuck(stage)
    operators = stage.operators("c")
    queue = operators.queue(0, 10)["operations"]
    assert isinstance(queue, list)
    lines = [(e["offset"], e["position"], e["blocked_by"], e["head"]) for e in queue]  # type: ignore[call-overload,index]
    assert lines == [(offset, "stuck", None, True), (offset + 1, "blocked", offset, False)]
    shown = await operators.show(offset)
    assert shown["operation"]["sql"] == POISON  # type: ignore[call-overload,index]
    assert shown["attempts"] >= 8 and "out of memory" in str(shown["error"])  # type: ignore[operator]
    assert shown["skip"]["allowed"] and shown["retry"]["allowed"]  # type: ignore[call-overload,index]


@as_story()
async def test_retry_after_the_cause_is_gone_applies_at_once_and_reopens_the_doors(
    stage: Stage,
) -> None:
    offset = await stuck(stage)
    stage.node("c").spark.poison = set()
    await stage.operators("c").retry("c", offset)
    assert stage.state("c") is not State.STUCK
    await stage.settle()
    assert rows(stage, "c") == ["after", "one!"]


@as_story()
async def test_skip_makes_the_cluster_diverged_until_it_is_fixed_and_verified(stage: Stage) -> None:
    offset = await stuck(stage)
    answer = await stage.operators("c").skip("c", offset, "disk is broken")
    assert (answer["status"], answer["state"]) == ("skipped", "DIVERGED")
    await stage.submit("a", insert("later", "t", "a"))
    await stage.until(lambda: rows(stage, "c") == ["after", "later", "one"])
    assert stage.state("c") is State.DIVERGED
    found = await stage.verify("a")
    assert findings(found) == {"a": "equal", "b": "equal", "c": "different"}
    assert found["tables"]["t"]["c"] == "different"
    await stage.until(lambda: "(t)" in stage.reason("c"))
    stage.node("c").spark.mend("UPDATE t SET x = 'one!' WHERE x = 'one'")
    assert findings(await stage.verify("b"))["c"] == "equal"
    await stage.settle()


@as_story()
async def test_skip_on_a_fixed_cluster_returns_it_with_the_first_verification(
    stage: Stage,
) -> None:
    offset = await stuck(stage)
    await stage.operators("c").skip("c", offset, "")
    stage.node("c").spark.mend("UPDATE t SET x = 'one!' WHERE x = 'one'")
    # A skipped cluster may ask for the verification, too.
    assert findings(await stage.verify("c")) == dict.fromkeys("abc", "equal")
    await stage.settle()


@pytest.mark.parametrize("step", [Step.APPLY_AFTER, Step.CURSOR_AFTER])
@as_story()
async def test_process_killed_between_skip_record_and_progress_has_skipped_after_its_restart(
    stage: Stage, step: Step
) -> None:
    offset = await stuck(stage)
    stage.at("c", step, Node.kill)
    skipping = asyncio.ensure_future(stage.operators("c").skip("c", offset, ""))
    await stage.until(lambda: not stage.node("c").alive)
    skipping.cancel()
    assert skips(stage) == [("c", offset)]
    stage.node("c").start()
    await stage.until(lambda: stage.alive_state("c") is State.DIVERGED, 120)
    await stage.until(lambda: rows(stage, "c") == ["after", "one"])
    assert findings(await stage.verify("a"))["c"] == "different"
    stage.node("c").spark.mend("UPDATE t SET x = 'one!' WHERE x = 'one'")
    assert findings(await stage.verify("a"))["c"] == "equal"
    await stage.settle()
    assert skips(stage) == [("c", offset)]


@as_story()
async def test_skipped_operation_is_reported_as_skipped_after_a_restart(stage: Stage) -> None:
    """A peer would otherwise take it for applied, and count that as a vote."""
    offset = await stuck(stage)
    await stage.operators("c").skip("c", offset, "")
    await stage.until(lambda: rows(stage, "c") == ["after", "one"])
    assert (await stage.replica("c").outcome(offset)).status == OutcomeStatus.SKIPPED
    stage.node("c").restart()
    await stage.until(lambda: stage.alive_state("c") is State.DIVERGED, 120)
    await asyncio.sleep(20)
    assert (await stage.replica("c").outcome(offset)).status == OutcomeStatus.SKIPPED


@as_story()
async def test_statement_that_kills_its_spark_each_time_makes_the_cluster_stuck(
    stage: Stage,
) -> None:
    await stage.submit("a", ddl("a"))
    await stage.submit("a", insert("one", "t", "a"))
    stage.node("c").spark.deadly = {POISON}
    offset, _ = await stage.ring.submit("a", update("poison"), 30)
    await stage.until(lambda: stage.state("c") is State.STUCK, 120)
    await stage.operators("c").skip("c", offset, "")
    stage.node("c").spark.mend("UPDATE t SET x = 'one!'")
    assert findings(await stage.verify("a"))["c"] == "equal"
    await stage.settle()


@as_story()
async def test_ddl_that_is_poison_at_its_origin_is_run_by_the_others_and_skipped_there(
    stage: Stage,
) -> None:
    sql = "CREATE TABLE t (x)"
    stage.node("a").spark.poison = {sql}
    with pytest.raises(RequestError):
        await stage.submit("a", ddl("a", sql=sql), 60)
    await stage.until(lambda: all("t" in stage.tables(name) for name in "bc"))
    await stage.until(lambda: stage.state("a") is State.STUCK)
    offset = stage.stuck_at("a")
    assert offset is not None
    await stage.operators("a").skip("a", offset, "")
    assert findings(await stage.verify("b")) == {"a": "different", "b": "equal", "c": "equal"}
    stage.node("a").spark.mend(sql)
    assert findings(await stage.verify("b")) == dict.fromkeys("abc", "equal")
    await stage.settle()


@as_story()
async def test_skip_of_a_committed_operation_completes_it(stage: Stage) -> None:
    offset = await stuck(stage)
    # As if the last attempt had committed before it failed.
    spark = stage.node("c").spark
    spark.mend("UPDATE t SET x = 'one!' WHERE x = 'one'")
    spark.note("t", offset)
    answer = await stage.operators("c").skip("c", offset, "")
    assert answer["status"] == OutcomeStatus.APPLIED.value
    await stage.settle()


@as_story()
async def test_stuck_batch_is_split_by_a_retry_before_an_operation_can_be_skipped(
    stage: Stage,
) -> None:
    await stage.submit("a", ddl("a"))
    await stage.submit("a", insert("zero", "t", "a"))
    await stage.ready("c")
    spark = stage.node("c").spark
    spark.poison_word, spark.environment_error_rate = "'bad'", 1.0
    ops = [insert(op_id, "t", "a") for op_id in ("one", "two", "bad", "three")]
    one, _, bad, three = [(await stage.ring.submit("a", op, 30))[0] for op in ops]
    await stage.until(lambda: stage.stuck_at("c") == one)
    spark.environment_error_rate = 0.0
    # The other three are one statement, named after its last operation.
    await stage.until(lambda: stage.stuck_at("c") == three)
    operators = stage.operators("c")
    for offset in (bad, three):
        with pytest.raises(RequestError, match="retry takes them apart"):
            await operators.skip("c", offset, "")
    await operators.retry("c", bad)
    await stage.until(lambda: stage.stuck_at("c") == bad)
    await operators.skip("c", bad, "")
    await stage.until(lambda: rows(stage, "c") == ["one", "three", "two", "zero"])
    await asyncio.sleep(10)  # until its statements have been answered


@pytest.mark.parametrize(
    ("cluster", "offset", "says"),
    [
        ("b", 0, "this is cluster c"),
        ("c", -1, "blocked|waits for the operation that blocks it"),
        ("c", 10**6, "nothing at offset"),
        ("c", 0, "not an operation"),
        ("c", -3, "it is done here"),
    ],
)
@as_story()
async def test_skip_or_retry_of_another_operation_is_refused_and_changes_nothing(
    stage: Stage, cluster: str, offset: int, says: str
) -> None:
    at = await stuck(stage)
    wanted = {-1: at + 1, -3: at - 1}.get(offset, offset)
    for act in ("retry", "skip"):
        with pytest.raises(RequestError, match=says):
            if act == "retry":
                await stage.operators("c").retry(cluster, wanted)
            else:
                await stage.operators("c").skip(cluster, wanted, "")
    assert stage.state("c") is State.STUCK and skips(stage) == []


@as_story()
async def test_different_outcome_stops_the_cluster_until_a_skip_and_a_verification(
    stage: Stage,
) -> None:
    await stage.submit("a", ddl("a"))
    stage.node("c").spark.refuses = {"INSERT INTO t VALUES ('one')"}
    offset, _ = await stage.ring.submit("a", insert("one", "t", "a"), 30)
    await stage.until(lambda: stage.state("c") is State.DIVERGED, 120)
    await stage.submit("a", insert("two", "t", "a"))
    found = await stage.verify("a")
    assert findings(found) == {"a": "equal", "b": "equal", "c": "unavailable"}
    assert rows(stage, "c") == []
    await stage.operators("c").skip("c", offset, "known")
    await stage.until(lambda: rows(stage, "c") == ["two"])
    assert findings(await stage.verify("a"))["c"] == "different"
    stage.node("c").spark.mend("INSERT INTO t VALUES ('one')")
    assert findings(await stage.verify("a"))["c"] == "equal"
    await stage.settle()


@as_story()
async def test_outcome_not_judged_before_a_restart_is_judged_after_it(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    await stage.ready("a", "b", "c")
    stage.node("c").spark.refuses = {"INSERT INTO t VALUES ('one')"}
    stage.node("c").spark.held.add("t")
    await stage.submit("a", insert("one", "t", "a"))
    await stage.ready("b")
    for name in "ab":
        stage.node(name).kill()
    stage.node("c").spark.held.clear()
    await stage.until(lambda: stage.messages()[-1] == stage.report_of("c"))
    await asyncio.sleep(5)
    assert stage.state("c") is State.READY
    for name in "cab":
        stage.node(name).restart()
    await stage.until(lambda: stage.alive_state("c") is State.DIVERGED, 120)
    await stage.ready("a", "b")


@as_story()
async def test_tie_of_outcomes_takes_no_cluster_out_of_service_until_an_operator_decides(
    stage: Stage,
) -> None:
    await stage.submit("a", ddl("a"))
    await stage.ready("a", "b", "c")
    stage.node("c").spark.refuses = {"INSERT INTO t VALUES ('one')"}
    await stage.submit("a", insert("one", "t", "a"))
    stage.node("a").kill()
    for name in "bc":
        await stage.until(lambda name=name: "run haproc verify" in stage.reason(name), 200)  # type: ignore[misc]
        assert stage.state(name) is State.READY
        assert "b applied; c failed" in stage.reason(name)
    found = await stage.verify("b")
    assert findings(found) == {"a": "unavailable", "b": "undecided", "c": "undecided"}
    assert [stage.state(name) for name in "bc"] == [State.READY] * 2
    found = await stage.verify("b", trusted="b")
    assert findings(found) == {"a": "unavailable", "b": "equal", "c": "different"}
    await stage.until(lambda: stage.state("c") is State.DIVERGED)
    await stage.until(lambda: stage.reason("b") == "")


@as_story()
async def test_verification_waits_for_operations_before_its_marker(stage: Stage) -> None:
    await stuck(stage)
    found = await stage.verify("a")
    assert findings(found) == {"a": "equal", "b": "equal", "c": "unavailable"}
    await stage.submit("a", insert("later", "t", "a"))
    stage.node("c").spark.poison = set()
    await stage.settle()
    # It came late, and compared itself with what the others had found at the marker.
    late = await stage.operators("a").verification(found["marker"])
    assert findings(late) == dict.fromkeys("abc", "equal")


@as_story()
async def test_verification_of_equal_clusters_under_writes_finds_them_equal(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    for n in range(5):
        await stage.submit("abc"[n % 3], insert(f"w{n}", "t", "a"))
        if n % 2:
            assert findings(await stage.verify("a")) == dict.fromkeys("abc", "equal")
    await stage.settle()


@as_story()
async def test_table_changed_past_haproc_is_found_and_known_after_a_restart(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    stage.node("b").spark.mend("INSERT INTO t VALUES ('past')")
    assert findings(await stage.verify("a"))["b"] == "different"
    await stage.until(lambda: stage.state("b") is State.DIVERGED)
    assert judging(stage, "b") == (Finding.DIFFERENT, 1, True)
    stage.node("b").restart()
    await stage.until(lambda: stage.alive_state("b") is State.DIVERGED, 120)
    assert "(t)" in stage.reason("b")
    await stage.until(lambda: judging(stage, "b") == (Finding.DIFFERENT, 1, False))
    stage.node("b").spark.mend("DELETE FROM t")
    assert findings(await stage.verify("c"))["b"] == "equal"
    await stage.until(lambda: judging(stage, "b") == (Finding.EQUAL, 0, True))
    await stage.settle()


@as_story()
async def test_verification_without_a_cluster_is_undecided_until_that_cluster_is_back(
    stage: Stage,
) -> None:
    await stage.submit("a", ddl("a"))
    stage.node("b").kill()
    stage.node("c").spark.mend("INSERT INTO t VALUES ('past')")
    found = await stage.verify("a")
    # Of two that differ none is proven wrong.
    assert findings(found) == {"a": "undecided", "b": "unavailable", "c": "undecided"}
    await stage.until(lambda: None not in map(stage.undecided, "ac"))
    stage.node("b").start()
    # The third one's word makes a majority.
    await stage.until(lambda: stage.state("c") is State.DIVERGED, 120)
    await stage.ready("a", "b")
    await stage.until(lambda: not stage.undecided("a"))


@as_story()
async def test_process_killed_during_its_verification_reports_that_it_was_replaced(
    stage: Stage,
) -> None:
    await stage.submit("a", ddl("a"))
    await stage.submit("a", insert("one", "t", "a"))
    await stage.ready("a", "b", "c")
    await asyncio.sleep(1)  # its cursor is stored, too
    stage.at("c", Step.CURSOR_AFTER, Node.kill)
    marker = (await stage.operators("a").verify())["marker"]
    await stage.until(lambda: not stage.node("c").alive)
    stage.node("c").start()
    await stage.until(
        lambda: any(
            isinstance(m, Checksums) and m.cluster == "c" and m.error == verify.REPLACED
            for m in stage.messages()
        )
    )
    assert isinstance(marker, int)
    found = await stage.operators("a").verification(marker)
    assert findings(found)["c"] == "unavailable"
    assert findings(await stage.verify("a")) == dict.fromkeys("abc", "equal")
    await stage.settle()


@as_story()
async def test_rebuilt_cluster_replays_operations_that_it_skipped_before(stage: Stage) -> None:
    offset = await stuck(stage)
    await stage.operators("c").skip("c", offset, "")
    await stage.verify("a")
    node = stage.node("c")
    node.kill()
    del stage.ring.store.cursors["c"]
    node.spark.empty()
    node.spark.poison = set()
    node.start()
    await stage.settle()
    assert rows(stage, "c") == ["after", "one!"]


@pytest.mark.parametrize("seed", range(12))
def test_skip_and_verification_under_all_faults_end_in_equal_clusters(seed: int) -> None:
    async def script(stage: Stage) -> None:
        offset = await stuck(stage)
        stage.ring.weather = Weather(
            step_crash_rate=0.05, peer_loss_rate=0.1, peer_copy_rate=0.1, log_error_rate=0.05
        )
        keeper = asyncio.ensure_future(kept_running(stage))
        try:
            for n in range(3):
                await stubbornly(lambda n=n: stage.submit("a", insert(f"w{n}", "t", "a"), 5))  # type: ignore[misc]
            while not stage.reason("c").startswith(f"the operation at offset {offset} was skipped"):
                await once(lambda: stage.operators("c").skip("c", offset, ""))
            await once(lambda: stage.verify("b"))
            stage.ring.weather = Weather()
        finally:
            keeper.cancel()
        for node in stage.ring.nodes.values():
            node.start()
        everything = ["after", "one", "w0", "w1", "w2"]
        await stage.until(lambda: rows(stage, "c") == everything, 300)
        stage.node("c").spark.mend("UPDATE t SET x = 'one!' WHERE x = 'one'")
        while stage.alive_state("c") is not State.READY:
            await stubbornly(lambda: stage.verify("a"))
            await asyncio.sleep(10)
        await stage.settle()
        assert rows(stage, "c") == ["after", "one!", "w0", "w1", "w2"]

    story(script, seed)


async def kept_running(stage: Stage) -> None:
    """Start dead processes again, as a supervisor does."""
    while True:
        await asyncio.sleep(0.5)
        for node in stage.ring.nodes.values():
            node.start()


async def once(work: Callable[[], Awaitable[object]]) -> bool:
    """Try something that may fail, or hang with its process; return whether it succeeded."""
    await asyncio.sleep(0.3)
    try:
        async with asyncio.timeout(20):
            await work()
    except (RequestError, Refused, TimeoutError, AssertionError):
        return False
    return True


async def stubbornly(work: Callable[[], Awaitable[object]]) -> None:
    while not await once(work):
        pass
