"""Ports that are taken, free, or soon taken or free."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from haproc.ring import process

HOST = "127.0.0.1"


@pytest.fixture
def server() -> socket.socket:
    taken = socket.socket()
    taken.bind((HOST, 0))
    taken.listen()
    return taken


def test_free_ports_differ_and_nothing_listens_there() -> None:
    found = process.free_ports(20)
    assert len(set(found)) == 20
    assert all(process.wait_free(HOST, port) for port in found)


def test_free_ports_are_server_ports_and_are_not_returned_twice() -> None:
    found = [process.free_port() for _ in range(50)]
    assert len(set(found)) == 50
    assert set(found) <= set(process.ports_of_servers())


@pytest.mark.parametrize(
    ("outgoing", "servers"),
    [
        ("20000\t30000\n", range(10_000, 20_000)),
        ("1024 65535", range(10_000, 65_536)),  # the system keeps none apart
        ("10500 65535", range(10_000, 65_536)),
        ("what?", range(10_000, 32_768)),
        (None, range(10_000, 32_768)),
    ],
)
def test_server_ports_are_below_the_range_of_outgoing_connections(
    outgoing: str | None, servers: range, tmp_path: Path
) -> None:
    file = tmp_path / "ip_local_port_range"
    if outgoing is not None:
        file.write_text(outgoing)
    assert process.ports_of_servers(file) == servers


def test_wait_free_is_false_while_something_listens(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_FREE_WITHIN_S", 0.2)
    with server:
        assert not process.wait_free(HOST, server.getsockname()[1])


def test_wait_free_waits_for_a_listener_that_closes(server: socket.socket) -> None:
    closing = threading.Timer(0.2, server.close)
    closing.start()
    assert process.wait_free(HOST, server.getsockname()[1])
    closing.join()
