"""The log is trimmed as far as no cluster needs it, and no farther; clusters join and leave.

The random runs (`tests.simulation.scenario`) trim the log all the time, too.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import pytest

from dmq import Cursor, MemoryKeyValueStore
from haproc.config.sections import Archive
from haproc.failure import RequestError
from haproc.membership.state import State
from haproc.replicate import trim
from haproc.replicate.archive.account import ArchivePosition
from haproc.replicate.log_state.definitions import records_needed
from haproc.replicate.records.control import Roster
from haproc.replicate.trim import needs
from tests.simulation.broken import BreakRule, slowest_ignored
from tests.simulation.directed import CREATE, Stage, as_story, ddl, story
from tests.simulation.log import SimLog
from tests.simulation.ring import LIMITS, TRIM, Node, cluster_of
from tests.simulation.scenario import insert
from tests.simulation.seeds import one
from tests.simulation.violations import Violation, found_in

WINDOW = 20
KEPT = records_needed(WINDOW)
SHORT = replace(LIMITS, window_records=WINDOW)


async def writes(stage: Stage, count: int, by: str = "a") -> None:
    """Submit inserts, one per second of the log's time."""
    for n in range(count):
        await stage.submit(by, insert(f"{stage.now}-{n}", "t", by))
        await asyncio.sleep(1)


async def join(stage: Stage, name: str, through: str = "a") -> None:
    member = cluster_of(name)
    await stage.replica(through).admission.join(name, member.peer, f"http://{member.listen}")


async def leave(stage: Stage, name: str, through: str = "a") -> None:
    await stage.replica(through).admission.leave(name)


def start(stage: Stage) -> int:
    return stage.ring.store.start


def members(stage: Stage, name: str) -> object:
    return stage.replica(name).admission.describe()["names"]


def trims_by(stage: Stage) -> set[str]:
    return {line.split()[1] for line in stage.ring.history if " trims to " in line}


# -- how far -----------------------------------------------------------------------------------


@as_story(limits=SHORT)
async def test_trimming_keeps_the_idempotency_window_and_is_done_by_the_lowest_name(
    stage: Stage,
) -> None:
    await stage.submit("a", ddl("a"))
    await writes(stage, 40)
    await asyncio.sleep(5)
    assert start(stage) == stage.ring.store.end - KEPT
    assert trims_by(stage) == {"a"}
    stage.node("a").kill()
    await writes(stage, 10, "b")
    assert trims_by(stage) == {"a"}  # its cluster may be behind, so nothing goes
    await stage.settle()
    assert start(stage) == stage.ring.store.end - KEPT


@as_story(limits=SHORT)
async def test_dead_cluster_holds_trimming_back_and_catches_up_on_return(
    stage: Stage,
) -> None:
    await stage.submit("a", ddl("a"))
    await stage.ready("a", "b", "c")
    low = stage.replica("c").core.schedule.low
    stage.node("c").kill()
    await writes(stage, 60)
    assert start(stage) <= max(0, low - KEPT)
    life = stage.life("b")
    assert life.member.trimmer.plan is not None
    plan = life.member.trimmer.plan
    assert (plan.held_by, plan.held_records > 30) == ("c", True)
    await stage.settle()
    assert start(stage) == stage.ring.store.end - KEPT


@as_story(limits=SHORT)
async def test_lowest_name_that_is_not_ready_leaves_trimming_to_the_next(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    await stage.ready("a", "b", "c")
    stage.node("c").kill()  # so nothing is trimmed before a is DOWN
    await writes(stage, 60)
    stage.node("a").spark.kill()
    await stage.until(lambda: stage.state("a") is State.DOWN)
    stage.node("c").start()
    await stage.ready("c")
    await asyncio.sleep(5)
    assert stage.state("a") is State.DOWN
    assert trims_by(stage) == {"b"}
    assert start(stage) > 0


@as_story(limits=SHORT)
async def test_process_replaced_long_ago_ends_although_its_log_position_is_trimmed(
    stage: Stage,
) -> None:
    await stage.submit("a", ddl("a"))
    await stage.ready("a", "b", "c")
    stage.node("c").freeze()
    earlier = stage.node("c").replace()
    assert earlier is not None
    await stage.ready("c")
    await writes(stage, 60)
    await asyncio.sleep(5)
    assert start(stage) > earlier.member.core.schedule.read_to
    earlier.thaw()
    await stage.until(lambda: not stage.node("c").replaced)  # ended: FENCED
    await stage.settle()


def test_process_replaced_during_its_start_ends_although_its_log_position_is_trimmed() -> None:
    async def script(stage: Stage, moment: int) -> None:
        await stage.submit("a", ddl("a"))
        await stage.ready("a", "b", "c")
        stage.node("c").restart()
        first = stage.node("c").life
        assert first is not None
        first.freeze_after(moment)
        await asyncio.sleep(3)
        stage.node("c").replace()
        await stage.ready("c")
        await writes(stage, 60)
        await asyncio.sleep(5)
        first.thaw()
        # The one whose claim is the later one stays.
        await stage.until(lambda: len(stage.node("c").replaced) + stage.node("c").alive == 1)
        assert stage.ring.errors == []

    for moment in range(10, 25, 2):
        story(partial(script, moment=moment), limits=SHORT)


def test_clusters_that_all_trim_the_log_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trim, "trims", lambda me, ready: True)
    assert [one(seed, window_records=48).problems for seed in range(4)] == [[]] * 4


