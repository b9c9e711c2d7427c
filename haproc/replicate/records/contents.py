"""Records of what a cluster holds: skips, checks, checksums, and the fence before its writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

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
