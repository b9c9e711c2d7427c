"""Tests of a process that was frozen, replaced, and wakes up: it applies nothing more.

It is frozen at each moment, one after another, at which it calls the log or its cluster while it
applies an operation: before and after each call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from haproc.classify.model import Kind
from haproc.engine.lane import SparkLane
from haproc.engine.remote import RemoteSession
from haproc.membership.state import State
from haproc.replicate.member.own_log import OwnLog
from haproc.replicate.member.steps import Step
from haproc.replicate.records.operation import Operation
from tests.simulation.broken import BreakRule, not_fenced
from tests.simulation.directed import Stage, as_story, ddl, story
from tests.simulation.life import Life
from tests.simulation.scenario import insert, operation
from tests.simulation.violations import Violation, found_by

MOMENTS = range(40)
"""More moments than an operation has that fails once."""


async def replaced(stage: Stage, op: Operation, moment: int, *, fails: bool, restarts: str) -> Life:
    """Freeze b's process while it applies the operation, and start another one in its place."""
    node = stage.node("b")
    first = node.life
    assert first is not None

    def strike(_: object) -> None:
        first.freeze_after(moment)
        node.spark.environment_error_rate = 1.0 if fails else 0.0

    stage.at("b", Step.APPLY_BEFORE, strike)
    await stage.submit("a", op)
    await stage.until(lambda: ("b", Step.APPLY_BEFORE) in stage.struck)
    await asyncio.sleep(3)
    first.thawed.clear()
    if restarts == "before":
        node.spark.kill()
        node.spark.restart()
    node.replace()
    node.spark.environment_error_rate = 0.0
    await stage.ready("b")
    if restarts == "after":
        node.spark.kill()
        node.spark.restart()
        await stage.ready("b")
    # The log is slower than the cluster: a process learns late that it was replaced.
    stage.ring.weather.delay_s = 1
    return first


def is_fenced(life: Life) -> bool:
    return life.member.core.condition.state is State.FENCED


@as_story()
async def an_insert(stage: Stage, moment: int, fails: bool = False, restarts: str = "") -> None:
    """An INSERT, which is applied once."""

    await stage.submit("a", ddl("a"))
    op = insert("one", "t", "a")
    first = await replaced(stage, op, moment, fails=fails, restarts=restarts)
    await stage.submit("a", insert("two", "t", "a"))
    first.thaw()
    await stage.submit("a", insert("three", "t", "a"))
    await stage.settle()
    assert is_fenced(first)
    assert stage.node("b").spark.dump()["t"] == [("one",), ("three",), ("two",)]


@as_story()
async def a_create(stage: Stage, moment: int, fails: bool = False, restarts: str = "") -> None:
    """A table that is created, and dropped before the first process wakes up."""

    first = await replaced(stage, ddl("a"), moment, fails=fails, restarts=restarts)
    drop = operation("drop", Kind.DROP_TABLE, "DROP TABLE t", "a")
    await stage.submit("a", drop)
    await stage.ready("b")
    first.thaw()
    await stage.until(lambda: is_fenced(first))
    await stage.settle()
    assert stage.tables("b") == set()


STORIES = (an_insert, a_create)
RESTARTS = ("", "before", "after")
"""The time of Spark's restart, if any; each moment has the next one of these."""


@pytest.mark.thorough
@pytest.mark.parametrize("restarts", RESTARTS)
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("script", STORIES)
def test_process_replaced_at_any_moment_of_an_apply_applies_nothing_more(
    script: Callable[..., None], fails: bool, restarts: str
) -> None:
    for moment in MOMENTS[RESTARTS.index(restarts) :: len(RESTARTS)]:
        script(moment, fails, restarts)


TAKEOVER_MOMENTS = range(8)
"""The moments from another process's first call to its reading of the stored progress."""


@pytest.mark.thorough
def test_process_replaced_while_it_reports_a_failure_leaves_its_cluster_in_service() -> None:
    """Its report may be too late to count, and its progress may be stored just in time."""

    async def script(stage: Stage, moment: int, takeover: int) -> None:
        await stage.submit("a", ddl("a"))
        node = stage.node("b")
        first = node.life
        assert first is not None
        stage.at("b", Step.APPLY_BEFORE, lambda _: first.freeze_after(moment))
        bad = "UPDATE missing SET x = 1"
        op = operation("bad", Kind.UPDATE, bad, "a", writes=frozenset({"missing"}))
        assert (await stage.submit("a", op)).failure is not None
        await asyncio.sleep(3)
        node.replace()
        second = node.life
        assert second is not None
        second.freeze_after(takeover)
        await asyncio.sleep(1)
        first.thaw()
        await asyncio.sleep(1)
        second.thaw()
        await stage.settle()

    for moment in MOMENTS[:16]:
        for takeover in TAKEOVER_MOMENTS[moment % 4 :: 4]:
            story(partial(script, moment=moment, takeover=takeover))


def not_authorised(patch: pytest.MonkeyPatch) -> None:
    """Use a new session without a check for a newer claim."""

    async def gladly(self: OwnLog) -> None:
        return None

    patch.setattr(OwnLog, "still_mine", gladly)


def authorised_too_early(patch: pytest.MonkeyPatch) -> None:
    """Check for a newer claim before the session exists."""

    async def hasty(self: SparkLane) -> None:
        await self._authorise()
        await self._remote.open()
        self._open = True

    patch.setattr(SparkLane, "_open_session", hasty)


def sessions_not_distinguished(patch: pytest.MonkeyPatch) -> None:
    """Send statements without the id of the server's session."""
    patch.setattr(RemoteSession, "_learn", lambda self, response, epoch: None)


@pytest.mark.parametrize(
    "break_rule", [not_authorised, authorised_too_early, sessions_not_distinguished, not_fenced]
)
def test_rule_of_taking_over_broken_on_purpose_is_found(
    break_rule: BreakRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)

    def all_stories() -> None:
        for moment in MOMENTS:
            for script in STORIES:
                for fails in (False, True):
                    script(moment, fails, RESTARTS[moment % len(RESTARTS)])

    found_by(all_stories, Violation.UNEQUAL)
