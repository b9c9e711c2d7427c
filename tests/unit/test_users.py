"""Tests of configured users: their file, its reloading at SIGHUP, their tokens, the audit log."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from haproc import audit
from haproc.audit import CALLER, Bounded, Caller
from haproc.classify.rights import Rights, Role
from haproc.cli import nodes, tools
from haproc.cli.main import main
from haproc.cli.nodes import read_users, set_up_audit
from haproc.config.load import load
from haproc.config.model import Config
from haproc.config.sections import User, digest_of
from haproc.config.shares import user_max
from haproc.config.tree import ConfigError
from haproc.doors.http.access import Access, Admitted
from haproc.failure import ErrorClass, RequestError, refused
from haproc.node.node import ExitCode
from tests.unit.door_rig import STATEMENTS, door, make_config, until

RING = """
ring: demo
log: "memory:"
secret: {file: secret}
users_file: users.yaml
clusters:
  - {name: a, listen: "127.0.0.1:1", peer: "127.0.0.1:2", spark: {url: "sc://127.0.0.1:3"}}
"""
ANN = f"{{name: ann, token_hash: '{digest_of('token-of-ann')}'}}"
EVE = f"{{name: eve, token_hash: '{digest_of('token-of-eve')}', roles: [reader], tables: [A.b.*]}}"


def write(folder: Path, *users: str, more: str = "") -> Path:
    """Write a configuration with a file of users; return its path."""
    (folder / "secret").write_text("the ring's own secret".replace(" ", "-"))
    (folder / "users.yaml").write_text(f"users: [{', '.join(users)}]")
    file = folder / "ring.yaml"
    file.write_text(RING + more)
    return file


async def admitted(access: Access, token: str) -> Admitted | str:
    """Return the user of a token at the clients' doors, or the class of the refusal."""
    try:
        return await access.clients().admit({"Authorization": f"Bearer {token}"})
    except RequestError as error:
        return error.error_class


def problems(folder: Path, *users: str, more: str = "") -> str:
    with pytest.raises(ConfigError) as raised:
        load(write(folder, *users, more=more), {})
    return str(raised.value)


# -- the file ------------------------------------------------------------------------------------


async def test_users_of_the_file_are_admitted_with_their_rights(tmp_path: Path) -> None:
    access = Access(load(write(tmp_path, ANN, EVE), {}))
    assert await admitted(access, "token-of-ann") == Admitted("ann", Rights())
    rights = Rights((Role.READER,), ("a.b.*",))
    assert await admitted(access, "token-of-eve") == Admitted("eve", rights)
    assert await admitted(access, "token-of-bob") == ErrorClass.UNAUTHENTICATED


async def test_hash_of_a_token_is_refused_as_a_token(tmp_path: Path) -> None:
    access = Access(load(write(tmp_path, ANN), {}))
    digest = digest_of("token-of-ann")
    for given in (digest, digest.removeprefix("sha256:")):
        assert await admitted(access, given) == ErrorClass.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("users", "reason"),
    [
        (["{name: ann}"], "give either token or token_hash"),
        (["{name: ann, token_hash: abc}"], "must be sha256: and 64 digits"),
        (["{name: ann, token: plain}"], "a secret must not stand in this file"),
        ([ANN, ANN], "ann is already used by"),
        ([ANN, ANN.replace("name: ann", "name: bob")], "is the same as users[0].token_hash"),
        ([ANN[:-1] + ", roles: [peer]}"], "only the ring's secret has the role peer"),
        ([ANN[:-1] + ", roles: []}"], "name at least one role"),
        ([ANN[:-1] + ", tables: []}"], "name at least one pattern"),
        ([ANN[:-1] + ", roles: [boss]}"], "must be reader or writer or operator or peer"),
        ([ANN[:-1] + ", role: reader}"], "did you mean roles?"),
    ],
)
def test_wrong_file_of_users_is_refused_with_the_reason(
    tmp_path: Path, users: list[str], reason: str
) -> None:
    assert reason in problems(tmp_path, *users)


def test_missing_file_of_users_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, ANN)
    (tmp_path / "users.yaml").unlink()
    with pytest.raises(ConfigError, match=r"users_file: .*users\.yaml cannot be read"):
        load(file, {})


async def test_empty_file_of_users_admits_nobody(tmp_path: Path) -> None:
    config = load(write(tmp_path), {})
    assert config.authenticates
    assert await admitted(Access(config), "x") == ErrorClass.UNAUTHENTICATED
    assert user_max(10, config) == 5


