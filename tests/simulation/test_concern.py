"""Tests of write concerns under faults: an acknowledged write is on the clusters of its concern.

These are stories; `test_concern_runs` has seeded runs with kills and freezes. Both check what the
clusters' tables hold at the moment of each acknowledgement.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from haproc.classify.model import WriteConcern
from haproc.config.model import Writes
from haproc.failure import FailureKind, RequestError, WriteOutcome
from haproc.membership.state import State
from haproc.replicate.member.steps import Step
from haproc.replicate.records.operation import Operation
from haproc.route.model import Request, SentSql
from tests.simulation.directed import Stage, as_story, ddl, parallel, story
from tests.simulation.looking import service
from tests.simulation.ring import MEMBERSHIP, Node
from tests.simulation.scenario import insert

ALL, MAJORITY, ONE = WriteConcern.ALL, WriteConcern.MAJORITY, WriteConcern.ONE
NOTICED_S = 15.0
"""A peer's silence and its return are noticed within this time."""
EVERYWHERE = dict.fromkeys("abc", "applied")


def holds(node: Node, op_id: str, table: str = "t") -> bool:
    """Return whether the cluster's table has the row, without regard to its HAProc's state."""
    return (op_id,) in node.spark.dump().get(table, [])


def rows_in_log(stage: Stage) -> list[str]:
    return [m.id for m in stage.records(Operation) if m.id != "create"]


def in_sync(stage: Stage, by: str = "a") -> str:
    found = stage.life(by).member.members.all_progress()
    return "".join(sorted(name for name, place in found.items() if place.in_sync))


async def table_is_made(stage: Stage) -> None:
    """Make the table t, and wait until the members all know each other."""
    await stage.submit("a", ddl("a"))
    await stage.until(lambda: in_sync(stage) == "abc", NOTICED_S)


on_table = as_story(prepare=table_is_made)


async def write(
    stage: Stage, at: str, op_id: str, concern: WriteConcern, timeout_s: float = 30
) -> dict[str, str]:
    _, applied = await stage.ring.assured(at, insert(op_id, "t", at), concern, timeout_s)
    return dict(applied)


@pytest.mark.parametrize("seed", range(5))
def test_concern_all_is_answered_when_all_clusters_have_the_write(seed: int) -> None:
    async def script(stage: Stage) -> None:
        await table_is_made(stage)
        assert await write(stage, "b", "one", ALL) == EVERYWHERE
        assert [holds(stage.node(name), "one") for name in "abc"] == [True] * 3

    story(script, seed)


@on_table
async def test_concern_all_waits_for_its_operation_and_not_for_earlier_ones(stage: Stage) -> None:
    await stage.submit("a", ddl("a", "other", "CREATE TABLE ids (id)"))
    stage.node("c").spark.held.add("ids")
    await stage.submit("b", insert("slow", "ids", "b"))
    assert await write(stage, "a", "quick", ALL) == EVERYWHERE
    assert not holds(stage.node("c"), "slow", "ids")


@on_table
async def test_concern_all_of_parallel_ddl_waits_for_all_clusters(stage: Stage) -> None:
    op = parallel("a", "more", "CREATE TABLE more (x)")
    _, applied = await stage.ring.assured("a", op, ALL, 30)
    assert applied == EVERYWHERE
    assert all("more" in stage.tables(name) for name in "abc")


@on_table
async def test_concern_majority_does_not_wait_for_a_frozen_third_cluster(stage: Stage) -> None:
    stage.node("c").freeze()
    applied = await write(stage, "a", "one", MAJORITY)
    assert applied == dict.fromkeys("ab", "applied")


@pytest.mark.parametrize("gone", ["kill", "freeze"])
@on_table
async def test_concern_all_does_not_count_a_cluster_that_fails_meanwhile(
    stage: Stage, gone: str
) -> None:
    getattr(stage.node("c"), gone)()
    began = stage.now
    assert await write(stage, "a", "one", ALL) == dict.fromkeys("ab", "applied")
    assert stage.now - began < NOTICED_S
    # from here on nobody waits for it
    await stage.until(lambda: in_sync(stage, "b") == "ab", NOTICED_S)
    began = stage.now
    await write(stage, "b", "two", ALL)
    assert stage.now - began < 2


