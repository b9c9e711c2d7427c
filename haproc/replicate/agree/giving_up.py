"""Says what this cluster cannot apply, and carries out what the ring gives up.

`haproc.replicate.heard.words` has the rules. A member whose word completes the others' gives the
operation up; should it die before, the others, which wait with their words, do so a little later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Final

from haproc.backoff import Backoff
from haproc.classify.model import Kind
from haproc.failure import ErrorClass
from haproc.membership.peers import PeerUnavailableError
from haproc.membership.state import Cause, Divergence
from haproc.replicate.heard.members import names_needed
from haproc.replicate.member.core import Core
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import Outcome, Status
from haproc.replicate.queue.trouble import Trouble
from haproc.replicate.records.contents import Verify
from haproc.replicate.records.failures import Failure
from haproc.replicate.records.members import Change, Roster
from haproc.replicate.records.operation import Claim, Message, Operation, Verdict, from_record
from haproc.replicate.records.words import ERROR_CHARACTERS_MAX, Abandon, Able, Unable, Word

logger = logging.getLogger(__name__)

REST_FACTOR: Final = 12
"""A cluster that has said that it cannot apply an operation rests so many times longer than
`retry_max_s` at most before it tries again: each time costs two records. Chosen: a minute."""
_MARKED: Final = frozenset(
    {Kind.INSERT, Kind.INSERT_OVERWRITE, Kind.UPDATE, Kind.DELETE, Kind.MERGE, Kind.ROWS}
)


def conclusive(op: Operation) -> bool:
    """Whether a look at its tables tells whether an operation was committed."""
    return op.tables_known and bool(op.writes) and op.kind in _MARKED


class GivingUp:
    """See the module."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._rests: dict[int, Backoff] = {}
        self._low_at_start = 0
        self._hearing = True
        """Not all is heard yet that earlier processes said."""

    # -- what the log says -----------------------------------------------------------------

    def begin(self, low: int, known_from: int) -> None:
        """Begin from a stored progress; what lies below ``known_from`` is not read again."""
        self._low_at_start = low
        self._core.heard.words.begin(known_from)

    async def hear(self, end: int) -> None:
        """Hear what the log says up to ``end``, before anything is run.

        Only of operations that cannot be applied and of what their fate depends on; the rest is
        read again at its time, and so is this.
        """
        core, position = self._core, self._low_at_start
        while position < end:
            entries = await core.own_log.read(position)
            if not entries:
                break
            for entry in entries:
                if entry.record.kind not in _HEARD:
                    continue
                match from_record(entry.record):
                    case Claim() as claim:
                        core.own_log.claimed(entry.offset, claim)
                    case Roster() as roster:
                        self.members_changed(entry.offset, roster)
                    case Unable() | Able() | Abandon() as word:
                        self.read(entry.offset, word)
                    case _:
                        pass
            position = entries[-1].offset + 1
        self._hearing = False
        for offset in core.heard.words.abandoned_from(self._low_at_start):
            if offset < self._low_at_start:
                self.done_before(offset)

    def members_changed(self, offset: int, roster: Roster) -> None:
        """Note that the ring's members may be others from here on."""
        leaves = roster.cluster if roster.change is Change.LEAVE else ""
        self._core.heard.words.members_changed(offset, leaves)

    def read(self, at: int, word: Word) -> None:
        """Take in a record; hearing of it again changes nothing."""
        core = self._core
        if isinstance(word, Unable) and word.cluster == core.me:
            core.schedule.isolate(word.offset)
        if not core.heard.words.hear(at, word, core.heard.claims):
            return
        assert isinstance(word, Abandon)
        offset = word.offset
        logger.warning("offset %d is given up by the ring: %s", offset, word.error)
        core.heard.verdicts.see(offset, Verdict.REJECT, self.rejected(offset).failure)
        if core.schedule.expects(offset):
            # It is passed over when its turn comes: if it was committed after all, that is seen.
            core.schedule.isolate(offset)
            core.schedule.permit(offset)
            core.schedule.provide(offset)
            if trouble := core.troubles.of(offset):
                trouble.poked.set()
        elif at < self._low_at_start:
            core.outcomes.resolve(offset, self.rejected(offset))
        elif not self._hearing:
            self.done_before(offset)
        core.news.changed()

    def done_before(self, offset: int) -> None:
        """See whether an operation that was dealt with before was given up, and what that means."""
        core = self._core
        word = core.heard.words.given_up(offset)
        if word is None:
            return
        known = core.outcomes.at(offset)
        outcome = known.outcome if known is not None else None
        ran = outcome is not None and outcome.status is Status.APPLIED and not outcome.assumed
        if not ran and (core.me in word.words or self.stands(offset)):
            core.outcomes.resolve(offset, self.rejected(offset))
        else:
            self._was_applied(offset)

    def applied(self, offsets: Iterable[int]) -> None:
        """These turn out to be applied here."""
        for offset in filter(self.given_up, offsets):
            self._was_applied(offset)

    def _was_applied(self, offset: int) -> None:
        """This cluster has applied what the ring gives up: from here on it differs."""
        core = self._core
        known = core.outcomes.at(offset)
        if known is not None and known.outcome and known.outcome.status is Status.FAILED:
            return  # it had no effect
        logger.error("offset %d was applied here, and is given up by the ring", offset)
        core.diverge(Divergence(offset, Cause.GIVEN_UP, applies=True))
        core.store.soon()

    def rejected(self, offset: int) -> Outcome:
        """Return the outcome of an operation that was given up."""
        word = self._core.heard.words.given_up(offset)
        assert word is not None
        return Outcome(Status.REJECTED, failure=Failure(ErrorClass.GIVEN_UP, "", word.error))

    # -- what this cluster says ------------------------------------------------------------

    def given_up(self, offset: int) -> bool:
        """Whether the ring has given the operation up, as far as was heard."""
        return self._core.heard.words.given_up(offset) is not None

    def stands(self, offset: int) -> bool:
        """Whether this cluster has said that it cannot apply the operation, and abides by it."""
        return self._core.me in self._core.heard.words.standing(offset)

    async def consider(self, offset: int, op: Operation, trouble: Trouble) -> None:
        """A failed attempt is over and was not committed: say so, if that was often enough."""
        if not self._due(trouble):
            return
        if trouble.reject or not await self.applied_by(offset):
            await self.say(offset, op, trouble.error)
            trouble.said()

    def _due(self, trouble: Trouble) -> bool:
        timeouts = self._core.timeouts
        failing_s = asyncio.get_running_loop().time() - trouble.since_s
        often = trouble.attempts >= timeouts.stuck_after_attempts
        return trouble.reject or (often and failing_s >= timeouts.give_up_after_s)

    def takes_apart(self, trouble: Trouble) -> bool:
        """Whether what runs as one statement is to be taken apart: one of its parts is at fault."""
        return trouble.apart or (len(trouble.offsets) > 1 and self._due(trouble))

    async def applied_by(self, offset: int) -> str:
        """Return a peer that says that it has an outcome: then the ring won't give it up anyway."""
        core = self._core
        for peer in core.members.peers:
            if core.peers.given_up(peer):
                continue
            try:
                answer = await core.peers.outcome(peer, offset, core.timeouts.peer_s)
            except PeerUnavailableError:
                continue
            if answer.get("status") in (Status.APPLIED.value, Status.FAILED.value):
                return peer
        return ""

    async def say(self, offset: int, op: Operation, error: str) -> None:
        """Put it into the log that this cluster has not committed an operation, nor will."""
        core = self._core
        logger.warning("offset %d: this cluster says that it cannot apply it", offset)
        word = Unable(offset, op.id, core.me, core.own_log.epoch, error[:ERROR_CHARACTERS_MAX])
        await core.watermarks.heard(await core.own_log.append(word) + 1)
        await core.trace(Step.UNABLE_AFTER)

    async def may_run(self, offset: int, op: Operation) -> bool:
        """Return whether an operation may be run now.

        If this cluster has said that it cannot: rest, take that back, and see whether it came too
        late. False once the ring has given the operation up.
        """
        core = self._core
        if not self.stands(offset):
            return True
        error = core.heard.words.standing(offset)[core.me][1].error
        trouble = core.troubles.stands(offset, error)
        core.tell_stuck()
        await self._rest(offset, op, trouble)
        if self._over(offset):
            return False
        await core.trace(Step.ABLE_BEFORE)
        able = Able(offset, op.id, core.me, core.own_log.epoch)
        await core.watermarks.heard(await core.own_log.append(able) + 1)
        return not self._over(offset)

    def _over(self, offset: int) -> bool:
        return self.given_up(offset) or self._core.troubles.skip_wanted((offset,))

    async def _rest(self, offset: int, op: Operation, trouble: Trouble) -> None:
        """Wait before the operation is tried again; give it up as soon as all are covered."""
        core, clock = self._core, asyncio.get_running_loop().time
        first, longest = core.timeouts.retry_max_s, REST_FACTOR * core.timeouts.retry_max_s
        until = clock() + self._rests.setdefault(offset, Backoff(first, longest)).pause_s()
        while not self._over(offset) and clock() < until:
            await self.decide(offset, op)
            if self._over(offset):
                break
            if await trouble.pause(min(core.timeouts.takeover_s, max(0.0, until - clock()))):
                return
        if self._over(offset):
            self._rests.pop(offset, None)

    # -- giving up -------------------------------------------------------------------------

    async def decide(
        self, offset: int, op: Operation, absent: Mapping[str, int] | None = None
    ) -> frozenset[str]:
        """Give the operation up if all members are covered; return those that are not.

        ``absent``: those that an operator vouches for, each with its newest claim.
        """
        core, heard = self._core, self._core.heard
        cursors = await core.own_log.reaching(core.log.cursors)
        enrolled = core.members.enrolled
        if enrolled.offset >= 0 and enrolled.names is None:
            return frozenset({core.me})  # who the members are stands farther on in the log
        configured = [member.name for member in core.identity.founders]
        names = names_needed(enrolled.names, configured, cursors, heard.claims.clusters)
        members = names | heard.words.left_since(offset) | {core.me}
        read_to = core.watermarks.heard_to
        claims = dict(heard.claims.before(read_to))
        never = {name: -1 for name in members if name not in claims and name not in cursors}
        without = {**never, **(absent or {})}
        me = (core.me, core.own_log.epoch)
        word = heard.words.abandon(offset, op.id, me, read_to, members, without)
        if word is None or self.given_up(offset):
            return heard.words.uncovered(offset, members, without)
        # What no look at tables could tell is to be compared.
        records: list[Message] = [word] if conclusive(op) else [word, Verify(core.me)]
        await core.trace(Step.ABANDON_BEFORE)
        await core.watermarks.heard(await core.own_log.append(*records) + 1)
        return frozenset()


_HEARD: Final = frozenset(
    {"claim", "unable", "able", "abandon", *(change.value for change in Change)}
)
