"""Tests of the driver's planning turns: their order, and the statements that no longer count."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from haproc import protos
from haproc.config.shares import Shares
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.tasks import Phase, Planned, Tasks
from haproc.failure import ErrorClass, RequestError
from haproc.route.planning import LARGE, LATE_S_MAX, PLANNED_S_MAX, QUICK_S, Planning
from tests.simulation.clock import on_virtual_time

Response = protos.base.ExecutePlanResponse
WAIT_S = 5.0
LONG_S = 1000.0


class Statements:
    """Statements that take planning turns, by the names that the test gives them."""

    def __init__(self, planning: Planning, **sizes: int) -> None:
        self._planning = planning
        self._sizes = sizes
        self.planned: list[str] = []
        self._by_name: dict[str, Planned] = {}
        self._go_on: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, *names: str) -> None:
        for name in names:
            self._go_on[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._run(name))
            await asyncio.sleep(0)
        await settled()

    async def end(self, name: str) -> None:
        self._go_on[name].set()
        await self._tasks[name]
        await settled()

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        await asyncio.wait({self._tasks[name]})
        await settled()

    give_up = cancel

    def report_phase(self, name: str, phase: Phase) -> None:
        """Report a phase of the statement, as the driver does."""
        self._by_name[name](phase)

    async def _run(self, name: str) -> None:
        size = self._sizes.get(name, 0)
        async with self._planning.turn(name[0], LONG_S, size) as planned:
            self._by_name[name] = planned
            self.planned.append(name)
            await self._go_on[name].wait()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_planning_turn_goes_to_the_user_with_the_fewest_within_its_share() -> None:
    planning = Planning(Shares(3, 2), Shares(1))
    statements = Statements(planning)
    await statements.come("a1", "a2", "a3", "a4", "b1", "c1")
    assert statements.planned == ["a1", "a2", "b1"] and planning.waiting == 3
    await statements.end("a1")
    assert statements.planned[3:] == ["c1"]
    for each in ("a2", "b1", "c1", "a3", "a4"):
        await statements.end(each)
    assert planning.waiting == 0 and len(statements.planned) == 6


async def test_turn_of_a_cancelled_waiter_goes_to_the_next() -> None:
    statements = Statements(Planning(Shares(1), Shares(1)))
    await statements.come("a1", "a2", "a3")
    await statements.cancel("a2")
    await statements.end("a1")
    assert statements.planned[-1] == "a3"
    await statements.end("a3")


async def test_turn_granted_to_a_waiter_that_is_being_cancelled_is_not_lost() -> None:
    planning = Planning(Shares(1), Shares(1))
    statements = Statements(planning)
    async with planning.turn("a", WAIT_S) as planned:
        await statements.come("a2", "a3")
        planned(Phase.PLANNED)  # the turn is a2's, who does not know it yet
        assert planning.waiting == 1
        await statements.cancel("a2")
    assert statements.planned == ["a3"]
    await statements.end("a3")


L = LARGE + 1


@pytest.mark.parametrize(
    ("places", "size", "limit"), [(1, 0, "planned_max"), (9, L, "large_statements_max")]
)
async def test_waiter_for_a_turn_beyond_its_time_limit_is_refused_as_busy(
    places: int, size: int, limit: str
) -> None:
    planning = Planning(Shares(places), Shares(L))
    async with planning.turn("a", WAIT_S, size):
        with pytest.raises(RequestError) as raised:
            async with planning.turn("a", 0.01, size):
                pytest.fail("there is no place")
    assert raised.value.error_class is ErrorClass.BUSY and f"limits.{limit}" in str(raised.value)
    async with planning.turn("a", 0.01, size):
        assert planning.waiting == 0


def running() -> Any:
    response = Response(session_id="s")
    response.execution_progress.stages.add(num_tasks=8)
    return response


def rows() -> Any:
    response = Response(session_id="s")
    response.arrow_batch.data = b"x"
    return response


@pytest.mark.parametrize("response", [running(), rows()])
@pytest.mark.parametrize("as_bytes", [False, True])
async def test_statement_counts_until_its_tasks_run_or_its_rows_arrive(
    response: Any, as_bytes: bool
) -> None:
    planning, tasks = Planning(Shares(1), Shares(1)), Tasks(lambda: 0.0)
    begun, progress = Response(session_id="s"), Response()
    progress.execution_progress.num_inflight_tasks = 0

    def receive(response: Any) -> None:
        if as_bytes:
            report.receive_bytes(response.SerializeToString())
        else:
            report.receive(response)

    async with planning.turn("a", WAIT_S) as planned:
        report = tasks.begin(planned)
        receive(begun)
        receive(progress)
        waiting = asyncio.create_task(_turns(planning))
        await settled()
        assert not waiting.done()
        receive(response)
        await asyncio.wait_for(waiting, WAIT_S)
        receive(response)  # received again, it gives no place that another one has
    statements = Statements(planning)
    await statements.come("a1", "a2")
    assert statements.planned == ["a1"]
    await statements.end("a1")
    await statements.end("a2")


QUICK, SLOW = QUICK_S, QUICK_S + 0.1


@on_virtual_time
async def test_statement_planned_for_long_stops_counting_while_the_driver_is_quick() -> None:
    planning = Planning(Shares(2), Shares(1))
    statements = Statements(planning)
    await statements.come("a1", "a2", "a3", "a4")
    planning.probed(QUICK)
    await settled()
    assert statements.planned == ["a1", "a2"]  # nobody takes long yet
    await asyncio.sleep(PLANNED_S_MAX)
    planning.probed(SLOW)
    await settled()
    assert statements.planned == ["a1", "a2"]
    planning.probed(QUICK)
    await settled()
    assert statements.planned == ["a1", "a2", "a3"]  # one more each time
    planning.probed(QUICK)
    await settled()
    assert statements.planned[3:] == ["a4"] and planning.waiting == 0
    await statements.come("a5")
    for each in ("a1", "a2"):  # whose places others have
        await statements.end(each)
    assert planning.waiting == 1
    for each in ("a3", "a4", "a5"):
        await statements.end(each)
    assert statements.planned[4:] == ["a5"]


async def test_abandoned_statement_counts_until_the_driver_has_ended_it() -> None:
    planning = Planning(Shares(1), Shares(1))
    statements = Statements(planning)
    await statements.come("a1", "a2", "a3", "a4")
    await statements.give_up("a1")
    assert statements.planned == ["a1"]
    statements.report_phase("a1", Phase.ENDED)
    await settled()
    assert statements.planned == ["a1", "a2"]
    await statements.give_up("a2")
    planning.probed(SLOW)
    await settled()
    assert statements.planned == ["a1", "a2"]
    planning.probed(QUICK)  # the driver does not say so, but has time for others
    await settled()
    assert statements.planned == ["a1", "a2", "a3"]
    statements.report_phase("a2", Phase.ENDED)
    statements.report_phase("a1", Phase.ENDED)
    await settled()
    assert planning.waiting == 1
    for each in ("a3", "a4"):
        await statements.end(each)


@pytest.mark.parametrize("given_up", [True, False])
@on_virtual_time
async def test_statement_without_news_stops_counting_after_a_time_limit(given_up: bool) -> None:
    planning = Planning(Shares(1), Shares(1))
    statements = Statements(planning)
    await statements.come("a1", "a2")
    if given_up:
        await statements.give_up("a1")
    await asyncio.sleep(LATE_S_MAX + (0 if given_up else PLANNED_S_MAX) - 1)
    planning.probed(SLOW)
    await settled()
    assert statements.planned == ["a1"]
    await asyncio.sleep(1)
    await settled()
    assert statements.planned == ["a1", "a2"]
    if not given_up:
        await statements.end("a1")
    await statements.end("a2")


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (EngineError(ErrorKind.APPLICATION, "no such table"), False),
        (EngineError(ErrorKind.ENVIRONMENT, "no executors"), False),
        (EngineError(ErrorKind.AVAILABILITY, "no answer in time"), True),
        (TimeoutError(), True),
        (ValueError(), False),
    ],
)
async def test_failed_statement_counts_on_unless_the_driver_reported_its_end(
    error: Exception, counts: bool
) -> None:
    planning = Planning(Shares(1), Shares(1))
    with pytest.raises(type(error)):
        async with planning.turn("a", WAIT_S):
            raise error
    waiting = asyncio.create_task(_turns(planning))
    await settled()
    assert waiting.done() is not counts
    planning.probed(QUICK)
    await waiting


async def test_large_statements_wait_for_one_another_to_end_and_small_ones_do_not() -> None:
    planning = Planning(Shares(9), Shares(4 * L, 3 * L))
    statements = Statements(planning, a1=L, a2=100 * L, a3=L, b1=2 * L, b2=L, b3=2 * L)
    await statements.come("a1", "b1", "a2", "a4", "b2", "b3", "c1")
    assert statements.planned == ["a1", "b1", "a4", "b2", "c1"]
    statements.report_phase("a1", Phase.PLANNED)  # its plan is still there
    await settled()
    assert statements.planned[5:] == []
    await statements.end("a1")
    assert statements.planned[5:] == []  # all of its user's share is not free
    await statements.end("b1")
    assert statements.planned[5:] == ["a2"]
    await statements.end("b2")
    await statements.come("a3")
    assert statements.planned[6:] == []
    await statements.cancel("b3")
    await statements.end("a2")
    assert statements.planned[6:] == ["a3"]
    for each in ("a3", "a4", "c1"):
        await statements.end(each)
    async with planning.turn("a", 0.0, 3 * L), planning.turn("b", 0.0, L):
        pass  # all of it was given back


@pytest.mark.parametrize("reported", [True, False])
@on_virtual_time
async def test_abandoned_large_statement_keeps_its_room_until_the_driver_has_ended_it(
    reported: bool,
) -> None:
    statements = Statements(Planning(Shares(9), Shares(L)), a1=L, a2=L)
    await statements.come("a1", "a2")
    statements.report_phase("a1", Phase.PLANNED)
    await statements.give_up("a1")
    assert statements.planned == ["a1"]
    if reported:
        statements.report_phase("a1", Phase.ENDED)
    else:
        await asyncio.sleep(LATE_S_MAX)
    await settled()
    assert statements.planned == ["a1", "a2"]
    await statements.end("a2")


async def test_large_statement_returns_its_room_with_its_first_rows() -> None:
    statements = Statements(Planning(Shares(9), Shares(L)), a1=L, a2=L)
    await statements.come("a1", "a2")
    statements.report_phase("a1", Phase.PLANNED)
    await settled()
    assert statements.planned == ["a1"]
    statements.report_phase("a1", Phase.ROWS)  # however slowly its client reads on
    await settled()
    assert statements.planned == ["a1", "a2"]
    for each in ("a1", "a2"):
        await statements.end(each)


async def test_statement_is_refused_a_turn_if_the_cluster_left_service_after_its_look() -> None:
    departures = 0
    planning = Planning(Shares(1), Shares(1), departures=lambda: departures)
    looked = planning.departures()
    departures += 1  # while its session was made anew
    with pytest.raises(RequestError, match="left service"):
        async with planning.turn("a", WAIT_S, 0, looked):
            pytest.fail("its tables may not be those any more")
    async with planning.turn("a", WAIT_S):
        pass


async def test_turns_of_abandoned_statements_are_free_at_once_when_the_driver_is_gone() -> None:
    planning = Planning(Shares(2), Shares(L))
    statements = Statements(planning, a1=L, a3=L)
    await statements.come("a1", "a2", "a3", "a4", "a5")
    await statements.give_up("a1")
    await statements.give_up("a2")
    assert statements.planned == ["a1", "a2"]
    planning.driver_is_gone()
    await settled()
    assert statements.planned[2:] == ["a4", "a5"] or statements.planned[2:] == ["a4", "a3"]
    for each in statements.planned[2:]:
        await statements.give_up(each)
    planning.driver_is_gone()
    await settled()
    assert sorted(statements.planned[2:]) == ["a3", "a4", "a5"]
    await statements.end(statements.planned[-1])
    async with planning.turn("a", 0.01, L), planning.turn("a", 0.01):
        pass  # all was given back


async def test_waiter_whose_cluster_left_service_meanwhile_gets_no_turn() -> None:
    departures = 0
    planning = Planning(Shares(1), Shares(1), departures=lambda: departures)
    waits = asyncio.Event()

    async def waiting() -> None:
        waits.set()
        async with planning.turn("a", WAIT_S):
            pytest.fail("its tables may not be those any more")

    async with planning.turn("a", WAIT_S):
        task = asyncio.create_task(waiting())
        await waits.wait()
        await settled()
        departures += 1
    with pytest.raises(RequestError, match="left service"):
        await task
    async with planning.turn("a", 0.01):
        pass


@pytest.mark.parametrize(("within_s", "wait_s"), [(1.0, 60.0), (60.0, 1.0)])
@on_virtual_time
async def test_waiter_is_refused_before_its_whole_timeout_has_passed(
    within_s: float, wait_s: float
) -> None:
    planning = Planning(Shares(1), Shares(1), wait_s=wait_s)
    async with planning.turn("a", WAIT_S):
        began = asyncio.get_running_loop().time()
        with pytest.raises(RequestError):
            async with planning.turn("a", within_s):
                pytest.fail("there is no place")
    if within_s < wait_s:  # a timeout of its own would have come first, and said less
        with pytest.raises(RequestError):
            async with asyncio.timeout(1.0), planning.turn("a", WAIT_S), planning.turn("a", 1.0):
                pytest.fail("there is no place")
    assert asyncio.get_running_loop().time() - began < WAIT_S


async def test_large_response_counts_as_rows_without_being_parsed() -> None:
    planning, tasks = Planning(Shares(1), Shares(1)), Tasks(lambda: 0.0)
    async with planning.turn("a", WAIT_S) as planned:
        tasks.begin(planned).receive_bytes(bytes(1 << 17))
        await asyncio.wait_for(_turns(planning), WAIT_S)


async def _turns(planning: Planning) -> None:
    async with planning.turn("a", WAIT_S):
        pass


async def test_waiting_request_of_a_cluster_that_left_service_is_refused_at_once() -> None:
    """A host that is off reports nothing: the turns of its driver stay taken."""
    departures = 0
    planning = Planning(Shares(1), Shares(LARGE), departures=lambda: departures)
    statements = Statements(planning, a2=LARGE + 1, b1=LARGE + 1)
    await statements.come("a1", "a2", "b1", "b2")
    assert statements.planned == ["a1"] and planning.waiting == 3
    departures += 1
    planning.cluster_left()
    await settled()
    assert planning.waiting == 0
    for name in ("a2", "b1", "b2"):
        with pytest.raises(RequestError) as raised:
            await statements.end(name)
        assert raised.value.error_class is ErrorClass.BUSY
    await statements.end("a1")
    await statements.come("b3")  # nothing of what they waited for is lost
    assert statements.planned == ["a1", "b3"]
    await statements.end("b3")
