"""Tests of a log with fillers, which hold no record: all readers skip them."""

from __future__ import annotations

from dmq import FILLER, Record, encode
from tests.simulation.directed import Stage, as_story, ddl
from tests.simulation.ring import LIMITS
from tests.simulation.scenario import insert

FILLERS = [encode(Record(FILLER))] * 3


@as_story()
async def test_fillers_between_operations_are_skipped(stage: Stage) -> None:
    stage.ring.store.append_stored(FILLERS)
    await stage.apply("a", ddl("a"))
    stage.ring.store.append_stored(FILLERS)
    await stage.apply("b", insert("1", "t", "b"))
    stage.ring.store.append_stored(FILLERS)
    await stage.settle()  # every cursor is at the log's end


@as_story()
async def test_fillers_in_a_queue_longer_than_the_look_ahead_are_skipped(
    stage: Stage,
) -> None:
    await stage.submit("a", ddl("a"))
    stage.node("c").kill()
    for number in range(2 * LIMITS.look_ahead_records_max):
        stage.ring.store.append_stored(FILLERS)
        await stage.submit("a", insert(str(number), "t", "a"))
    stage.ring.store.append_stored(FILLERS)
    await stage.settle()