@on_table
async def test_concern_all_does_not_wait_for_a_cluster_whose_spark_is_down(stage: Stage) -> None:
    stage.node("c").spark.kill()
    assert await write(stage, "a", "one", ALL) == dict.fromkeys("ab", "applied")
    assert stage.state("c") is State.DOWN


@on_table
async def test_write_with_too_few_clusters_in_sync_is_refused_before_the_append(
    stage: Stage,
) -> None:
    for name in "bc":
        stage.node(name).kill()
    await stage.until(lambda: in_sync(stage) == "a", NOTICED_S)
    with pytest.raises(RequestError, match="needs 2 clusters in sync; in sync now: a") as caught:
        await write(stage, "a", "one", MAJORITY)
    assert caught.value.kind is FailureKind.AVAILABILITY
    assert caught.value.error_class == "HAPROC_TOO_FEW_IN_SYNC"
    assert caught.value.outcome is WriteOutcome.NOT_SENT
    assert rows_in_log(stage) == []
    # one and all ask for less: here nobody but a is there
    assert await write(stage, "a", "two", ONE) == {}
    assert await write(stage, "a", "three", ALL) == {"a": "applied"}


@on_table
async def test_min_insync_clusters_applies_to_concern_all(stage: Stage) -> None:
    stage.ring.configure(writes=Writes(min_insync_clusters=2))
    stage.node("a").restart()
    await stage.ready("a")
    await stage.until(lambda: in_sync(stage) == "abc", NOTICED_S)
    stage.node("b").kill()
    await stage.until(lambda: in_sync(stage) == "ac", NOTICED_S)
    assert await write(stage, "a", "one", ALL) == dict.fromkeys("ac", "applied")
    stage.at("a", Step.APPEND_AFTER, lambda node: stage.node("c").kill())
    began = stage.now
    with pytest.raises(RequestError, match="needs 2 clusters in sync; in sync now: a") as caught:
        await write(stage, "a", "two", ALL, 300)
    assert (caught.value.error_class, caught.value.outcome) == (
        "HAPROC_WRITE_CONCERN",
        WriteOutcome.UNKNOWN,
    )
    assert caught.value.offset is not None
    assert stage.now - began < 2 * NOTICED_S  # not the whole deadline: others may do better
    with pytest.raises(RequestError, match="needs 2 clusters in sync; in sync now: a"):
        await write(stage, "a", "three", ALL)


@on_table
async def test_concern_all_that_timed_out_keeps_its_write_and_a_retry_waits_for_it(
    stage: Stage,
) -> None:
    spark = stage.node("b").spark
    spark.held.add("t")
    with pytest.raises(RequestError, match="b did not apply it in time") as caught:
        await write(stage, "a", "one", ALL, 4)
    assert caught.value.kind is FailureKind.AVAILABILITY
    assert (caught.value.error_class, caught.value.outcome) == (
        "HAPROC_WRITE_CONCERN",
        WriteOutcome.UNKNOWN,
    )
    again = asyncio.ensure_future(stage.ring.assured("c", insert("one", "t", "c"), ALL, 30))
    await asyncio.sleep(0.2)
    assert not again.done()
    spark.held.clear()
    offset, applied = await again
    assert (offset, applied) == (caught.value.offset, EVERYWHERE)
    assert rows_in_log(stage) == ["one"]
    assert [holds(stage.node(name), "one") for name in "abc"] == [True] * 3


