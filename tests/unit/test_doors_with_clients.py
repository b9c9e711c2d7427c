"""haclient at the real client doors of three HAProcs (with canned clusters) that restart.

Each drains as a real HAProc: its state changes, it refuses new requests, and running ones end. A
HAProc that stops closes its door.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import haclient
import haclient.aio
from dmq import Json
from haproc.config.model import Address
from haproc.doors.apps import client_app
from haproc.doors.http.listener import Listener
from haproc.doors.status import Readiness
from haproc.failure import FailureKind, RequestError
from haproc.metrics import Metrics
from haproc.ring.process import free_port
from tests.unit.canned import CannedService, CannedStatus
from tests.unit.door_rig import make_config

WAIT_S = 30.0
AWAY = RequestError(FailureKind.AVAILABILITY, "draining", error_class="HAPROC_DRAINING")


class RingStatus(CannedStatus):
    """A HAProc's status that contains the ring's clusters."""

    def __init__(self, name: str, ring: dict[str, Door]) -> None:
        super().__init__()
        self._name = name
        self._ring = ring

    def cluster_status(self) -> Mapping[str, Json]:
        clusters: list[Json] = [
            {"name": name, "url": door.url, "state": door.status.ready.state}
            for name, door in self._ring.items()
        ]
        return {**super().cluster_status(), "cluster": self._name, "clusters": clusters}


@dataclass
class Door:
    """One HAProc's client door."""

    port: int
    status: RingStatus
    service: CannedService = field(default_factory=CannedService)
    listener: Listener | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def set(self, state: str, *, closed: bool = False) -> None:
        """Go out of service, or come back, as a HAProc does by its state."""
        assert self.listener is not None
        self.status.ready = Readiness(state == "READY", state)
        self.service.away = None if state == "READY" else AWAY
        await (self.listener.close() if closed else self.listener.open())


@asynccontextmanager
async def doors(tmp_path: Path) -> AsyncIterator[dict[str, Door]]:
    ring: dict[str, Door] = {}
    async with AsyncExitStack() as stack:
        for name in "abc":
            ring[name] = door = Door(free_port(), RingStatus(name, ring))
            config = make_config(tmp_path)
            metrics = Metrics("demo", name, ["READY", "DRAINING"])
            app = client_app(config, name, door.service, door.status, metrics)
            door.listener = Listener(app, Address("127.0.0.1", door.port), shutdown_s=1.0)
            await door.listener.open()
            stack.push_async_callback(door.listener.aclose)
        yield ring


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("order", "stops"),
    [
        ("ordered", True),
        ("spread", False),
        pytest.param("ordered", False, marks=pytest.mark.thorough),
        pytest.param("spread", True, marks=pytest.mark.thorough),
        pytest.param("nearest", False, marks=pytest.mark.thorough),
        pytest.param("nearest", True, marks=pytest.mark.thorough),
    ],
)
async def test_doors_that_drain_one_after_another_under_load_fail_no_request(
    tmp_path: Path, order: str, stops: bool
) -> None:
    async with doors(tmp_path) as ring:
        stop, errors, answered = asyncio.Event(), [], Counter[int]()

        async def client(number: int) -> None:
            async with haclient.aio.connect(
                ring["abc"[number % 3]].url,
                order=order,
                client_number=number,
                refresh_s=0.05,
                failback_probe_s=0.02,
                failback_after_s=0.1,
            ) as connection:
                while not stop.is_set():
                    sql = "INSERT" if answered[number] % 2 else "SELECT 1"
                    try:
                        await connection.execute(sql)
                    except haclient.Error as error:
                        errors.append(error)
                    answered[number] += 1

        clients = [asyncio.create_task(client(number)) for number in range(6)]

        async def all_go_on(count: int) -> None:
            begun = dict(answered)
            await until(lambda: all(answered[n] >= begun.get(n, 0) + count for n in range(6)))

        await all_go_on(10)
        for door in ring.values():
            await door.set("DRAINING")
            await all_go_on(3)
            await door.set("DRAINING", closed=stops)
            await all_go_on(10)
            requests = len(door.service.requests)
            await all_go_on(5)
            assert len(door.service.requests) == requests, "nothing new"
            await door.set("READY")
            await all_go_on(10)
        stop.set()
        await asyncio.gather(*clients)
        assert errors == []
