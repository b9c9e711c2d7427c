"""Records of what a cluster holds: skips, checks, checksums, and the fence before its writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from dmq import Json, Record
from haproc.replicate.records.fields import flag, number, text

# The record in front of which a writer's writes count, and behind which they are asked about anew.
#
# Some writers may write only for a time: a job's attempt, until another replaces it. Their writes
# *rest on* a name (`Operation.rests_on`): the writer was found to be let in after the log had been
# applied up to ``analyzed_to``. A ``fence`` says that this is to be looked at again, so it defines
# the name anew, and a write that was let in before it and stands behind it is stale, on every
# cluster alike (`replicate.log_state.definitions`). Whoever fences has shut the writer out first;
# so what is looked at again is refused. Said twice it does no harm, whoever says it.


FENCE: Final = "fence"


@dataclass(frozen=True, slots=True)
class Fence:
    """What rests on ``name`` and was looked at before this is stale behind it."""

    name: str


def fence_record(fence: Fence) -> Record:
    """Return the log record of a message."""
    return Record(FENCE, fence.name, {})


def fence_message(record: Record) -> Fence:
    """Return the message of a record of this kind."""
    return Fence(record.key)


# Records about what a cluster holds: a skipped operation, a verification, its checksums.
#
# - ``skip``: an operator has one cluster pass over an operation that it cannot apply.
# - ``verify``: a place in the order at which every cluster notes what its tables hold; an operator
#   may say, too, which cluster's tables are right.
# - ``checksums``: what a cluster found there.
#
# ``epoch`` is the offset of the writer's claim, see `haproc.replicate.log_state.members`.


KINDS: Final = frozenset({"skip", "verify", "checksums"})
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


def check_record(message: Check) -> Record:
    """Return the log record of a message."""
    match message:
        case Skip():
            headers: dict[str, Json] = {
                "offset": message.offset,
                "cluster": message.cluster,
                "epoch": message.epoch,
                "reason": message.reason,
            }
            return Record("skip", message.operation_id, headers)
        case Verify(by, trusted):
            return Record("verify", "", {"by": by, "trusted": trusted})
        case Checksums():
            headers = {
                "marker": message.marker,
                "cluster": message.cluster,
                "epoch": message.epoch,
                "marked": message.marked,
                "error": message.error,
            }
            tables = json.dumps(
                dict(sorted(message.tables.items())), ensure_ascii=False, separators=(",", ":")
            )
            return Record("checksums", "", headers, tables.encode())


def check_message(record: Record) -> Check:
    """Return the message of a record of these kinds; KeyError, TypeError or ValueError."""
    h: Mapping[str, Any] = record.headers
    match record.kind:
        case "skip":
            cluster, reason = text(h["cluster"]), text(h["reason"])
            return Skip(number(h["offset"]), record.key, cluster, number(h["epoch"]), reason)
        case "verify":
            return Verify(text(h["by"]), text(h["trusted"]))
        case _:
            tables = json.loads(record.payload.decode()).items()
            return Checksums(
                number(h["marker"]),
                text(h["cluster"]),
                number(h["epoch"]),
                {text(table): text(checksum) for table, checksum in tables},
                flag(h["marked"]),
                text(h["error"]),
            )