@on_table
async def test_origin_that_leaves_service_during_the_wait_fails_the_request_for_a_failover(
    stage: Stage,
) -> None:
    stage.node("b").spark.held.add("t")
    waiting = asyncio.ensure_future(write(stage, "a", "one", ALL))
    await stage.until(lambda: bool(stage.life("a").member.assurance._waits))
    stage.node("a").spark.kill()
    with pytest.raises(RequestError, match="this cluster is DOWN meanwhile"):
        await waiting


@on_table
async def test_origin_that_is_cut_off_does_not_drop_the_others_from_the_concern(
    stage: Stage,
) -> None:
    await write(stage, "a", "zero", ALL)  # behind DDL a lane asks the log first
    stage.at("a", Step.APPLY_BEFORE, lambda node: stage.ring.cut.add("a"))
    for name in "bc":
        stage.node(name).spark.held.add("t")
    with pytest.raises(RequestError) as caught:
        await write(stage, "a", "one", ALL)
    assert caught.value.outcome is WriteOutcome.UNKNOWN
    assert holds(stage.node("a"), "one") and not holds(stage.node("b"), "one")


@on_table
async def test_returning_cluster_catches_up_before_it_counts_again(stage: Stage) -> None:
    stage.ring.configure(membership=replace(MEMBERSHIP, in_sync_lag_max=20))
    for node in stage.ring.nodes.values():
        node.kill()
    await stage.settle()
    stage.node("c").kill()
    for n in range(60):
        await stage.submit("a", insert(f"missed{n}", "t", "a"))
    stage.node("c").spark.held.add("t")
    stage.node("c").start()
    await stage.until(lambda: stage.alive_state("c") is State.RECOVERING, NOTICED_S)
    await asyncio.sleep(NOTICED_S)
    assert in_sync(stage) == "ab"
    assert await write(stage, "a", "without", ALL) == dict.fromkeys("ab", "applied")
    stage.node("c").spark.held.clear()
    await stage.until(lambda: stage.alive_state("c") is State.READY)
    # it opens for clients now: whatever was acknowledged is there, and is waited for
    assert holds(stage.node("c"), "without")
    await stage.until(lambda: in_sync(stage) == "abc", MEMBERSHIP.report_interval_s)
    assert await write(stage, "a", "with", ALL) == EVERYWHERE


@on_table
async def test_many_waits_share_one_poll_for_each_peer(stage: Stage) -> None:
    peers = stage.life("a").member.core.peers
    polls = {"b": 0, "c": 0}
    most = dict(polls)
    original = peers.progress

    async def counted(peer: str, seen: str, timeout_s: float) -> object:
        polls[peer] += 1
        most[peer] = max(most[peer], polls[peer])
        try:
            return await original(peer, seen, timeout_s)
        finally:
            polls[peer] -= 1

    peers.progress = counted  # type: ignore[assignment,method-assign]
    await asyncio.gather(*(write(stage, "a", f"w{n}", ALL) for n in range(40)))
    assert most == {"b": 1, "c": 1}
    assert all(holds(stage.node(name), f"w{n}") for name in "abc" for n in range(40))


# -- a client's request, with rules and configuration ------------------------------------------


def request(op_id: str, concern: WriteConcern | None, timeout_s: float = 30) -> Request:
    sql = f"INSERT INTO t VALUES ('{op_id}')"
    return Request(op_id, SentSql(sql), op_id, write_concern=concern, timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("rules", "requested", "everywhere"),
    [
        ("[]", None, False),
        ("[]", ALL, True),
        ("[{kind: insert, write_concern: all}]", None, True),
        ("[{kind: insert, write_concern: all}]", ONE, True),
        ("[{kind: update, write_concern: all}]", None, False),
        ("[{kind: insert, write_concern: one}]", ALL, True),
    ],
)
@on_table
async def test_request_has_the_stronger_concern_of_its_own_and_the_rules(
    stage: Stage, rules: str, requested: WriteConcern | None, everywhere: bool
) -> None:
    answer = await service(stage, rules=rules).execute(request("one", requested))
    others = "applied" if everywhere else "queued"
    assert answer.report.outcomes == {"a": "applied", "b": others, "c": others}
    if everywhere:
        assert all(holds(stage.node(name), "one") for name in "abc")


