"""Write concerns: what was acknowledged is where it was promised, whoever dies meanwhile.

Stories; seeded runs with kills and freezes are in `test_concern_runs`, judged, like these, by what
the clusters' tables hold at the moment of each acknowledgement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace

import pytest

from haproc.classify.model import WriteConcern
from haproc.config.model import Writes
from haproc.failure import FailureKind, RequestError, WriteOutcome
from haproc.membership.state import State
from haproc.replicate.member.steps import Step
from haproc.replicate.records.operation import Operation
from haproc.route.model import Request, SentSql
from tests.simulation.directed import Stage, ddl, parallel, story
from tests.simulation.life import Life
from tests.simulation.looking import service
from tests.simulation.ring import MEMBERSHIP, Node
from tests.simulation.scenario import insert

ALL, MAJORITY, ONE = WriteConcern.ALL, WriteConcern.MAJORITY, WriteConcern.ONE
NOTICED_S = 15.0
"""A peer's silence is noticed, and so is its return."""
EVERYWHERE = dict.fromkeys("abc", "applied")


def holds(node: Node, op_id: str, table: str = "t") -> bool:
    """Whether the cluster's table has the row, whatever its HAProc knows."""
    return (op_id,) in node.spark.dump().get(table, [])


def rows_in_log(stage: Stage) -> list[str]:
    return [m.id for m in stage.messages() if isinstance(m, Operation) and m.id != "create"]


def life_of(stage: Stage, name: str) -> Life:
    life = stage.node(name).life
    assert life is not None
    return life


def in_sync(stage: Stage, by: str = "a") -> str:
    found = life_of(stage, by).member.members.all_progress()
    return "".join(sorted(name for name, place in found.items() if place.in_sync))


