"""Tests of heartbeats through a real Redis: kills, freezes, lost data, forgery, failover."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import signal
from pathlib import Path
from typing import Any

import pytest

from haproc.config.model import Redis, StateWay
from haproc.membership.peers import founders
from haproc.membership.redis_lines import channel_of, key_of
from haproc.membership.view import Reachability
from tests.presence_process import wait_until
from tests.presences import NOTICED_S, RULES, WITHIN_S, Here, Watch, presences, ring_config, until
from tests.redis_servers import RedisServer, running

TLS = Path(__file__).parent / "tls"


def settings(server: RedisServer, **more: Any) -> Redis:
    return dataclasses.replace(Redis(url=f"redis://127.0.0.1:{server.port}"), **more)


def carried_by(way: str, ring: dict[str, Here]) -> bool:
    return all(here.receives_all and here.ways == {way} for here in ring.values())


def metric(here: Here, name: str) -> float:
    here.presence.measure()
    for line in here.metrics.text().decode().splitlines():
        if line.startswith(name + " "):
            return float(line.split()[-1])
    return 0.0


def lose(server: RedisServer, how: str) -> None:
    if how == "kill":
        server.kill()
    else:
        server.signal(signal.SIGSTOP)


def give_back(server: RedisServer, how: str) -> None:
    if how == "kill":
        server.start()
    else:
        server.signal(signal.SIGCONT)


@pytest.mark.parametrize("how", ["kill", pytest.param("freeze", marks=pytest.mark.thorough)])
async def test_redis_lost_is_replaced_by_direct_heartbeats_unnoticed_until_it_is_back(
    redis: RedisServer, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = ring_config(tmp_path, settings(redis))
    async with presences(config) as ring:
        await until(lambda: carried_by("redis", ring))
        watch = Watch(ring)
        with caplog.at_level(logging.WARNING):
            await asyncio.to_thread(lose, redis, how)
            took_s = await until(lambda: carried_by("mesh", ring))
            assert took_s < NOTICED_S
            await until(lambda: all(h.presence.transport()["reason"] for h in ring.values()))
            assert "heartbeats go to each peer directly: Redis" in caplog.text
        # for longer than anybody waits for an answer
        await asyncio.sleep(1.5 * RULES.window_s)
        assert carried_by("mesh", ring)
        await asyncio.to_thread(give_back, redis, how)
        await until(lambda: carried_by("redis", ring))
        assert await watch.end() == []
        assert metric(ring["a"], "haproc_redis_fallbacks_total") == 1
        assert metric(ring["a"], 'haproc_transport{way="redis"}') == 1
        print(
            f"{how}: over the mesh after {took_s * 1000:.0f} ms, never more than "
            f"{watch.gap_s / RULES.heartbeat_interval_s:.1f} intervals without a heartbeat"
        )


async def test_redis_missing_at_the_start_is_used_as_soon_as_it_runs(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    with running(server):
        async with presences(ring_config(tmp_path, settings(server))) as ring:
            await until(lambda: carried_by("mesh", ring))
            assert "onnect" in str(ring["a"].presence.transport()["reason"])
            await asyncio.to_thread(server.start)
            await until(lambda: carried_by("redis", ring))


async def test_haproc_without_redis_exchanges_heartbeats_with_peers_that_use_redis(
    redis: RedisServer, tmp_path: Path
) -> None:
    """Such a ring exists while its HAProcs change from one transport to the other."""
    config = ring_config(tmp_path, settings(redis))
    plain = Here(dataclasses.replace(config, state=StateWay.MESH, redis=Redis()), "c")
    await plain.open()
    try:
        async with presences(config, "ab") as ring:
            await until(lambda: all(here.receives_all for here in (plain, *ring.values())))
            wanted = {"b": "redis", "c": "mesh"}
            await until(lambda: ring["a"].presence.transport()["peers"] == wanted)
            assert plain.presence.transport()["peers"] == {"a": "mesh", "b": "mesh"}
            assert all(here.receives_all for here in (plain, *ring.values()))
    finally:
        await plain.aclose()


@pytest.mark.thorough
async def test_heartbeats_of_an_added_cluster_arrive_through_redis_while_it_is_a_member(
    redis: RedisServer, tmp_path: Path
) -> None:
    config = ring_config(tmp_path, settings(redis))
    a, b, _ = all_three = founders(config)
    async with presences(config, "ab") as two:
        for here in two.values():
            here.presence.members.follow([a, b])
        await until(lambda: carried_by("redis", two))
        async with presences(config, "c") as new:
            # It says that it is there before anybody knows that it belongs to the ring.
            refused = 'haproc_redis_messages_refused_total{reason="strange"}'
            await until(lambda: metric(two["a"], refused) > 0)
            assert two["a"].presence.members.peers().keys() == {"b"}
            for here in two.values():
                here.presence.members.follow(all_three)
            await until(lambda: carried_by("redis", two | new))
        for here in two.values():
            here.presence.members.follow([a, b])
        assert carried_by("redis", two)
        assert two["a"].presence.members.peers().keys() == {"b"}


@pytest.mark.thorough
async def test_redis_connection_of_one_haproc_that_is_cut_changes_no_peers_state(
    redis: RedisServer, tmp_path: Path
) -> None:
    async with presences(ring_config(tmp_path, settings(redis))) as ring:
        await until(lambda: carried_by("redis", ring))
        watch = Watch(ring)
        # its subscription ends, again and again
        for _ in range(5):
            listed = await asyncio.to_thread(redis.cli, "CLIENT", "LIST")
            for line in listed.splitlines():
                if "name=haproc-demo-b " in line:
                    number = line.split()[0].removeprefix("id=")
                    await asyncio.to_thread(redis.cli, "CLIENT", "KILL", "ID", number)
            await until(lambda: "mesh" in ring["b"].ways)
            await until(lambda: carried_by("redis", ring))
        assert await watch.end() == []


async def test_peer_that_dies_is_noticed_through_redis_and_its_last_report_is_kept(
    redis: RedisServer, tmp_path: Path
) -> None:
    config = ring_config(tmp_path, settings(redis, key_ttl_s=WITHIN_S * 2))
    async with presences(config) as ring:
        await until(lambda: carried_by("redis", ring))
        await ring["c"].aclose()
        peers = {name: ring[name].presence.members.peers for name in "ab"}
        took_s = await until(
            lambda: all(peers[name]()["c"].status is Reachability.DOWN for name in "ab")
        )
        assert took_s < NOTICED_S
        assert ring["a"].ways == {"redis", "mesh"}  # it may come back without Redis
        # one that starts now knows how far it was
        late = Here(config, "c", "c2")
        await late.open()
        await until(lambda: late.ways == {"redis"})
        dead = ring.pop("b")
        await dead.aclose()
        again = Here(config, "b", "b2")
        try:
            await late.aclose()
            await until(lambda: again.presence.members.peers()["c"].report is not None)
            report = again.presence.members.peers()["c"].report
            assert report is not None and (report.cursor, report.log_end) == (40, 42)
        finally:
            await again.aclose()
        print(f"down after {took_s * 1000:.0f} ms")


async def test_redis_key_shows_a_clusters_state_and_url_and_expires(
    redis: RedisServer, tmp_path: Path
) -> None:
    config = ring_config(tmp_path, settings(redis))
    config = dataclasses.replace(
        config,
        clusters=(
            dataclasses.replace(config.clusters[0], advertise="http://zurich.example.com:8080"),
            *config.clusters[1:],
        ),
    )
    key = key_of("demo", "a")
    async with presences(config) as ring:
        await until(lambda: carried_by("redis", ring))
        # a heartbeat alone, which may be what was carried first, is not kept
        await asyncio.to_thread(wait_until, lambda: redis.cli("EXISTS", key) == "1")
        shown = json.loads(await asyncio.to_thread(redis.cli, "GET", key))
        assert shown["url"] == "http://zurich.example.com:8080"
        assert shown["report"]["cursor"] == 40
        ttl_ms = int(await asyncio.to_thread(redis.cli, "PTTL", key))
        assert 0 < ttl_ms <= 10_000
        # a HAProc whose own configuration has another address is told the right one
        await ring["b"].aclose()
        config = dataclasses.replace(
            config, clusters=(dataclasses.replace(config.clusters[0], advertise=None),
                              *config.clusters[1:])
        )  # fmt: skip
        other = Here(config, "b", "b2")
        try:
            await until(lambda: other.presence.views()[0].url == "http://zurich.example.com:8080")
        finally:
            await other.aclose()


@pytest.mark.thorough
async def test_redis_that_is_emptied_changes_no_peers_state(
    redis: RedisServer, tmp_path: Path
) -> None:
    async with presences(ring_config(tmp_path, settings(redis))) as ring:
        await until(lambda: carried_by("redis", ring))
        watch = Watch(ring)
        await asyncio.to_thread(redis.cli, "FLUSHALL")
        key = key_of("demo", "a")
        await asyncio.to_thread(wait_until, lambda: redis.cli("EXISTS", key) == "1")
        assert await watch.end() == []
        await until(lambda: carried_by("redis", ring))


@pytest.mark.thorough
async def test_forged_and_repeated_messages_do_not_keep_a_dead_peer_alive(
    redis: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    channel, key = channel_of("demo"), key_of("demo", "c")
    async with presences(ring_config(tmp_path, settings(redis))) as ring:
        members = ring["a"].presence.members
        await until(lambda: carried_by("redis", ring) and bool(members.peers()["c"].report))
        recorded = await asyncio.to_thread(redis.cli, "GET", key)
        await ring["c"].aclose()
        forged = recorded.replace('"cursor":40', '"cursor":41')

        def forge() -> None:
            redis.cli("PUBLISH", channel, recorded)
            redis.cli("PUBLISH", channel, forged)
            redis.cli("PUBLISH", channel, "hello")
            redis.cli("SET", key, forged)

        async with asyncio.timeout(WITHIN_S):
            while members.peers()["c"].status is not Reachability.DOWN:
                await asyncio.to_thread(forge)
        report = members.peers()["c"].report
        assert report is not None and report.cursor == 40
        assert metric(ring["a"], 'haproc_redis_messages_refused_total{reason="strange"}') >= 2
        assert metric(ring["a"], 'haproc_redis_messages_refused_total{reason="repeated"}') >= 1
        assert "messages of no HAProc of this ring" in caplog.text


async def test_redis_password_is_used_and_a_wrong_one_is_reported_without_its_text(
    redis: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    redis.kill()
    redis.start(
        "user default off",
        "user haproc on >redis-password-1 +hello +client|setname +select +subscribe +publish "
        "+mget +set ~haproc:demo:* &haproc:demo",
    )
    right = settings(redis, username="haproc", password="redis-password-1")
    async with presences(ring_config(tmp_path, right)) as ring:
        await until(lambda: carried_by("redis", ring))
    wrong = settings(redis, username="haproc", password="wrong-password-1")
    async with presences(ring_config(tmp_path, wrong)) as ring:
        await until(lambda: carried_by("mesh", ring))
        await until(
            lambda: "invalid username-password" in str(ring["a"].presence.transport()["reason"])
        )
    assert "word-1" not in caplog.text


async def test_redis_with_tls_is_used_only_if_its_certificate_is_trusted(
    redis: RedisServer, tmp_path: Path
) -> None:
    redis.kill()
    redis.tls(TLS / "broker.pem")
    redis.start()
    url = f"rediss://127.0.0.1:{redis.port}"
    trusting = Redis(url=url, ssl_ca_file=TLS / "ca.pem")
    async with presences(ring_config(tmp_path, trusting)) as ring:
        await until(lambda: carried_by("redis", ring))
    other = Redis(url=url, ssl_ca_file=TLS / "other-ca.pem")
    async with presences(ring_config(tmp_path, other)) as ring:
        await until(lambda: carried_by("mesh", ring))
        await until(lambda: "CERTIFICATE_VERIFY" in str(ring["a"].presence.transport()["reason"]))


@pytest.mark.thorough
async def test_redis_master_that_fails_is_replaced_by_its_replica(tmp_path: Path) -> None:
    first, second = RedisServer(tmp_path, "first"), RedisServer(tmp_path, "second")
    sentinels = [RedisServer(tmp_path, f"sentinel{n}", "redis-sentinel") for n in range(3)]
    with running(first, second, *sentinels):
        first.start()
        second.start(f"replicaof 127.0.0.1 {first.port}", "repl-diskless-sync-delay 0")
        for sentinel in sentinels:
            sentinel.start(
                f"sentinel monitor ring 127.0.0.1 {first.port} 2",
                "sentinel down-after-milliseconds ring 1000",
                "sentinel failover-timeout ring 5000",
            )
        await asyncio.to_thread(wait_until, lambda: _ready(sentinels[0]))
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
        redis = Redis(url=f"redis+sentinel://{hosts}/ring")
        async with presences(ring_config(tmp_path, redis)) as ring:
            await until(lambda: carried_by("redis", ring))
            watch = Watch(ring)
            sentinels[0].signal(signal.SIGSTOP)  # the others are asked
            first.signal(signal.SIGSTOP)
            await until(lambda: carried_by("mesh", ring))
            took_s = await until(lambda: carried_by("redis", ring), within_s=60)
            # Written anew with the next heartbeat; what the first master held may have expired.
            key = key_of("demo", "a")
            await asyncio.to_thread(wait_until, lambda: second.cli("EXISTS", key) == "1")
            sentinels[0].signal(signal.SIGCONT)
            first.signal(signal.SIGCONT)
            await asyncio.sleep(2 * RULES.check_interval_s)
            assert await watch.end() == []
            print(f"at the new master after {took_s:.1f} s")


def _ready(sentinel: RedisServer) -> bool:
    """Return whether the sentinel has found the replica and the others, as a failover needs."""
    words = sentinel.cli("SENTINEL", "MASTER", "ring").splitlines()
    fields = dict(zip(words[::2], words[1::2], strict=True))
    return (fields["num-slaves"], fields["num-other-sentinels"]) == ("1", "2")
