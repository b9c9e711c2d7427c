"""The Spark Connect door's listener says why it cannot listen."""

from __future__ import annotations

import asyncio
import errno
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest

from haproc.config.model import Address, Connect
from haproc.doors.connect.figures import Figures
from haproc.doors.connect.server import ConnectListener


def listener(port: int, settings: Connect) -> ConnectListener:
    async def end() -> None:
        return

    return ConnectListener(
        grpc.method_handlers_generic_handler("none", {}),
        Address("127.0.0.1", port),
        settings,
        serves=lambda: True,
        figures=lambda: Figures({}, 0, 0),
        end=end,
    )


async def test_port_that_is_taken_is_told_as_that() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError) as failed:
        await listener(taken.getsockname()[1], Connect()).open()
    assert failed.value.errno == errno.EADDRINUSE


@pytest.mark.parametrize(("text", "code"), [("no certificate", errno.EINVAL), (None, errno.ENOENT)])
async def test_certificate_that_is_none_is_told_as_that(
    tmp_path: Path, text: str | None, code: int
) -> None:
    file = tmp_path / "door.pem"
    if text is not None:
        file.write_text(text)
    settings = Connect(ssl_certificate_file=file, ssl_key_file=file)
    with pytest.raises(OSError, match=r"door\.pem") as failed:
        await listener(0, settings).open()
    assert failed.value.errno == code


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


async def test_door_whose_opening_is_cancelled_is_not_left_listening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = asyncio.Event()
    make = grpc.aio.server

    def hanging(**how: Any) -> Any:
        server = make(**how)
        start = server.start

        async def start_and_hang() -> None:
            await start()
            started.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(server, "start", start_and_hang)
        return server

    monkeypatch.setattr(grpc.aio, "server", hanging)
    door = listener(0, Connect())
    opening = asyncio.create_task(door.open())
    await started.wait()
    assert answers(door.port)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await door.aclose()
    assert not answers(door.port)
