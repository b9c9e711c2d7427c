"""Control records about operations and clusters: votes, members, skips, checksums, copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, TypeAlias

from msgspec import UNSET, UnsetType

from haproc.membership.peers import Member

# The record of the ring's members.
#
# ``members``: an operator has added a cluster, or removed one for good. Or nothing has changed: the
# newest record was appended anew because it would have been trimmed.
#
# Each record contains all members after it, so the newest is enough. And each names the record that
# it *replaces*: it counts only if that one was the newest that counted. So of two changes at the
# same time the first in the log counts, and the other one is void on every HAProc. The HAProc that
# appended the void one sees this, and makes the change anew.


class Change(StrEnum):
    """What a ``members`` record does."""

    JOIN = "join"
    LEAVE = "leave"
    MEMBERS = "members"
    """Nothing: it repeats the members, because the record before is about to be trimmed."""


@dataclass(frozen=True, slots=True)
class Roster:
    """The ring's members from this record on.

    ``replaces``: the offset of the ``members`` record before; -1: none. ``cluster``: the one that
    joins or leaves; else empty. ``by``: the cluster whose HAProc was asked for the change.
    """

    change: Change
    cluster: str
    members: tuple[Member, ...]
    replaces: int
    by: str

    def __post_init__(self) -> None:
        if len({each.name for each in self.members}) != len(self.members):
            raise ValueError("a cluster is named twice")


# Fences: records after which a writer's permission to write is checked again.
#
# Some writers may write only for a time: an attempt of a job, until another attempt replaces it.
# Their writes *rest on* a name (`Operation.rests_on`): the permission was checked when the log had
# been applied up to ``analyzed_to``. A ``fence`` redefines this name. So a write is stale on every
# cluster if its permission was checked before the fence and it comes after the fence in the log
# (`replicate.log_state.definitions`). Before HAProc appends a fence, it withdraws the permission.
# So the second check refuses the write. Several fences, by several HAProcs, do no harm.


@dataclass(frozen=True, slots=True)
class Fence:
    """Makes a later write stale if it rests on ``name`` and was analyzed before this record."""

    name: str


# Records about the content of clusters: a skipped operation, a verification, its checksums.
#
# - ``skip``: an operator has one cluster pass over an operation that it cannot apply.
# - ``verify``: a verification point, at which every cluster computes checksums of its tables. An
#   operator can name a cluster with the right tables.
# - ``checksums``: the checksums of a cluster at that point.
#
# ``epoch`` is the offset of the writer's claim, see `haproc.replicate.log_state.members`.


REASON_CHARACTERS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Skip:
    """``cluster`` must skip the operation at ``offset``; ``reason``: the operator's words."""

    offset: int
    operation_id: str
    cluster: str
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Verify:
    """A verification point: here every cluster computes checksums of its tables.

    ``by``: the cluster whose HAProc was asked for it. ``trusted``: the cluster with the right
    tables, as an operator says; empty: the majority is right.
    """

    by: str
    trusted: str = ""


@dataclass(frozen=True, slots=True)
class Checksums:
    """The checksums of a cluster's tables at the verification point at the offset ``marker``.

    ``tables``: by name, the checksum of each table and view; empty if it could not be read.
    ``marked``: the cluster was known to differ already. ``error``: why there are no checksums.
    """

    marker: int
    cluster: str
    epoch: int
    tables: Mapping[str, str]
    marked: bool = False
    error: str = ""


Check: TypeAlias = Skip | Verify | Checksums


# The record of a copy: when the donor reaches it, it makes a snapshot of its content.
#
# ``cluster`` becomes a copy of ``donor`` as of the record. The snapshot contains all operations
# below the record, and none after it; so the copy goes on with the log from the record on. With
# ``tables`` only these are copied, and ``cluster`` applies the log up to the record by itself. It
# copies the tables when it reaches the record, or ``ahead`` of that: then the copies stand for the
# operations below the record that write these tables.
#
# ``spare`` makes the same snapshot: it replaces the donor if that one is lost.


BACKUP: Final = "(backup)"
"""Stands for ``cluster`` in a `Copy` if the donor's content goes into a backup; no cluster may have
this name."""


@dataclass(frozen=True, slots=True)
class Copy:
    """At this record ``cluster`` copies the content of ``donor``, or some ``tables`` of it.

    ``epoch``: the claim of the process that copies. ``tables``: as `schema.table`; empty: all.
    ``spare``: another donor; empty: none. ``ahead``: the tables are copied before ``cluster``
    reaches the record.
    """

    cluster: str
    donor: str
    epoch: int
    tables: tuple[str, ...] = ()
    spare: str = ""
    ahead: Literal[True] | UnsetType = UNSET


# Records of failure votes and their results: ``unable``, ``able``, ``abandon``, ``revoke``.
#
# Their meaning and their rules are in `haproc.replicate.log_state.failure_votes`.


ERROR_CHARACTERS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class FailureVote:
    """``cluster`` has not committed the operation at ``offset``, and does not run it now.

    ``epoch``: the offset of the writer's claim. ``error``: the cluster's error, as text. ``wish``:
    the offset of the ``revoke`` that the vote answers; -1: none.
    """

    offset: int
    operation_id: str
    cluster: str
    epoch: int
    error: str
    wish: int = -1


@dataclass(frozen=True, slots=True)
class VoteWithdrawal:
    """``cluster`` withdraws its vote on the operation at ``offset``, if it has voted.

    ``wish``: the offset of the ``revoke`` that this record ends; -1: none. ``done``: the ``revoke``
    ends because the operation has an outcome on the cluster.
    """

    offset: int
    operation_id: str
    cluster: str
    epoch: int
    wish: int = -1
    done: bool = False


@dataclass(frozen=True, slots=True)
class Revoke:
    """A request to revoke the operation at ``offset`` on all clusters.

    ``by``: the cluster that was asked, or on which the operation's time budget is over. ``who``:
    the requester and the reason, as text.
    """

    offset: int
    operation_id: str
    by: str
    epoch: int
    who: str


@dataclass(frozen=True, slots=True)
class Abandon:
    """The ring gives up the operation at ``offset``, by the rules of failure votes.

    ``votes``: by cluster the offset of its ``unable``. ``absent``: by cluster without a vote, for
    which an operator vouches, the offset of its newest claim; -1: none. ``error``: the text of the
    error that clients receive. ``revoked``: a ``revoke`` is the reason.
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
