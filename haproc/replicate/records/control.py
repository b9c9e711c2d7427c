"""The records that control operations: votes, members, skips, checks, copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from msgspec import UNSET, UnsetType

from haproc.membership.peers import Member

# Records that say which clusters the ring has.
#
# ``members``: an operator has added a cluster, or removed one for good; or nothing changed, and it
# is said anew before the record that said it is trimmed away.
#
# Each of them holds all members there are after it, so the newest is enough. And each names the
# record that it *replaces*: it counts only if that is the one that counted before it. So of two
# changes made at the same time the first in the log counts, and the other is void, on every HAProc
# alike; the one that appended that one sees it and makes the change anew.


class Change(StrEnum):
    """What a record says."""

    JOIN = "join"
    LEAVE = "leave"
    MEMBERS = "members"
    """Nothing changed."""


@dataclass(frozen=True, slots=True)
class Roster:
    """``members``: all there are from here on. ``replaces``: offset of the record before, or -1.

    ``cluster``: who joins or leaves, else empty. ``by``: the HAProc that was asked.
    """

    change: Change
    cluster: str
    members: tuple[Member, ...]
    replaces: int
    by: str

    def __post_init__(self) -> None:
        if len({each.name for each in self.members}) != len(self.members):
            raise ValueError("a cluster is named twice")


# The record in front of which a writer's writes count, and behind which they are asked about anew.
#
# Some writers may write only for a time: a job's attempt, until another replaces it. Their writes
# *rest on* a name (`Operation.rests_on`): the writer was found to be let in after the log had been
# applied up to ``analyzed_to``. A ``fence`` says that this is to be looked at again, so it defines
# the name anew, and a write that was let in before it and stands behind it is stale, on every
# cluster alike (`replicate.log_state.definitions`). Whoever fences has shut the writer out first;
# so what is looked at again is refused. Said twice it does no harm, whoever says it.


@dataclass(frozen=True, slots=True)
class Fence:
    """What rests on ``name`` and was looked at before this is stale behind it."""

    name: str


# Records about what a cluster holds: a skipped operation, a verification, its checksums.
#
# - ``skip``: an operator has one cluster pass over an operation that it cannot apply.
# - ``verify``: a place in the order at which every cluster notes what its tables hold; an operator
#   may say, too, which cluster's tables are right.
# - ``checksums``: what a cluster found there.
#
# ``epoch`` is the offset of the writer's claim, see `haproc.replicate.log_state.members`.


REASON_CHARACTERS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Skip:
    """``cluster`` is to pass over the operation at ``offset``, because of ``reason``."""

    offset: int
    operation_id: str
    cluster: str
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Verify:
    """Every cluster is to note what it holds here; ``by``: whose HAProc was asked to.

    ``trusted``: the cluster whose tables are right, by an operator's word; empty: the majority's.
    """

    by: str
    trusted: str = ""


@dataclass(frozen=True, slots=True)
class Checksums:
    """What a cluster held at the verification at ``marker``.

    ``tables``: a checksum for each table and view; empty text where one could not be read.
    ``marked``: the cluster was known to differ. ``error``: why there are no checksums at all.
    """

    marker: int
    cluster: str
    epoch: int
    tables: Mapping[str, str]
    marked: bool = False
    error: str = ""


Check: TypeAlias = Skip | Verify | Checksums


# The record of a copy: a place in the order at which a donor notes what it holds.
#
# ``cluster`` is to become what ``donor`` is there. Everything below the record is in the donor's
# tables then, and nothing behind it; so the copy goes on with the log from the record on. With
# ``tables`` only these are copied, and ``cluster`` comes to the record's place by itself. It copies
# them there, or ``ahead`` of that: then they stand for the operations in front of the record that
# write them.
#
# ``spare`` notes the same: it takes the donor's place if that one is lost.


BACKUP: Final = "(backup)"
"""Stands for a cluster where what the donor holds goes into a backup; no cluster's name."""


@dataclass(frozen=True, slots=True)
class Copy:
    """``epoch``: the claim of the process that copies; ``tables``: as `schema.table`."""

    cluster: str
    donor: str
    epoch: int
    tables: tuple[str, ...] = ()
    spare: str = ""
    ahead: Literal[True] | UnsetType = UNSET


# Records of failure votes and their results: ``unable``, ``able``, ``abandon``, ``revoke``.
#
# `haproc.replicate.log_state.failure_votes` says what they mean and when they count.


ERROR_CHARACTERS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class FailureVote:
    """``cluster`` has not committed the operation at ``offset``, and does not run it any more.

    ``epoch`` is the offset of the writer's claim; ``error``: what it met, in words. ``wish``: the
    offset of the ``revoke`` that it answers, -1 for none.
    """

    offset: int
    operation_id: str
    cluster: str
    epoch: int
    error: str
    wish: int = -1


@dataclass(frozen=True, slots=True)
class VoteWithdrawal:
    """``cluster`` takes back its word on the operation at ``offset``, or has given none.

    ``wish``: the offset of the ``revoke`` that is void by this, -1 for none; ``done``: because the
    operation has an outcome there.
    """

    offset: int
    operation_id: str
    cluster: str
    epoch: int
    wish: int = -1
    done: bool = False


@dataclass(frozen=True, slots=True)
class Revoke:
    """Somebody wants the operation at ``offset`` taken back, on all clusters.

    ``by``: the cluster that was asked, or whose budget for it is spent; ``who`` wants it, and why,
    in words.
    """

    offset: int
    operation_id: str
    by: str
    epoch: int
    who: str


@dataclass(frozen=True, slots=True)
class Abandon:
    """The ring gives up the operation at ``offset``; see the module.

    ``words``: by cluster the offset of its ``unable``. ``absent``: by cluster the offset of its
    newest claim, -1 for none. ``error``: what clients are told. ``revoked``: because somebody
    wanted it taken back.
    """

    offset: int
    operation_id: str
    by: str
    epoch: int
    read_to: int
    votes: Mapping[str, int]
    absent: Mapping[str, int]
    error: str
    revoked: bool = False


FateMessage: TypeAlias = FailureVote | VoteWithdrawal | Abandon | Revoke
