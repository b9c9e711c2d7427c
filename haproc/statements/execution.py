"""One statement in its door: its state, and its revocation."""

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

# Revokes a client's write, as soon as the log has it.


_WAIT_S: Final = 5.0
_LOOK_S: Final = 0.1


async def take_back(service: Service, key: Key, task: asyncio.Task[Any]) -> Revoked:
    """Revoke a write that ``task`` is about to append to the log, or waits for."""
    clock = asyncio.get_running_loop().time
    until = clock() + _WAIT_S
    # A rejected write may be made again as long as its task runs, see `route.model`.
    while (found := await revoke(service, key)) is None or found.fate is Fate.REJECTED:
        if task.done():
            return found or Revoked(None, Fate.ENDED)
        if clock() > until:
            return found or Revoked(None, Fate.UNDECIDED, "it is not in the log yet, and goes on")
        await asyncio.wait({task}, timeout=_LOOK_S)
    return found


async def revoke(service: Service, key: Key) -> Revoked | None:
    """Revoke the operation that the log has of a request; None if it has none."""
    user, statement_id = key
    try:
        return await service.revoke(statement_id, user)
    except RequestError as error:
        return Revoked(error.offset, Fate.UNDECIDED, error.message)


# One statement in its door, while it runs and afterwards.


class StatementState(StrEnum):
    """The states of a statement, as Databricks names them."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


Key: TypeAlias = tuple[str, str]


@dataclass(eq=False, slots=True)
class Execution:
    """A statement; ``delivery`` is None if its result is not kept."""

    request: Request
    delivery: Delivery | None
    started_s: float
    state: StatementState = StatementState.PENDING
    task: asyncio.Task[Any] | None = None
    operation_class: OperationClass | None = None
    """The class under which it was carried out; None until there is an answer."""
    report: HaReport | None = None
    affected_rows: int | None = None
    error: RequestError | None = None
    """Copies of it are raised: a raised exception holds the frames that it came through."""
    kept: Kept = field(default_factory=Kept)
    undelivered: set[int] = field(default_factory=set)
    """Chunks that the client has not fetched yet."""
    link_secret: str = field(default="", repr=False)
    """The secret in its result's links; empty if the result is not kept."""
    asked_s: float = 0.0
    """The last time that its client asked for it, or for a part of its result."""
    expires_s: float = 0.0
    expires_at: datetime | None = None
    waiters: int = 0
    promised: bool = False
    """True if the client knows that the statement goes on: no lost connection ends it then."""
    recalled: bool = False
    """True if it was found in the log, and did not come through this door."""
    cancels: int = 0
    """The number of requests to end it."""
    held: Held | None = None
    """The memory that its request takes while it runs."""
    abandoned: bool = False
    """True if no client wants the result any more."""
    leaves_nothing: bool = False
    """True if it may be cancelled although it is no query: it only affects its session."""
    reader: asyncio.Task[Any] | None = None
    """The task that sends a streamed result."""

    @property
    def id(self) -> str:
        """The id of the request and of the statement."""
        return self.request.id

    @property
    def key(self) -> Key:
        """The statement's user and id."""
        return self.request.key

    @property
    def finished(self) -> bool:
        """True if the state will not change any more."""
        return self.state not in (StatementState.PENDING, StatementState.RUNNING)

    @property
    def repeatable(self) -> bool:
        """True if a new request with the same id runs the statement anew."""
        if self.state is StatementState.CANCELED or self.recalled:
            return True
        return self.error is not None and self.error.kind is not FailureKind.APPLICATION

    @property
    def class_label(self) -> str:
        """The class for metrics; known once there is an answer, if the request did not say it."""
        known = self.operation_class or self.request.operation_class
        return known.value if known else "unknown"

    def take(self, found: Fit | Answer) -> None:
        """Note the service's answer to the request."""
        self.operation_class = found.operation_class
        if isinstance(found, Answer):
            self.report, self.affected_rows = found.report, found.affected_rows

    def settled(self) -> HaReport:
        """Return the report of an ended statement; raises RequestError if it has none."""
        if self.error is not None:
            raise copy.copy(self.error)
        if self.report is None:
            raise stopped()
        return self.report

    def is_query(self) -> bool | None:
        """True if the statement only reads; None if only its classification can show that."""
        known = self.operation_class or self.request.operation_class
        return None if known is None else known is OperationClass.QUERY
