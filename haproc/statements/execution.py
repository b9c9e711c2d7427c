"""One statement at the door for clients: its state, and how its write is revoked."""

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
    """Revoke a write that the log has, or will have soon.

    ``task`` runs the statement: it is about to append the write, or waits for its outcome. Returns
    what became of the write; UNDECIDED if the log does not have it after some seconds.
    """
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
    """Revoke the write of a request (user, id) if the log has it; return what became of it.

    None if this HAProc has not read it from the log. UNDECIDED if that cannot be found out.
    """
    user, statement_id = key
    try:
        return await service.revoke(statement_id, user)
    except RequestError as error:
        return Revoked(error.offset, Fate.UNDECIDED, error.message)


# One statement in its door, while it runs and afterwards.


class StatementState(StrEnum):
    """The state of a statement, under the names that Databricks uses."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


Key: TypeAlias = tuple[str, str]


@dataclass(eq=False, slots=True)
class Execution:
    """A statement that runs, or has run, at the door for clients.

    ``delivery``: how the client wants its result; None if the result is not kept. ``waiters``: how
    many requests wait for its end.
    """

    request: Request
    delivery: Delivery | None
    started_s: float
    state: StatementState = StatementState.PENDING
    task: asyncio.Task[Any] | None = None
    operation_class: OperationClass | None = None
    """The class under which it was carried out; None as long as there is no answer."""
    report: HaReport | None = None
    affected_rows: int | None = None
    error: RequestError | None = None
    """Raise only copies of it: an exception that was raised holds the frames that it came
    through."""
    kept: Kept = field(default_factory=Kept)
    undelivered: set[int] = field(default_factory=set)
    """The numbers of the result's chunks that the client has not fetched yet."""
    link_secret: str = field(default="", repr=False)
    """The secret in the links to its result; empty if the result is not kept."""
    asked_s: float = 0.0
    """When its client last asked for it, or for a part of its result."""
    expires_s: float = 0.0
    expires_at: datetime | None = None
    waiters: int = 0
    promised: bool = False
    """True if the client was told that the statement goes on: then a lost connection does not end
    it."""
    recalled: bool = False
    """True if its request did not come through this door: its write was found in the log."""
    cancels: int = 0
    """How often clients asked to cancel it."""
    held: Held | None = None
    """The memory that its request takes while it runs; None: none is counted."""
    abandoned: bool = False
    """True if no client wants its result any more."""
    leaves_nothing: bool = False
    """True if it may be cancelled although it is no query: it changes only its session."""
    reader: asyncio.Task[Any] | None = None
    """The task that sends the client a streamed result; None as long as none is sent."""

    @property
    def id(self) -> str:
        """The request's id, which is also the id of the statement."""
        return self.request.id

    @property
    def key(self) -> Key:
        """The statement's user and id."""
        return self.request.key

    @property
    def finished(self) -> bool:
        """True if it has ended: its state will not change any more."""
        return self.state not in (StatementState.PENDING, StatementState.RUNNING)

    @property
    def repeatable(self) -> bool:
        """True if a new request with the same id does not get this result, but runs again."""
        if self.state is StatementState.CANCELED or self.recalled:
            return True
        return self.error is not None and self.error.kind is not FailureKind.APPLICATION

    @property
    def class_label(self) -> str:
        """The class of the statement for metrics; ``unknown`` if it is not known yet.

        It is known once there is an answer, or if the request names a class.
        """
        known = self.operation_class or self.request.operation_class
        return known.value if known else "unknown"

    def take(self, found: Fit | Answer) -> None:
        """Store the class, the report and the number of affected rows from the service's answer."""
        self.operation_class = found.operation_class
        if isinstance(found, Answer):
            self.report, self.affected_rows = found.report, found.affected_rows

    def settled(self) -> HaReport:
        """Return the report of a statement that has ended; raises its RequestError if it failed.

        A statement that was stopped has no report: raises RequestError, too.
        """
        if self.error is not None:
            raise copy.copy(self.error)
        if self.report is None:
            raise stopped()
        return self.report

    def is_query(self) -> bool | None:
        """True if the statement only reads, False if it writes; None: it is not classified yet."""
        known = self.operation_class or self.request.operation_class
        return None if known is None else known is OperationClass.QUERY
