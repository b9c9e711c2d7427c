"""Rows of a request that exceed one record: only the cluster that received them has them.

Two rows make a part in simulated rings, so five make three.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

import pyarrow as pa
import pytest

from haproc.classify.model import Kind
from haproc.engine.arrow import stream_of
from haproc.engine.interface import Chunk
from haproc.failure import ErrorClass, RequestError
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import SpooledRows
from haproc.route.model import may_be_made_again
from tests.simulation.computed import gather
from tests.simulation.directed import Stage, as_story
from tests.simulation.network import Refused
from tests.simulation.ring import Node
from tests.simulation.test_staging_tables import IDS, check_rows_settled, ids, parts

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
    """The rows of a request, in two chunks."""

    async def __aiter__(self) -> AsyncGenerator[Chunk, None]:
        for piece in (ROWS.slice(0, 3), ROWS.slice(3)):
            yield Chunk(stream_of(piece), piece.num_rows)


def append(op_id: str, origin: str) -> Operation:
    write = SpooledRows("gathered", stream_of(ROWS.slice(0, 0)))
    return replace(gather(op_id, origin), kind=Kind.ROWS, write=write, reads=frozenset())


async def submit(stage: Stage, name: str, op_id: str = "g") -> OperationOutcome:
    """Send the request with its rows to a cluster, which makes an operation of it."""
    op = append(op_id, name)
    stage.replica(name).computing.attach_rows(op.key, Body())
    return await stage.submit(name, op)


async def until_applied(stage: Stage, name: str) -> list[OperationOutcome]:
    """Submit as the HTTP route does, with new attempts where they help; return all outcomes."""
    found: list[OperationOutcome] = []
    for op_id in ("g", "g~2", "g~3"):
        found.append(await submit(stage, name, op_id))
        if not may_be_made_again(found[-1].failure):
            break
    return found


@as_story()
async def test_rows_of_a_request_arrive_in_parts_and_appear_at_once(stage: Stage) -> None:
    await ids(stage)
    outcome = await submit(stage, "a")
    assert (outcome.status, outcome.applied.affected_rows) == (OutcomeStatus.APPLIED, 5)
    assert [part.number for part in parts(stage)] == [0, 1, 2]
    await check_rows_settled(stage)
    commits = [sql for _, name, sql in stage.commits if name == "c" and "gathered" in sql]
    assert len(commits) == 2, "the table, and one statement for all parts"


@pytest.mark.parametrize("hits", [1, 2])
@pytest.mark.parametrize("step", STEPS)
@as_story()
async def test_retry_on_another_cluster_after_the_origin_died_at_any_step_adds_the_rows_once(
    stage: Stage, step: Step, hits: int
) -> None:
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
    await check_rows_settled(stage)


@as_story()
async def test_origin_frozen_before_its_last_part_changes_nothing_after_it_wakes_up(
    stage: Stage,
) -> None:
    await ids(stage)
    stage.at("a", Step.PART_AFTER, Node.freeze)
    with pytest.raises((Refused, RequestError, TimeoutError)):
        await submit(stage, "a")
    assert (await until_applied(stage, "b"))[-1].status is OutcomeStatus.APPLIED
    stage.node("a").thaw()
    await check_rows_settled(stage)
