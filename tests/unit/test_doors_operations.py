"""The door of the archive: for one user, page by page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from haproc.config.check import check
from haproc.config.sections import Archive, User
from tests.unit.canned import CannedArchive
from tests.unit.door_rig import door, make_config

PATH = "/api/ha/operations"
USERS = (User("ann", "token-of-ann"), User("archive", "token-of-the-archive"))
THE_ARCHIVES = {"Authorization": "Bearer token-of-the-archive"}


async def test_operations_request_returns_a_page_with_its_bounds(tmp_path: Path) -> None:
    archive = CannedArchive()
    async with door(tmp_path, users=USERS, archive=archive, archives="archive") as rig:
        parameters = {"from": "7", "rows": "5"}
        async with rig.http.get(
            rig.url + PATH, params=parameters, headers=THE_ARCHIVES
        ) as response:
            assert response.status == 200
            assert await response.read() == b"rows"
            assert response.headers["HAProc-Operations-Start"] == "7"
            assert response.headers["HAProc-Operations-End"] == "12"
            assert response.headers["HAProc-Applied-To"] == "16"
    assert archive.received == [(7, 5)]


async def test_archived_offset_is_reported_to_the_archive(tmp_path: Path) -> None:
    archive = CannedArchive()
    async with door(tmp_path, users=USERS, archive=archive, archives="archive") as rig:
        path, headers = PATH + "/archived", THE_ARCHIVES
        answered = await rig.ask("post", path, json={"below": 7}, headers=headers)
        assert answered == (200, {"below": 7})
        assert await rig.status_of("post", path, json={}, headers=headers) == 400
    assert archive.below == [7]


async def test_operations_requests_of_other_users_are_refused(tmp_path: Path) -> None:
    archive = CannedArchive()
    headers = {"Authorization": "Bearer token-of-ann"}
    for allowed in ("archive", None):
        async with door(tmp_path, users=USERS, archive=archive, archives=allowed) as rig:
            assert await rig.status_of("get", PATH, headers=headers) == 403
            path, body = PATH + "/archived", {"below": 1}
            assert await rig.status_of("post", path, json=body, headers=headers) == 403
    async with door(tmp_path, archive=archive) as rig:
        assert await rig.status_of("get", PATH) == 403  # anonymous, where nobody is named
    assert (archive.received, archive.below) == ([], [])


async def test_operations_request_with_wrong_bounds_is_refused(tmp_path: Path) -> None:
    async with door(tmp_path, users=USERS, archives="archive") as rig:
        for query in ("from=-1", "rows=0", "rows=50001", "to=3"):
            assert await rig.status_of("get", f"{PATH}?{query}", headers=THE_ARCHIVES) == 400


def test_archive_of_an_unknown_user_is_refused(tmp_path: Path) -> None:
    config = make_config(tmp_path, users=USERS)
    for archive, path in (
        (Archive(user="bob"), "archive.user"),
        (Archive(holds_trimming=True), "archive.holds_trimming"),
    ):
        assert [where for where, _ in check(replace(config, archive=archive))].count(path) == 1
    known = replace(config, archive=Archive(user="ann", holds_trimming=True))
    assert not [where for where, _ in check(known) if where.startswith("archive")]
