"""TCP ports of the servers on this machine: some that are free, and whether one is."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path

_ANSWER_S = 2.0
_POLL_S = 0.05
_FREE_WITHIN_S = 5.0
"""A killed process can hold its ports a moment longer than it is seen."""
_FIRST = 10_000
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_OUTGOING_FIRST = 32_768
"""Where they begin if the system does not say it."""
_ENOUGH = 1000


def ports_of_servers(outgoing: Path = _OUTGOING) -> range:
    """Return the ports below those of outgoing connections; all, if hardly any are."""
    try:
        end = int(outgoing.read_text().split()[0])
    except (OSError, ValueError):
        end = _OUTGOING_FIRST
    return range(_FIRST, end if end - _FIRST >= _ENOUGH else 65_536)


def _in_turn() -> Iterator[int]:
    """Return all of them in turn, for ever, beginning elsewhere in each process."""
    ports = ports_of_servers()
    first = secrets.choice(ports)
    return itertools.cycle((*range(first, ports.stop), *range(ports.start, first)))


_candidates = _in_turn()


def free_port() -> int:
    """Return a port that nothing on this machine uses right now, another one each time.

    Not one of those that the system gives to outgoing connections: one of them could take it
    before its server listens.
    """
    while True:
        port = next(_candidates)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def free_ports(count: int) -> list[int]:
    """Return different ports that nothing listens on right now, in ascending order."""
    return sorted(free_port() for _ in range(count))


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
