"""Tests of limits for all users and for each: one user cannot use up the others' part."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.config.sections import Limits, User
from haproc.config.shares import Denied, Shares, user_max
from haproc.engine.arrow import stream_of
from haproc.failure import RequestError
from haproc.statements import registry as registry
from tests.unit.canned import Canned, chunks_of
from tests.unit.door_rig import ARROW, STATEMENTS, Rig, door, make_config, until
from tests.unit.session_rig import Ring

USERS = (User("ann", "ann-token"), User("bob", "bob-token"))


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(-3, 5)), max_size=40))
def test_shares_never_exceed_a_limit_and_count_what_is_taken(steps: list[tuple[str, int]]) -> None:
    shares, have = Shares(10, 6), {"a": 0, "b": 0}
    for user, amount in steps:
        if amount > 0:
            denied = shares.take(user, amount)
            if denied is None:
                have[user] += amount
            elif denied is Denied.SHARE_TAKEN:
                assert have[user] + amount > 6
            else:
                assert sum(have.values()) + amount > 10
        else:
            back = min(-amount, have[user])
            have[user] -= back
            shares.give_back(user, back)
        assert {user: shares.of_user(user) for user in have} == have
        assert shares.taken == sum(have.values()) <= 10


@pytest.mark.parametrize(("users", "share"), [((), 10), (USERS[:1], 10), (USERS, 5)])
def test_share_of_a_single_user_is_everything(
    tmp_path: Path, users: tuple[User, ...], share: int
) -> None:
    config = make_config(tmp_path, users=users)
    assert (user_max(10, config), user_max(1, config)) == (share, 1)


# -- at the door -------------------------------------------------------------------------------


async def post(rig: Rig, user: str, **body: Any) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {user}-token", **body.pop("headers", {})}
    async with rig.http.post(rig.url + STATEMENTS, json=body, headers=headers) as response:
        return response.status, await response.json()


async def get(rig: Rig, user: str, path: str) -> int:
    headers = {"Authorization": f"Bearer {user}-token"}
    async with rig.http.get(rig.url + path, headers=headers) as response:
        await response.read()
        return response.status


async def test_statements_of_one_user_leave_places_for_others(tmp_path: Path) -> None:
    async with door(
        tmp_path, users=USERS, limits=Limits(statements_max=4, statement_queue_s=0)
    ) as rig:
        hold = asyncio.Event()
        rig.service.table["SLOW"] = Canned(hold=hold)
        slow = {"statement": "SLOW", "wait_timeout": "0s"}
        assert [(await post(rig, "ann", **slow))[0] for _ in range(3)] == [200, 200, 429]
        status, answer = await post(rig, "ann", statement="SELECT 1", headers=ARROW)
        assert status == 429 and "ann" in answer["message"]
        assert [(await post(rig, "bob", **slow))[0] for _ in range(3)] == [200, 200, 429]
        hold.set()


async def test_waiting_requests_of_one_user_leave_connections_for_others(tmp_path: Path) -> None:
    async with door(tmp_path, users=USERS, limits=Limits(connections_max=4)) as rig:
        hold = asyncio.Event()
        rig.service.table["SLOW"] = Canned(hold=hold)
        waiting = [
            asyncio.create_task(post(rig, "ann", statement="SLOW", request_id="r"))
            for _ in range(2)
        ]
        await until(lambda: rig.app[_registry()].request_admission._waiting.taken == 2)
        assert (await post(rig, "ann", statement="SELECT 1"))[0] == 429
        assert await get(rig, "ann", "/healthz") == 200
        assert (await post(rig, "bob", statement="SELECT 1"))[0] == 200
        hold.set()
        assert [(await each)[0] for each in waiting] == [200, 200]


async def test_request_bytes_of_one_user_leave_memory_for_others(tmp_path: Path) -> None:
    limits = Limits(requests_bytes_max=100_000)
    async with door(tmp_path, users=USERS, limits=limits) as rig:
        hold = asyncio.Event()
        text = "SLOW" + " " * 40_000
        rig.service.table[text] = Canned(hold=hold)
        slow = {"statement": text, "wait_timeout": "0s"}
        assert [(await post(rig, "ann", **slow))[0] for _ in range(2)] == [200, 429]
        assert (await post(rig, "ann", statement="SELECT 1"))[0] == 200
        assert (await post(rig, "bob", **slow))[0] == 200
        hold.set()
        gate = rig.app[_registry()].request_admission
        await until(lambda: gate._bytes.taken == 0)
        assert (await post(rig, "ann", **slow))[0] == 200


async def test_refused_or_attached_requests_hold_no_bytes_afterwards(tmp_path: Path) -> None:
    limits = Limits(statements_max=2, statement_queue_s=0)
    async with door(tmp_path, users=USERS, limits=limits) as rig:
        hold = asyncio.Event()
        rig.service.table["SLOW"] = rig.service.table["t"] = Canned(hold=hold)
        slow = {"statement": "SLOW", "wait_timeout": "0s", "request_id": "r"}
        gate = rig.app[_registry()].request_admission
        assert (await post(rig, "ann", **slow))[0] == 200
        held = gate._bytes.taken
        assert (await post(rig, "ann", **slow))[0] == 200  # attached
        assert (await post(rig, "ann", **{**slow, "statement": "OTHER"}))[0] == 409
        assert (await post(rig, "ann", statement="SELECT 1"))[0] == 429
        data = stream_of(pa.table({"n": pa.array([1], pa.int32())}))
        headers = {"Authorization": "Bearer ann-token", "Content-Type": ARROW["Accept"]}
        url = f"{rig.url}/api/ha/tables/t/rows"
        for query, status in (("", 429), ("?request_id=r", 409)):
            async with rig.http.post(url + query, data=data, headers=headers) as response:
                assert response.status == status
        assert gate._bytes.taken == held
        hold.set()
        await until(lambda: gate._bytes.taken == 0)


async def test_large_answers_count_while_they_are_sent(tmp_path: Path) -> None:
    limits = Limits(requests_bytes_max=400_000)
    async with door(tmp_path, users=USERS, limits=limits) as rig:
        for size, status in ((90_000, 200), (300_000, 429)):
            table = pa.table({"s": ["x" * size]})
            rig.service.table["BIG"] = Canned(chunks_of(table))
            assert (await post(rig, "ann", statement="BIG"))[0] == status
        assert rig.app[_registry()].request_admission._bytes.taken == 0


async def test_results_of_one_user_leave_room_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"s": ["x" * 20_000]})
    limits = Limits(results_kept_bytes_max=100_000)
    links = {"statement": "MANY", "disposition": "EXTERNAL_LINKS"}
    async with door(tmp_path, users=USERS, limits=limits) as rig:
        rig.service.table["MANY"] = Canned(chunks_of(rows))
        kept = [await post(rig, "ann", **links) for _ in range(3)]
        assert [status for status, _ in kept] == [200, 200, 503]
        assert kept[-1][1]["error_class"] == "HAPROC_RESULTS_FULL"
        assert (await post(rig, "bob", **links))[0] == 200
        assert await get(rig, "ann", f"{STATEMENTS}/{kept[0][1]['statement_id']}") == 200
    monkeypatch.setattr(registry, "STATEMENTS_KEPT_MAX", 4)
    async with door(tmp_path, users=USERS) as rig:
        _, first = await post(rig, "bob", statement="SELECT 1", disposition="EXTERNAL_LINKS")
        for _ in range(10):
            await post(rig, "ann", statement="SELECT 1", disposition="EXTERNAL_LINKS")
        assert await get(rig, "bob", f"{STATEMENTS}/{first['statement_id']}") == 200


async def test_sessions_of_one_user_leave_room_for_others_and_share_no_ids() -> None:
    sessions = Ring().member().sessions
    sessions.room = Shares(4, 2)
    mine = [await sessions.enter("ann", name, create=True) for name in ("s1", "s2")]
    with pytest.raises(RequestError, match="2 of them of ann"):
        await sessions.enter("ann", "s3", create=True)
    theirs = await sessions.enter("bob", "s1", create=True)
    assert await sessions.enter("ann", "s1", create=False) is mine[0]
    assert await sessions.enter("bob", "s1", create=False) is theirs
    await sessions.close("bob", "s1")
    assert await sessions.enter("ann", "s1", create=False) is mine[0]
    for _ in range(2):
        await sessions.close("ann", "s1")
    await sessions.enter("ann", "s3", create=True)


def _registry() -> Any:
    from haproc.doors.apps import REGISTRY

    return REGISTRY
