"""Tests of the kill harness's TCP proxy: it passes, refuses, stalls, drops and delays."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from haproc.ring.process import free_port
from tests.fault.torture.plan import Mode
from tests.fault.torture.proxy import DELAY_S, Proxies

PATIENCE_S = 10.0
BRIEFLY_S = 0.3


class Echo:
    """A server that returns the bytes that it receives."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    @staticmethod
    def _echo(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)
            except OSError:
                pass

    def close(self) -> None:
        # A shutdown wakes the thread that waits in accept.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    echo = Echo()
    made = Proxies()
    made.add("link", free_port(), echo.port)
    yield made
    made.close()
    echo.close()


def connect(proxies: Proxies) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxies.port("link")), timeout=PATIENCE_S)


def talk(connection: socket.socket, data: bytes) -> bytes:
    connection.sendall(data)
    return receive(connection, len(data))


def receive(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count and (more := connection.recv(count - len(received))):
        received += more
    return received


def is_reset(connection: socket.socket) -> bool:
    try:
        return talk(connection, b"x") == b""
    except (ConnectionResetError, BrokenPipeError):
        return True


def is_taken_and_reset(proxies: Proxies) -> bool:
    try:
        connection = connect(proxies)
    except ConnectionResetError:  # as quickly as that; nobody listening would refuse
        return True
    with connection:
        return is_reset(connection)


def test_proxy_passes_bytes_and_closes_what_the_other_side_closes(proxies: Proxies) -> None:
    with connect(proxies) as connection:
        data = bytes(range(256)) * 4000
        sender = threading.Thread(target=connection.sendall, args=(data,))
        sender.start()
        assert receive(connection, len(data)) == data
        sender.join(PATIENCE_S)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


def test_proxy_refuse_resets_connections_and_refuses_new_ones(proxies: Proxies) -> None:
    with connect(proxies) as connection:
        assert talk(connection, b"before") == b"before"
        proxies.set("link", Mode.REFUSE)
        assert is_reset(connection)
        with pytest.raises(ConnectionRefusedError):
            connect(proxies)
    proxies.set("link", Mode.PASS)
    with connect(proxies) as connection:
        assert talk(connection, b"after") == b"after"


def test_proxy_drop_accepts_connections_and_resets_them(proxies: Proxies) -> None:
    with connect(proxies) as connection:
        assert talk(connection, b"before") == b"before"
        proxies.set("link", Mode.DROP)
        assert is_reset(connection)
    assert is_taken_and_reset(proxies)
    proxies.heal()
    with connect(proxies) as connection:
        assert talk(connection, b"after") == b"after"


def test_proxy_stall_holds_bytes_back_and_loses_none(proxies: Proxies) -> None:
    with connect(proxies) as connection:
        assert talk(connection, b"before") == b"before"
        proxies.set("link", Mode.STALL)
        connection.sendall(b"held")
        connection.settimeout(BRIEFLY_S)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        with connect(proxies) as late:
            late.sendall(b"late")
            proxies.set("link", Mode.PASS)
            connection.settimeout(PATIENCE_S)
            assert receive(connection, 4) == b"held"
            assert receive(late, 4) == b"late"


def test_proxy_delay_slows_an_exchange(proxies: Proxies) -> None:
    with connect(proxies) as connection:
        assert talk(connection, b"before") == b"before"
        proxies.set("link", Mode.DELAY)
        began = time.monotonic()
        assert talk(connection, b"slow") == b"slow"
        assert time.monotonic() - began >= 2 * DELAY_S


def test_proxy_of_an_unreachable_target_closes_the_connection() -> None:
    made = Proxies()
    try:
        made.add("link", free_port(), free_port())
        assert is_taken_and_reset(made)
    finally:
        made.close()