# -- read again ----------------------------------------------------------------------------------


async def test_removed_user_is_refused_at_the_next_request(tmp_path: Path) -> None:
    file = write(tmp_path, ANN, EVE)
    access = Access(load(file, {}))
    write(tmp_path, ANN)
    read_users(access, file)
    assert await admitted(access, "token-of-eve") == ErrorClass.UNAUTHENTICATED
    assert isinstance(await admitted(access, "token-of-ann"), Admitted)


async def test_wrong_file_at_a_reload_keeps_the_users_and_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path, ANN)
    access = Access(load(file, {}))
    for wrong in ("{name: bob}", "["):
        write(tmp_path, wrong)
        read_users(access, file)
        assert isinstance(await admitted(access, "token-of-ann"), Admitted)
    assert [each.levelname for each in caplog.records] == ["ERROR"] * 2
    assert all("the users stay as they were" in each.getMessage() for each in caplog.records)


async def test_process_reloads_its_users_at_sighup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Access, asyncio.Event]] = []

    class WaitingNode:
        def __init__(
            self, config: Config, name: str, *, access: Access, certificates: object
        ) -> None:
            made.append((access, asyncio.Event()))
            self.stop = made[-1][1].set

        async def run(self) -> ExitCode:
            await made[-1][1].wait()
            return ExitCode.AGAIN if len(made) == 1 else ExitCode.STOPPED

    monkeypatch.setattr(nodes, "Node", WaitingNode)
    file = write(tmp_path, ANN, EVE)
    serving = asyncio.create_task(nodes._serve(load(file, {}), "a", file))
    try:
        await until(lambda: len(made) == 1)
        write(tmp_path, ANN)
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: made[0][0].users.named("eve") is None)
        made[0][1].set()
        await until(lambda: len(made) == 2)  # it began anew, with the users of now
        assert made[1][0].users.named("eve") is None
        made[1][1].set()
        assert await serving == ExitCode.STOPPED
    finally:
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)


def test_reload_does_not_change_whether_users_are_required(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path, ANN)
    access = Access(load(file, {}))
    file.write_text(RING.replace("users_file: users.yaml\n", ""))
    read_users(access, file)
    assert "restart it" in caplog.text
    assert access.users.named("ann") is not None


async def test_open_connection_of_a_removed_user_is_refused(tmp_path: Path) -> None:
    """The user is removed while the connection is open."""
    async with door(tmp_path, users=(User("ann", "token-of-ann"),)) as rig:
        headers = {"Authorization": "Bearer token-of-ann"}
        body = {"statement": "SELECT 1"}
        assert await rig.status_of("post", STATEMENTS, json=body, headers=headers) == 200
        rig.access.take_users(replace(rig.config, users=(User("bob", "token-of-bob"),)))
        assert await rig.status_of("post", STATEMENTS, json=body, headers=headers) == 401


# -- haproc token --------------------------------------------------------------------------------


async def test_token_of_the_token_command_is_admitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["token", "ann", "--role", "reader", "--table", "spark_catalog.s.*"]) == 0
    captured = capsys.readouterr()
    token = captured.err.strip().rpartition(" ")[2]
    assert len(token) >= 43 and token not in captured.out
    access = Access(load(write(tmp_path, captured.out.strip().removeprefix("- ")), {}))
    rights = Rights((Role.READER,), ("spark_catalog.s.*",))
    assert await admitted(access, token) == Admitted("ann", rights)


def test_token_command_refuses_an_invalid_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert tools.token(argparse.Namespace(name="a b", role=None, table=None)) == 2
    assert "must be 1 to 63" in capsys.readouterr().err


# -- a job's user --------------------------------------------------------------------------------


class Jobs:
    """The token of one job; a provider may have admitted its user."""

    def __init__(self, user: str, issued: Rights | None = None) -> None:
        self.by = user, issued

    async def submitter(self, token: str, session_id: str = "") -> tuple[str, Rights | None]:
        return self.by

    def authorization_of(self, token: str) -> Any:
        return "standing"