def tell_on_table(tell: Callable[[Stage], Coroutine[None, None, None]], seed: int = 1) -> None:
    """Tell a story on a ring that has the table t, and whose members all know each other."""

    async def prepared(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        await stage.until(lambda: in_sync(stage) == "abc", NOTICED_S)
        await tell(stage)

    story(prepared, seed)


async def write(
    stage: Stage, at: str, op_id: str, concern: WriteConcern, timeout_s: float = 30
) -> dict[str, str]:
    _, applied = await stage.ring.assured(at, insert(op_id, "t", at), concern, timeout_s)
    return dict(applied)


@pytest.mark.parametrize("seed", range(5))
def test_all_is_answered_once_every_cluster_has_it(seed: int) -> None:
    async def tell(stage: Stage) -> None:
        assert await write(stage, "b", "one", ALL) == EVERYWHERE
        assert [holds(stage.node(name), "one") for name in "abc"] == [True] * 3

    tell_on_table(tell, seed)


def test_all_waits_for_an_operation_not_for_those_before_it() -> None:
    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a", "other", "CREATE TABLE ids (id)"))
        stage.node("c").spark.held.add("ids")
        await stage.submit("b", insert("slow", "ids", "b"))
        assert await write(stage, "a", "quick", ALL) == EVERYWHERE
        assert not holds(stage.node("c"), "slow", "ids")

    tell_on_table(tell)


def test_all_of_ddl_that_goes_to_all_at_the_same_time_waits_too() -> None:
    async def tell(stage: Stage) -> None:
        op = parallel("a", "more", "CREATE TABLE more (x)")
        _, applied = await stage.ring.assured("a", op, ALL, 30)
        assert applied == EVERYWHERE
        assert all("more" in stage.tables(name) for name in "abc")

    tell_on_table(tell)


def test_majority_needs_no_third_cluster() -> None:
    async def tell(stage: Stage) -> None:
        stage.node("c").freeze()
        applied = await write(stage, "a", "one", MAJORITY)
        assert applied == dict.fromkeys("ab", "applied")

    tell_on_table(tell)


@pytest.mark.parametrize("gone", ["kill", "freeze"])
def test_all_counts_a_cluster_that_drops_out_meanwhile_no_longer(gone: str) -> None:
    async def tell(stage: Stage) -> None:
        getattr(stage.node("c"), gone)()
        began = stage.now
        assert await write(stage, "a", "one", ALL) == dict.fromkeys("ab", "applied")
        assert stage.now - began < NOTICED_S
        # from here on nobody waits for it
        await stage.until(lambda: in_sync(stage, "b") == "ab", NOTICED_S)
        began = stage.now
        await write(stage, "b", "two", ALL)
        assert stage.now - began < 2

    tell_on_table(tell)


def test_all_does_not_wait_for_a_cluster_whose_spark_is_down() -> None:
    async def tell(stage: Stage) -> None:
        stage.node("c").spark.kill()
        assert await write(stage, "a", "one", ALL) == dict.fromkeys("ab", "applied")
        assert stage.state("c") is State.DOWN

    tell_on_table(tell)


def test_too_few_in_sync_refuses_before_the_append() -> None:
    async def tell(stage: Stage) -> None:
        for name in "bc":
            stage.node(name).kill()
        await stage.until(lambda: in_sync(stage) == "a", NOTICED_S)
        with pytest.raises(RequestError, match="needs 2 clusters in sync, and there is a") as told:
            await write(stage, "a", "one", MAJORITY)
        assert told.value.kind is FailureKind.AVAILABILITY
        assert told.value.error_class == "HAPROC_TOO_FEW_IN_SYNC"
        assert told.value.outcome is WriteOutcome.NOT_SENT
        assert rows_in_log(stage) == []
        # one and all ask for less: here nobody but a is there
        assert await write(stage, "a", "two", ONE) == {}
        assert await write(stage, "a", "three", ALL) == {"a": "applied"}

    tell_on_table(tell)


def test_min_insync_clusters_bounds_all() -> None:
    async def tell(stage: Stage) -> None:
        stage.ring.configure(writes=Writes(min_insync_clusters=2))
        stage.node("a").kill()
        stage.node("a").start()
        await stage.ready("a")
        await stage.until(lambda: in_sync(stage) == "abc", NOTICED_S)
        stage.node("b").kill()
        await stage.until(lambda: in_sync(stage) == "ac", NOTICED_S)
        assert await write(stage, "a", "one", ALL) == dict.fromkeys("ac", "applied")
        stage.at("a", Step.APPEND_AFTER, lambda node: stage.node("c").kill())
        began = stage.now
        with pytest.raises(RequestError, match="needs 2 clusters, and in sync is a") as told:
            await write(stage, "a", "two", ALL, 300)
        assert (told.value.error_class, told.value.outcome) == (
            "HAPROC_WRITE_CONCERN",
            WriteOutcome.UNKNOWN,
        )
        assert told.value.offset is not None
        assert stage.now - began < 2 * NOTICED_S  # not the whole deadline: others may do better
        with pytest.raises(RequestError, match="needs 2 clusters in sync, and there is a"):
            await write(stage, "a", "three", ALL)

    tell_on_table(tell)


def test_all_not_met_in_time_stands_and_is_waited_for_by_a_retry_elsewhere() -> None:
    async def tell(stage: Stage) -> None:
        spark = stage.node("b").spark
        spark.held.add("t")
        with pytest.raises(RequestError, match="b did not apply it in time") as told:
            await write(stage, "a", "one", ALL, 4)
        assert told.value.kind is FailureKind.AVAILABILITY
        assert (told.value.error_class, told.value.outcome) == (
            "HAPROC_WRITE_CONCERN",
            WriteOutcome.UNKNOWN,
        )
        again = asyncio.ensure_future(stage.ring.assured("c", insert("one", "t", "c"), ALL, 30))
        await asyncio.sleep(0.2)
        assert not again.done()
        spark.held.clear()
        offset, applied = await again
        assert (offset, applied) == (told.value.offset, EVERYWHERE)
        assert rows_in_log(stage) == ["one"]
        assert [holds(stage.node(name), "one") for name in "abc"] == [True] * 3

    tell_on_table(tell)


def test_origin_that_leaves_service_while_it_waits_sends_the_client_on() -> None:
    async def tell(stage: Stage) -> None:
        stage.node("b").spark.held.add("t")
        waiting = asyncio.ensure_future(write(stage, "a", "one", ALL))
        await stage.until(lambda: bool(life_of(stage, "a").member.assurance._waits))
        stage.node("a").spark.kill()
        with pytest.raises(RequestError, match="this cluster is DOWN meanwhile"):
            await waiting

    tell_on_table(tell)


def test_origin_that_is_cut_off_does_not_take_the_others_for_gone() -> None:
    async def tell(stage: Stage) -> None:
        await write(stage, "a", "zero", ALL)  # behind DDL a lane asks the log first
        stage.at("a", Step.APPLY_BEFORE, lambda node: stage.ring.cut.add("a"))
        for name in "bc":
            stage.node(name).spark.held.add("t")
        with pytest.raises(RequestError) as told:
            await write(stage, "a", "one", ALL)
        assert told.value.outcome is WriteOutcome.UNKNOWN
        assert holds(stage.node("a"), "one") and not holds(stage.node("b"), "one")

    tell_on_table(tell)


def test_returning_cluster_catches_up_first_and_then_counts_again() -> None:
    async def tell(stage: Stage) -> None:
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

    tell_on_table(tell)


def test_waits_ask_each_peer_by_one_poll_however_many_they_are() -> None:
    async def tell(stage: Stage) -> None:
        peers = life_of(stage, "a").member.core.peers
        asked = {"b": 0, "c": 0}
        most = dict(asked)
        original = peers.progress

        async def counted(peer: str, seen: str, timeout_s: float) -> object:
            asked[peer] += 1
            most[peer] = max(most[peer], asked[peer])
            try:
                return await original(peer, seen, timeout_s)
            finally:
                asked[peer] -= 1

        peers.progress = counted  # type: ignore[assignment,method-assign]
        await asyncio.gather(*(write(stage, "a", f"w{n}", ALL) for n in range(40)))
        assert most == {"b": 1, "c": 1}
        assert all(holds(stage.node(name), f"w{n}") for name in "abc" for n in range(40))

    tell_on_table(tell)


# -- a client's request, with rules and configuration ------------------------------------------


def request(op_id: str, concern: WriteConcern | None, timeout_s: float = 30) -> Request:
    sql = f"INSERT INTO t VALUES ('{op_id}')"
    return Request(op_id, SentSql(sql), op_id, write_concern=concern, timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("rules", "asked", "everywhere"),
    [
        ("[]", None, False),
        ("[]", ALL, True),
        ("[{kind: insert, write_concern: all}]", None, True),
        ("[{kind: insert, write_concern: all}]", ONE, True),
        ("[{kind: update, write_concern: all}]", None, False),
        ("[{kind: insert, write_concern: one}]", ALL, True),
    ],
)
def test_request_gets_the_stronger_of_its_own_concern_and_the_rule_s(
    rules: str, asked: WriteConcern | None, everywhere: bool
) -> None:
    async def tell(stage: Stage) -> None:
        answer = await service(stage, rules=rules).execute(request("one", asked))
        others = "applied" if everywhere else "queued"
        assert answer.report.outcomes == {"a": "applied", "b": others, "c": others}
        if everywhere:
            assert all(holds(stage.node(name), "one") for name in "abc")

    tell_on_table(tell)


def test_whether_a_concern_is_met_is_told_of_a_write_that_was_answered_long_ago() -> None:
    async def tell(stage: Stage) -> None:
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

    tell_on_table(tell)


def test_write_of_unknown_outcome_is_found_by_its_id_on_every_cluster() -> None:
    async def tell(stage: Stage) -> None:
        stage.node("a").spark.held.add("t")
        with pytest.raises(RequestError) as told:
            await service(stage).execute(request("one", None, timeout_s=2))
        assert told.value.outcome is WriteOutcome.UNKNOWN
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

    tell_on_table(tell)


def test_request_without_a_concern_gets_the_configured_one() -> None:
    async def tell(stage: Stage) -> None:
        life_of(stage, "a").member.assurance.default = ALL
        for concern, others in ((None, "applied"), (ONE, "queued")):
            answer = await service(stage).execute(request(f"{concern}", concern))
            assert answer.report.outcomes == {"a": "applied", "b": others, "c": others}

    tell_on_table(tell)


def test_request_whose_deadline_passes_while_it_waits_says_where_the_write_stands() -> None:
    async def tell(stage: Stage) -> None:
        stage.node("c").spark.held.add("t")
        with pytest.raises(RequestError, match="c did not apply it in time") as told:
            await service(stage).execute(request("one", ALL, 4))
        assert told.value.error_class == "HAPROC_WRITE_CONCERN"
        assert "a, b applied it" in told.value.message
        stage.node("c").spark.held.clear()
        answer = await service(stage, "b").execute(request("one", ALL))
        assert answer.report.offset == told.value.offset
        assert answer.report.outcomes == EVERYWHERE

    tell_on_table(tell)


def test_request_refused_for_too_few_in_sync_leaves_nothing_behind() -> None:
    async def tell(stage: Stage) -> None:
        for name in "bc":
            stage.node(name).kill()
        await stage.until(lambda: in_sync(stage) == "a", NOTICED_S)
        with pytest.raises(RequestError) as told:
            await service(stage).execute(request("one", MAJORITY))
        assert told.value.error_class == "HAPROC_TOO_FEW_IN_SYNC"
        assert rows_in_log(stage) == []

    tell_on_table(tell)


def test_cluster_that_is_being_copied_has_applied_nothing_yet() -> None:
    """Its cursor is at the place of the copy already, and its donor has not come there."""

    async def tell(stage: Stage) -> None:
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

    tell_on_table(tell)
