"""Tests of writes to a cluster's tables past HAProc."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from haproc.config.model import OnForeignWrite
from haproc.membership.state import State
from tests.simulation.directed import Script, Stage, as_story, ddl
from tests.simulation.ring import TIMEOUTS
from tests.simulation.scenario import insert

SOON = replace(TIMEOUTS, foreign_look_s=2)


def looking(reaction: OnForeignWrite) -> Script:
    """Return the beginning of a story: a table on a ring that looks for foreign writes."""

    async def begin(stage: Stage) -> None:
        stage.ring.configure(on_foreign_write=reaction)
        for node in stage.ring.nodes.values():
            node.restart()
        await stage.ready(*"abc")
        await stage.submit("a", ddl("a"))
        await stage.submit("a", insert("one", "t", "a"))
        await stage.ready(*"abc")

    return begin


def found(stage: Stage, name: str) -> list[tuple[str, int, str, bool]]:
    """Return the foreign commits that a cluster shows."""
    return [
        (each.table, each.commit.version, each.commit.operation, each.verified_at is not None)
        for each in stage.replica(name).foreign.found
    ]


def write_past(stage: Stage, name: str, sql: str, operation: str = "WRITE") -> None:
    spark = stage.node(name).spark
    spark.mend(sql)
    spark.past.commit("t", operation, int(stage.now * 1000))


@as_story(prepare=looking(OnForeignWrite.WARN), timeouts=SOON)
async def test_foreign_write_is_shown_and_the_cluster_keeps_serving(stage: Stage) -> None:
    write_past(stage, "b", "INSERT INTO t VALUES (7)")
    await stage.until(lambda: bool(found(stage, "b")))
    assert found(stage, "b") == [("t", 0, "WRITE", False)]
    assert not found(stage, "a") and stage.state("b") is State.READY
    await asyncio.sleep(1)  # it is stored, too
    # Another process looks at what is new since.
    stage.node("b").kill()
    write_past(stage, "b", "INSERT INTO t VALUES (8)", "DELETE")
    stage.node("b").start()
    await stage.until(lambda: stage.alive_state("b") is State.READY)
    await stage.until(lambda: bool(found(stage, "b")))
    assert found(stage, "b") == [("t", 1, "DELETE", False)]


@as_story(prepare=looking(OnForeignWrite.STOP), timeouts=SOON)
async def test_foreign_write_takes_the_cluster_out_of_service_until_it_is_verified(
    stage: Stage,
) -> None:
    write_past(stage, "b", "INSERT INTO t VALUES (7)")
    await stage.until(lambda: stage.alive_state("b") is State.DIVERGED)
    assert "tables differ from the other clusters' (t)" in stage.reason("b")
    verified = await stage.verify("a")
    assert verified["clusters"]["b"]["finding"] == "different"
    write_past(stage, "b", "DELETE FROM t WHERE x = 7", "DELETE")
    verified = await stage.verify("a")
    assert [each["operation"] for each in verified["clusters"]["b"]["foreign"]] == [
        "WRITE",
        "DELETE",
    ]
    assert not verified["clusters"]["a"]["foreign"]
    # What mended it is foreign, too, and was looked at by the verification.
    await stage.ready(*"abc")
    await stage.until(lambda: all(each[-1] for each in found(stage, "b")))
    stage.node("b").restart()
    await stage.ready(*"abc")
    for _ in range(3):
        write_past(stage, "b", "SELECT 1", "OPTIMIZE")
        await stage.until(lambda: stage.state("b") is State.READY)
    await stage.until(lambda: len(found(stage, "b")) == 3)
    stage.check_equal(*"abc")


@pytest.mark.parametrize("operation", ["OPTIMIZE", "VACUUM END"])
@as_story(prepare=looking(OnForeignWrite.STOP), timeouts=SOON)
async def test_foreign_maintenance_is_counted_separately_and_changes_no_state(
    stage: Stage, operation: str
) -> None:
    write_past(stage, "b", "SELECT 1", operation)
    await stage.until(lambda: bool(found(stage, "b")))
    assert stage.replica("b").foreign.take_counts() == {"rows": 0, "nothing": 1}
    assert stage.replica("b").foreign.take_counts() == {"rows": 0, "nothing": 0}
    assert stage.state("b") is State.READY
