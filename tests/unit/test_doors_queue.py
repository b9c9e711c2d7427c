"""The operator door and the commands that use it, with canned answers behind them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from haproc.cli import queue
from haproc.cli.main import _parser
from haproc.config.model import Address, Config
from haproc.failure import ErrorClass, refused
from tests.unit.door_rig import SECRET, Rig, door
from tests.unit.test_doors_openapi import check

CASES: list[tuple[str, str, str, Any]] = [
    ("get", "/ha/v1/queue", "/ha/v1/queue?start=3&limit=5", None),
    ("get", "/ha/v1/queue/{offset}", "/ha/v1/queue/7", None),
    ("post", "/ha/v1/queue/{offset}/retry", "/ha/v1/queue/7/retry", {"cluster": "a"}),
    (
        "post",
        "/ha/v1/queue/{offset}/skip",
        "/ha/v1/queue/7/skip",
        {"cluster": "a", "reason": "broken"},
    ),
    (
        "post",
        "/ha/v1/queue/{offset}/revoke",
        "/ha/v1/queue/7/revoke",
        {"reason": "too long", "without": "b,c"},
    ),
    ("post", "/ha/v1/backup", "/ha/v1/backup", {"cluster": "a", "destination": "s3a://b/x"}),
    ("get", "/ha/v1/backup", "/ha/v1/backup", None),
    (
        "post",
        "/ha/v1/restore",
        "/ha/v1/restore",
        {"cluster": "a", "source": "s3a://b/x", "offset": 12, "verify": True},
    ),
    ("post", "/ha/v1/verify", "/ha/v1/verify", None),
    ("post", "/ha/v1/verify", "/ha/v1/verify", {"trusted": "a"}),
    ("get", "/ha/v1/verify/{offset}", "/ha/v1/verify/10", None),
    ("post", "/ha/v1/rebuild", "/ha/v1/rebuild", {"cluster": "a", "donor": ""}),
    (
        "post",
        "/ha/v1/rebuild",
        "/ha/v1/rebuild",
        {"cluster": "a", "donor": "b", "way": "storage"},
    ),
    ("post", "/ha/v1/rebuild/withdraw", "/ha/v1/rebuild/withdraw", {"cluster": "a"}),
    (
        "post",
        "/ha/v1/repair",
        "/ha/v1/repair",
        {"cluster": "a", "table": "sales.orders", "donor": "b"},
    ),
]


async def ask(
    rig: Rig, method: str, path: str, body: Any = None, headers: dict[str, str] = SECRET
) -> tuple[int, Any]:
    return await rig.ask(method, path, json=body, headers=headers)


@pytest.mark.parametrize(("method", "path", "target", "body"), CASES)
async def test_operator_requests_are_answered_as_described_and_only_with_the_secret(
    tmp_path: Path, method: str, path: str, target: str, body: Any
) -> None:
    async with door(tmp_path, operator=True) as rig:
        for headers in ({}, {"Authorization": "Bearer another-secret"}):
            status, answer = await ask(rig, method, target, body, headers)
            check(method, path, status, answer)
            assert status == 401
        assert rig.operators.done == []
        status, answer = await ask(rig, method, target, body)
        check(method, path, status, answer)
        assert status == 200


@pytest.mark.parametrize(
    ("error_class", "status"), [(ErrorClass.NOT_NOW, 409), (ErrorClass.OFFSET_UNKNOWN, 404)]
)
async def test_refusals_of_operator_requests_have_a_status_per_error_class(
    tmp_path: Path, error_class: str, status: int
) -> None:
    async with door(tmp_path, operator=True) as rig:
        rig.operators.error = refused(error_class, "it runs")
        cases = CASES[2:5] if status == 409 else CASES[1:5]
        for method, path, target, body in cases:
            got, answer = await ask(rig, method, target, body)
            check(method, path, got, answer)
            assert (got, answer["error_class"], answer["message"]) == (
                status,
                error_class,
                "it runs",
            )


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("get", "/ha/v1/queue?limit=0", None),
        ("get", "/ha/v1/queue?limit=1001", None),
        ("get", "/ha/v1/queue?start=-1", None),
        ("get", "/ha/v1/queue?begin=1", None),
        ("get", "/ha/v1/queue/x", None),
        ("post", "/ha/v1/queue/x/retry", {"cluster": "a"}),
        ("post", "/ha/v1/queue/7/retry", {}),
        ("post", "/ha/v1/queue/7/skip", {"cluster": "a"}),
        ("post", "/ha/v1/queue/7/skip", {"cluster": "a", "reason": 1}),
        ("post", "/ha/v1/queue/7/skip", {"cluster": "a", "reason": "", "yes": True}),
        ("post", "/ha/v1/queue/7/revoke", {"reason": ""}),
        ("post", "/ha/v1/queue/7/revoke", {"reason": "", "without": ["b"]}),
        ("get", "/ha/v1/verify/x", None),
        ("post", "/ha/v1/verify", {"trusted": 1}),
        ("post", "/ha/v1/verify", {"trust": "a"}),
        ("post", "/ha/v1/rebuild", {"cluster": "a"}),
        ("post", "/ha/v1/rebuild/withdraw", {}),
        ("post", "/ha/v1/rebuild", {"cluster": "a", "donor": 1}),
        ("post", "/ha/v1/rebuild", {"cluster": "a", "donor": "", "way": None}),
        ("post", "/ha/v1/repair", {"cluster": "a", "table": "orders", "donor": ""}),
        ("post", "/ha/v1/repair", {"cluster": "a", "donor": ""}),
        ("post", "/ha/v1/backup", {"cluster": "a"}),
        ("post", "/ha/v1/backup", {"cluster": "a", "destination": 1}),
        ("post", "/ha/v1/restore", {"cluster": "a"}),
        ("post", "/ha/v1/restore", {"cluster": "a", "source": "/b", "offset": -1}),
        ("post", "/ha/v1/restore", {"cluster": "a", "source": "/b", "verify": "yes"}),
    ],
)
async def test_wrong_operator_requests_are_refused_and_do_nothing(
    tmp_path: Path, method: str, path: str, body: Any
) -> None:
    async with door(tmp_path, operator=True) as rig:
        assert (await ask(rig, method, path, body))[0] == 400
        assert rig.operators.done == []


# -- commands --------------------------------------------------------------------------------


def config_of(rig: Rig, secret: str = "ring-secret") -> Config:
    a = dataclasses.replace(rig.config.clusters[0], peer=Address("127.0.0.1", rig.listener.port))
    return dataclasses.replace(rig.config, clusters=(a, *rig.config.clusters[1:]), secret=secret)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[int]]:
    """Run a command against a rig, in a thread: commands have their own event loop."""

    async def run(rig: Rig, *words: str, secret: str = "ring-secret") -> int:
        config = config_of(rig, secret)
        monkeypatch.setattr(queue, "read_config", lambda path, cluster: config)
        options = _parser().parse_args([*words, "--config", "ring.yaml"])
        return int(await asyncio.to_thread(options.run, options))

    return run


ONE = ("--cluster", "a")


async def test_queue_and_verify_commands_show_the_answers_and_run_the_requests(
    tmp_path: Path, command: Callable[..., Awaitable[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    async with door(tmp_path, operator=True) as rig:
        assert await command(rig, "queue", "list", *ONE, "--start", "5", "--limit", "2") == 0
        output = capsys.readouterr().out
        assert "a is STUCK: disk full" in output
        (line,) = (line for line in output.splitlines() if line.startswith(">"))
        assert "7" in line and "stuck, 8 attempts" in line and "disk full" in line
        assert await command(rig, "queue", "show", *ONE, "--offset", "7") == 0
        output = capsys.readouterr().out
        assert "UPDATE" in output and "skip: it is tried again" in output
        assert await command(rig, "queue", "retry", *ONE, "--offset", "7") == 0
        assert capsys.readouterr().out == "tried\n"
        skip = ("queue", "skip", *ONE, "--offset", "7", "--reason", "broken")
        assert await command(rig, *skip, "--yes") == 0
        assert "offset 7 is skipped; a is DIVERGED: verify" in capsys.readouterr().out
        assert rig.operators.done == [
            ("queue", 5, 2),
            ("retry", "a", 7),
            ("skip", "a", 7, "broken"),
        ]
        assert await command(rig, "verify") == 0
        output = capsys.readouterr().out
        assert "t      equal\nall    equal\n" in output
        assert "u differs:\n  a: 2 rows, sum 1\n  b: absent\n" in output
        assert "haproc verify --trust NAME decides" in output
        assert await command(rig, "verify", "--trust", "a") == 0
        assert rig.operators.done[-1] == ("verify", "a")


@pytest.mark.parametrize(
    ("state", "code", "output"),
    [
        ("done", 0, "offset 12 is in s3a://b/x"),
        ("failed", 1, "disk full"),
        ("none", 1, "was started again"),
    ],
)
async def test_backup_command_reports_progress_and_outcome(
    tmp_path: Path,
    command: Callable[..., Awaitable[int]],
    capsys: pytest.CaptureFixture[str],
    state: str,
    code: int,
    output: str,
) -> None:
    async with door(tmp_path, operator=True) as rig:
        rig.operators.backup_states = ["running", "running", state]
        assert await command(rig, "backup", "s3a://b/x", *ONE) == code
        captured = capsys.readouterr()
        assert output in captured.out + captured.err
        assert "1 of 2 tables" in captured.out
        assert rig.operators.done == [("backup", "a", "s3a://b/x")]


async def test_queue_revoke_command_sends_one_request_and_reports_the_outcome(
    tmp_path: Path, command: Callable[..., Awaitable[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    async with door(tmp_path, operator=True) as rig:
        revoke = ("queue", "revoke", "7", "--reason", "slow")
        assert await command(rig, *revoke) == 2
        assert "give --yes" in capsys.readouterr().err
        assert rig.operators.done == []
        assert await command(rig, *revoke, "--yes") == 1
        assert "offset 7 is not taken back: c does not answer" in capsys.readouterr().out
        assert await command(rig, *revoke, "--yes", "--without", "b,c") == 0
        assert "offset 7 is taken back: no cluster applies it" in capsys.readouterr().out
        assert rig.operators.done == [("revoke", 7, "slow"), ("revoke", 7, "slow", "b", "c")]


async def test_queue_skip_command_without_confirmation_does_nothing(
    tmp_path: Path,
    command: Callable[..., Awaitable[int]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    skip = ("queue", "skip", *ONE, "--offset", "7")
    async with door(tmp_path, operator=True) as rig:
        assert await command(rig, *skip) == 2
        assert "give --yes" in capsys.readouterr().err
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        monkeypatch.setattr("builtins.input", lambda question: "n")
        assert await command(rig, *skip) == 1
        assert rig.operators.done == []
        monkeypatch.setattr("builtins.input", lambda question: "y")
        assert await command(rig, *skip) == 0
        assert rig.operators.done == [("skip", "a", 7, "")]


async def test_queue_commands_report_refusals_wrong_secrets_and_unavailability(
    tmp_path: Path, command: Callable[..., Awaitable[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    async with door(tmp_path, operator=True) as rig:
        rig.operators.error = refused(ErrorClass.NOT_NOW, "it runs", "wait")
        assert await command(rig, "queue", "retry", *ONE, "--offset", "7") == 1
        assert "a: it runs (wait)" in capsys.readouterr().err
        assert await command(rig, "queue", "list", *ONE, secret="another-secret") == 1
        assert "is not the ring's secret" in capsys.readouterr().err
    assert await command(rig, "queue", "list", *ONE) == 3
    assert "a at http://" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        _parser().parse_args(["queue", "list", "--cluster", "a"])
    assert caught.value.code == 2
