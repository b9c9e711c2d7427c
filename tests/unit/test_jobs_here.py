"""The peers that a HAProc takes for gone, for jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from haproc.config.model import Membership
from haproc.jobs.here import incarnations
from haproc.jobs.model import FileRole
from haproc.jobs.records import FILES
from haproc.jobs.request import Upload
from haproc.membership.members import Members
from haproc.membership.peers import Member
from haproc.membership.state import Beat, PeerMessage, State
from tests.unit.job_rig import Haproc, Ring

RULES = Membership(heartbeat_interval_s=0.02, check_interval_s=0.02, window_s=0.8)
ENOUGH_S = 20.0


class NoLines:
    """Reaches no peer."""

    def send(self, message: PeerMessage) -> None:
        return

    def silent(self) -> frozenset[str]:
        return frozenset()

    def follow(self, members: Sequence[Member]) -> None:
        return


async def _until(members: Members, holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(ENOUGH_S):
        while not holds():
            members.tick()
            await asyncio.sleep(RULES.heartbeat_interval_s / 4)


async def test_peer_that_pauses_keeps_its_jobs_until_its_silence_fills_a_window() -> None:
    members = Members(RULES, ("b", "2"), ("a",), NoLines())
    beat = Beat("a", "1", 1, (), True, State.READY)

    def is_alive() -> bool:
        members.heartbeat(beat)
        return members.judged()["a"].alive

    await _until(members, is_alive)
    await _until(members, lambda: not members.judged()["a"].alive)
    assert incarnations(members) == {"a": "1"}
    await _until(members, lambda: incarnations(members) == {})
    assert members.is_gone("a")


async def test_submission_whose_client_disconnects_leaves_no_files_without_a_job(
    tmp_path: Path,
) -> None:
    haproc = Haproc(Ring(tmp_path), "a")
    files = [Upload(FileRole.DATA, f"d{number}", b"x") for number in range(3)]
    put, left = haproc.store.put, 0

    async def cut_off(key: str, value: bytes) -> int:
        nonlocal left
        left -= 1
        if left == 0:
            asking.cancel()
        await asyncio.sleep(0)
        return await put(key, value)

    haproc.store.put = cut_off  # type: ignore[method-assign]
    for left in range(1, 6):  # noqa: B007 - it counts the puts
        asking = asyncio.ensure_future(haproc.service.submit("ann", {"code": "1"}, files))
        await asyncio.gather(asking, return_exceptions=True)
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
    stored = {each.submission.stored for each in (await haproc.book.look()).jobs.values()}
    assert len(stored) == 5
    assert {key.split("/")[1] for key in await haproc.store.keys(FILES)} == stored
