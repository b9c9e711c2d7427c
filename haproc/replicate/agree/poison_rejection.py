"""Rejects poison operations: casts this cluster's failure votes, obeys the ring's decisions.

The rules are in `haproc.replicate.log_state.failure_votes`. The member that finds all votes in the
log appends the ``abandon`` record. If it dies before that, another member appends it a bit later.

A ``revoke`` record is answered at once, whatever the operation's state is. A running statement is
stopped (`interruptible`). Then the applier makes sure that no attempt is left, and calls `may_run`,
which votes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Final

from dmq import TrimmedError
from haproc.classify.model import Kind
from haproc.failure import ErrorClass
from haproc.membership.peers import PeerUnavailableError
from haproc.membership.state import Cause, Divergence
from haproc.replicate.agree.under_way import Interrupted, TablesShow, UnderWay
from haproc.replicate.log_state.failure_votes import QUERY_CANCELED, abandoned_class, taken_back
from haproc.replicate.log_state.members import names_needed
from haproc.replicate.member.core import Core
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus, Trouble
from haproc.replicate.records.control import (
    ERROR_CHARACTERS_MAX,
    Abandon,
    Change,
    FailureVote,
    FateMessage,
    Revoke,
    Roster,
    Verify,
    VoteWithdrawal,
)
from haproc.replicate.records.operation import Claim, DecisionKind, Message, Operation, from_record
from haproc.replicate.records.rows import ApplicationFailure

logger = logging.getLogger(__name__)

REST_FACTOR: Final = 12
"""The longest pause after a failure vote, as a multiple of `retry_max_s`. Chosen: it is a minute,
because each new attempt costs two records of the log."""
REVOKE_WAIT_S: Final = 30.0
"""The time after which a revocation is declined if not all members have voted. Chosen: longer than
a cluster takes to stop a statement and to read the markers of its tables."""
_MARKED: Final = frozenset(
    {Kind.INSERT, Kind.INSERT_OVERWRITE, Kind.UPDATE, Kind.DELETE, Kind.MERGE, Kind.ROWS}
)


def conclusive(op: Operation) -> bool:
    """True if the tables' transaction markers show whether the operation was committed."""
    return op.tables_known and bool(op.writes) and op.kind in _MARKED


