"""Rows that came with a request and are too many for one record: only its origin has them.

Two rows make a part in simulated rings, so five make three.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

import pyarrow as pa
import pytest

from haproc.classify.model import Kind
from haproc.engine.interface import Chunk
from haproc.failure import ErrorClass, RequestError
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import SpooledRows
from haproc.route.model import may_be_made_again
from tests.simulation.computed import gather
from tests.simulation.directed import Stage, story
from tests.simulation.network import Refused
from tests.simulation.plans import stream_of
from tests.simulation.ring import Node
from tests.simulation.test_staging_tables import IDS, gathered, ids, parts

ROWS = pa.table({"id": ["g"] * len(IDS), "x": IDS, "n": list(range(len(IDS)))})
STEPS = (
    Step.ROWS_BEFORE,
    Step.PART_BEFORE,
    Step.PART_AFTER,
    Step.ROWS_COMPUTED,
    Step.ROWS_AFTER,
    Step.GATHER_PART,
    Step.GATHER_DONE,
    Step.APPLY_AFTER,
)


class Body:
    """What a request brought, in two pieces."""

    async def __aiter__(self) -> AsyncGenerator[Chunk, None]:
        for piece in (ROWS.slice(0, 3), ROWS.slice(3)):
            yield Chunk(stream_of(piece), piece.num_rows)


def append(op_id: str, origin: str) -> Operation:
    write = SpooledRows("gathered", stream_of(ROWS.slice(0, 0)))
    return replace(gather(op_id, origin), kind=Kind.ROWS, write=write, reads=frozenset())


async def submit(stage: Stage, name: str, op_id: str = "g") -> OperationOutcome:
    """Send the request with its rows to a cluster, which makes it an operation of this id."""
    op = append(op_id, name)
    stage.replica(name).computing.attach_rows(op.key, Body())
    return await stage.submit(name, op)


async def until_applied(stage: Stage, name: str) -> list[OperationOutcome]:
    """Send it as the route does: made again where that helps; return all outcomes."""
    found: list[OperationOutcome] = []
    for op_id in ("g", "g~2", "g~3"):
        found.append(await submit(stage, name, op_id))
        if not may_be_made_again(found[-1].failure):
            break
    return found


def test_rows_of_a_request_come_in_parts_and_appear_at_once() -> None:
    async def tell(stage: Stage) -> None:
        await ids(stage)
        outcome = await submit(stage, "a")
        assert (outcome.status, outcome.applied.affected_rows) == (OutcomeStatus.APPLIED, 5)
        assert [part.number for part in parts(stage)] == [0, 1, 2]
        await gathered(stage)
        commits = [sql for _, name, sql in stage.commits if name == "c" and "gathered" in sql]
        assert len(commits) == 2, "the table, and one statement for all parts"

    story(tell)


@pytest.mark.parametrize("hits", [1, 2])
@pytest.mark.parametrize("step", STEPS)
def test_origin_killed_at_any_step_the_same_request_elsewhere_leaves_the_rows_once(
    step: Step, hits: int
) -> None:
    async def tell(stage: Stage) -> None:
        await ids(stage)
        stage.at("a", step, *[lambda node: None] * (hits - 1), Node.kill)
        try:
            await submit(stage, "a")
        except (Refused, RequestError, TimeoutError):
            outcomes = await until_applied(stage, "b")
            assert outcomes[-1].status is OutcomeStatus.APPLIED
            for gone in outcomes[:-1]:
                assert gone.failure is not None
                assert gone.failure.error_class == ErrorClass.ROWS_GONE
            if step in (Step.ROWS_BEFORE, Step.PART_BEFORE, Step.PART_AFTER):
                # Once, unless the one that is asked takes over: it has the rows then.
                assert len(outcomes) <= 2, "made again, once"
        await gathered(stage)

    story(tell)


def test_origin_frozen_before_its_last_part_wakes_up_and_changes_nothing() -> None:
    async def tell(stage: Stage) -> None:
        await ids(stage)
        stage.at("a", Step.PART_AFTER, Node.freeze)
        with pytest.raises((Refused, RequestError, TimeoutError)):
            await submit(stage, "a")
        assert (await until_applied(stage, "b"))[-1].status is OutcomeStatus.APPLIED
        stage.node("a").thaw()
        await gathered(stage)

    story(tell)
