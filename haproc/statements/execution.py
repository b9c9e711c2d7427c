"""One statement on its way through the door: run, taken back, and what is left afterwards."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, TypeAlias

from haproc.classify.model import OperationClass
from haproc.failure import FailureKind, RequestError
from haproc.replicate.queue.facts import Fate, Revoked
from haproc.route.model import Answer, Fit, HaReport, Request, Service
from haproc.statements.request import Delivery
from haproc.statements.request_admission import Held, stopped
from haproc.statements.store import Kept

# Takes a client's write back, as soon as the log has it.


_WAIT_S: Final = 5.0
_LOOK_S: Final = 0.1


async def take_back(service: Service, key: Key, task: asyncio.Task[Any]) -> Revoked:
    """Take back a write that ``task`` is about to put into the log, or waits for."""
    clock = asyncio.get_running_loop().time
    until = clock() + _WAIT_S
    # What is rejected may be made again as long as its task runs, see `route.model`.
    while (found := await revoke(service, key)) is None or found.fate is Fate.REJECTED:
        if task.done():
            return found or Revoked(None, Fate.ENDED)
        if clock() > until:
            return found or Revoked(None, Fate.UNDECIDED, "it is not in the log yet, and goes on")
        await asyncio.wait({task}, timeout=_LOOK_S)
    return found


async def revoke(service: Service, key: Key) -> Revoked | None:
    """Take back what the log has of a request; None if it has nothing."""
    user, statement_id = key
    try:
        return await service.revoke(statement_id, user)
    except RequestError as error:
        return Revoked(error.offset, Fate.UNDECIDED, error.message)


# One statement on its way through the door, and what is left of it afterwards.


class StatementState(StrEnum):
    """As Databricks names them."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


Key: TypeAlias = tuple[str, str]


@dataclass(eq=False, slots=True)
class Execution:
    """A statement; ``delivery`` is None for one whose result is not kept."""

    request: Request
    delivery: Delivery | None
    started_s: float
    state: StatementState = StatementState.PENDING
    task: asyncio.Task[Any] | None = None
    operation_class: OperationClass | None = None
    """As what it was carried out; known once there is an answer."""
    report: HaReport | None = None
    affected_rows: int | None = None
    error: RequestError | None = None
    """Copies of it are raised, for an exception holds the frames that it came through."""
    kept: Kept = field(default_factory=Kept)
    undelivered: set[int] = field(default_factory=set)
    """Chunks that the client has not fetched yet."""
    link_secret: str = field(default="", repr=False)
    """Of one whose result is kept."""
    asked_s: float = 0.0
    """When its client asked for it, or a part of its result, last."""
    expires_s: float = 0.0
    expires_at: datetime | None = None
    waiters: int = 0
    promised: bool = False
    """The client was told that the statement goes on: nobody's disconnect ends it."""
    recalled: bool = False
    """It was found in the log, and did not come through this door."""
    cancels: int = 0
    """How often somebody wanted it ended."""
    held: Held | None = None
    """What of its request is in memory while it runs."""
    abandoned: bool = False
    """Nobody wants the result any more."""
    leaves_nothing: bool = False
    """Whether it may be cancelled although it is no query: nobody but its session would notice."""
    reader: asyncio.Task[Any] | None = None
    """Who sends a streamed result."""

    @property
    def id(self) -> str:
        """The request's id, which is the statement's."""
        return self.request.id

    @property
    def key(self) -> Key:
        """Whose statement it is, and its id."""
        return self.request.key

    @property
    def finished(self) -> bool:
        """Whether the state will not change any more."""
        return self.state not in (StatementState.PENDING, StatementState.RUNNING)

    @property
    def repeatable(self) -> bool:
        """Whether asking again with the same id runs the statement anew."""
        if self.state is StatementState.CANCELED or self.recalled:
            return True
        return self.error is not None and self.error.kind is not FailureKind.APPLICATION

    @property
    def class_label(self) -> str:
        """The class for metrics; known once there is an answer, if the request did not say it."""
        known = self.operation_class or self.request.operation_class
        return known.value if known else "unknown"

    def take(self, found: Fit | Answer) -> None:
        """Take in what the service says to the request."""
        self.operation_class = found.operation_class
        if isinstance(found, Answer):
            self.report, self.affected_rows = found.report, found.affected_rows

    def settled(self) -> HaReport:
        """Return how it was carried out, once it has ended; raises RequestError if it was not."""
        if self.error is not None:
            raise copy.copy(self.error)
        if self.report is None:
            raise stopped()
        return self.report

    def is_query(self) -> bool | None:
        """Whether it only reads; None while only classification could tell."""
        known = self.operation_class or self.request.operation_class
        return None if known is None else known is OperationClass.QUERY