@on_table
async def test_concern_met_is_answered_for_an_earlier_write(
    stage: Stage,
) -> None:
    stage.node("b").spark.held.add("t")
    offset = (await service(stage).execute(request("one", ONE))).report.offset
    assert offset is not None
    met = service(stage).concern_met
    assert await met(offset, None) and await met(offset, ONE) and await met(offset, MAJORITY)
    assert not await met(offset, ALL)
    assert not await service(stage, rules="[{kind: insert, write_concern: all}]").concern_met(
        offset, ONE
    )
    stage.node("b").spark.held.clear()
    assert await met(offset, ALL)


@on_table
async def test_write_of_unknown_outcome_is_found_by_its_id_on_all_clusters(stage: Stage) -> None:
    stage.node("a").spark.held.add("t")
    with pytest.raises(RequestError) as caught:
        await service(stage).execute(request("one", None, timeout_s=2))
    assert caught.value.outcome is WriteOutcome.UNKNOWN
    pending = service(stage).find_write("one", "anonymous")
    assert pending is not None
    stage.node("a").spark.held.discard("t")
    offset = (await pending()).report.offset
    await stage.until(lambda: all(holds(stage.node(name), "one") for name in "abc"), NOTICED_S)
    for name in "abc":
        found = service(stage, name).find_write("one", "anonymous")
        assert found is not None
        report = (await found()).report
        assert (report.cluster, report.offset) == (name, offset)
        assert service(stage, name).find_write("one", "somebody else") is None
        assert service(stage, name).find_write("two", "anonymous") is None


@on_table
async def test_request_without_a_concern_has_the_configured_one(stage: Stage) -> None:
    stage.life("a").member.assurance.default = ALL
    for concern, others in ((None, "applied"), (ONE, "queued")):
        answer = await service(stage).execute(request(f"{concern}", concern))
        assert answer.report.outcomes == {"a": "applied", "b": others, "c": others}


@on_table
async def test_request_at_its_deadline_reports_the_clusters_that_have_the_write(
    stage: Stage,
) -> None:
    stage.node("c").spark.held.add("t")
    with pytest.raises(RequestError, match="c did not apply it in time") as caught:
        await service(stage).execute(request("one", ALL, 4))
    assert caught.value.error_class == "HAPROC_WRITE_CONCERN"
    assert "a, b applied it" in caught.value.message
    stage.node("c").spark.held.clear()
    answer = await service(stage, "b").execute(request("one", ALL))
    assert answer.report.offset == caught.value.offset
    assert answer.report.outcomes == EVERYWHERE


@on_table
async def test_request_refused_for_too_few_in_sync_appends_nothing(stage: Stage) -> None:
    for name in "bc":
        stage.node(name).kill()
    await stage.until(lambda: in_sync(stage) == "a", NOTICED_S)
    with pytest.raises(RequestError) as caught:
        await service(stage).execute(request("one", MAJORITY))
    assert caught.value.error_class == "HAPROC_TOO_FEW_IN_SYNC"
    assert rows_in_log(stage) == []


@on_table
async def test_cluster_that_is_being_copied_does_not_count_as_applied(stage: Stage) -> None:
    """Its cursor is already at the place of the copy, but its donor is still before that."""
    for name in "bc":
        stage.node(name).spark.held.add("t")
    writing = asyncio.ensure_future(write(stage, "a", "one", MAJORITY, 300))
    await stage.until(lambda: holds(stage.node("a"), "one"))
    await stage.operators("c").rebuild("c", "b")
    await stage.until(lambda: stage.alive_state("c") is State.COPYING)
    await asyncio.sleep(20)
    assert not writing.done()
    for name in "bc":
        stage.node(name).spark.held.clear()
    await writing
    assert sum(holds(node, "one") for node in stage.ring.nodes.values()) >= 2
    await stage.settle()
