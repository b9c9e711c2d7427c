"""Failure votes: the clusters that cannot apply an operation, and the ring's decision to reject it.

One statement must not stop the ring. But a write that any member has acknowledged must not be lost.
So an operation is given up only if no member has committed it and none can do so any more. Records
in the log decide that:

- ``unable``: a failure vote. A cluster has tried the operation often enough, made sure that no
  attempt runs, checked its tables, and has not committed it. It does not run the operation now.
- ``able``: a withdrawal. The cluster runs the operation again only after it has read the log up to
  this record and found no valid ``abandon`` before it.
- ``abandon``: the ring gives the operation up. The record names the valid vote of every member
  (``votes``). Every cluster passes over the operation, which counts as rejected. The first valid
  ``abandon`` counts.

The writer of an ``abandon`` has read the log up to ``read_to``, and all members had voted there.
For readers the record is valid if nothing relevant came in between: no vote was withdrawn, the
members did not change, no other cluster claimed, and the writer was not replaced. All of these
records come after the operation, so every cluster that has not applied it yet reads the same.

An operation that could be applied can be revoked:

- ``revoke``: the request. A cluster that reads it does not begin the operation, or stops it. It
  makes sure that no attempt runs, checks its tables, and votes ``unable``; the rest is as above.
  An ``able`` that names a revoke ends all revokes before it: either a cluster has an outcome
  already, so the operation is not revoked; or not all members voted in time, and the operation
  goes on. The voters then withdraw their votes before it runs. A later vote for an ended revoke
  does not count: its cluster may run the operation again by then.

A process that starts reads the log up to its own claim before it runs anything. So it obeys the
votes of earlier processes, and knows the operations that were given up while it was away. Records
of a replaced process after that claim are void.

A member that is away cannot vote. Its earlier vote counts; or it never took part; or an operator
vouches for it (``absent``, with its newest claim). In that case a newer claim of the cluster voids
the ``abandon``: the cluster has come back. A cluster that finds that it had committed the abandoned
operation is DIVERGED, and reports that.

`replicate.agree.poison_rejection` carries this out. The same record again changes nothing: only
offsets are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from haproc.failure import ErrorClass
from haproc.replicate.log_state.members import Claims
from haproc.replicate.records.control import (
    Abandon,
    FailureVote,
    FateMessage,
    Revoke,
    VoteWithdrawal,
)

QUERY_CANCELED: Final = "57014"
"""The SQLSTATE that clients receive for a revoked operation: that of a cancelled statement."""


def abandoned_class(word: Abandon) -> ErrorClass:
    """Return the error class that clients receive for an operation with this ``abandon``."""
    return ErrorClass.REVOKED if word.revoked else ErrorClass.GIVEN_UP


def taken_back(who: str) -> str:
    """Return the text of the error that clients receive for an operation revoked by ``who``."""
    return f"it was taken back by {who}, and has no effect anywhere"


class FailureVotes:
    """The votes on operations that cannot be applied or were revoked, as read from the log."""

    def __init__(self) -> None:
        self._votes: dict[int, dict[int, FailureVote | VoteWithdrawal]] = {}
        self._abandoned: dict[int, tuple[int, Abandon]] = {}
        self._revokes: dict[int, dict[int, Revoke]] = {}
        self._changes: dict[int, str] = {}
        self._known_from = 0

    def begin(self, known_from: int) -> None:
        """Ignore votes on operations below this offset: some of their records may not be read."""
        self._known_from = known_from

    def members_changed(self, offset: int, leaves: str = "") -> None:
        """Note that the record at ``offset`` changes the ring's members.

        ``leaves``: the cluster that leaves the ring; empty: none.
        """
        self._changes[offset] = leaves

    def left_since(self, offset: int) -> frozenset[str]:
        """Return the clusters that left the ring after this operation: they may have applied it."""
        return frozenset(name for at, name in self._changes.items() if name and at > offset)

    def record(self, at: int, word: FateMessage, claims: Claims) -> bool:
        """Note the record ``word`` at offset ``at``; True if it is an ``abandon`` that is valid.

        Records must come in the order of the log, after all claims before them.
        """
        by = word.by if isinstance(word, Abandon | Revoke) else word.cluster
        if word.offset < self._known_from or claims.void(at, by, word.epoch):
            return False
        if isinstance(word, Revoke):
            self._revokes.setdefault(word.offset, {})[at] = word
            return False
        if not isinstance(word, Abandon):
            self._votes.setdefault(word.offset, {})[at] = word
            return False
        if word.offset in self._abandoned or not self._valid(at, word, claims):
            return False
        self._abandoned[word.offset] = at, word
        return True

    def _valid(self, at: int, word: Abandon, claims: Claims) -> bool:
        if not word.offset < word.read_to <= at:
            return False
        if any(word.read_to <= changed < at for changed in self._changes):
            return False
        votes = self.valid_votes(word.offset, at)
        if any(
            cluster not in votes or votes[cluster][0] != offset or offset >= word.read_to
            for cluster, offset in word.votes.items()
        ):
            return False
        newest = dict(claims.before(at))
        if any(newest.get(cluster, -1) != claim for cluster, claim in word.absent.items()):
            return False
        named = word.votes.keys() | word.absent.keys()
        return all(claim < word.read_to or name in named for name, claim in newest.items())

    def valid_votes(
        self, offset: int, before: int | None = None
    ) -> dict[str, tuple[int, FailureVote]]:
        """Return, by cluster, its valid failure vote on the operation, with the vote's offset.

        ``before``: only records below this offset are regarded; None: all.
        """
        found: dict[str, tuple[int, FailureVote]] = {}
        void = -1
        for at, word in sorted(self._votes.get(offset, {}).items()):
            if before is not None and at >= before:
                break
            if isinstance(word, VoteWithdrawal):
                found.pop(word.cluster, None)
                void = at if word.wish >= 0 else void
            elif word.wish < 0 or word.wish > void:
                found[word.cluster] = at, word
        return found

    def open_revoke(self, offset: int) -> tuple[int, Revoke] | None:
        """Return the first ``revoke`` of the operation that has not ended, with its offset.

        None if there is no such record.
        """
        revokes = self._revokes.get(offset)
        if not revokes or offset in self._abandoned:
            return None
        votes = self._votes.get(offset, {}).items()
        void = max(
            (at for at, word in votes if isinstance(word, VoteWithdrawal) and word.wish >= 0),
            default=-1,
        )
        return min((each for each in revokes.items() if each[0] > void), default=None)

    def offsets_with_revoke(self) -> list[int]:
        """Return the offsets of all operations that have a ``revoke``, ended or not."""
        return sorted(self._revokes)

    def has_revoke(self, offset: int) -> bool:
        """True if the operation has a ``revoke``, ended or not."""
        return offset in self._revokes

    def done(self, offset: int) -> bool:
        """True if a cluster answered a ``revoke`` with its outcome: then it cannot be revoked."""
        votes = self._votes.get(offset, {}).values()
        return any(isinstance(word, VoteWithdrawal) and word.done for word in votes)

    def abandoned(self, offset: int) -> Abandon | None:
        """Return the valid ``abandon`` record of the operation; None if there is none."""
        found = self._abandoned.get(offset)
        return None if found is None else found[1]

    def abandoned_from(self, at: int) -> list[int]:
        """Return the offsets of the operations with an ``abandon`` at offset ``at`` or later."""
        return sorted(offset for offset, (found, _) in self._abandoned.items() if found >= at)

    def uncovered(
        self, offset: int, members: Iterable[str], absent: Mapping[str, int]
    ) -> frozenset[str]:
        """Return the members that may have committed the operation, or may still do it.

        They have neither voted, nor are they in ``absent``.
        """
        return frozenset(members) - self.valid_votes(offset).keys() - absent.keys()

    def abandon(
        self,
        offset: int,
        operation_id: str,
        by: tuple[str, int],
        read_to: int,
        members: Iterable[str],
        absent: Mapping[str, int],
    ) -> Abandon | None:
        """Return an ``abandon`` record, if every member has voted or is in ``absent``; else None.

        ``members``: all members since the operation, as of ``read_to``. ``by``: the deciding
        cluster and its claim. ``absent``: members for which an operator vouches, each with its
        claim.
        """
        names = frozenset(members)
        if self.uncovered(offset, names, absent):
            return None
        votes = self.valid_votes(offset)
        words = {name: votes[name][0] for name in sorted(names & votes.keys())}
        without = {name: absent[name] for name in sorted(names - votes.keys())}
        revoke = self.open_revoke(offset)
        if revoke is not None:
            error = taken_back(revoke[1].who)
        else:
            errors = "; ".join(f"{name}: {votes[name][1].error}" for name in words)
            error = f"no cluster of the ring could apply it, and it was rejected: {errors}"
        return Abandon(
            offset, operation_id, *by, read_to, words, without, error, revoke is not None
        )

    def forget(self, below: int) -> None:
        """Forget operations below an offset: nothing will ask about them."""
        if self._votes or self._abandoned or self._revokes:
            self._revokes = {o: found for o, found in self._revokes.items() if o >= below}
            self._votes = {o: votes for o, votes in self._votes.items() if o >= below}
            self._abandoned = {o: found for o, found in self._abandoned.items() if o >= below}
