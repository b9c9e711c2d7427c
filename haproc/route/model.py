"""A client's request, HAProc's answer, and the interface between the doors and their HAProc."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol, TypeAlias

from dmq import Json
from haproc.classify.model import OperationClass, WriteConcern
from haproc.classify.plans.parsing import PlanReading
from haproc.classify.rights import UNBOUNDED, Rights
from haproc.config.model import Consistency
from haproc.engine.interface import Chunk, Column, ResultStream
from haproc.failure import ErrorClass
from haproc.pin.parameters import Given
from haproc.replicate.queue.facts import Revoked
from haproc.replicate.records.rows import ApplicationFailure
from haproc.route.rows.forms import ARROW, Form

# The retry ids of a request: the ids under which its write stands in the log.
#
# Mostly there is one: the request's own. A write may be rejected because its client's session or
# its rows were gone. When the client sends the request again, it brings these back. So the write is
# made again, under another id that follows from the request's own: ``ID~2``, ``ID~3`` …
#
# At most one of them is applied. A HAProc makes the next id only after it has read that the one
# before was *rejected*, which is final on every cluster; and of several operations of one id the
# first in the log counts. So a lookup goes through the ids in turn, up to the first that is
# unknown, or was not rejected for this reason.


IDS_MAX: Final = 8
"""The most ids under which one request's write may stand in the log. Chosen: sessions are not lost
so often in a row. After that the client receives the rejection."""
_AGAIN: Final = frozenset({ErrorClass.SESSION_GONE.value, ErrorClass.ROWS_GONE.value})


def retry_ids(request_id: str) -> Iterator[str]:
    """Yield the retry ids of a request in their order: ``ID``, ``ID~2``, …"""
    yield request_id
    for number in range(2, IDS_MAX + 1):
        yield f"{request_id}~{number}"


def may_be_made_again(rejection: ApplicationFailure | None) -> bool:
    """True if a write that was rejected in this way may be made again, under the next retry id."""
    return rejection is not None and rejection.error_class in _AGAIN


# The interface between the doors and the HAProc behind them.


class Service(Protocol):
    """A HAProc as its doors see it: it runs clients' requests. Methods raise only RequestError."""

    async def execute(self, request: Request) -> Answer:
        """Run the request's statement, in any form; a query's result is streamed to the caller."""
        ...

    def find_write(self, request_id: str, user: str) -> Callable[[], Awaitable[Answer]] | None:
        """Find a user's write by its request id; return a function that waits for its outcome.

        None if this HAProc has not read it from the log, or only before the idempotency window.
        """
        ...

    async def revoke(self, request_id: str, user: str) -> Revoked | None:
        """Revoke a user's write, so that no cluster applies it; return what became of it.

        None if this HAProc has not read the write from the log.
        """
        ...

    async def is_final(self, offset: int) -> bool:
        """True if the write at ``offset``, rejected here, will have no effect on any cluster.

        False also if that cannot be found out.
        """
        ...

    async def concern_met(self, offset: int, concern: WriteConcern | None) -> bool:
        """True if the write at ``offset``, which is applied here, has met its write concern.

        Waits a moment for that. ``concern``: the request's; None means the default. A rule may ask
        for more. False also if it cannot be found out.
        """
        ...

    async def open_session(
        self,
        session_id: str,
        user: str,
        statements: Sequence[str],
        *,
        afresh: bool,
        rights: Rights = UNBOUNDED,
    ) -> Mapping[str, str]:
        """Take over a client's session on this HAProc, or begin it; return its present settings.

        A new session, or any session with ``afresh``, is empty and begins by running
        ``statements``. The result has the session's catalog, schema and time zone.
        """
        ...

    async def shown(self, request: Request, *, tree: bool) -> Mapping[str, Json]:
        """Return how a SQL text would be treated if it were sent now; the text does not run.

        ``tree``: also return Spark's reading of the text.
        """
        ...

    async def close_session(self, session_id: str, user: str) -> None:
        """Close the session for good. Does nothing if there is no such session."""
        ...

    def only_reads(self, request: Request) -> bool | None:
        """True if a request that is being handled only reads; False if it writes.

        None as long as that is not known: then the log has no operation of it.
        """
        ...


# A client's request and HAProc's answer, at any door.


@dataclass(frozen=True, slots=True)
class Freshness:
    """How fresh a query's answer must be, and what the client has seen already.

    ``lag_max``: at level ``bounded``, how many of the newest records may be missing.
    ``after_offset``: the number of records, from the log's beginning, that the answer must show at
    every level but ``any``. ``seen``: for each cluster that answered the client, the number of
    records it had shown; all other clusters must show as many. The same cluster need not be
    checked: it never goes back.
    """

    level: Consistency = Consistency.ANY
    lag_max: int = 0
    after_offset: int = 0
    seen: tuple[tuple[str, int], ...] = ()


class Fanout(StrEnum):
    """How the other clusters run a synchronous operation: one after another, or on their own."""

    SERIAL = "serial"
    PARALLEL = "parallel"


@dataclass(frozen=True, slots=True)
class SentSql:
    """SQL text as the client sent it, and the parameters that will be put into it."""

    text: str
    parameters: Given | None = None


@dataclass(frozen=True, slots=True)
class Fitted:
    """The result of checking that rows fit their table: Arrow IPC streams in Spark's plain form.

    ``schema``: a stream without rows. ``few``: a stream with all rows if they fit into one record,
    else None.
    """

    schema: bytes
    few: bytes | None = None