@as_story(limits=SHORT)
async def test_configured_keep_limits_keep_more_records_than_needed(stage: Stage) -> None:
    for node in stage.ring.nodes.values():
        node.kill()
    stage.ring.configure(trim=replace(TRIM, keep_records=35, keep_s=100))
    await stage.settle()
    await stage.submit("a", ddl("a"))
    began = stage.now
    await writes(stage, 60)
    assert start(stage) == 0  # all of it is younger than keep_s
    await asyncio.sleep(100 - (stage.now - began) + 15)
    assert 0 < start(stage) <= stage.ring.store.end - 35
    await asyncio.sleep(60)
    assert start(stage) == stage.ring.store.end - 35


@as_story(limits=SHORT)
async def test_archive_that_is_waited_for_holds_trimming_back(stage: Stage) -> None:
    stage.ring.configure(archive=Archive(user="archive", holds_trimming=True))
    for node in stage.ring.nodes.values():
        node.kill()
        node.start()
    await stage.settle()
    await stage.submit("a", ddl("a"))
    await writes(stage, 40)
    life = stage.node("a").life
    assert life is not None and life.member.trimmer.plan is not None
    assert (start(stage), life.member.trimmer.plan.held_by) == (0, trim.ARCHIVE)
    await ArchivePosition(MemoryKeyValueStore(stage.ring.keyed)).move(KEPT + 5)
    await asyncio.sleep(5)
    assert start(stage) == 5


# -- joining and leaving -----------------------------------------------------------------------


