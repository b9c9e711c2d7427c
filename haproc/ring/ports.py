"""TCP ports of the servers on this machine: some that are free, and whether one is."""

from __future__ import annotations

import contextlib
import socket
import time

_ANSWER_S = 2.0
_POLL_S = 0.05
_FREE_WITHIN_S = 5.0
"""A killed process can hold its ports a moment longer than it is seen."""


def free_port() -> int:
    """Return a port that nothing on this machine listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def free_ports(count: int) -> list[int]:
    """Return different ports that nothing listens on right now, in ascending order."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return sorted(found)


def wait_free(host: str, port: int) -> bool:
    """Return True once nothing listens there, False if something goes on to. Blocks."""
    end = time.monotonic() + _FREE_WITHIN_S
    while _listens(host, port):
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)
    return True


def _listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection((host, port), timeout=_ANSWER_S).close()
        return True
    return False
