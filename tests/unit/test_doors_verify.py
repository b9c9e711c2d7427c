"""The door of verifications on a schedule: for the archive's user alone."""

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


async def test_verification_is_begun_and_told(tmp_path: Path) -> None:
    async with door(tmp_path, users=USERS, archives="archive") as rig:
        async with rig.http.post(rig.url + PATH, headers=THE_ARCHIVES) as response:
            answer = await response.json()
            check("post", PATH, response.status, answer)
            assert (response.status, answer) == (200, {"marker": 10})
        async with rig.http.get(f"{rig.url}{PATH}/10", headers=THE_ARCHIVES) as response:
            answer = await response.json()
            check("get", f"{PATH}/{{offset}}", response.status, answer)
            assert (response.status, answer["complete"]) == (200, True)


async def test_verification_that_is_not_known_is_told_so(tmp_path: Path) -> None:
    async with door(tmp_path, users=USERS, archives="archive") as rig:
        rig.operators.error = refused(ErrorClass.OFFSET_UNKNOWN, "there is none")
        for offset, status in (("10", 404), ("x", 400)):
            url = f"{rig.url}{PATH}/{offset}"
            async with rig.http.get(url, headers=THE_ARCHIVES) as response:
                assert response.status == status


async def test_verification_is_for_nobody_else(tmp_path: Path) -> None:
    for allowed in ("archive", None):
        async with door(tmp_path, users=USERS, archives=allowed) as rig:
            async with rig.http.post(rig.url + PATH, headers=ANNS) as response:
                assert response.status == 403
            async with rig.http.get(f"{rig.url}{PATH}/10", headers=ANNS) as response:
                assert response.status == 403