@as_story()
async def test_new_cluster_replays_the_log_and_serves_like_the_others(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    await writes(stage, 5)
    await join(stage, "d")
    stage.ring.add("d").start()
    await stage.ready("a", "b", "c", "d")
    assert [members(stage, name) for name in "abcd"] == [["a", "b", "c", "d"]] * 4
    assert start(stage) == 0
    # DDL is taken to it, too, and it takes writes and DDL itself.
    await stage.submit("a", ddl("a", "second", CREATE.replace(" t ", " u ")))
    assert stage.tables("d") >= {"t", "u"}
    await stage.submit("d", ddl("d", "third", CREATE.replace(" t ", " v ")))
    assert all("v" in stage.tables(name) for name in "abcd")
    await writes(stage, 3, "d")
    await stage.ready("a", "b", "c", "d")
    found = await stage.verify("d")
    assert {name: each["finding"] for name, each in found["clusters"].items()} == dict.fromkeys(
        "abcd", "equal"
    )
    stage.check_equal(*"abcd")


@as_story(limits=SHORT)
async def test_new_cluster_holds_trimming_back_from_its_join_on(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    await writes(stage, 5)
    await join(stage, "d")
    await writes(stage, 60)
    assert start(stage) == 0
    stage.ring.add("d").start()
    await stage.ready(*"abcd")
    await asyncio.sleep(5)
    assert start(stage) == stage.ring.store.end - KEPT
    stage.check_equal(*"abcd")


@as_story()
async def test_cluster_that_was_not_added_serves_nobody_until_it_is_added(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    await leave(stage, "c")  # the first word of the log about members
    stage.ring.add("d").start()
    await stage.until(lambda: stage.alive_state("d") is State.REMOVED)
    await join(stage, "d", "b")
    await stage.equal("a", "b", "d")


@as_story(limits=SHORT)
async def test_removed_cluster_stops_and_the_log_is_trimmed_without_it(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    await stage.ready(*"abc")
    await leave(stage, "c", "b")
    await stage.until(lambda: stage.state("c") is State.REMOVED)
    assert "since offset" in stage.reason("c") and "cluster add" in stage.reason("c")
    with pytest.raises(RequestError) as caught:
        await stage.submit("c", insert("late", "t", "c"))
    assert caught.value.error_class == "HAPROC_REMOVED"
    await writes(stage, 40)
    await stage.submit("b", ddl("b", "second", CREATE.replace(" t ", " u ")))
    await asyncio.sleep(5)
    assert start(stage) == stage.ring.store.end - KEPT
    assert "u" not in stage.tables("c")
    life = stage.life("a")
    assert list(life.member.members.peers()) == ["b"]
    stage.check_equal("a", "b")


@pytest.mark.parametrize("restarted", [False, True])
@as_story(limits=SHORT)
async def test_removed_cluster_that_rejoins_in_time_continues_from_its_cursor(
    stage: Stage, restarted: bool
) -> None:
    await stage.submit("a", ddl("a"))
    await stage.ready(*"abc")
    await leave(stage, "c")
    await writes(stage, 10)
    if restarted:
        stage.node("c").restart()
    await stage.until(lambda: stage.alive_state("c") is State.REMOVED)
    await join(stage, "c", "b")
    await stage.until(lambda: stage.state("c") is State.RECOVERING)
    await stage.settle()


@as_story(limits=SHORT)
async def test_member_list_outlives_the_records_that_changed_it(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    await join(stage, "d")
    stage.ring.add("d").start()
    await leave(stage, "b", "c")
    await stage.ready(*"acd")
    await writes(stage, 120)
    await asyncio.sleep(5)
    assert start(stage) > 100
    for name in "acd":
        stage.node(name).kill()
    stage.node("b").kill()
    for name in "acd":
        stage.node(name).start()
    await stage.ready(*"acd")
    assert [members(stage, name) for name in "acd"] == [["a", "c", "d"]] * 3
    # Not so many of them that they are a burden: about one for each window.
    rosters = stage.records(Roster)
    assert 1 <= len(rosters) <= 3
    stage.node("b").start()
    await stage.until(lambda: stage.state("b") in (State.TOO_FAR_BEHIND, State.REMOVED))


@as_story(limits=SHORT)
async def test_cluster_that_was_away_while_the_roster_record_moved_knows_the_members(
    stage: Stage,
) -> None:
    await stage.submit("a", ddl("a"))
    await join(stage, "d")
    stage.ring.add("d").start()
    await stage.ready(*"abcd")
    await writes(stage, 15)
    stage.node("c").kill()
    await writes(stage, 100)
    await asyncio.sleep(5)
    stage.node("c").start()
    await stage.ready(*"abcd")
    assert members(stage, "c") == ["a", "b", "c", "d"]
    await writes(stage, 30)
    await asyncio.sleep(5)
    stage.node("c").restart()
    await stage.ready(*"abcd")
    assert members(stage, "c") == ["a", "b", "c", "d"]


@as_story()
async def test_concurrent_member_changes_through_two_haprocs_both_count(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    await asyncio.gather(join(stage, "d", "a"), join(stage, "e", "b"), leave(stage, "c", "b"))
    await asyncio.sleep(5)
    assert {str(members(stage, name)) for name in "ab"} in (
        {"['a', 'b', 'd', 'e']"},
        {"['a', 'b', 'e', 'd']"},
    )


@as_story()
async def test_repeated_member_change_adds_no_record(stage: Stage) -> None:
    await join(stage, "d")
    end = stage.ring.store.end
    await join(stage, "d", "b")
    await leave(stage, "x", "b")
    assert stage.ring.store.end == end
    with pytest.raises(RequestError, match="member already"):
        await stage.replica("a").admission.join("d", cluster_of("x").peer, "http://d:8080")


@as_story()
async def test_first_member_change_is_refused_while_it_would_leave_out_a_cluster(
    stage: Stage,
) -> None:
    await stage.submit("a", ddl("a"))
    stage.ring.add("d").start()  # only its own configuration names it
    await stage.ready(*"abcd")
    with pytest.raises(RequestError, match="d took part"):
        await join(stage, "e")
    await join(stage, "d")
    await join(stage, "e")
    await stage.until(lambda: members(stage, "d") == ["a", "b", "c", "d", "e"])


@as_story()
async def test_last_cluster_or_an_unknown_one_cannot_leave(stage: Stage) -> None:
    with pytest.raises(RequestError, match="no cluster x"):
        await leave(stage, "x")
    await leave(stage, "b")
    await leave(stage, "c")
    with pytest.raises(RequestError, match="only one"):
        await leave(stage, "a")
    stage.node("a").spark.kill()
    await stage.until(lambda: stage.state("a") is State.DOWN)
    with pytest.raises(RequestError, match="DOWN"):
        await join(stage, "d")


# -- broken rules ------------------------------------------------------------------------------


def window_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Trim up to the cursors, although request ids are read from before them."""
    patch.setattr(trim, "needs", lambda names, cursors, window: needs(names, cursors, 0))


def gossip_believed(patch: pytest.MonkeyPatch) -> None:
    """Trim by the cursors that processes have in memory, stored or not."""

    async def live_cursors(self: SimLog) -> dict[str, Cursor]:
        nodes: list[Node] = [*self._ring.nodes.values()]
        return {n.name: Cursor(n.replica.core.schedule.low) for n in nodes if n.replica}

    patch.setattr(SimLog, "cursors", live_cursors)
    patch.setattr(
        trim, "names_needed", lambda enrolled, configured, cursors, claims: frozenset(cursors)
    )


@pytest.mark.parametrize(
    ("break_rule", "first"), [(slowest_ignored, 11), (window_forgotten, 0), (gossip_believed, 8)]
)
def test_trimming_rule_broken_on_purpose_is_found(
    break_rule: BreakRule, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)
    runs = (one(seed, window_records=24).problems for seed in range(first, first + 60))
    # A cluster is left behind for good, and lacks what it would have needed the log for; and a
    # process that was replaced may not find the record any more that would end it.
    found_in(runs, Violation.NOT_READY, {Violation.LOST, Violation.NOT_ENDED})
