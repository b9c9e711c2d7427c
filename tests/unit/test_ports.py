"""Ports that are taken, free, or about to be."""

from __future__ import annotations

import socket
import threading

import pytest

from haproc.ring import ports

HOST = "127.0.0.1"


@pytest.fixture
def server() -> socket.socket:
    taken = socket.socket()
    taken.bind((HOST, 0))
    taken.listen()
    return taken


def test_free_ports_are_different_and_nothing_listens_there() -> None:
    found = ports.free_ports(20)
    assert len(set(found)) == 20
    assert all(ports.wait_free(HOST, port) for port in found)


def test_wait_free_where_something_goes_on_listening_is_false(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "_FREE_WITHIN_S", 0.2)
    with server:
        assert not ports.wait_free(HOST, server.getsockname()[1])


def test_wait_free_waits_for_a_process_that_is_going(server: socket.socket) -> None:
    closing = threading.Timer(0.2, server.close)
    closing.start()
    assert ports.wait_free(HOST, server.getsockname()[1])
    closing.join()
