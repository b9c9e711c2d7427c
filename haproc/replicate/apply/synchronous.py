"""Runs synchronous operations: first on the origin, then on the other clusters."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from haproc.classify.model import OperationClass
from haproc.membership.peers import PeerOutcome, PeerStatus, PeerUnavailableError
from haproc.membership.state import PROGRESSING, State
from haproc.replicate.member.core import Core
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus
from haproc.replicate.records.operation import DecisionKind, Operation

logger = logging.getLogger(__name__)


async def progressing(core: Core, peer: str) -> bool:
    """True if a peer answers, and its state is one in which it runs its operations."""
    status = await _status(core, peer)
    if status is None:
        return False
    drained = status.state is State.DRAINING and status.drained and status.applying
    return status.state in PROGRESSING or drained


async def diverged(core: Core, peer: str) -> bool:
    """True if a peer reports that it is DIVERGED."""
    status = await _status(core, peer)
    return status is not None and status.state is State.DIVERGED


async def computing(core: Core, peer: str) -> frozenset[int]:
    """Return the offsets of the operations that a peer is computing rows for.

    Empty if the peer does not answer.
    """
    status = await _status(core, peer)
    return frozenset() if status is None else frozenset(status.computing)


async def _status(core: Core, peer: str) -> PeerStatus | None:
    """Return a peer's status; None if the peer is silent for too long, or does not answer."""
    if core.peers.is_gone(peer):
        return None
    try:
        return await core.peers.status(peer, core.timeouts.peer_s)
    except PeerUnavailableError:
        return None


QUEUED = "queued"
FollowUp: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Synchronous:
    """Runs synchronous operations: first on the origin, then on the peers.

    The origin runs the operation when its turn comes. After an application error it appends a
    *reject*, and no other cluster runs the operation. After a success it asks the available peers,
    one after another in ring order, to run it (not if the fan-out is parallel). Then it appends a
    *commit*, and all others run it. If the origin is silent, a waiting peer appends the commit
    (`takeover`). The first decision in the log counts for all, the origin included.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    async def concluded(
        self, offset: int, op: Operation, outcome: OperationOutcome
    ) -> tuple[OperationOutcome, FollowUp | None]:
        """Decide about an operation of this origin that has run here.

        After an error: append a reject, and return the outcome by the first decision in the log.
        After a success: return the outcome, and a function that lets the peers run the operation
        and appends a commit. The caller runs it when this cluster's progress is durable.
        """
        core = self._core
        if outcome.status is OutcomeStatus.APPLIED:
            return outcome, lambda: self._fan_out(offset, op, outcome)
        await core.own_log.decide(offset, op.id, DecisionKind.REJECT, outcome.failure)
        await core.trace(Step.DECISION_AFTER)
        if await core.log_state.decisions.wait(offset) is DecisionKind.REJECT:
            return replace(outcome, status=OutcomeStatus.REJECTED), None
        # A peer took over first: the others run it, and meet the same error.
        assert outcome.failure is not None
        await core.own_log.report(offset, outcome.failure)
        return outcome, None

    async def hand_over(self, offset: int, op: Operation) -> None:
        """Append a commit before the operation has succeeded here, so that no peer waits."""
        core = self._core
        if core.log_state.decisions.get(offset) is None:
            await core.own_log.decide(offset, op.id, DecisionKind.COMMIT)

    async def resume(self, unfinished: Mapping[int, str]) -> None:
        """Append the commits for operations that an earlier incarnation ran and left undecided."""
        core = self._core
        for offset, operation_id in unfinished.items():
            if offset < core.schedule.low and core.log_state.decisions.get(offset) is None:
                logger.info("offset %d: deciding what an earlier process left open", offset)
                await core.own_log.decide(offset, operation_id, DecisionKind.COMMIT)

    def ran_before(self, offset: int, op: Operation) -> None:
        """Append the commit for an operation that an earlier incarnation ran and left undecided."""
        self._core.tasks.spawn(self.hand_over(offset, op))

    async def _fan_out(self, offset: int, op: Operation, outcome: OperationOutcome) -> None:
        core = self._core
        clusters = {core.me: OutcomeStatus.APPLIED.value}
        parallel = op.operation_class is OperationClass.SYNCHRONOUS_PARALLEL
        for peer in core.members.peers:
            if parallel:
                clusters[peer] = QUEUED
                continue
            await core.trace(Step.FANOUT_BEFORE)
            clusters[peer] = await self._ask(peer, offset, op.id)
            await core.trace(Step.FANOUT_AFTER)
        await core.own_log.decide(offset, op.id, DecisionKind.COMMIT)
        await core.trace(Step.DECISION_AFTER)
        core.outcomes.resolve(offset, replace(outcome, clusters=clusters))

    async def _ask(self, peer: str, offset: int, operation_id: str) -> str:
        """Ask a peer to run the operation now; return its answer as text, or QUEUED.

        The peer's status is polled meanwhile: a frozen peer must not hold up the others.
        """
        core = self._core
        if core.peers.is_gone(peer):
            return QUEUED
        call = asyncio.ensure_future(
            core.peers.apply_now(peer, offset, operation_id, core.timeouts.fanout_s)
        )
        try:
            if not await progressing(core, peer):
                return QUEUED
            while not call.done():
                await asyncio.wait([call], timeout=core.timeouts.peer_s)
                if not call.done() and not await progressing(core, peer):
                    return QUEUED
            return _words(call.result())
        except PeerUnavailableError:
            return QUEUED
        finally:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

    async def apply_now(self, offset: int, operation_id: str, timeout_s: float) -> PeerOutcome:
        """Run another origin's synchronous operation before its decision; return the outcome.

        The outcome is QUEUED if it has not run within ``timeout_s``, or cannot run here now.
        """
        core = self._core
        if core.condition.state is not State.READY:
            return PeerOutcome(QUEUED, message=core.condition.state.value)
        try:
            async with asyncio.timeout(timeout_s):
                known = await core.outcomes.arrival_at(offset)
                if known.facts.id != operation_id:
                    return PeerOutcome(QUEUED, message=f"offset {offset} holds another operation")
                core.schedule.permit(offset)
                core.news.changed()
                return describe(await core.outcomes.outcome(known))
        except TimeoutError:
            return PeerOutcome(QUEUED, message="not reached yet")


def describe(outcome: OperationOutcome) -> PeerOutcome:
    """Return an outcome in the form in which it is sent to peers."""
    status, failure = outcome.status.value, outcome.failure
    if failure is None:
        return PeerOutcome(status, outcome.assumed)
    error = (failure.error_class, failure.sqlstate, failure.message)
    return PeerOutcome(status, outcome.assumed, *error)


def _words(outcome: PeerOutcome) -> str:
    if outcome.status == OutcomeStatus.FAILED:
        return f"failed: {outcome.error_class}: {outcome.message}"
    return outcome.status
