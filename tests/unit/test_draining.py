"""Draining a cluster on an operator's request: when it is allowed, and how long it lasts."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dmq.memory import MemoryLog, MemoryStore
from haproc.cli import queue
from haproc.cli.main import _parser
from haproc.config.model import Timeouts
from haproc.config.sections import Limits
from haproc.doors.apps import REGISTRY
from haproc.doors.status import Readiness
from haproc.failure import ErrorClass, FailureKind, RequestError, refused
from haproc.membership.clusters import ClusterView
from haproc.membership.state import State, refusal
from haproc.node.doors import Maintenance, drained_file
from haproc.replicate.member.condition import Identity, OutOfServiceError
from haproc.replicate.member.core import Core, Reached
from haproc.statements import registry as boards
from tests.unit.canned import WRITE
from tests.unit.door_rig import SECRET, Rig, door, make_config
from tests.unit.test_doors_openapi import check
from tests.unit.test_doors_queue import config_of


def well(core: Core) -> None:
    """Let the cluster answer, and the member be caught up."""
    core.condition.started()
    core.condition.cluster_answers(up=True, error="")
    core.condition.caught_up()


@pytest.mark.parametrize(
    ("own", "others", "force", "why"),
    [
        (State.READY, {"b": "READY", "c": ""}, False, ""),
        (State.READY, {"b": "READ_ONLY"}, False, ""),
        (State.READY, {"b": "RECOVERING", "c": ""}, False, "(b is RECOVERING, c is down)"),
        (State.READ_ONLY, {"b": "DRAINING"}, False, "(b is DRAINING)"),
        (State.READY, {}, False, "the ring has no cluster but a"),
        (State.READY, {"b": "DOWN"}, True, ""),
        # who serves nobody takes nobody out
        (State.DOWN, {"b": "DOWN"}, False, ""),
    ],
)
def test_drain_of_the_last_serving_cluster_is_refused_unless_forced(
    own: State, others: dict[str, str], force: bool, why: str
) -> None:
    message = refusal("a", own, others, force=force)
    assert (why in message) and bool(why) == bool(message)


# -- the word that holds -----------------------------------------------------------------------


class NoEngine:
    """A cluster whose probe must not be called."""

    async def probe(self, *, timeout_s: float) -> None:
        raise AssertionError


def core_of(name: str = "a") -> Core:
    identity = Identity("demo", name, "a1", ("a", "b"))
    log = MemoryLog(MemoryStore())
    nobody: Any = NoEngine()
    return Core.of(identity, Reached(log, nobody, nobody), Limits(), Timeouts())


def view(name: str, state: str) -> ClusterView:
    figures: tuple[Any, ...] = ("i", 0, 0, 0, True, "-", "-")
    return ClusterView(name, "http://x", bool(state), bool(state), state, *figures)


def seen(core: Core, b: str) -> list[ClusterView]:
    return [view("a", core.condition.state), view("b", b)]


async def test_drain_survives_a_restart_until_it_is_undone(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    async with door(tmp_path) as rig:
        registry = rig.app[REGISTRY]
        core = core_of()
        well(core)
        drains = Maintenance(config, core, lambda: seen(core, "READY"), registry)
        assert drains.drain("a", force=False)["state"] == "DRAINING"
        assert drains.drain("a", force=False)["drained"], "asked twice"
        again = core_of()
        restarted = Maintenance(config, again, lambda: seen(again, ""), registry)
        assert again.condition.state is State.DRAINING
        well(again)
        assert again.condition.state is State.DRAINING
        assert restarted.undrain("a")["state"] == "RECOVERING", "it makes sure first"
        third = core_of()
        Maintenance(config, third, list, registry)
        assert third.condition.state is State.STARTING
        assert not drained_file(config, "a").exists()


async def test_drain_of_the_last_serving_cluster_needs_force(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        core = core_of()
        well(core)
        drains = Maintenance(
            make_config(tmp_path), core, lambda: seen(core, "DOWN"), rig.app[REGISTRY]
        )
        with pytest.raises(RequestError, match="no other cluster serves") as caught:
            drains.drain("a", force=False)
        assert caught.value.error_class == ErrorClass.NOT_NOW
        assert core.condition.state is State.READY
        with pytest.raises(RequestError, match="HAProc of a, not of b"):
            drains.drain("b", force=True)
        assert drains.drain("a", force=True)["drained"]


async def test_drain_that_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        core = core_of()
        well(core)
        config = make_config(tmp_path / "missing")
        drains = Maintenance(config, core, lambda: seen(core, "READY"), rig.app[REGISTRY])
        with pytest.raises(RequestError, match="it is not drained"):
            drains.drain("a", force=False)
        assert core.condition.state is State.READY


async def test_drained_member_accepts_admitted_writes_while_its_cluster_answers() -> None:
    core = core_of()
    well(core)
    core.condition.drain(drained=True)
    assert core.condition.takes_writes and not core.condition.out_of_service
    core.condition.cluster_answers(up=False, error="")
    assert not core.condition.takes_writes
    assert core.condition.out_of_service, "who waits for an outcome is told that it will not come"
    core.condition.cluster_answers(up=True, error="")
    assert not core.condition.out_of_service


async def test_waits_end_when_the_member_leaves_service_however_soon_it_returns() -> None:
    core = core_of()
    well(core)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        async with core.condition.in_service(20):
            begun.set()
            await ended.wait()

    waiting = asyncio.create_task(wait())
    await begun.wait()
    for up in (False, True):
        core.condition.cluster_answers(up=up, error="")
    with pytest.raises(OutOfServiceError):
        await waiting
    core.condition.cluster_answers(up=False, error="")
    with pytest.raises(OutOfServiceError):
        await wait()
    well(core)
    with pytest.raises(TimeoutError):
        async with core.condition.in_service(0.001):
            await ended.wait()
    ended.set()
    await wait()


# -- what clients still have there ---------------------------------------------------------------


async def test_kept_results_of_a_drained_haproc_are_served_and_counted_until_fetched(
    tmp_path: Path,
) -> None:
    async with door(tmp_path) as rig:
        registry = rig.app[REGISTRY]
        sent = await rig.post(statement="SELECT 1", disposition="EXTERNAL_LINKS")
        await rig.post(statement="SELECT 1")
        assert registry.unfetched() == 1, "an inline result of one chunk was in the answer"
        rig.status.ready = Readiness(False, "DRAINING")
        rig.service.away = RequestError(
            FailureKind.AVAILABILITY, "draining", error_class="HAPROC_DRAINING"
        )
        refused_ = await rig.post(503, statement="SELECT 1")
        assert (refused_["error_class"], refused_["outcome"]) == ("HAPROC_DRAINING", "NOT_SENT")
        (link,) = sent["result"]["external_links"]
        async with rig.http.get(link["external_link"]) as response:
            assert (response.status, await response.json()) == (200, [["1"]])
            assert response.headers["HAProc-State"] == "DRAINING"
        assert registry.unfetched() == 0
        assert (await rig.get(f"/api/2.0/sql/statements/{sent['statement_id']}"))["status"] == {
            "state": "SUCCEEDED"
        }


async def test_kept_result_without_recent_requests_does_not_delay_a_drain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with door(tmp_path) as rig:
        registry = rig.app[REGISTRY]
        sent = await rig.post(statement="SELECT 1", disposition="EXTERNAL_LINKS")
        monkeypatch.setattr(boards, "FETCH_PAUSE_MAX_S", 0.0)
        assert registry.unfetched() == 0
        monkeypatch.setattr(boards, "FETCH_PAUSE_MAX_S", 3600.0)
        assert registry.unfetched() == 1
        (link,) = sent["result"]["external_links"]
        async with rig.http.get(link["external_link"]) as response:
            assert response.status == 200, "it is kept all the same"


async def test_running_request_of_a_drained_haproc_is_answered_and_its_repetition_joins_it(
    tmp_path: Path,
) -> None:
    async with door(tmp_path) as rig:
        hold = asyncio.Event()
        rig.service.table["INSERT"] = dataclasses.replace(WRITE, hold=hold)
        body = {"statement": "INSERT", "request_id": "once"}
        first = asyncio.create_task(rig.post(**body))
        await asyncio.wait_for(rig.service.started.wait(), 10)
        rig.status.ready = Readiness(False, "DRAINING")
        rig.service.away = RequestError(
            FailureKind.AVAILABILITY, "draining", error_class="HAPROC_DRAINING"
        )
        assert rig.app[REGISTRY].request_admission.inside == 1
        again = asyncio.create_task(rig.post(**body))
        hold.set()
        for each in (await first, await again):
            assert each["status"] == {"state": "SUCCEEDED"}
        assert [request.id for request in rig.service.requests] == ["once"]
        assert rig.app[REGISTRY].request_admission.inside == 0


# -- the doors, and the commands ---------------------------------------------------------------


async def ask(
    rig: Rig, method: str, path: str, body: Any = None, headers: dict[str, str] = SECRET
) -> tuple[int, Any]:
    status, answer = await rig.ask(method, path, json=body, headers=headers)
    check(method, path, status, answer)
    return status, answer


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("get", "/ha/v1/drain", None),
        ("post", "/ha/v1/drain", {"cluster": "a"}),
        ("post", "/ha/v1/undrain", {"cluster": "a"}),
    ],
)
async def test_drain_requests_are_answered_as_described_and_only_with_the_secret(
    tmp_path: Path, method: str, path: str, body: Any
) -> None:
    async with door(tmp_path, operator=True) as rig:
        for headers in ({}, {"Authorization": "Bearer another-secret"}):
            assert (await ask(rig, method, path, body, headers))[0] == 401
        assert not rig.drains.drained
        status, answer = await ask(rig, method, path, body)
        assert (status, answer["cluster"]) == (200, "a")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/ha/v1/drain", {}),
        ("/ha/v1/drain", {"cluster": "a", "force": "yes"}),
        ("/ha/v1/drain", {"cluster": "a", "wait": True}),
        ("/ha/v1/undrain", {"cluster": "a", "force": True}),
    ],
)
async def test_wrong_drain_requests_are_refused(tmp_path: Path, path: str, body: Any) -> None:
    async with door(tmp_path, operator=True) as rig:
        assert (await ask(rig, "post", path, body))[0] == 400
        assert not rig.drains.drained


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Awaitable[int]]:
    """Run a command against a rig, in a thread: commands have their own event loop."""

    async def run(rig: Rig, *words: str) -> int:
        monkeypatch.setattr(queue, "read_config", lambda path, cluster: config_of(rig))
        options = _parser().parse_args([*words, "--config", "ring.yaml"])
        return int(await asyncio.to_thread(options.run, options))

    return run


async def test_drain_command_reports_the_remaining_requests_and_results(
    tmp_path: Path, command: Callable[..., Awaitable[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    async with door(tmp_path, operator=True) as rig:
        assert await command(rig, "drain", "a", "--force") == 0
        assert rig.drains.drained and rig.drains.forced
        output = capsys.readouterr().out
        assert "a is DRAINING; it has 1 requests under way and 2 results that" in output
        assert await command(rig, "drain", "a", "--wait", "--timeout-s", "0") == 3
        assert await command(rig, "undrain", "a", "--wait") == 0
        assert not rig.drains.drained
        assert capsys.readouterr().out.endswith("a is READY\n")
        await command(rig, "drain", "a")
        assert await command(rig, "drain", "a", "--undo") == 0
        assert not rig.drains.drained


async def test_drain_command_fails_if_the_drain_is_refused(
    tmp_path: Path, command: Callable[..., Awaitable[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    async with door(tmp_path, operator=True) as rig:
        rig.drains.error = refused(
            ErrorClass.NOT_NOW, "a is not drained: no other cluster serves", "force"
        )
        assert await command(rig, "drain", "a") == 1
        assert "no other cluster serves" in capsys.readouterr().err
