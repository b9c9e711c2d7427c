"""Tests of links to peers on real sockets: what arrives, and how a silent peer looks."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from haproc.config.model import Address, Config, Membership
from haproc.membership.connections import Links
from haproc.membership.members import Members, until_tick
from haproc.membership.peers import Member
from haproc.membership.state import Beat, ClusterReport, Own, State
from haproc.membership.view import Reachability
from tests.alone import NoLines
from tests.unit.door_rig import door, make_config

RULES = Membership(heartbeat_interval_s=0.02, window_s=0.4, check_interval_s=0.04)
BEAT = Beat("b", "2", 7, (), True, State.READY)


@dataclasses.dataclass
class Subject:
    """A HAProc that members report on; ``why``: the isolation reasons that it received."""

    says: Own
    why: list[str] = dataclasses.field(default_factory=list)

    def own(self) -> Own:
        return self.says

    def isolate(self, why: str) -> None:
        self.why.append(why)


def config_with(tmp_path: Path, port: int, secret: str = "ring-secret") -> Config:
    """Return the configuration of a ring in which the HAProc of a listens at a port."""
    config = make_config(tmp_path)
    a = dataclasses.replace(config.clusters[0], peer=Address("127.0.0.1", port))
    clusters = (a, config.clusters[1])
    return dataclasses.replace(config, clusters=clusters, secret=secret, membership=RULES)


def sending(config: Config) -> contextlib.aclosing[Links]:
    return contextlib.aclosing(Links(config, "b"))


async def until(condition: Callable[[], bool], links: Links | None = None) -> None:
    """Wait for a condition, with heartbeats going on meanwhile."""
    async with asyncio.timeout(20):
        while not condition():
            if links is not None:
                links.send(BEAT)
            await asyncio.sleep(RULES.heartbeat_interval_s)


async def several_windows(links: Links) -> None:
    """Send heartbeats for longer than a peer may be silent."""
    end = asyncio.get_running_loop().time() + 3 * RULES.window_s
    await until(lambda: asyncio.get_running_loop().time() > end, links)


async def test_links_send_heartbeats_over_one_connection(tmp_path: Path) -> None:
    async with (
        door(tmp_path, operator=True) as rig,
        sending(config_with(tmp_path, rig.listener.port)) as links,
    ):
        await until(lambda: len(rig.members.beats) >= 5, links)
        assert set(rig.members.beats) == {BEAT}
        assert len(rig.listener._permits) == 1
        assert links.silent() == frozenset()


def test_links_work_on_the_event_loop_that_haproc_uses(tmp_path: Path) -> None:
    """uvloop's transports have other classes than asyncio's."""
    uvloop.run(test_links_send_heartbeats_over_one_connection(tmp_path))


async def test_links_reconnect_to_a_listener_that_returns(tmp_path: Path) -> None:
    async with (
        door(tmp_path, operator=True) as rig,
        sending(config_with(tmp_path, rig.listener.port)) as links,
    ):
        rig.listener.address = Address("127.0.0.1", rig.listener.port)
        await until(lambda: bool(rig.members.beats), links)
        await rig.listener.close()
        rig.members.beats.clear()
        await rig.listener.open()
        await until(lambda: bool(rig.members.beats), links)


async def test_links_peer_that_refuses_connections_is_not_silent(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with sending(config_with(tmp_path, taken.getsockname()[1])) as links:
            await several_windows(links)
            await until(lambda: not links.silent(), links)  # a stall of the loop looks like silence


async def test_links_peer_that_refuses_the_secret_is_not_silent(tmp_path: Path) -> None:
    async with (
        door(tmp_path, operator=True) as rig,
        sending(config_with(tmp_path, rig.listener.port, "another-secret")) as links,
    ):
        await several_windows(links)
        await until(lambda: not links.silent(), links)
        assert rig.members.beats == []


async def test_links_peer_that_never_answers_is_silent_and_retried(tmp_path: Path) -> None:
    connections = 0

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with contextlib.suppress(ConnectionError):
            await reader.read(1 << 20)
            await reader.read()
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    async with (
        server,
        sending(config_with(tmp_path, server.sockets[0].getsockname()[1])) as links,
    ):
        await until(lambda: links.silent() == {"a"}, links)
        await until(lambda: connections >= 2, links)


async def test_members_exchange_heartbeats_and_reports_over_real_sockets(tmp_path: Path) -> None:
    """The whole path: Members of b → link → shortcut of a."""
    async with door(tmp_path, operator=True) as rig:
        config = config_with(tmp_path, rig.listener.port)
        b = Subject(Own(State.READY, "2026-01-01T00:00:00Z", 7, 3, 5, log_up=True))
        async with sending(config) as links:
            members = Members(RULES, ("b", "2"), ("a",), links)
            members.attach(b)
            task = asyncio.ensure_future(members.run_forever())
            await until(lambda: bool(rig.members.beats) and bool(rig.members.reports))
            report = rig.members.reports[0]
            assert (report.cursor, report.log_end, report.epoch) == (3, 5, 7)
            assert rig.members.beats[0] == BEAT
            beat_of_a = Beat("a", "1", 1, ("b",), True, State.READY)

            def is_reachable() -> bool:
                members.heartbeat(beat_of_a)
                return members.peers()["a"].status is Reachability.REACHABLE

            await until(is_reachable)
            await until(lambda: rig.members.beats[-1].hears == ("a",))
            await until(lambda: members.peers()["a"].status is Reachability.DOWN)
            await until(lambda: members.is_gone("a"))
            assert b.why == []
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("wall_s", "left_s"), [(7.0, 1.0), (7.3, 0.7), (7.49, 0.51), (7.51, 1.49), (7.999, 1.001)]
)
def test_members_tick_is_aligned_to_the_wall_clock(wall_s: float, left_s: float) -> None:
    assert until_tick(1.0, wall_s) == pytest.approx(left_s)


async def test_members_run_forever_sends_a_heartbeat_at_each_tick_of_the_wall_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[float, float]] = []

    def at_once(interval_s: float, wall_s: float) -> float:
        calls.append((interval_s, wall_s))
        return 0.0

    monkeypatch.setattr("haproc.membership.members.until_tick", at_once)
    lines = NoLines()
    members = Members(RULES, ("b", "2"), ("a",), lines)
    task = asyncio.ensure_future(members.run_forever())
    await until(lambda: len(calls) > 3)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [type(each) for each in lines.sent].count(Beat) == len(calls)
    assert all(each == RULES.heartbeat_interval_s for each, _ in calls)
    assert all(abs(wall_s - time.time()) < 60 for _, wall_s in calls)


async def test_members_state_change_is_reported_at_the_next_tick() -> None:
    lines = NoLines(silent="a")
    b = Subject(Own(State.READY, "then", log_lost=True))
    members = Members(RULES, ("b", "2"), ("a",), lines)
    members.attach(b)
    members.tick()
    members.tick()
    assert [type(each) for each in lines.sent] == [Beat, ClusterReport, Beat]
    members.state_changed()
    members.tick()
    assert [type(each) for each in lines.sent[3:]] == [Beat, ClusterReport]
    assert b.why == ["neither the log nor a can be reached from here"]
    b.says = Own(State.READY, "then")
    members.peers()
    assert b.why[1:] == [""]


async def test_members_without_a_subject_report_a_haproc_that_starts() -> None:
    members = Members(RULES, ("b", "2"), ("a",), lines := NoLines(), lambda: 1_790_000_000_123)
    members.tick()
    report = lines.sent[-1]
    assert isinstance(report, ClusterReport)
    assert (report.state, report.since) == (State.STARTING, "2026-09-21T14:13:20.123Z")


async def test_links_follow_a_peer_that_moved_and_drop_one_that_left(tmp_path: Path) -> None:
    async with (
        door(tmp_path / "a", operator=True) as first,
        door(tmp_path / "d", operator=True) as second,
        sending(config_with(tmp_path, first.listener.port)) as links,
    ):
        await until(lambda: bool(first.members.beats), links)
        a = Member("a", Address("127.0.0.1", second.listener.port), "http://a")
        links.follow([a, Member("b", Address("127.0.0.1", 1), "http://b")])
        await until(lambda: bool(second.members.beats), links)
        count = len(first.members.beats)
        links.follow([])
        assert links.silent() == frozenset()
        links.send(BEAT)
        await until(lambda: len(first.listener._permits) == 0)
        assert len(first.members.beats) <= count + 1
