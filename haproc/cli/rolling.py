"""``haproc ring roll``: restart a local ring under load, one cluster after another.

Each cluster is drained first and given back afterwards, and the next one's turn comes only once
it serves again; so there is a serving cluster at every moment. Whatever goes wrong ends the roll,
with the cluster concerned still drained.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Sequence

from haproc.cli import drains, output
from haproc.cli.nodes import ask_all
from haproc.cli.queue import Asker, AskError
from haproc.membership.state import SERVING
from haproc.ring.errors import RingError
from haproc.ring.local import LocalRing

_POLL_S = 0.1


def roll(options: argparse.Namespace) -> int:
    """Restart the ring's HAProcs, Sparks or both."""
    began = time.monotonic()

    def show(who: str, what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {who}: {what}", file=sys.stderr, flush=True)

    try:
        ring = LocalRing.open(options.folder, show)
        names = options.name or ring.names
        asyncio.run(roll_ring(ring, names, options.what, options.timeout_s, show))
    except AskError as error:
        output.error(str(error))
        return error.code
    except RingError as error:
        output.error(str(error))
        return output.FAILED
    return 0


async def roll_ring(
    ring: LocalRing,
    names: Sequence[str],
    what: str,
    timeout_s: float,
    show: Callable[[str, str], None] = lambda who, what: None,
) -> None:
    """Restart ``what`` (haproc, spark or both) of these clusters; raises AskError, RingError.

    ``timeout_s``: for each wait: until a cluster is idle, and until it serves again.
    """
    if unknown := set(names) - set(ring.names):
        raise RingError(f"the ring has no {', '.join(sorted(unknown))}")
    async with Asker(ring.config) as asker:
        for name in names:
            await _all_serve(ring)
            await drains.begin(asker, name)
            show(name, "drained")
            standing = await drains.wait(asker, name, drains.is_idle, timeout_s)
            if not drains.is_idle(standing):
                raise RingError(
                    f"{drains.words(standing)} after {timeout_s:g} s; it was not restarted"
                )
            await _restart(ring, name, what)
            await _undrain(asker, name, timeout_s)
            standing = await drains.wait(asker, name, drains.serves, timeout_s)
            if not drains.serves(standing):
                raise RingError(f"{drains.words(standing)} {timeout_s:g} s after its restart")
            show(name, "serves again")


async def _all_serve(ring: LocalRing) -> None:
    answers = await ask_all(ring.config)
    for name, answer in answers.items():
        if str(answer.get("state")) not in SERVING:
            raise RingError(f"{name} does not serve ({answer.get('state')}): mend that first")


async def _restart(ring: LocalRing, name: str, what: str) -> None:
    haproc, spark = what != "spark", what != "haproc"
    if haproc:
        await ring.stop_haproc(name)
    if spark:
        await ring.stop_spark(name)
        await ring.start_spark(name)
    if haproc:
        await ring.start_haproc(name, ready=False)


async def _undrain(asker: Asker, name: str, timeout_s: float) -> None:
    """Give a cluster back; a HAProc that has just been started may not take the word yet."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            await drains.end(asker, name)
            return
        except AskError:
            if time.monotonic() >= deadline:
                raise
        await asyncio.sleep(_POLL_S)