class ManyRows(Protocol):
    """A request's body of rows, which may be too large for memory.

    It is kept until each holder has called `release`. Once it is `fit` to a table, iterating over
    it yields its rows in the form that Spark takes.
    """

    async def fit(self, columns: Sequence[Column]) -> Fitted:
        """Check that all rows fit the table's columns; raises RequestError if one does not."""
        ...

    def passed(self) -> None:
        """Note that the rows are not in memory any more: the log has them, or never will."""
        ...

    def __aiter__(self) -> AsyncGenerator[Chunk, None]: ...

    def hold(self) -> None:
        """Add a holder, who must call `release` later."""
        ...

    def release(self) -> None:
        """Remove a holder; without any holder the body is deleted."""
        ...


@dataclass(frozen=True, slots=True)
class SentRows:
    """Rows that a client appends to a table, not checked yet.

    ``stream``: the rows as bytes, or as a body on disk. ``form``: their format, such as CSV.
    """

    table: str
    stream: bytes | ManyRows
    form: Form = ARROW

    @property
    def body(self) -> ManyRows | None:
        """The rows as a body on disk; None if they are in memory."""
        return None if isinstance(self.stream, bytes) else self.stream


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A parsed Spark Connect plan, which must not be changed, and what was found in it.

    ``message``: the protobuf message, with compressed parts unpacked.
    """

    message: Any
    reading: PlanReading


@dataclass(frozen=True, slots=True)
class SentPlan:
    """A Spark Connect plan that a client sent; ``plan``: a serialized ``spark.connect.Plan``."""

    plan: bytes
    read: ReadPlan | None = field(default=None, compare=False, repr=False)
    """The plan as the door has parsed it; None if it is not parsed yet."""


Sent: TypeAlias = SentSql | SentRows | SentPlan
"""A statement as its client sent it, in one of its forms."""


class Authorization(Protocol):
    """What allows a client to send requests, if it may end early: the attempt of a job.

    When it has ended, a `Fence` record with its ``name`` is appended to the log. The client's write
    is valid only if its offset is below that of the fence.
    """

    @property
    def name(self) -> str:
        """The name that the fence record has."""
        ...

    async def check(self) -> None:
        """Raise RequestError if the authorization has ended by now."""
        ...


class RunPermit(Protocol):
    """A request's permit to run, which it can return while it waits for something else."""

    def rest(self) -> None:
        """Return the permit while the request only waits; another request may run meanwhile."""
        ...

    async def resume(self, within_s: float) -> None:
        """Wait until the request has a permit again.

        Raises RequestError if that takes longer than ``within_s`` seconds.
        """
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """One statement to run, from any door.

    ``id``: the client's idempotency key. ``fingerprint``: a digest of the request as the client
    sent it; the same id with another fingerprint is refused. ``operation_class``: the class that
    the client asks for; None: the rules decide. ``arrived_s``: the event loop's clock when the
    request came. ``age_s``: the seconds between its first sending and ``arrived_s``; 0 for a first
    attempt.
    """

    id: str
    statement: Sent
    fingerprint: str
    user: str = "anonymous"
    catalog: str | None = None
    schema: str | None = None
    session_id: str | None = None
    freshness: Freshness = Freshness()
    operation_class: OperationClass | None = None
    fanout: Fanout | None = None
    write_concern: WriteConcern | None = None
    apply_budget_s: float | None = None
    timeout_s: float = 60.0
    age_s: float = 0.0
    arrived_s: float | None = None
    rights: Rights = UNBOUNDED
    """What the user may do in this request."""
    authorization: Authorization | None = None
    """The job's attempt on whose behalf the client writes; None: its right to write does not
    end."""
    cache: bool | None = None
    """True if the client accepts a kept answer, and allows to keep this one; None: it did not
    say."""
    permit: RunPermit | None = field(default=None, compare=False, repr=False)
    """The permit that the request returns while it only waits; None if it has none to return."""

    @property
    def key(self) -> tuple[str, str]:
        """The request's user and id. The same id of another user is another request."""
        return self.user, self.id


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The part of an answer that says how the cache was used.

    ``hit``: True if this is a kept answer. ``age_s``: its age, in seconds since its query began.
    ``kept``: True if the answer is in the cache now; if not, ``reason`` says why.
    """

    hit: bool
    age_s: float = 0.0
    kept: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HaReport:
    """The ``ha`` block of an answer: where and how the request was carried out.

    ``offset``: that of the operation; None if the log has none for the request. ``outcomes``: for
    each cluster what was known when the answer left: ``applied``, ``queued``, ``failed: …``.
    ``after_offset``: a cluster that has applied this number of records shows everything that this
    answer may have shown; None if it showed nothing. ``cache``: None if the cache was not to be
    used.
    """

    cluster: str
    operation_class: OperationClass
    offset: int | None = None
    outcomes: Mapping[str, str] = field(default_factory=dict)
    after_offset: int | None = None
    cache: CacheReport | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """Tells a door that it may now run a query or session statement in the client's session.

    ``still``: the door calls it when Spark begins to answer the query, or after the session
    statement has run. If it returns False, Spark may have read tables that nobody waited for, or
    that no rule was asked about.
    """

    operation_class: OperationClass
    still: Callable[[], bool]

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request that succeeded.

    Its ``result`` must be read to its end, or closed. ``columns``: None if only the result has
    them.
    """

    report: HaReport
    result: ResultStream
    columns: tuple[Column, ...] | None = None
    affected_rows: int | None = None
    observed: tuple[bytes, ...] = ()
    """The results of the observations in the write's plan (`haproc.engine.interface.Observed`)."""

    @property
    def operation_class(self) -> OperationClass:
        """The class under which the request was carried out."""
        return self.report.operation_class

    async def aclose(self) -> None:
        """Close the result; a query that still runs is stopped."""
        await self.result.aclose()
