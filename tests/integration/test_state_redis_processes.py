"""Tests of heartbeats through a real Redis between processes, some of them killed or frozen."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from haproc.config.model import Redis
from tests.presence_process import PresenceProcess, wait_until
from tests.presences import NAMES, NOTICED_S, ring_config
from tests.redis_servers import RedisServer

pytestmark = pytest.mark.thorough


@pytest.fixture
def ring(redis: RedisServer, tmp_path: Path) -> Iterator[dict[str, PresenceProcess]]:
    """Three processes that receive each other's heartbeats through Redis."""
    config = ring_config(tmp_path, Redis(url=f"redis://127.0.0.1:{redis.port}"))
    made = {name: PresenceProcess(config, name, tmp_path) for name in NAMES}
    try:
        wait_until(lambda: all(carried(each, NAMES) == {"redis"} for each in made.values()))
        yield made
    finally:
        for each in made.values():
            each.kill()


def carried(each: PresenceProcess, names: str) -> set[str]:
    """Return the transports to these peers, as soon as heartbeats of all of them arrive."""
    if not each.hears() >= set(names):
        return set()
    return {way for peer, way in each.ways().items() if peer in names or not peer}


def test_killed_process_is_noticed_through_redis_and_returns(
    ring: dict[str, PresenceProcess],
) -> None:
    a, b, c = ring.values()
    c.kill()
    took_s = wait_until(lambda: "c" not in a.alive() | b.alive())
    assert took_s < NOTICED_S
    assert carried(a, "ab") == carried(b, "ab") == {"redis"}
    c.start()
    wait_until(lambda: all(carried(each, NAMES) == {"redis"} for each in ring.values()))
    print(f"down after {took_s * 1000:.0f} ms")


def test_frozen_process_is_noticed_through_redis_and_returns(
    ring: dict[str, PresenceProcess],
) -> None:
    a, b, c = ring.values()
    c.signal(signal.SIGSTOP)
    took_s = wait_until(lambda: "c" not in a.alive() | b.alive())
    assert took_s < NOTICED_S
    c.signal(signal.SIGCONT)
    wait_until(lambda: all(carried(each, NAMES) == {"redis"} for each in ring.values()))
    print(f"down after {took_s * 1000:.0f} ms")


def test_process_that_dies_while_redis_is_frozen_is_noticed_and_others_stay_alive(
    ring: dict[str, PresenceProcess], redis: RedisServer
) -> None:
    a, b, c = ring.values()
    redis.signal(signal.SIGSTOP)
    c.kill()
    seen: list[set[str]] = []

    def gone() -> bool:
        seen.append(a.alive() & b.alive())
        return "c" not in a.alive() | b.alive()

    took_s = wait_until(gone)
    assert took_s < NOTICED_S and all(alive >= {"a", "b"} for alive in seen)
    wait_until(lambda: carried(a, "ab") == carried(b, "ab") == {"mesh"})
    # what the frozen Redis still holds of the dead one does not bring it back
    redis.signal(signal.SIGCONT)
    wait_until(lambda: carried(a, "ab") == carried(b, "ab") == {"redis"})
    assert "c" not in a.alive() | b.alive()
    print(f"down after {took_s * 1000:.0f} ms")
