"""Records of failure votes and their results: ``unable``, ``able``, ``abandon``, ``revoke``.

`haproc.replicate.log_state.failure_votes` says what they mean and when they count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from dmq import Json, Record
from haproc.replicate.records.fields import number, offsets, text

KINDS: Final = frozenset({"unable", "able", "abandon", "revoke"})
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


def fate_record(word: FateMessage) -> Record:
    """Return the log record of a message."""
    headers: dict[str, Json] = {"offset": word.offset, "epoch": word.epoch}
    match word:
        case FailureVote():
            headers |= {"cluster": word.cluster, "error": word.error}
            headers |= {"wish": word.wish} if word.wish >= 0 else {}
            return Record("unable", word.operation_id, headers)
        case VoteWithdrawal():
            headers |= {"cluster": word.cluster}
            headers |= {"wish": word.wish, "done": word.done} if word.wish >= 0 else {}
            return Record("able", word.operation_id, headers)
        case Revoke():
            headers |= {"by": word.by, "who": word.who}
            return Record("revoke", word.operation_id, headers)
        case Abandon():
            headers |= {
                "by": word.by,
                "read_to": word.read_to,
                "words": dict(sorted(word.votes.items())),
                "absent": dict(sorted(word.absent.items())),
                "error": word.error,
            }
            headers |= {"revoked": True} if word.revoked else {}
            return Record("abandon", word.operation_id, headers)


def fate_message(record: Record) -> FateMessage:
    """Return the message of a record of these kinds; KeyError, TypeError or ValueError."""
    h: Mapping[str, Any] = record.headers
    offset, epoch = number(h["offset"]), number(h["epoch"])
    wish = number(h["wish"]) if "wish" in h else -1
    match record.kind:
        case "unable":
            return FailureVote(
                offset, record.key, text(h["cluster"]), epoch, text(h["error"]), wish
            )
        case "able":
            done = h.get("done", False) is True
            return VoteWithdrawal(offset, record.key, text(h["cluster"]), epoch, wish, done)
        case "revoke":
            return Revoke(offset, record.key, text(h["by"]), epoch, text(h["who"]))
        case _:
            return Abandon(
                offset,
                record.key,
                text(h["by"]),
                epoch,
                number(h["read_to"]),
                offsets(h["words"]),
                offsets(h["absent"]),
                text(h["error"]),
                h.get("revoked", False) is True,
            )
