"""Failure votes: which clusters cannot apply an operation, and when the ring rejects it.

One statement must not stop the ring. But a write that any member has acknowledged must stand. So an
operation is given up only if no member has committed it and none can any more, and that is decided
in one place of the log:

- ``unable``: a cluster has tried the operation often enough, made sure that no attempt is under
  way, looked at its tables, and has not committed it. From here on it does not run it.
- ``able``: it takes that back. It runs the operation again only once it has read the log up to this
  record and found no valid ``abandon`` before it.
- ``abandon``: the ring gives the operation up. It names the standing word of every member
  (``words``). Every cluster passes over the operation at its place in the order, and it counts as
  rejected. The first one that is valid counts.

The writer of an ``abandon`` has read the log up to ``read_to`` and found all members covered there.
For readers it is valid if nothing that matters came in between: no word was taken back, the members
did not change, no other cluster came in, and the writer was not replaced. All of that stands behind
the operation itself, so every cluster that has not applied it yet reads the same.

Somebody may want an operation taken back that could be applied well:

- ``revoke``: the wish. A cluster that reads it does not begin the operation, or stops it, makes
  sure that nothing of it is under way, looks, and writes ``unable``; the rest is as above. The wish
  is void from the first ``able`` on that names a wish: a cluster has an outcome of the operation
  already, so it stands; or not all had spoken in time, and it goes on. A cluster that voted for it
  withdraws its vote when the operation is to run there. One that comes into the log behind that
  counts for nothing: by then its cluster may run the operation again.

A process that starts reads the log up to its own claim before it runs anything. So it obeys the
words of the processes before it, and what was given up while it was away. Records of a replaced
process behind that claim are void.

A member that is away cannot vote. It is covered by the vote that it wrote before, or if it never
took part, or if an operator vouches for it (``absent``, with its newest claim): then a newer claim
of that cluster in between voids the ``abandon``, because it has come back. A cluster that finds
that it had committed the abandoned operation is DIVERGED, and reports it.

`replicate.agree.poison_rejection` does what this decides. Hearing of a record again changes
nothing: only offsets are compared.
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
"""The SQLSTATE of what was taken back: that of a cancelled statement."""


def given_up_as(word: Abandon) -> ErrorClass:
    """Return the class of the clients' error."""
    return ErrorClass.REVOKED if word.revoked else ErrorClass.GIVEN_UP


def taken_back(who: str) -> str:
    """Return the clients' error for a revoked operation."""
    return f"it was taken back by {who}, and has no effect anywhere"


class FailureVotes:
    """The votes on operations that cannot be applied, as far as the log was read."""

    def __init__(self) -> None:
        self._votes: dict[int, dict[int, FailureVote | VoteWithdrawal]] = {}
        self._abandoned: dict[int, tuple[int, Abandon]] = {}
        self._wishes: dict[int, dict[int, Revoke]] = {}
        self._changes: dict[int, str] = {}
        self._known_from = 0

    def begin(self, known_from: int) -> None:
        """Pass over votes on operations below this offset: they are not known completely."""
        self._known_from = known_from

    def members_changed(self, offset: int, leaves: str = "") -> None:
        """Note a record about the ring's members, and those that leave."""
        self._changes[offset] = leaves

    def left_since(self, offset: int) -> frozenset[str]:
        """Return the clusters that left the ring behind an offset: they may have applied it."""
        return frozenset(name for at, name in self._changes.items() if name and at > offset)

    def record(self, at: int, word: FateMessage, claims: Claims) -> bool:
        """Take in the record at ``at``; whether the operation is given up by it, from here on.

        Records must come in the log's order, with all claims before them seen.
        """
        by = word.by if isinstance(word, Abandon | Revoke) else word.cluster
        if word.offset < self._known_from or claims.void(at, by, word.epoch):
            return False
        if isinstance(word, Revoke):
            self._wishes.setdefault(word.offset, {})[at] = word
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
        standing = self.standing_votes(word.offset, at)
        if any(
            cluster not in standing or standing[cluster][0] != offset or offset >= word.read_to
            for cluster, offset in word.votes.items()
        ):
            return False
        newest = dict(claims.before(at))
        if any(newest.get(cluster, -1) != claim for cluster, claim in word.absent.items()):
            return False
        named = word.votes.keys() | word.absent.keys()
        return all(claim < word.read_to or name in named for name, claim in newest.items())

    def standing_votes(
        self, offset: int, before: int | None = None
    ) -> dict[str, tuple[int, FailureVote]]:
        """Return by cluster the word on an operation that it has not taken back, and its place.

        ``before``: as of that place in the log.
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

    def wish(self, offset: int) -> tuple[int, Revoke] | None:
        """Return the wish to take an operation back that is neither void nor fulfilled."""
        wishes = self._wishes.get(offset)
        if not wishes or offset in self._abandoned:
            return None
        votes = self._votes.get(offset, {}).items()
        void = max(
            (at for at, word in votes if isinstance(word, VoteWithdrawal) and word.wish >= 0),
            default=-1,
        )
        return min((each for each in wishes.items() if each[0] > void), default=None)

    def wishes(self) -> list[int]:
        """Return the operations that somebody wants, or wanted, taken back."""
        return sorted(self._wishes)

    def was_wished(self, offset: int) -> bool:
        """True if anybody ever wanted to revoke it."""
        return offset in self._wishes

    def done(self, offset: int) -> bool:
        """True if a cluster answered the wish with its outcome: the operation stands."""
        votes = self._votes.get(offset, {}).values()
        return any(isinstance(word, VoteWithdrawal) and word.done for word in votes)

    def given_up(self, offset: int) -> Abandon | None:
        """Return the record by which the ring gave the operation up, if it has."""
        found = self._abandoned.get(offset)
        return None if found is None else found[1]

    def abandoned_from(self, at: int) -> list[int]:
        """Return the operations that are given up by a record at or behind an offset."""
        return sorted(offset for offset, (found, _) in self._abandoned.items() if found >= at)

    def uncovered(
        self, offset: int, members: Iterable[str], absent: Mapping[str, int]
    ) -> frozenset[str]:
        """Return the members that may have committed the operation, or may yet."""
        return frozenset(members) - self.standing_votes(offset).keys() - absent.keys()

    def abandon(
        self,
        offset: int,
        operation_id: str,
        by: tuple[str, int],
        read_to: int,
        members: Iterable[str],
        absent: Mapping[str, int],
    ) -> Abandon | None:
        """Return the record that gives an operation up; None if somebody is not covered.

        ``members``: all that were members since the operation, as of ``read_to``. ``by``: the
        deciding cluster, and its claim.
        """
        names = frozenset(members)
        if self.uncovered(offset, names, absent):
            return None
        standing = self.standing_votes(offset)
        words = {name: standing[name][0] for name in sorted(names & standing.keys())}
        without = {name: absent[name] for name in sorted(names - standing.keys())}
        wish = self.wish(offset)
        if wish is not None:
            error = taken_back(wish[1].who)
        else:
            errors = "; ".join(f"{name}: {standing[name][1].error}" for name in words)
            error = f"no cluster of the ring could apply it, and it was given up: {errors}"
        return Abandon(offset, operation_id, *by, read_to, words, without, error, wish is not None)

    def forget(self, below: int) -> None:
        """Forget operations that nobody asks about any more."""
        if self._votes or self._abandoned or self._wishes:
            self._wishes = {o: found for o, found in self._wishes.items() if o >= below}
            self._votes = {o: votes for o, votes in self._votes.items() if o >= below}
            self._abandoned = {o: found for o, found in self._abandoned.items() if o >= below}
