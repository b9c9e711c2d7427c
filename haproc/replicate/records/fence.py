"""The record in front of which a writer's writes count, and behind which they are asked about anew.

Some writers may write only for a time: a job's attempt, until another replaces it. Their writes
*rest on* a name (`Operation.rests_on`): the writer was found to be let in after the log had been
applied up to ``analyzed_to``. A ``fence`` says that this is to be looked at again, so it defines
the name anew, and a write that was let in before it and stands behind it is stale, on every cluster
alike (`replicate.log_state.definitions`). Whoever fences has shut the writer out first; so what is
looked at again is refused. Said twice it does no harm, whoever says it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dmq import Record

KIND: Final = "fence"


@dataclass(frozen=True, slots=True)
class Fence:
    """What rests on ``name`` and was looked at before this is stale behind it."""

    name: str


def fence_record(fence: Fence) -> Record:
    """Return the log record of a message."""
    return Record(KIND, fence.name, {})


def fence_message(record: Record) -> Fence:
    """Return the message of a record of this kind."""
    return Fence(record.key)
