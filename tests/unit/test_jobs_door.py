"""Tests of the jobs door: requests of Livy's clients and their responses, and haclient's jobs."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from haclient import cli
from haproc.classify.rights import Rights, Role
from haproc.config.jobs import Jobs
from haproc.config.model import Address
from haproc.config.sections import User
from haproc.doors.apps import client_app
from haproc.doors.http.listener import Listener
from haproc.jobs.here import JobsHere, Scheduler
from haproc.metrics import Metrics
from tests.unit.canned import CannedService
from tests.unit.door_rig import CannedStatus, make_config
from tests.unit.job_rig import Haproc, Ring

USERS = (User("ann", "ann-token"), User("bob", "bob-token"))
WAITS = "import os, time; print(os.environ['SPARK_REMOTE'], flush=True); time.sleep(100)"
ECHO = "import sys; print('said', *sys.argv[1:], flush=True)"


@dataclass
class Door:
    url: str
    haproc: Haproc
    http: aiohttp.ClientSession

    async def ask(
        self, status: int, method: str, path: str, user: str = "ann", **more: Any
    ) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {user}-token", **more.pop("headers", {})}
        url = self.url + path
        async with self.http.request(method, url, headers=headers, **more) as response:
            answer = await response.json()
            assert response.status == status, answer
            return dict(answer)

    async def ended(self, job: int) -> dict[str, Any]:
        return await self.haproc.ended(job)


@contextlib.asynccontextmanager
async def opened(ring: Ring, name: str) -> AsyncIterator[Door]:
    haproc = await ring.haproc(name)
    config = replace(make_config(ring.folder, users=USERS), jobs=ring.settings)
    scheduler = Scheduler((), haproc.service, "anonymous", lambda: False, lambda: 0)
    here = JobsHere(haproc.service, haproc.tokens, haproc.runner, scheduler)
    metrics = Metrics("demo", name, ["READY"])
    app: web.Application = client_app(
        config, name, CannedService(), CannedStatus(), metrics, None, here
    )
    listener = Listener(app, Address("127.0.0.1", 0), shutdown_s=1.0, connections_max=100)
    await listener.open()
    async with aiohttp.ClientSession() as http:
        try:
            yield Door(f"http://127.0.0.1:{listener.port}", haproc, http)
        finally:
            await listener.aclose()
            await haproc.stop()


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "echo.py").write_text(ECHO)
    ring = Ring(tmp_path, Jobs(enabled=True, folders=(folder,), files_bytes_max=1 << 20))
    async with opened(ring, "a") as made:
        yield made


async def test_batch_has_livys_fields_and_shows_its_state_and_log_to_its_user_only(
    door: Door,
) -> None:
    body = {"file": "echo.py", "args": ["x"], "name": "n", "proxyUser": "ann", "jars": None}
    made = await door.ask(201, "POST", "/batches", json=body)
    livys = {"id", "name", "owner", "proxyUser", "state", "appId", "appInfo", "log"}
    assert livys < made.keys() and (made["owner"], made["state"]) == ("ann", "not_started")
    job = made["id"]
    await door.ended(job)
    state = await door.ask(200, "GET", f"/batches/{job}/state")
    assert state == {"id": job, "state": "success"}
    log = await door.ask(200, "GET", f"/batches/{job}/log?from=0&size=100")
    assert log == {"id": job, "from": 0, "total": 1, "log": ["said x"]}
    behind = await door.ask(200, "GET", f"/batches/{job}/log?from=100&size=100")
    assert behind == {"id": job, "from": 1, "total": 1, "log": []}
    found = await door.ask(200, "GET", "/batches?from=0&size=10")
    assert (found["from"], found["total"], found["sessions"][0]["id"]) == (0, 1, job)
    assert (await door.ask(200, "GET", "/batches", "bob"))["total"] == 0
    for path in ("", "/state", "/log"):
        await door.ask(404, "GET", f"/batches/{job}{path}", "bob")
    await door.ask(404, "DELETE", f"/batches/{job}", "bob")
    assert await door.ask(200, "DELETE", f"/batches/{job}") == {"msg": "deleted"}


async def test_batch_is_uploaded_as_a_form_within_the_size_limit(door: Door) -> None:
    form = aiohttp.FormData()
    form.add_field("request", '{"args": ["y"]}', content_type="application/json")
    form.add_field("file", b"import m; m.say()", filename="p.py")
    form.add_field("pyFiles", b"import sys\ndef say(): print(sys.argv[1])", filename="m.py")
    made = await door.ask(201, "POST", "/batches", data=form)
    assert (await door.ended(made["id"]))["log"] == ["y"]
    for name, size in (("unknown", 1), ("file", 2 << 20)):
        wrong = aiohttp.FormData()
        wrong.add_field(name, io.BytesIO(b"#" * size), filename="p.py")
        await door.ask(400 if name == "unknown" else 413, "POST", "/batches", data=wrong)


@pytest.mark.parametrize(
    "part",
    [
        b"Content-Disposition\r\n\r\nx",
        b"X: " + b"a" * 20_000 + b"\r\n\r\nx",
        b'Content-Disposition: form-data; name="file"; filename="a\0.py"\r\n\r\nx',
        b'Content-Disposition: form-data; name="_charset_"\r\n\r\n' + b"x" * 40,
    ],
)
async def test_malformed_form_is_a_client_error(door: Door, part: bytes) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=B"}
    data = b"--B\r\n" + part + b"\r\n--B--\r\n"
    answer = await door.ask(400, "POST", "/batches", data=data, headers=headers)
    assert answer["error_class"] == "HAPROC_BAD_REQUEST"


async def test_idempotency_key_identifies_the_job(door: Door) -> None:
    headers = {"Idempotency-Key": "k1"}
    submissions = [
        door.ask(201, "POST", "/batches", json={"code": ECHO}, headers=headers) for _ in range(3)
    ]
    assert len({made["id"] for made in await asyncio.gather(*submissions)}) == 1
    other: dict[str, Any] = {"json": {"code": "pass"}, "headers": headers}
    answer = await door.ask(409, "POST", "/batches", **other)
    assert answer["error_class"] == "HAPROC_REQUEST_ID_REUSED"


async def test_request_that_jobs_do_not_support_is_refused_with_the_reason(door: Door) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"file": "echo.py", "className": "X"}, "HAPROC_JOB_FIELD"),
        ({"file": "../echo.py"}, "HAPROC_JOB_FILE"),
        ({"file": "echo.py", "strange": 1}, "HAPROC_BAD_REQUEST"),
        ({}, "HAPROC_BAD_REQUEST"),
    ]
    for body, error_class in wrong:
        answer = await door.ask(400, "POST", "/batches", json=body)
        assert answer["error_class"] == error_class
    await door.ask(400, "GET", "/batches/x")
    await door.ask(404, "GET", "/batches/999")


async def test_job_acts_for_its_user_by_its_own_token_until_it_is_fenced(door: Door) -> None:
    made = await door.ask(201, "POST", "/batches", "bob", json={"code": WAITS})
    job = made["id"]
    await door.haproc.until(job, lambda found: len(found["log"]) == 1)
    [remote] = await door.haproc.log(job)
    shown = {"Authorization": f"Bearer {remote.partition(';token=')[2]}"}
    found = await door.ask(200, "GET", "/batches", headers=shown)
    assert [each["owner"] for each in found["sessions"]] == ["bob"]
    await door.ask(200, "DELETE", f"/batches/{job}", "bob")
    answer = await door.ask(409, "GET", "/batches", headers=shown)
    assert answer["error_class"] == "HAPROC_JOB_FENCED"
    shown["Authorization"] += "x"
    await door.ask(401, "GET", "/batches", headers=shown)


async def test_job_of_an_identity_providers_user_cannot_submit_jobs(door: Door) -> None:
    """Its rights came with a token that expires; passed from job to job they never would."""
    rights = Rights((Role.WRITER,))
    made = await door.haproc.service.submit("eve", {"code": WAITS}, (), "r0", rights)
    job = int(str(made["id"]))
    await door.haproc.until(job, lambda found: len(found["log"]) == 1)
    [remote] = await door.haproc.log(job)
    shown = {"Authorization": f"Bearer {remote.partition(';token=')[2]}"}
    answer = await door.ask(403, "POST", "/batches", json={"code": ECHO}, headers=shown)
    assert answer["error_class"] == "HAPROC_FORBIDDEN"
    await door.haproc.service.kill(None, job)


async def test_request_for_jobs_that_are_off_is_refused_with_that_reason(tmp_path: Path) -> None:
    from tests.unit.door_rig import door as plain

    async with plain(tmp_path) as rig:
        answer = await rig.get("/batches", 404)
        assert answer["error_class"] == "HAPROC_JOBS_OFF"


def run(*arguments: str) -> int:
    return cli.main(["submit", *arguments])


async def test_haclient_submits_a_job_follows_it_and_returns_its_exit_code(
    door: Door, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program, module, token = tmp_path / "p.py", tmp_path / "m.py", tmp_path / "token"
    program.write_text("import sys, m\nprint('begin', sys.argv[1:])\nraise SystemExit(m.CODE)")
    module.write_text("CODE = 5")
    token.write_text("ann-token")
    given = (str(program), "--py-files", str(module), "--arg", "1", "--arg", "2", "--follow")
    # The first server is none: the next one is asked.
    servers = ("--server", f"http://127.0.0.1:9,{door.url}", "--token-file", str(token))
    code = await asyncio.to_thread(run, *given, *servers)
    captured = capfd.readouterr()
    assert (code, captured.out) == (5, "begin ['1', '2']\n"), captured.err
    assert "job " in captured.err and "failover" in captured.err and "dead" in captured.err
    module.write_text("CODE = 0")
    assert await asyncio.to_thread(run, *given, *servers, "--conf", "haproc.restart=1") == 0
    assert await asyncio.to_thread(run, str(tmp_path / "none.py"), *servers) == 2
    assert await asyncio.to_thread(run, *given, *servers, "--conf", "spark.jars=x") == 1


async def test_haclient_lists_shows_and_kills_jobs_and_prints_their_logs(
    door: Door, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.write_text("ann-token")

    async def run_haclient(*arguments: str) -> tuple[int, str, str]:
        servers = ("--server", door.url, "--token-file", str(token))
        code = await asyncio.to_thread(cli.main, ["jobs", *arguments, *servers])
        return code, *capfd.readouterr()

    first = (await door.ask(201, "POST", "/batches", json={"code": ECHO, "args": ["\x1bx"]}))["id"]
    await door.ended(first)
    second = (await door.ask(201, "POST", "/batches", json={"code": WAITS, "name": "w"}))["id"]
    await door.ask(201, "POST", "/batches", "bob", json={"code": ECHO})
    code, out, err = await run_haclient("list")
    rows = [[cell.strip() for cell in line.split("|")] for line in out.splitlines()]
    assert (code, err, len(rows)) == (0, "", 4)
    assert rows[2][0] == str(first) and rows[2][2] == "success" and rows[3][1] == "w"
    code, out, err = await run_haclient("list", "--limit", "1", "--json")
    assert [each["id"] for each in json.loads(out)["sessions"]] == [first]
    assert "1 of 2; --start" in (await run_haclient("list", "--limit", "1"))[2]
    assert await run_haclient("log", str(first)) == (0, "said \\u001bx\n", "")
    assert (await run_haclient("log", str(first), "--follow"))[:2] == (0, "said \\u001bx\n")
    code, out, err = await run_haclient("show", str(first))
    assert code == 0 and "state: success\n" in out and "  said \\u001bx\n" in out
    assert json.loads((await run_haclient("show", str(first), "--json"))[1])["owner"] == "ann"
    assert await run_haclient("kill", str(second)) == (0, "", f"job {second} is ended\n")
    assert (await door.ask(200, "GET", f"/batches/{second}"))["state"] == "killed"
    code, out, err = await run_haclient("kill", "999")
    assert code == 1 and "999" in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/sessions"), ("GET", "/sessions"), ("POST", "/sessions/0/statements")],
)
async def test_path_of_livys_interactive_sessions_is_refused_with_the_alternative(
    door: Door, method: str, path: str
) -> None:
    found = await door.ask(404, method, path, json={"kind": "pyspark"})
    assert found["error_class"] == "HAPROC_NOT_FOUND"
    assert "no interactive sessions" in found["msg"] and "POST /batches" in found["msg"]
    assert "interactive" not in (await door.ask(404, "GET", "/sessionsx"))["message"]
