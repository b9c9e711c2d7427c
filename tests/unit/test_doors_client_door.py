"""The client door is open while the cluster answers, and reopens on a port that was in use."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from haproc.config.model import Address
from haproc.doors.clients.door import ClientDoor
from haproc.doors.http.listener import Listener
from haproc.membership.state import State
from haproc.ring.process import free_port

RETRY_S = 0.02


class Rig:
    """A door on a free port, and an event that is set when it wants to be opened again."""

    def __init__(self) -> None:
        self.address = Address("127.0.0.1", free_port())
        self.again = asyncio.Event()
        self.listener = Listener(web.Application(), self.address)
        self.door = ClientDoor("a", self.listener, self.again.set, RETRY_S)

    async def answers(self) -> bool:
        """Return True if a client gets an answer."""
        try:
            async with aiohttp.ClientSession() as session, session.get(f"http://{self.address}"):
                return True
        except aiohttp.ClientConnectionError:
            return False

    def taken(self) -> socket.socket:
        """Let another process use the port."""
        return socket.create_server((self.address.host, self.address.port))


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    await rig.listener.start()
    yield rig
    await rig.listener.aclose()


async def test_door_is_open_while_the_cluster_answers(rig: Rig) -> None:
    for state, answers in (
        (State.RECOVERING, False),
        (State.READY, True),
        (State.DRAINING, True),
        (State.DOWN, False),
        (State.READY, True),
    ):
        await rig.door.follow(state)
        assert await rig.answers() is answers, state


async def test_first_opening_fails_if_the_port_is_in_use(rig: Rig) -> None:
    with rig.taken(), pytest.raises(OSError, match="address already in use"):
        await rig.door.follow(State.READY)


async def test_reopening_waits_for_a_port_that_is_in_use(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.door.follow(State.READY)
    await rig.door.follow(State.DOWN)
    with rig.taken(), caplog.at_level(logging.ERROR):
        await rig.door.follow(State.READY)
        assert not rig.listener.is_open
    assert f"clients on http://{rig.address}: another process has taken it" in caplog.text
    await asyncio.wait_for(rig.again.wait(), 5)
    await rig.door.follow(State.READY)
    assert await rig.answers()
