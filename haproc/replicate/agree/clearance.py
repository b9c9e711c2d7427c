"""Keeps what touches more than it names out of the log while a table is being computed.

There it would wait for that table (CREATE TABLE AS, maybe for hours) on every cluster, and all that
stands behind it with it. So it waits at its door, where it holds up nobody. One that comes into the
log at the same moment as the computation waits there after all. Clusters that serve nobody are not
waited for.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from haproc.failure import busy
from haproc.membership.peers import PeerUnavailableError
from haproc.membership.state import SERVING
from haproc.replicate.agree.assurance import Told
from haproc.replicate.member.core import Core


async def nothing_computes(core: Core, timeout_s: float) -> None:
    """Return once no cluster that serves computes a table; RequestError if that takes longer.

    Nor is anything waited for once this cluster takes no writes.
    """
    offset = -1
    try:
        async with asyncio.timeout(timeout_s):
            while computations := core.schedule.computations:
                offset = computations[0]
                await _over_everywhere(core, offset)
                if not core.condition.takes_writes:
                    return
                with suppress(ValueError):  # whoever waited beside this has done so
                    computations.remove(offset)
    except TimeoutError as error:
        raise busy(
            f"the operation at offset {offset} computes a table, and this would hold up all others "
            "until that is done: it may touch more than it names. Nothing was changed. That one "
            f"can be taken back: haproc queue revoke {offset}"
        ) from error


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
            told = Told.of(answer)
            if answer["state"] not in SERVING or told.applied(offset):
                return
            seen = told.seen
