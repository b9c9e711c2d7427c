"""A log with places that hold no record: they are passed over, by everybody."""

from __future__ import annotations

from dmq import FILLER, Record, encode
from haproc.replicate.queue.outcomes import OutcomeStatus
from tests.simulation.directed import Stage, ddl, story
from tests.simulation.ring import LIMITS
from tests.simulation.scenario import insert

FILLERS = [encode(Record(FILLER))] * 3


def test_fillers_between_operations_are_passed_over() -> None:
    async def tell(stage: Stage) -> None:
        stage.ring.store.append_stored(FILLERS)
        outcome = await stage.submit("a", ddl("a"))
        assert outcome.status is OutcomeStatus.APPLIED
        stage.ring.store.append_stored(FILLERS)
        outcome = await stage.submit("b", insert("1", "t", "b"))
        assert outcome.status is OutcomeStatus.APPLIED
        stage.ring.store.append_stored(FILLERS)
        await stage.settle()  # every cursor is at the log's end

    story(tell)


def test_fillers_in_a_queue_longer_than_what_is_read_ahead_are_passed_over() -> None:
    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        stage.node("c").kill()
        for number in range(2 * LIMITS.look_ahead_records_max):
            stage.ring.store.append_stored(FILLERS)
            await stage.submit("a", insert(str(number), "t", "a"))
        stage.ring.store.append_stored(FILLERS)
        await stage.settle()

    story(tell)
