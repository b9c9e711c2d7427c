"""Whether an operation that was rejected here is rejected on every cluster, now and later.

That is so where the log says it: a *reject*, an error in place of the rows, an *abandon*. An
application error is only this cluster's own outcome: the others may not have come so far, and
succeed. It is final once every member has met one, durably. By the log alone: each member's stored
cursor is beyond the operation, and the process that stored it has reported the error, and is the
newest of its cluster. A report of an earlier one is not enough: that process may have died before
it stored its progress, and the next one may have succeeded where it failed.
"""

from __future__ import annotations

import asyncio

from dmq import LogError
from haproc.replicate.member.core import Core
from haproc.replicate.queue.outcomes import OutcomeStatus


async def is_final(core: Core, offset: int, within_s: float) -> bool:
    """Return whether it is certain that no cluster applies it; False where that is not known."""
    known = core.outcomes.at(offset)
    outcome = known.outcome if known is not None else None
    if outcome is None or outcome.status is not OutcomeStatus.FAILED:
        return outcome is not None and outcome.status is OutcomeStatus.REJECTED
    try:
        async with asyncio.timeout(within_s):
            cursors = await core.own_log.once(core.log.cursors)
            end = await core.own_log.once(core.log.end)
            await core.watermarks.heard(end)
    except (LogError, TimeoutError):
        return False
    counting = core.log_state.cursors.counting(cursors, end)
    newest = dict(core.log_state.claims.before(end))
    return all(
        name in counting
        and counting[name].has_done(offset)
        and core.log_state.peer_success.failed(offset, name)
        == cursors[name].epoch
        == newest.get(name)
        for name in core.members.order
    )
