"""The new log of a ring that is founded anew on one of its clusters.

It begins above every offset that was found on tables, not at 0. Because of that

- a request that was first sent before is refused, and not applied a second time: the window of
  request ids does not reach so far back;
- no offset comes twice;
- a cluster that does not know of the founding does not begin with tables that may be others: it
  asks for a copy.

Every other cluster's cursor asks for a copy of the founder. The founder's is written last.
"""

from __future__ import annotations

from collections.abc import Iterable

from dmq import KeyValueStore, MovableLog
from dmq.key_value import Origin, Standing, remember
from dmq.moving import check_new
from haproc.replicate.records.progress import CopyRequest, Progress, to_cursor


def _named(founder: str) -> str:
    """Return the command, for those who find that it was cut off."""
    return f"haproc ring found --on {founder}"


async def check_new_log(log: MovableLog, store: KeyValueStore, founder: str) -> None:
    """Raise LogError unless nothing is in the log but what this founding may have left there."""
    await check_new(log, store, resumed=_named(founder))


async def found(
    log: MovableLog, store: KeyValueStore, founder: str, clusters: Iterable[str], begins_at: int
) -> None:
    """Have a new log begin, on the founder's tables. Repeatable, if it was cut off.

    ``clusters``: all of the ring's. Raises LogError.
    """
    await check_new_log(log, store, founder)
    await remember(log, store, Origin(Standing.HALF, by=_named(founder)))
    await log.begin_at(begins_at)
    # With a first record the copy counts as begun, so that nobody withdraws it: this cluster must
    # not serve the tables that it has.
    copying = CopyRequest(wanted=founder, first=begins_at)
    for name in clusters:
        if name != founder:
            await log.commit_cursor(name, to_cursor(Progress(low=begins_at, copying=copying)))
    await log.commit_cursor(founder, to_cursor(Progress(low=begins_at)))
    await remember(log, store, Origin(Standing.WHOLE, by=_named(founder)))
