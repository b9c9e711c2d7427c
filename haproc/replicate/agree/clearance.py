"""Keeps DDL that has to wait for a table that is being computed out of the log meanwhile.

There it would wait for that table (CREATE TABLE AS, maybe for hours) on every cluster, and all that
stands behind it with it. So it waits at its door, where it holds up nobody: what touches more than
it names for every such table, other DDL for those that touch its own. One that comes into the
log at the same moment as the computation waits there after all. Clusters that serve nobody are not
waited for.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from haproc.failure import busy
from haproc.membership.peers import PeerUnavailableError
from haproc.membership.state import SERVING
from haproc.replicate.agree.assurance import PeerProgress
from haproc.replicate.member.core import Core
from haproc.replicate.records.operation import Operation


async def nothing_computes(core: Core, timeout_s: float, ddl: Operation | None = None) -> None:
    """Return once no cluster that serves computes a table; RequestError if that takes longer.

    ``ddl``: this waits; of computations that it may pass it waits for none. Nor is anything waited
    for once this cluster takes no writes.
    """
    offset: int | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while (offset := _first(core, ddl)) is not None and core.condition.takes_writes:
                await _over_everywhere(core, offset)
                if core.condition.takes_writes:
                    core.schedule.computations.pop(offset, None)
    except TimeoutError as error:
        raise busy(
            f"the operation at offset {offset} computes a table, and this has to wait for it, but "
            "would hold up all others meanwhile. Nothing was changed. That one can be taken back: "
            f"haproc queue revoke {offset}"
        ) from error


def _first(core: Core, ddl: Operation | None) -> int | None:
    for offset, (reads, writes) in core.schedule.computations.items():
        if ddl is None or not ddl.named:
            return offset
        if ddl.writes & (reads | writes) or ddl.reads & writes:
            return offset
    return None


async def _over_everywhere(core: Core, offset: int) -> None:
    schedule, condition = core.schedule, core.condition
    await core.news.until(lambda: not (schedule.expects(offset) and condition.takes_writes))
    others = (name for name in core.members.order if name != core.me)
    await asyncio.gather(*(_over_at(core, name, offset) for name in others))


async def _over_at(core: Core, peer: str, offset: int) -> None:
    seen = ""
    with suppress(PeerUnavailableError, KeyError, TypeError, ValueError):
        while True:
            answer = await core.peers.progress(peer, seen, core.timeouts.peer_s)
            told = PeerProgress.of(answer)
            if answer["state"] not in SERVING or told.applied(offset):
                return
            seen = told.seen
