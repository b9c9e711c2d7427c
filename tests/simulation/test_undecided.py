"""Clusters that differ, without a majority that shows which of them is wrong.

Docs: docs/proofs/exactly-once.md, "Divergence and verification".
"""

from __future__ import annotations

import pytest

from haproc.failure import RequestError
from haproc.membership.state import Cause, State
from tests.simulation.directed import Stage, as_story, ddl
from tests.simulation.scenario import insert
from tests.simulation.test_poison import findings, rows


async def differing(stage: Stage, wrong: str = "b") -> None:
    """Make the tables differ: one cluster of two gets a row that the other does not have."""
    await stage.submit("a", ddl("a"))
    await stage.submit("a", insert("one", "t", "a"))
    await stage.ready("a", "b")
    stage.node(wrong).spark.mend("INSERT INTO t VALUES ('past')")


@pytest.mark.parametrize("receiver", ["a", "b"])
@as_story(size=2)
async def test_two_differing_clusters_both_serve_and_report_the_difference(
    stage: Stage, receiver: str
) -> None:
    await differing(stage)
    found = await stage.verify(receiver)
    assert findings(found) == {"a": "undecided", "b": "undecided"}
    assert {*found["differing"]["t"]} == {"a", "b"}
    for name in "ab":
        await stage.until(lambda: None not in map(stage.undecided, "ab"))
        condition = stage.undecided(name)
        assert condition is not None and condition.offset == found["marker"]
        assert condition.cause is Cause.TABLES and condition.what.startswith("t: a has ")
        assert stage.state(name) is State.READY
        assert "haproc verify --trust NAME" in stage.reason(name)
    # Both take writes, and a second look that finds the same changes nothing.
    await stage.submit("b", insert("two", "t", "b"))
    assert findings(await stage.verify(receiver)) == {"a": "undecided", "b": "undecided"}
    assert [stage.state(name) for name in "ab"] == [State.READY] * 2


@pytest.mark.parametrize("trusted", ["a", "b"])
@as_story(size=2)
async def test_operator_trust_in_a_cluster_decides_and_a_restart_keeps_the_decision(
    stage: Stage, trusted: str
) -> None:
    (other,) = {"a", "b"} - {trusted}
    await differing(stage)
    await stage.verify("a")
    await stage.until(lambda: None not in map(stage.undecided, "ab"))
    for name in "ab":
        stage.node(name).restart()
    for name in "ab":
        await stage.ready(name)
        assert stage.undecided(name) is not None
    found = await stage.verify("a", trusted)
    assert findings(found) == {trusted: "equal", other: "different"}
    await stage.until(lambda: stage.state(other) is State.DIVERGED)
    await stage.until(lambda: stage.undecided(trusted) is None)
    for name in "ab":
        stage.node(name).restart()
    await stage.until(lambda: stage.alive_state(other) is State.DIVERGED, 120)
    await stage.ready(trusted)
    assert stage.undecided(trusted) is None
    # What is wrong has no vote any more; mended it returns.
    assert findings(await stage.verify("a"))[trusted] == "equal"
    at = "INSERT INTO t VALUES ('past')" if trusted == "b" else "DELETE FROM t WHERE x = 'past'"
    stage.node(other).spark.mend(at)
    assert set(findings(await stage.verify("b")).values()) == {"equal"}
    await stage.ready("a", "b")


@as_story(size=2)
async def test_cluster_that_was_down_during_the_decision_applies_it_to_itself(stage: Stage) -> None:
    await differing(stage)
    await stage.verify("a")
    await stage.until(lambda: None not in map(stage.undecided, "ab"))
    stage.node("b").kill()
    found = await stage.verify("a", "a")
    # Nobody is compared with it: not decided for the one that is there, either.
    assert findings(found) == {"a": "undecided", "b": "unavailable"}
    assert stage.undecided("a") is not None
    stage.node("b").start()
    await stage.until(lambda: stage.alive_state("b") is State.DIVERGED, 120)
    await stage.until(lambda: stage.undecided("a") is None)
    assert stage.state("a") is State.READY


@as_story(size=2)
async def test_repaired_difference_ends_the_undecided_condition(stage: Stage) -> None:
    await differing(stage)
    await stage.verify("a")
    await stage.until(lambda: None not in (stage.undecided("a"), stage.undecided("b")))
    stage.node("b").spark.mend("DELETE FROM t WHERE x = 'past'")
    assert set(findings(await stage.verify("b")).values()) == {"equal"}
    await stage.until(lambda: {stage.undecided("a"), stage.undecided("b")} == {None})
    for name in "ab":
        stage.node(name).restart()
    await stage.ready("a", "b")
    assert {stage.undecided("a"), stage.undecided("b")} == {None}


@as_story()
async def test_three_clusters_with_three_contents_have_no_majority(stage: Stage) -> None:
    await differing(stage)
    stage.node("c").spark.mend("DELETE FROM t")
    assert findings(await stage.verify("a")) == dict.fromkeys("abc", "undecided")
    assert [stage.state(name) for name in "abc"] == [State.READY] * 3
    found = await stage.verify("c", "b")
    assert findings(found) == {"a": "different", "b": "equal", "c": "different"}
    await stage.until(lambda: stage.state("a") is stage.state("c") is State.DIVERGED)
    assert rows(stage, "b") == ["one", "past"]


@as_story(size=2)
async def test_trust_in_an_unknown_cluster_is_refused_and_changes_nothing(stage: Stage) -> None:
    await differing(stage)
    before = len(stage.messages())
    with pytest.raises(RequestError, match="the ring has no cluster z"):
        await stage.verify("a", "z")
    assert len(stage.messages()) == before
