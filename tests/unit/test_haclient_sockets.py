"""The blocking client leaves no open socket behind after any error."""

from __future__ import annotations

import socket
import ssl
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from haclient.protocol import NotReached
from haclient.settings import Server, make_settings
from haclient.sync.transport import Transport


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"


def transport_to(url: str) -> tuple[Transport, Server]:
    settings = make_settings(url)
    return Transport(settings), settings.servers[0]


def test_socket_whose_tls_setup_fails_is_closed(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, server = transport_to(url_of(listener, "https"))

    def broken(**_: object) -> ssl.SSLContext:
        raise ssl.SSLError("no certificates")

    monkeypatch.setattr(ssl, "create_default_context", broken)
    with pytest.raises(NotReached, match="no certificates"):
        transport.connect(server, 5.0)
    there, _ = listener.accept()
    with there:
        there.settimeout(5.0)
        assert there.recv(1) == b""


def test_connection_returned_to_a_closing_client_is_closed(
    listener: socket.socket,
) -> None:
    transport, server = transport_to(url_of(listener))

    class Closing(deque[Any]):
        """Another thread closes the client just before a connection is put here."""

        def append(self, item: Any) -> None:
            transport.close()
            super().append(item)

    transport._idle[server.index] = Closing()
    connection = transport._checkout(server, float("inf"))
    transport._checkin(server, connection, keep=True)
    assert connection.http.sock is None and connection.watched.sock.fileno() == -1
