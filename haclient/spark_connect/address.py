"""`sc://a:15002,b:15002/;token=…`: PySpark's connection string with several servers.

What stands behind the servers holds for all of them, and is PySpark's own to read.
"""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass

from haclient.exceptions import InterfaceError
from haclient.settings import Server

SCHEME = "sc://"
PORT = 15002
"""The port of a server whose address does not state one; Spark's."""


@dataclass(frozen=True, slots=True)
class Address:
    """The servers, in order of preference, and what stands behind them."""

    servers: tuple[Server, ...]
    parameters: str
    """From the slash on; it may hold a token."""

    def of(self, server: Server) -> str:
        """Return the connection string of one server alone, as PySpark reads it."""
        return server.url + self.parameters


def read_address(url: str) -> Address:
    """Read the connection string; raises InterfaceError."""
    if not url.startswith(SCHEME):
        raise InterfaceError("expected the servers as 'sc://host:port,host:port/;name=value'")
    authority, slash, rest = url.removeprefix(SCHEME).partition("/")
    secure = any(each.strip().lower() == "use_ssl=true" for each in rest.split(";"))
    texts = [text for each in authority.split(",") if (text := each.strip())]
    servers = tuple(_server(index, text, secure) for index, text in enumerate(texts))
    if not servers:
        raise InterfaceError("no server is given: expected for instance 'sc://a:15002,b:15002'")
    if len({server.url for server in servers}) < len(servers):
        raise InterfaceError("a server is listed twice")
    return Address(servers, slash + rest)


def _server(index: int, text: str, secure: bool) -> Server:
    try:
        parts = urllib.parse.urlsplit(f"//{text}")
        port = parts.port or PORT
    except ValueError as error:
        raise InterfaceError(f"{text!r} is not the address of a server: {error}") from error
    if not parts.hostname or parts.netloc != text or "@" in text or ";" in text:
        raise InterfaceError(
            f"{text!r} is not the address of a server (host:port); parameters stand behind a slash"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Server(index, f"{SCHEME}{host}:{port}", secure, parts.hostname, port, "")