class PoisonRejection:
    """Casts the failure votes of this cluster, and answers requests to revoke operations."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._low_at_start = 0
        self._replaying = True
        """True until the votes of earlier processes are read."""
        self._under_way = UnderWay()
        self._heeding: set[int] = set()
        self._answering = asyncio.Lock()

    # -- records of the log ----------------------------------------------------------------

    def begin(self, low: int, known_from: int) -> None:
        """Start at the stored cursor ``low``; votes on operations below ``known_from`` are void."""
        self._low_at_start = low
        self._core.log_state.failure_votes.begin(known_from)

    async def replay_votes(self, end: int) -> None:
        """Read the votes, withdrawals, revokes and abandons up to ``end``, before anything runs.

        Also the claims and member records on which they depend. The reader reads all records,
        these too, again later.
        """
        core, position = self._core, self._low_at_start
        while position < end:
            entries = await core.own_log.read_log(position)
            if not entries:
                break
            for entry in entries:
                if entry.record.kind not in _REPLAYED_KINDS:
                    continue
                match from_record(entry.record):
                    case Claim() as claim:
                        core.own_log.claimed(entry.offset, claim)
                    case Roster() as roster:
                        self.members_changed(entry.offset, roster)
                    case FailureVote() | VoteWithdrawal() | Abandon() | Revoke() as word:
                        self.handle_fate_message(entry.offset, word)
                    case _:
                        pass
            position = entries[-1].offset + 1
        self._replaying = False
        for offset in core.log_state.failure_votes.abandoned_from(self._low_at_start):
            if offset < self._low_at_start:
                self.done_before(offset)
        for offset in core.log_state.failure_votes.offsets_with_revoke():
            self._take_notice(offset)

    def members_changed(self, offset: int, roster: Roster) -> None:
        """Note a change of the ring's members, all of which must vote."""
        leaves = roster.cluster if roster.change is Change.LEAVE else ""
        self._core.log_state.failure_votes.members_changed(offset, leaves)

    def handle_fate_message(self, at: int, word: FateMessage) -> None:
        """Process a vote, withdrawal, revoke or abandon; one read before changes nothing."""
        core = self._core
        own_vote = isinstance(word, FailureVote) and word.cluster == core.me
        if own_vote or isinstance(word, Revoke):
            core.schedule.isolate(word.offset)
        if not core.log_state.failure_votes.record(at, word, core.log_state.claims):
            if not self._replaying:
                self._take_notice(word.offset)
            return
        assert isinstance(word, Abandon)
        offset = word.offset
        logger.warning("offset %d is rejected by the ring: %s", offset, word.error)
        core.log_state.decisions.see(offset, DecisionKind.REJECT, self.rejected(offset).failure)
        if core.schedule.expects(offset):
            if core.me in word.votes:
                # This cluster has checked its tables: the waiting client is answered now.
                core.schedule.decide(offset, DecisionKind.REJECT)
                core.outcomes.resolve(offset, self.rejected(offset))
            # Otherwise the applier passes over it in its turn, and checks the tables first.
            core.schedule.isolate(offset)
            core.schedule.permit(offset)
            core.schedule.provide(offset)
            if trouble := core.troubles.of(offset):
                trouble.poked.set()
        elif at < self._low_at_start:
            core.outcomes.resolve(offset, self.rejected(offset))
        elif not self._replaying:
            self.done_before(offset)
        core.news.changed()

    def done_before(self, offset: int) -> None:
        """Compare a finished operation with the ring's decision to give it up, if there is one.

        If it did not run here, its outcome is "rejected"; else the cluster becomes DIVERGED.
        """
        core = self._core
        word = core.log_state.failure_votes.abandoned(offset)
        if word is None:
            return
        known = core.outcomes.at(offset)
        outcome = known.outcome if known is not None else None
        ran = (
            outcome is not None and outcome.status is OutcomeStatus.APPLIED and not outcome.assumed
        )
        # If the tables are a copy, the ring had given it up before the copy.
        copied = core.notes.was(offset)
        if not ran and (copied or core.me in word.votes or self.has_voted(offset)):
            core.outcomes.resolve(offset, self.rejected(offset))
        else:
            self._was_applied(offset)

    def applied(self, offsets: Iterable[int]) -> None:
        """Mark the cluster as DIVERGED if the ring gave up an operation that was applied here."""
        for offset in filter(self.abandoned, offsets):
            self._was_applied(offset)

    def _was_applied(self, offset: int) -> None:
        """Mark the cluster as DIVERGED: it has applied an operation that the ring gave up."""
        core = self._core
        known = core.outcomes.at(offset)
        if known is not None and known.outcome and known.outcome.status is OutcomeStatus.FAILED:
            return  # it had no effect
        logger.error("offset %d was applied here, and is rejected by the ring", offset)
        core.diverge(Divergence(offset, Cause.GIVEN_UP, applies=True))
        core.store.soon()

    def rejected(self, offset: int) -> OperationOutcome:
        """Return the outcome "rejected" for an operation that the ring has given up."""
        word = self._core.log_state.failure_votes.abandoned(offset)
        assert word is not None
        state = QUERY_CANCELED if word.revoked else ""
        return OperationOutcome(
            OutcomeStatus.REJECTED,
            failure=ApplicationFailure(abandoned_class(word), state, word.error),
        )

    # -- votes of this cluster -------------------------------------------------------------

    def abandoned(self, offset: int) -> bool:
        """True if the ring has given the operation up, as far as this process has read the log."""
        return self._core.log_state.failure_votes.abandoned(offset) is not None

    def has_voted(self, offset: int) -> bool:
        """True if this cluster has a valid failure vote on the operation."""
        return self._core.me in self._core.log_state.failure_votes.valid_votes(offset)

    async def consider(self, offset: int, op: Operation, trouble: Trouble) -> None:
        """Append a failure vote if the operation has failed here often and long enough.

        Append none if it was applied on a peer, or failed there (`ended_on`). ``trouble``: the
        failed attempts.
        """
        if self._due(trouble) and not await self.ended_on(offset):
            await self.vote(offset, op, trouble.error)

    def _due(self, trouble: Trouble) -> bool:
        timeouts = self._core.timeouts
        failing_s = asyncio.get_running_loop().time() - trouble.since_s
        often = trouble.attempts >= timeouts.stuck_after_attempts
        return often and failing_s >= timeouts.give_up_after_s

    def takes_apart(self, trouble: Trouble) -> bool:
        """True if a combined statement must be split.

        It keeps failing, or one of its operations is to be revoked.
        """
        at_fault = self._due(trouble) or any(self.open_revoke(offset) for offset in trouble.offsets)
        return trouble.apart or (len(trouble.offsets) > 1 and at_fault)

    async def ended_on(self, offset: int) -> tuple[str, OutcomeStatus] | None:
        """Return a peer where the operation was applied or failed, and which of both; or None."""
        core = self._core
        for peer in core.members.peers:
            if core.peers.is_gone(peer):
                continue
            try:
                outcome = await core.peers.outcome(peer, offset, core.timeouts.peer_s)
            except PeerUnavailableError:
                continue
            for status in (OutcomeStatus.APPLIED, OutcomeStatus.FAILED):
                if outcome.status == status:
                    return peer, status
        return None

    async def vote(self, offset: int, op: Operation, error: str, revoke_at: int = -1) -> None:
        """Append a failure vote: this cluster has not committed the operation, nor runs it now."""
        core = self._core
        logger.warning("offset %d: this cluster votes that it does not apply it", offset)
        me, epoch = core.me, core.own_log.epoch
        word = FailureVote(offset, op.id, me, epoch, error[:ERROR_CHARACTERS_MAX], revoke_at)
        await core.watermarks.until_known(await core.own_log.append(word) + 1)
        await core.trace(Step.UNABLE_AFTER)

    async def may_run(self, offset: int, op: Operation, tried: TablesShow | None = None) -> bool:
        """Return True when the operation may run; False if it must not run any more.

        The caller has made sure that no attempt runs, and that none was committed.

        - The operation is to be revoked: vote for that, and wait for the result. Do not vote if it
          ran before (``tried``) and the tables cannot show whether it was committed.
        - This cluster voted that it cannot apply the operation: pause, withdraw the vote, and check
          whether the ring has given the operation up meanwhile.
        """
        core = self._core
        while not self._over(offset):
            if self.open_revoke(offset) is not None and (tried is None or await tried()):
                await self._answer(offset, op)
                await core.news.until(
                    lambda: self.open_revoke(offset) is None or self._over(offset)
                )
                continue
            if not self.has_voted(offset):
                return True
            word = core.log_state.failure_votes.valid_votes(offset)[core.me][1]
            if word.wish < 0:
                trouble = core.troubles.stands(offset, word.error)
                core.update_stuck()
                await self._rest(offset, op, trouble)
                if self._over(offset) or (self.open_revoke(offset) is not None and tried is None):
                    continue
            await core.trace(Step.ABLE_BEFORE)
            await self._withdraw_vote(offset, op.id)
        return False

    async def _withdraw_vote(
        self, offset: int, operation_id: str, revoke_at: int = -1, done: bool = False
    ) -> None:
        core = self._core
        withdrawal = VoteWithdrawal(
            offset, operation_id, core.me, core.own_log.epoch, revoke_at, done
        )
        await core.watermarks.until_known(await core.own_log.append(withdrawal) + 1)

    def _over(self, offset: int) -> bool:
        return self.rejects(offset) or self._core.troubles.skip_wanted((offset,))

    async def _rest(self, offset: int, op: Operation, trouble: Trouble) -> None:
        """Pause before the next attempt; give the operation up if all members vote meanwhile."""
        core, clock = self._core, asyncio.get_running_loop().time
        first = core.timeouts.retry_max_s
        until = clock() + trouble.rest_s(first, REST_FACTOR * first)
        while not self._over(offset) and clock() < until:
            await self.decide(offset, op)
            if self._over(offset):
                break
            if await trouble.pause(min(core.timeouts.takeover_s, max(0.0, until - clock()))):
                return  # an operator asked for an attempt, or a revoke record came

    # -- revocation ----------------------------------------------------------------------------

    def open_revoke(self, offset: int) -> int | None:
        """Return the offset of the operation's ``revoke`` record if it is still open, or None."""
        found = self._core.log_state.failure_votes.open_revoke(offset)
        rejected = self._core.log_state.decisions.get(offset) is DecisionKind.REJECT
        return None if found is None or rejected else found[0]

    def rejects(self, offset: int) -> bool:
        """True if the log says that every cluster rejects the operation."""
        return self._core.log_state.decisions.get(offset) is DecisionKind.REJECT or self.abandoned(
            offset
        )

    @contextlib.asynccontextmanager
    async def interruptible(
        self, offsets: tuple[int, ...], op: Operation, tables_show: TablesShow
    ) -> AsyncIterator[None]:
        """Stop the statement in this context when one of its operations is to be revoked.

        Raises Interrupted then. ``tables_show`` returns False if the tables might not show whether
        the statement was committed; then it is not stopped. If there is only one operation, it is
        also revoked when its time budget is over, unless it has a ``revoke`` record already.
        """
        single, core = len(offsets) == 1, self._core
        if not single and any(self.open_revoke(offset) is not None for offset in offsets):
            raise Interrupted
        timer: asyncio.TimerHandle | None = None
        if single and op.apply_budget_s and not core.log_state.failure_votes.has_revoke(offsets[0]):
            timer = asyncio.get_running_loop().call_later(
                op.apply_budget_s, lambda: core.tasks.spawn(self._time_is_over(offsets[0], op))
            )
        try:
            async with self._under_way.runs(offsets, tables_show):
                yield
        finally:
            if timer is not None:
                timer.cancel()

    def _take_notice(self, offset: int) -> None:
        """Begin to answer the open ``revoke`` record on an operation, if there is one."""
        core = self._core
        if self.open_revoke(offset) is not None:
            if trouble := core.troubles.of(offset):
                trouble.poked.set()
            if offset not in self._heeding:
                self._heeding.add(offset)
                core.tasks.spawn(self._heed(offset))
        core.news.changed()

    async def append_revoke(self, offset: int, operation_id: str, who: str) -> int:
        """Append a ``revoke`` record on behalf of ``who``; return its offset."""
        core = self._core
        revoke = Revoke(
            offset, operation_id, core.me, core.own_log.epoch, who[:ERROR_CHARACTERS_MAX]
        )
        at = await core.own_log.append(revoke)
        await core.watermarks.until_known(at + 1)
        return at

    async def _time_is_over(self, offset: int, op: Operation) -> None:
        requested = self._core.log_state.failure_votes.has_revoke(offset)
        if not requested and not await self.ended_on(offset):
            await self.append_revoke(offset, op.id, f"its time budget ({op.apply_budget_s:g} s)")

    async def _heed(self, offset: int) -> None:
        """Answer a request to revoke an operation; decline it after WISH_S seconds."""
        clock = asyncio.get_running_loop().time
        until = clock() + REVOKE_WAIT_S
        try:
            op = await self.operation(offset)
            while op is not None and (revoke_at := self.open_revoke(offset)) is not None:
                if self._is_done(offset):
                    await self._withdraw_vote(offset, op.id, revoke_at, done=True)
                elif clock() >= until:
                    await self._withdraw_vote(offset, op.id, revoke_at)
                elif self._may_speak(offset):
                    await self._answer(offset, op)
                else:
                    await self._under_way.stop(offset)
                await self._until_news(offset, revoke_at)
        finally:
            self._heeding.discard(offset)

    async def _until_news(self, offset: int, revoke_at: int) -> None:
        core = self._core

        def news() -> bool:
            speak = not self.has_voted(offset) and self._may_speak(offset)
            return self.open_revoke(offset) != revoke_at or self._is_done(offset) or speak

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(core.timeouts.takeover_s):
                await core.news.until(news)

    def _is_done(self, offset: int) -> bool:
        """True if this cluster has finished the operation, which the ring has not rejected."""
        return not self._core.schedule.expects(offset)

    def _may_speak(self, offset: int) -> bool:
        """True if this cluster may vote: it has voted, or has surely not begun the operation.

        Otherwise the applier must first find out whether the operation was committed.
        """
        return self.has_voted(offset) or self._core.schedule.untouched(offset)

    async def _answer(self, offset: int, op: Operation) -> None:
        """Vote to revoke an operation; revoke it if all members have voted.

        The origin of an undecided synchronous operation rejects it alone.
        """
        core = self._core
        async with self._answering:
            found = core.log_state.failure_votes.open_revoke(offset)
            if found is None or self.rejects(offset):
                return
            revoke_at, revoke = found
            own = op.synchronous and op.origin == core.me
            if own and core.log_state.decisions.get(offset) is None:
                why = ApplicationFailure(ErrorClass.REVOKED, QUERY_CANCELED, taken_back(revoke.who))
                await core.own_log.decide(offset, op.id, DecisionKind.REJECT, why)
                await core.log_state.decisions.wait(offset)
            elif not self.has_voted(offset):
                await self.vote(offset, op, "it is to be taken back", revoke_at)
        if self.open_revoke(offset) is not None:
            await self.decide(offset, op)

    async def operation(self, offset: int) -> Operation | None:
        """Return the operation at an offset; None if there is none, or it is trimmed."""
        try:
            entries = await self._core.own_log.read_log(offset, records_max=1)
        except TrimmedError:
            return None
        message = from_record(entries[0].record) if entries else None
        found = isinstance(message, Operation) and entries[0].offset == offset
        return message if found and isinstance(message, Operation) else None

    # -- giving up -------------------------------------------------------------------------

    async def decide(
        self, offset: int, op: Operation, absent: Mapping[str, int] | None = None
    ) -> frozenset[str]:
        """Give the operation up if all members have voted; return those that have not.

        ``absent``: silent members, each with the offset of its newest claim. An operator promises
        that they have not applied the operation.
        """
        core, log_state = self._core, self._core.log_state
        members, never = await self._members(offset)
        if members is None:
            return frozenset({core.me})  # a later record names the members
        read_to, without = core.watermarks.known_to, {**never, **(absent or {})}
        me = (core.me, core.own_log.epoch)
        word = log_state.failure_votes.abandon(offset, op.id, me, read_to, members, without)
        if word is None or self.abandoned(offset):
            return log_state.failure_votes.uncovered(offset, members, without)
        # Tables cannot show whether it was committed: so all clusters compare their tables.
        records: list[Message] = [word] if conclusive(op) else [word, Verify(core.me)]
        await core.trace(Step.ABANDON_BEFORE)
        await core.watermarks.until_known(await core.own_log.append(*records) + 1)
        return frozenset()

    async def _members(self, offset: int) -> tuple[frozenset[str] | None, dict[str, int]]:
        """Return the clusters that were members at any time since an operation (None: not known).

        The second result has those of them that never started, each with the claim -1.
        """
        core, log_state = self._core, self._core.log_state
        cursors = await core.own_log.reaching(core.log.cursors)
        enrolled = core.members.enrolled
        if enrolled.offset >= 0 and enrolled.names is None:
            return None, {}
        configured = [member.name for member in core.identity.founders]
        names = names_needed(enrolled.names, configured, cursors, log_state.claims.clusters)
        members = names | log_state.failure_votes.left_since(offset) | {core.me}
        claims = dict(log_state.claims.before(core.watermarks.known_to))
        return members, {n: -1 for n in members if n not in claims and n not in cursors}

    async def silent(self, offset: int, absent: Mapping[str, int]) -> frozenset[str]:
        """Return the members that do not answer, and have not voted on an operation."""
        core = self._core
        members, never = await self._members(offset)
        if members is None:
            return frozenset({core.me})
        missing = core.log_state.failure_votes.uncovered(offset, members, {**never, **absent})
        answering = {name for name in core.members.peers if not core.peers.is_gone(name)}
        return missing - answering - {core.me}


_REPLAYED_KINDS: Final = frozenset({"claim", "unable", "able", "abandon", "revoke", "members"})
