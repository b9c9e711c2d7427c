"""Tests of a HAProc that is cut off: it leaves service, and returns without effects on others."""

from __future__ import annotations

import asyncio

import pytest

from haproc.failure import RequestError
from haproc.membership.state import State
from haproc.membership.view import Reachability
from tests.simulation.directed import Stage, as_story, ddl
from tests.simulation.ring import MEMBERSHIP
from tests.simulation.scenario import insert

NOTICED_S = 15.0
"""Longer than the heartbeat window, the probes and the retries of the log together."""


def status(stage: Stage, by: str, name: str) -> Reachability:
    return stage.life(by).member.members.peers()[name].status


@as_story()
async def test_node_that_is_cut_off_is_isolated_and_returns_with_the_missed_operations(
    stage: Stage,
) -> None:
    await stage.submit("a", ddl("a"))
    stage.ring.cut.add("c")
    await stage.until(lambda: stage.state("c") is State.ISOLATED, NOTICED_S)
    assert "neither the log nor a and b can be reached from here" in stage.reason("c")
    assert status(stage, "a", "c") is Reachability.DOWN
    with pytest.raises(RequestError, match="ISOLATED"):
        await stage.submit("c", insert("lost", "t", "c"))
    # the others go on, and don't wait for it
    assert stage.life("a").member.members.is_gone("c")
    outcome = await stage.submit("a", ddl("a", "more", "CREATE TABLE more (x)"))
    assert outcome.clusters == {"a": "applied", "b": "applied", "c": "queued"}
    await stage.submit("b", insert("missed", "t", "b"))
    states: list[State] = []
    stage.ring.cut.clear()
    await stage.until(lambda: _seen(states, stage.state("c")) is State.READY, NOTICED_S)
    assert states == [State.ISOLATED, State.RECOVERING, State.READY]
    await stage.ready("a", "b", "c")
    assert stage.node("c").spark.dump() == stage.node("a").spark.dump()
    await stage.until(lambda: status(stage, "a", "c") is Reachability.REACHABLE, NOTICED_S)


def _seen(states: list[State], state: State) -> State:
    """Append a state if it is new."""
    if states[-1:] != [state]:
        states.append(state)
    return state


@pytest.mark.parametrize("gone", ["kill", "freeze"])
@as_story()
async def test_node_alone_with_its_log_keeps_serving(stage: Stage, gone: str) -> None:
    await stage.submit("a", ddl("a"))
    for name in "bc":
        getattr(stage.node(name), gone)()
    await asyncio.sleep(NOTICED_S)
    assert [status(stage, "a", name) for name in "bc"] == [Reachability.DOWN] * 2
    assert stage.state("a") is State.READY
    await stage.apply("a", insert("1", "t", "a"))


@as_story()
async def test_log_that_no_node_can_reach_isolates_no_node(stage: Stage) -> None:
    stage.ring.weather.log_away = True
    for _ in range(int(NOTICED_S)):
        await asyncio.sleep(1)
        assert State.ISOLATED not in [stage.state(name) for name in "abc"]
    assert [stage.state(name) for name in "abc"] == [State.READ_ONLY] * 3
    # the last one that is left can't tell, but dead peers refuse: it is not cut off
    stage.node("b").kill()
    stage.node("c").kill()
    await asyncio.sleep(NOTICED_S)
    assert stage.state("a") is State.READ_ONLY
    stage.ring.weather.log_away = False
    await stage.until(lambda: stage.state("a") is State.READY, NOTICED_S)


@as_story()
async def test_node_whose_peers_reach_the_log_is_isolated(stage: Stage) -> None:
    stage.ring.cut_from_log.add("b")
    await stage.until(lambda: stage.state("b") is State.ISOLATED, NOTICED_S)
    assert "the log cannot be reached from here, but a and c can reach it" in stage.reason("b")
    assert status(stage, "a", "b") is Reachability.REACHABLE
    stage.ring.cut_from_log.clear()
    await stage.until(lambda: stage.state("b") is State.READY, NOTICED_S)


@as_story()
async def test_heartbeats_of_a_replaced_process_are_ignored(stage: Stage) -> None:
    await stage.until(lambda: status(stage, "a", "b") is Reachability.REACHABLE, NOTICED_S)
    old = stage.node("b").life
    assert old is not None
    stage.node("b").freeze()
    stage.node("b").replace()
    await stage.until(lambda: _incarnation(stage, "a", "b") == "b2", NOTICED_S)
    await asyncio.sleep(2 * MEMBERSHIP.window_s)
    old.thaw()
    for _ in range(20):
        await asyncio.sleep(MEMBERSHIP.heartbeat_interval_s / 2)
        assert _incarnation(stage, "a", "b") == "b2"


def _incarnation(stage: Stage, by: str, name: str) -> str | None:
    beat = stage.life(by).member.members.peers()[name].beat
    return beat.incarnation if beat is not None else None
