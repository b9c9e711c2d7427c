"""``haproc drain`` and ``haproc undrain``: a cluster without clients, for maintenance."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from haproc.cli import output
from haproc.cli.queue import Asker
from haproc.membership.state import SERVING

_POLL_S: Final = 0.2
_PATH: Final = "/ha/v1/drain"

Standing = dict[str, Any]
"""What a HAProc says of its drain, see docs/reference/http.md."""


async def drain(asker: Asker, options: argparse.Namespace) -> int:
    """Drain a cluster; 0 once that is so, and with ``--wait`` once it is idle."""
    if options.undo:
        return await undrain(asker, options)
    standing = await begin(asker, options.cluster, force=options.force)
    if options.wait:
        standing = await wait(asker, options.cluster, is_idle, options.timeout_s)
    print(words(standing))
    return output.NOT_READY if options.wait and not is_idle(standing) else 0


async def undrain(asker: Asker, options: argparse.Namespace) -> int:
    """Give a cluster back to its clients; 0 once that is so, with ``--wait`` once it serves."""
    standing = await end(asker, options.cluster)
    if options.wait:
        standing = await wait(asker, options.cluster, serves, options.timeout_s)
    print(words(standing))
    return output.NOT_READY if options.wait and not serves(standing) else 0


async def begin(asker: Asker, name: str, *, force: bool = False) -> Standing:
    """Take a cluster from its clients; raises AskError."""
    return await asker.ask(name, "POST", _PATH, {"cluster": name, "force": force})


async def end(asker: Asker, name: str) -> Standing:
    """Give it back; raises AskError."""
    return await asker.ask(name, "POST", "/ha/v1/undrain", {"cluster": name})


async def wait(
    asker: Asker, name: str, wanted: Callable[[Standing], bool], timeout_s: float
) -> Standing:
    """Return the standing once it is as wanted, or when the time is over; raises AskError."""
    deadline = time.monotonic() + timeout_s
    while True:
        standing = await asker.ask(name, "GET", _PATH)
        if wanted(standing) or time.monotonic() >= deadline:
            return standing
        await asyncio.sleep(_POLL_S)


def is_idle(standing: Standing) -> bool:
    """Whether clients have nothing left at a HAProc; it may be stopped."""
    return not standing["under_way"] and not standing["unfetched"]


def serves(standing: Standing) -> bool:
    """Whether it takes requests."""
    return standing["state"] in SERVING


def words(standing: Standing) -> str:
    """Return the standing for people."""
    reason = f": {standing['reason']}" if standing["reason"] else ""
    left = [
        f"{count} {what}"
        for count, what in (
            (standing["under_way"], "requests under way"),
            (standing["unfetched"], "results that their clients have not fetched"),
        )
        if count and standing["drained"]
    ]
    still = f"; it has {' and '.join(left)}" if left else ""
    idle = "; clients have nothing left here" if standing["drained"] and not left else ""
    return f"{standing['cluster']} is {standing['state']}{reason}{still}{idle}"
