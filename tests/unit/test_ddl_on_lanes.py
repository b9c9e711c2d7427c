"""The side effects of DDL: lanes that are renewed after it, and checks of tables before it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from haproc.classify.model import Kind
from haproc.config.sections import Limits
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import ABSENT, PRESENT, Applied, Named
from haproc.engine.statement import SqlText, Statement
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus
from haproc.replicate.records.operation import Operation
from tests.simulation.clock import run
from tests.unit.draining_rig import NullEngine, NullLane, member
from tests.unit.operations import ddl

DROP_TABLE, DROP_SCHEMA = SqlText("DROP TABLE t"), SqlText("DROP SCHEMA s CASCADE")
DROPS = (DROP_TABLE, DROP_SCHEMA)


class Lane(NullLane):
    """Records whether it ran a DROP, and whether it was renewed."""

    def __init__(self, engine: NullEngine) -> None:
        super().__init__(engine)
        self.ran = self.renewed = False

    async def apply(self, write: Statement, *args: object, **options: object) -> Applied:
        self.ran = self.ran or write in DROPS
        return await self._engine.apply(write)

    def renew(self) -> None:
        self.renewed = True


class Engine(NullEngine):
    """Holds one table or view, which each statement drops; an answer can be lost."""

    def __init__(self, *, loses_answers: bool = False) -> None:
        super().__init__()
        self.lanes: list[Lane] = []
        self.there, self.loses_answers = True, loses_answers
        self.looked_up: list[Named] = []
        self.runs = 0

    def lane(self, index: int, authorise: Callable[[], Awaitable[None]]) -> Lane:
        self.lanes.append(Lane(self))
        return self.lanes[-1]

    @property
    def applying(self) -> list[Lane]:
        """The lanes that apply operations; the others only clean up."""
        return self.lanes[: Limits().lanes]

    async def object_fingerprint(self, named: Sequence[Named]) -> str:
        self.looked_up += named
        if not self.there:
            return ABSENT
        return PRESENT if not named[0].content else "7@1"

    async def apply(self, write: Statement) -> Applied:
        if write not in DROPS:
            return Applied()  # it clears away what an earlier process has left
        self.runs += 1
        self.there = False
        if self.loses_answers:
            raise EngineError(ErrorKind.AVAILABILITY, "gone")
        return Applied()


def applied(op: Operation, engine: Engine) -> OperationOutcome:
    """Return the outcome of an operation that is the first one of a ring of one cluster."""

    async def drained() -> OperationOutcome:
        async with member([op], engine) as replica:
            await replica.core.news.until(lambda: replica.core.schedule.low >= 1)
            return await replica.core.outcomes.outcome(await replica.core.outcomes.arrival_at(0))

    return run(drained())


def drop(kind: Kind = Kind.DROP_TABLE) -> Operation:
    return replace(ddl("drop", "a"), kind=kind, write=DROP_TABLE, named=True)


def test_ddl_with_known_names_renews_all_lanes_but_its_own() -> None:
    engine = Engine()
    applied(drop(), engine)
    assert [lane.renewed for lane in engine.applying] == [not lane.ran for lane in engine.applying]


def test_ddl_with_unknown_names_renews_all_lanes() -> None:
    engine = Engine()
    applied(replace(drop(Kind.DROP_NAMESPACE), write=DROP_SCHEMA, named=False), engine)
    assert all(lane.renewed for lane in engine.applying)


@pytest.mark.parametrize("kind", [Kind.DROP_TABLE, Kind.DROP_VIEW])
def test_drop_whose_answer_was_lost_is_recognised_without_a_look_at_content(kind: Kind) -> None:
    engine = Engine(loses_answers=True)
    outcome = applied(drop(kind), engine)
    assert outcome.status is OutcomeStatus.APPLIED and outcome.assumed
    assert engine.runs == 1
    assert not any(each.content for each in engine.looked_up)


def test_drop_that_did_not_run_runs_again() -> None:
    class Refusing(Engine):
        async def apply(self, write: Statement) -> Applied:
            if write in DROPS and not self.runs:
                self.runs = 1
                raise EngineError(ErrorKind.AVAILABILITY, "never came there")
            return await super().apply(write)

    engine = Refusing()
    outcome = applied(drop(), engine)
    assert outcome.status is OutcomeStatus.APPLIED and not outcome.assumed
    assert engine.runs == 2
