"""Tests of the wait queue: the order of requests, and the limit of their waiting time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from haproc.config.sections import Limits, User
from haproc.config.shares import Shares
from haproc.config.wait_queue import WaitQueue
from haproc.doors.apps import REGISTRY
from haproc.statements.request_admission import WAITING_BYTES
from tests.unit.canned import Canned
from tests.unit.door_rig import ARROW, STATEMENTS, Rig, door, until

USERS = (User("ann", "ann-token"), User("bob", "bob-token"))


async def test_permit_goes_to_the_user_with_the_fewest_in_order_of_arrival() -> None:
    places = Shares(3)
    line = WaitQueue(places)
    places.count("ann", 3)
    turns = [(user, line.join(user)) for user in ("ann", "ann", "bob", "cid", "bob")]
    served = []
    for _ in turns:
        places.give_back("ann")
        line.serve()
        served.append([at for at, (_, turn) in enumerate(turns) if turn.done()])
    # bob and cid come before ann while she has more than they, and bob's second one has to wait.
    assert served == [[2], [2, 3], [0, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3, 4]]


async def test_users_with_equally_few_permits_take_turns() -> None:
    places = Shares(2)
    line = WaitQueue(places)
    holders = ["ann", "bob"]
    for each in holders:
        places.count(each, 1)
    waiting = [(user, line.join(user)) for user in ("ann", "bob", "cid", "dan") for _ in range(4)]
    served: list[str] = []
    for _ in range(8):
        places.give_back(holders.pop(0))
        line.serve()
        (at,) = (at for at, (_, turn) in enumerate(waiting) if turn.done())
        holders.append(waiting.pop(at)[0])
        served.append(holders[-1])
    assert {*served[:4]} == {*served[4:]} == {"ann", "bob", "cid", "dan"}


@given(st.lists(st.tuples(st.sampled_from(["join", "leave", "step out"]), st.sampled_from("abc"))))
def test_permit_never_stays_free_while_a_waiting_user_may_have_it(
    steps: list[tuple[str, str]],
) -> None:
    async def run() -> None:
        places = Shares(4, 3)
        line = WaitQueue(places)
        turns: dict[str, list[asyncio.Future[None]]] = {user: [] for user in "abc"}
        for step, user in steps:
            waiting = [turn for turn in turns[user] if not turn.done()]
            if step == "join":
                if places.denied(user) is None and not line.waits(user):
                    places.count(user, 1)
                else:
                    turns[user].append(line.join(user))
            elif step == "step out" and waiting:
                line.step_out(user, waiting[-1])
                turns[user].remove(waiting[-1])
            elif step == "leave" and places.of_user(user):
                places.give_back(user)
                line.serve()
            left = {u: [t for t in turns[u] if not t.done()] for u in "abc"}
            assert line.length == sum(len(each) for each in left.values())
            assert not any(left[u] and places.denied(u) is None for u in "abc")

    asyncio.run(run())


async def _ask(rig: Rig, user: str, statement: str = "SELECT 1", **headers: str) -> int:
    sent = {"Authorization": f"Bearer {user}-token", **headers}
    body = {"statement": statement}
    async with rig.http.post(rig.url + STATEMENTS, json=body, headers=sent) as response:
        await response.read()
        return response.status


async def test_requests_beyond_the_permits_wait_and_are_all_answered(tmp_path: Path) -> None:
    async with door(tmp_path, users=USERS, limits=Limits(statements_max=2)) as rig:
        hold = asyncio.Event()
        rig.service.table["SLOW"] = Canned(rig.service.table["SELECT 1"].chunks, hold=hold)
        asking = [asyncio.create_task(_ask(rig, "ann", "SLOW")) for _ in range(20)]
        asking += [asyncio.create_task(_ask(rig, "ann", "SLOW", **ARROW)) for _ in range(20)]
        asking += [asyncio.create_task(_ask(rig, "bob")) for _ in range(5)]
        gate = rig.app[REGISTRY].request_admission
        # ann has her share of the two places, and bob the other one again and again.
        await until(lambda: all(each.done() for each in asking[-5:]))
        assert gate.inside == 1 and gate._wait_queue.length == 39
        assert gate._bytes.taken >= 39 * WAITING_BYTES
        assert "haproc_requests_waiting 39.0" in rig.metrics.text().decode()
        hold.set()
        assert set(await asyncio.gather(*asking)) == {200}
        await until(lambda: gate.inside == gate._wait_queue.length == gate._bytes.taken == 0)


async def test_request_that_gets_no_permit_in_time_is_answered_429(tmp_path: Path) -> None:
    limits = Limits(statements_max=1, statement_queue_s=0.05)
    async with door(tmp_path, limits=limits) as rig:
        async with rig.app[REGISTRY].request_admission.permit("x"):
            answer = await rig.post(429, statement="SELECT 1")
            assert answer["error_class"] == "HAPROC_BUSY"
            assert "statement_queue_s" in answer["message"]
            assert await _ask(rig, "ann", **ARROW) == 429
        await rig.post(statement="SELECT 1")


async def test_wait_queue_is_limited_by_the_bytes_of_its_requests(tmp_path: Path) -> None:
    limits = Limits(statements_max=1, requests_bytes_max=4 * WAITING_BYTES)
    async with door(tmp_path, limits=limits) as rig:
        gate = rig.app[REGISTRY].request_admission
        async with gate.permit("x"):
            asking = [asyncio.create_task(_ask(rig, "ann")) for _ in range(10)]
            await until(lambda: sum(each.done() for each in asking) >= 6)
            assert {each.result() for each in asking if each.done()} == {429}
        assert 200 in await asyncio.gather(*asking)
        await until(lambda: gate._bytes.taken == 0)


async def test_query_whose_client_disconnects_leaves_the_wait_queue(tmp_path: Path) -> None:
    async with door(tmp_path, limits=Limits(statements_max=1)) as rig:
        gate = rig.app[REGISTRY].request_admission
        async with gate.permit("x"):
            asking = [asyncio.create_task(_ask(rig, "ann", **headers)) for headers in ({}, ARROW)]
            await until(lambda: gate._wait_queue.length == 2)
            for each in asking:
                each.cancel()
            await until(lambda: gate._wait_queue.length == gate._bytes.taken == 0)
        assert not rig.service.requests and gate.inside == 0
