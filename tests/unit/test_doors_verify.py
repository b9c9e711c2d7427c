"""The door for scheduled verifications: only for the archive's user."""

from __future__ import annotations

from pathlib import Path

from haproc.config.sections import User
from haproc.failure import ErrorClass, refused
from tests.unit.door_rig import door
from tests.unit.test_doors_openapi import check

PATH = "/api/ha/verify"
USERS = (User("ann", "token-of-ann"), User("archive", "token-of-the-archive"))
THE_ARCHIVES = {"Authorization": "Bearer token-of-the-archive"}
ANNS = {"Authorization": "Bearer token-of-ann"}


async def test_verification_is_started_and_its_result_returned(tmp_path: Path) -> None:
    async with door(tmp_path, users=USERS, archives="archive") as rig:
        got, answer = await rig.ask("post", PATH, headers=THE_ARCHIVES)
        check("post", PATH, got, answer)
        assert (got, answer) == (200, {"marker": 10})
        got, answer = await rig.ask("get", f"{PATH}/10", headers=THE_ARCHIVES)
        check("get", f"{PATH}/{{offset}}", got, answer)
        assert (got, answer["complete"]) == (200, True)


async def test_unknown_verification_is_answered_404(tmp_path: Path) -> None:
    async with door(tmp_path, users=USERS, archives="archive") as rig:
        rig.operators.error = refused(ErrorClass.OFFSET_UNKNOWN, "there is none")
        for offset, status in (("10", 404), ("x", 400)):
            url = f"{rig.url}{PATH}/{offset}"
            async with rig.http.get(url, headers=THE_ARCHIVES) as response:
                assert response.status == status


async def test_verification_requests_of_other_users_are_refused(tmp_path: Path) -> None:
    for allowed in ("archive", None):
        async with door(tmp_path, users=USERS, archives=allowed) as rig:
            assert await rig.status_of("post", PATH, headers=ANNS) == 403
            assert await rig.status_of("get", f"{PATH}/10", headers=ANNS) == 403
