"""Records of failure votes and their results: ``unable``, ``able``, ``abandon``, ``revoke``.

`haproc.replicate.log_state.failure_votes` says what they mean and when they count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

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