@pytest.mark.parametrize(
    ("jobs", "found"),
    [
        (Jobs("ann"), Rights((Role.WRITER,), ("a.*",))),
        (Jobs("ann@example.com", Rights((Role.READER,))), Rights((Role.READER,))),
        (Jobs("gone"), None),
    ],
)
async def test_job_has_the_rights_of_the_user_that_submitted_it(
    tmp_path: Path, jobs: Jobs, found: Rights | None
) -> None:
    users = (User("ann", "token-of-ann", roles=(Role.WRITER,), tables=("a.*",)),)
    admission = Access(make_config(tmp_path, users=users)).clients(jobs)
    headers = {"Authorization": "Bearer haproc-job.1.x.secret"}
    if found is None:
        with pytest.raises(RequestError, match="no user of the ring any more"):
            await admission.admit(headers)
    else:
        by = await admission.admit(headers)
        assert (by.rights, by.authorization) == (found, "standing")


# -- the audit log -------------------------------------------------------------------------------


@pytest.fixture
def untouched() -> Iterator[None]:
    """Undo a test's changes of the audit log's logger."""
    logger = audit.logger
    before = logger.handlers[:], logger.filters[:], logger.propagate, logger.level
    yield
    for handler in set(logger.handlers) - set(before[0]):
        handler.close()
    logger.handlers[:], logger.filters[:], logger.propagate = before[:3]
    logger.setLevel(before[3])


def refuse(address: str) -> None:
    CALLER.set(Caller("a", "clients", "GET /x", address))
    audit.note_if_refusal(refused(ErrorClass.UNAUTHENTICATED, "no token"))


def test_audit_file_has_a_line_of_json_per_refusal(tmp_path: Path, untouched: None) -> None:
    file = tmp_path / "audit.log"
    set_up_audit(file)
    refuse("10.0.0.1")
    (line,) = map(json.loads, file.read_text().splitlines())
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "event": "refused",
        "cluster": "a",
        "door": "clients",
        "request": "GET /x",
        "address": "10.0.0.1",
        "user": "",
        "error_class": "HAPROC_UNAUTHENTICATED",
        "why": "no token",
    }
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_audit_log_limits_refusals_and_counts_those_that_it_left_out(
    tmp_path: Path, untouched: None
) -> None:
    file, at = tmp_path / "audit.log", [1000.0]
    set_up_audit(file)
    logging.setLogRecordFactory(made_at(at))
    try:
        for _ in range(1000):
            refuse("10.0.0.1")
        refuse("10.0.0.2")
        for _ in range(100):
            audit.note_command("200")
        at[0] += audit.WINDOW_S
        refuse("10.0.0.1")
    finally:
        logging.setLogRecordFactory(logging.LogRecord)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len([each for each in lines if each["event"] == "command"]) == 100
    found = [each for each in lines if each["event"] == "refused"]
    assert len(found) == audit.LINES_MAX + 2
    assert found[-2]["left_out_before"] == 1000 - audit.LINES_MAX
    assert "left_out_before" not in found[-1]


def made_at(at: list[float]) -> Any:
    """Return a factory of log records of this moment."""
    original = logging.LogRecord

    def make(*given: Any, **more: Any) -> logging.LogRecord:
        record = original(*given, **more)
        record.created = at[0]
        return record

    return make


def test_refusals_of_many_addresses_are_limited_together() -> None:
    bounded = Bounded()
    passed = 0
    for number in range(10_000):
        record = logging.LogRecord("haproc.audit", logging.INFO, "", 0, "%s", ("",), None)
        record.created = 5.0
        record.fields = {"event": "refused", "address": str(number)}
        passed += bounded.filter(record)
    assert passed == audit.ALL_LINES_MAX


async def test_audit_log_contains_an_operators_commands_and_not_the_queries(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "haproc.audit")
    users = (User("run", "operates", roles=(Role.OPERATOR,)),)
    async with door(tmp_path, users=users, operator=True) as rig:
        rig.http.headers["Authorization"] = "Bearer operates"
        assert await rig.status_of("get", "/ha/v1/queue") == 200
        body = {"cluster": "a", "reason": "a reason"}
        assert await rig.status_of("post", "/ha/v1/queue/7/skip", json=body) == 200
        assert await rig.status_of("post", "/ha/v1/queue/x/skip", json=body) == 400
    lines = [json.loads(each.getMessage()) for each in caplog.records]
    who = {"event": "command", "cluster": "a", "door": "operators", "user": "run"}
    assert [each["outcome"] for each in lines] == ["200", "HAPROC_BAD_REQUEST"]
    assert all(who.items() <= each.items() for each in lines)
    assert lines[0]["request"] == "POST /ha/v1/queue/7/skip"
