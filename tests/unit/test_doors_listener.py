"""A listener whose opening or closing is cancelled, and paths with a slash at their end."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from aiohttp import web

from haproc.config.model import Address
from haproc.doors.http.listener import Listener
from haproc.ring.process import free_port
from tests.unit.door_rig import STATEMENTS, door


async def accepts(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def cancelled(work: asyncio.Future[None], turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


@pytest.mark.parametrize("turns", range(8))
async def test_cancelled_opening_can_be_closed_and_opened_again(turns: int) -> None:
    port = free_port()
    listener = Listener(web.Application(), Address("127.0.0.1", port))
    await listener.start()
    try:
        await cancelled(asyncio.ensure_future(listener.open()), turns)
        await listener.close()
        assert not await accepts(port)
        await listener.open()
        assert await accepts(port)
    finally:
        await listener.aclose()


@pytest.mark.parametrize("turns", range(8))
async def test_cancelled_closing_leaves_a_port_that_is_closed_or_serves(
    turns: int,
) -> None:
    port = free_port()
    listener = Listener(web.Application(), Address("127.0.0.1", port))
    await listener.open()
    try:
        await cancelled(asyncio.ensure_future(listener.close()), turns)
        assert await accepts(port) == listener.is_open
    finally:
        await listener.aclose()


@pytest.mark.parametrize("operator", [False, True])
async def test_path_with_a_slash_at_its_end_is_answered_as_without(
    tmp_path: Path, operator: bool
) -> None:
    async with door(tmp_path, operator=operator) as rig:
        for route in [*rig.app.router.routes()]:
            assert route.resource is not None
            path = re.sub(r"\{\w+\}", "7", route.resource.canonical).rstrip("/")
            statuses = []
            for variant in (path, path + "/"):
                async with rig.http.request(route.method, rig.url + variant) as response:
                    statuses.append(response.status)
            assert statuses[0] == statuses[1], (route.method, path)
        status = None
        if not operator:
            body = {"statement": "SELECT 1"}
            async with rig.http.post(rig.url + STATEMENTS + "/", json=body) as response:
                status = response.status
        assert status in (None, 200)
