"""Revokes operations, and finds out if a rejection is final on every cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Final

from dmq import LogError
from haproc.failure import ErrorClass, refused
from haproc.replicate.agree.poison_rejection import REVOKE_WAIT_S, PoisonRejection
from haproc.replicate.log_state.failure_votes import QUERY_CANCELED, taken_back
from haproc.replicate.member.core import Core
from haproc.replicate.queue.facts import Fate, Revoked
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.records.operation import DecisionKind, Operation
from haproc.replicate.records.rows import ApplicationFailure, Rows

# When a rejection is final: no cluster applies the operation, now or later.
#
# A rejection by the log is final: a *reject*, an error in place of the rows, an *abandon*. An
# application error is the outcome of one cluster; another one may be behind, and succeed. It is
# final when every member has met an error and has stored that. The log shows it: each member's
# cursor is beyond the operation, and the process that stored the cursor reported the error and is
# the newest process of its cluster. A report of an earlier process is not enough: it may have died
# before it stored its cursor, and the next process may have succeeded.


async def is_final(core: Core, offset: int, within_s: float) -> bool:
    """True if it is certain that no cluster applies the operation, now or later.

    False if one has applied it, or if that is not known after ``within_s`` seconds.
    """
    known = core.outcomes.at(offset)
    outcome = known.outcome if known is not None else None
    if outcome is None or outcome.status is not OutcomeStatus.FAILED:
        return outcome is not None and outcome.status is OutcomeStatus.REJECTED
    try:
        async with asyncio.timeout(within_s):
            cursors = await core.own_log.once(core.log.cursors)
            end = await core.own_log.once(core.log.end)
            await core.watermarks.until_known(end)
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


WITHIN_S: Final = REVOKE_WAIT_S + 5.0
"""The longest wait for a revocation's result. If the log can be reached, it comes before that."""
_ENDED: Final = frozenset({OutcomeStatus.APPLIED, OutcomeStatus.FAILED})


class Revoking:
    """Revokes an operation, for its client, an operator or its time budget.

    An operation that a cluster has committed cannot be revoked.

    - If its rows are still to be computed, no cluster can have committed it. Then an error in place
      of the rows is enough: the first record counts.
    - Otherwise a ``revoke`` record asks every member for its vote
      (`replicate.agree.poison_rejection`). If the origin has not decided yet, it rejects alone. A
      silent member cannot vote, and may have applied the operation. So a revocation that cannot
      succeed is refused, and no statement is stopped for it.
    """

    def __init__(self, core: Core, poison_rejection: PoisonRejection) -> None:
        self._core = core
        self._poison_rejection = poison_rejection

    async def revoke(
        self, offset: int, who: str, absent: Mapping[str, int] | None = None
    ) -> Revoked:
        """Revoke the operation at an offset that was read here; return what became of it.

        ``absent``: silent members, each with the offset of its newest claim. An operator promises
        that they have not applied the operation. Raises RequestError if it cannot be revoked now.
        """
        core = self._core
        op = await self._poison_rejection.operation(offset)
        if (fate := self.fate(offset)) is not None:
            return fate
        if op is None:
            raise refused(ErrorClass.OFFSET_UNKNOWN, f"the log has no operation at offset {offset}")
        vouched = dict(absent or {})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WITHIN_S):
                if op.computed and core.log_state.computations.found(offset) is None:
                    await self._instead_of_rows(offset, op, who)
                if (fate := self.fate(offset)) is None:
                    if (fate := await self._fate_on_peers(offset)) is not None:
                        return fate
                    await self._request(offset, op, who, vouched)
                    await self._until_ended(offset)
        return (
            self.fate(offset)
            or await self._fate_on_peers(offset)
            or Revoked(offset, Fate.UNDECIDED, await self._why(offset, vouched))
        )

    async def _until_ended(self, offset: int) -> None:
        """If a cluster has an outcome of the operation, wait until that outcome is known here."""
        core = self._core
        while core.log_state.failure_votes.done(offset) and self.fate(offset) is None:
            if await self._fate_on_peers(offset) is not None:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(core.timeouts.takeover_s):
                    await core.news.until(lambda: self.fate(offset) is not None)

    async def _fate_on_peers(self, offset: int) -> Revoked | None:
        """Return the operation's fate as a peer's outcome shows it; None if no peer has one."""
        found = await self._poison_rejection.ended_on(offset)
        return None if found is None else Revoked(offset, *_ended(*found))

    async def _instead_of_rows(self, offset: int, op: Operation, who: str) -> None:
        core = self._core
        why = ApplicationFailure(ErrorClass.REVOKED, QUERY_CANCELED, taken_back(who))
        rows = Rows(offset, op.id, core.me, core.own_log.epoch, failure=why)
        await core.own_log.append(rows)
        await core.news.until(lambda: core.log_state.computations.found(offset) is not None)

    async def _request(
        self, offset: int, op: Operation, who: str, absent: Mapping[str, int]
    ) -> None:
        core, poison_rejection = self._core, self._poison_rejection
        undecided = op.synchronous and core.log_state.decisions.get(offset) is None
        origin_answers = op.origin == core.me or not core.peers.is_gone(op.origin)
        silent = await poison_rejection.silent(offset, absent)
        if silent and not (undecided and origin_answers):
            names = ", ".join(sorted(silent))
            raise refused(
                ErrorClass.NOT_NOW,
                f"offset {offset} cannot be taken back now: {names} does not answer, and may "
                "have applied it",
                "ask again once it is back; an operator may vouch for it: haproc queue revoke "
                "--without",
            )
        if poison_rejection.open_revoke(offset) is None:
            await poison_rejection.append_revoke(offset, op.id, who)
        while poison_rejection.open_revoke(offset) is not None:
            if absent:
                await poison_rejection.decide(offset, op, absent)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(core.timeouts.takeover_s):
                    await core.news.until(lambda: poison_rejection.open_revoke(offset) is None)

    def fate(self, offset: int) -> Revoked | None:
        """Return the final fate of an operation; None if this process does not know it yet."""
        core = self._core
        if (word := core.log_state.failure_votes.abandoned(offset)) is not None:
            return Revoked(offset, Fate.REVOKED if word.revoked else Fate.REJECTED, word.error)
        if core.log_state.decisions.get(offset) is DecisionKind.REJECT:
            why = core.log_state.decisions.failure(offset)
            revoked = why is not None and why.error_class == ErrorClass.REVOKED
            fate = Fate.REVOKED if revoked else Fate.REJECTED
            return Revoked(offset, fate, why.message if why is not None else "")
        known = core.outcomes.at(offset)
        outcome = known.outcome if known is not None else None
        if outcome is not None and outcome.status in _ENDED:
            return Revoked(offset, *_ended(core.me, outcome.status))
        return None

    async def _why(self, offset: int, absent: Mapping[str, int]) -> str:
        if self._core.log_state.failure_votes.done(offset):
            return "a cluster has run it to its end, so it stands; how it ended is not known here"
        missing = await self._poison_rejection.silent(offset, absent)
        why_not = f"; {', '.join(sorted(missing))} does not answer" if missing else ""
        return f"not all clusters have answered in time, and it goes on{why_not}"


def _ended(cluster: str, status: OutcomeStatus) -> tuple[Fate, str]:
    if status is OutcomeStatus.APPLIED:
        return Fate.COMMITTED, f"cluster {cluster} has committed it"
    return Fate.REJECTED, f"it met an error on cluster {cluster}"
