"""A client's request, HAProc's answer, and what the doors ask of the HAProc behind them."""

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
# Mostly there is one: the request's own. A write that was rejected because something was gone that
# its client brings back (its session, its rows) is made again when the request is sent again,
# under another id that follows from its own: ``ID~2``, ``ID~3`` …
#
# Applied is at most one of them. Each id is made only by a HAProc that has read that the one before
# it was *rejected*, which is final on every cluster; and of several operations of one id the first
# in the log counts. So a lookup goes through the ids in turn, up to the first that is unknown, or
# was not rejected so.


IDS_MAX: Final = 8
"""Chosen: sessions are not lost so often in a row; then its client gets the rejection."""
_AGAIN: Final = frozenset({ErrorClass.SESSION_GONE.value, ErrorClass.ROWS_GONE.value})


def retry_ids(request_id: str) -> Iterator[str]:
    """Yield a request's ids in their order."""
    yield request_id
    for number in range(2, IDS_MAX + 1):
        yield f"{request_id}~{number}"


def may_be_made_again(rejection: ApplicationFailure | None) -> bool:
    """True if the same request may succeed, given the reason for which its write was rejected."""
    return rejection is not None and rejection.error_class in _AGAIN


# What the doors ask of the HAProc behind them.


class Service(Protocol):
    """Runs clients' requests. Every method raises RequestError and nothing else."""

    async def execute(self, request: Request) -> Answer:
        """Run the statement, whatever form it has; a query's result streams."""
        ...

    def find_write(self, request_id: str, user: str) -> Callable[[], Awaitable[Answer]] | None:
        """Return the attempt that awaits the outcome of this user's write; None if it is not here.

        Here: read from the log by this HAProc, within the window of request ids.
        """
        ...

    async def revoke(self, request_id: str, user: str) -> Revoked | None:
        """Take this user's write back for him; None if it was not read from the log here."""
        ...

    async def is_final(self, offset: int) -> bool:
        """True if a write that was rejected here has no effect on any cluster, now or later.

        False also where that is not known.
        """
        ...

    async def concern_met(self, offset: int, concern: WriteConcern | None) -> bool:
        """True if a write that is applied here has met this concern, now or in a moment.

        None: the one that a request without any has. A rule may ask for more.
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
        """Have a client's session here; one that is new, or ``afresh``, begins with statements.

        Returns the session's current catalog, schema and time zone.
        """
        ...

    async def shown(self, request: Request, *, tree: bool) -> Mapping[str, Json]:
        """Return the classification of a SQL text that is sent now; it does not run."""
        ...

    async def close_session(self, session_id: str, user: str) -> None:
        """Close the session for good; closing one that is not there is harmless."""
        ...

    def only_reads(self, request: Request) -> bool | None:
        """True if a request under way only reads.

        None while that is not known: then nothing of it is in the log.
        """
        ...


# A client's request and HAProc's answer, whatever door they pass through.


@dataclass(frozen=True, slots=True)
class Freshness:
    """The freshness that a query's answer needs, and the offsets that the client has seen.

    ``lag_max``: records that may lack at level bounded. ``after_offset``: so many records, counted
    from the log's beginning, the answer must show at every level but any. ``seen``: such a number
    for each cluster that answered the client; it counts on all other clusters, because none ever
    goes back behind what it has shown itself.
    """

    level: Consistency = Consistency.ANY
    lag_max: int = 0
    after_offset: int = 0
    seen: tuple[tuple[str, int], ...] = ()


class Fanout(StrEnum):
    """The way of a synchronous operation to the other clusters."""

    SERIAL = "serial"
    PARALLEL = "parallel"


@dataclass(frozen=True, slots=True)
class SentSql:
    """SQL text, and the parameters that are to be bound into it."""

    text: str
    parameters: Given | None = None


@dataclass(frozen=True, slots=True)
class Fitted:
    """Rows that were found to fit their table, as Arrow IPC streams in Spark's plain form.

    ``schema`` has none of the rows, ``few`` all of them if they make one record.
    """

    schema: bytes
    few: bytes | None = None


class ManyRows(Protocol):
    """A body of rows that may be too large for memory; `release` it as often as it was held.

    Once it is `fit` to a table, iterating gives its rows as Spark takes them.
    """

    async def fit(self, columns: Sequence[Column]) -> Fitted:
        """Look at all rows whether they fit the columns; raises RequestError if any does not."""
        ...

    def passed(self) -> None:
        """Take note that the log has its rows, or never will: they are not in memory any more."""
        ...

    def __aiter__(self) -> AsyncGenerator[Chunk, None]: ...

    def hold(self) -> None:
        """Keep it for one more."""
        ...

    def release(self) -> None:
        """Keep it for one less; after the last one it is gone."""
        ...


@dataclass(frozen=True, slots=True)
class SentRows:
    """Rows to append to a table, not looked at yet; ``stream`` is an Arrow IPC stream if bytes."""

    table: str
    stream: bytes | ManyRows
    form: Form = ARROW

    @property
    def body(self) -> ManyRows | None:
        """The rows, if they are not in memory."""
        return None if isinstance(self.stream, bytes) else self.stream


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A plan, parsed and not compressed, which nobody changes any more, and what it is."""

    message: Any
    reading: PlanReading


@dataclass(frozen=True, slots=True)
class SentPlan:
    """A Spark Connect plan that writes; ``plan`` is a serialized ``spark.connect.Plan``."""

    plan: bytes
    read: ReadPlan | None = field(default=None, compare=False, repr=False)
    """The same as it was read where it came in; None: it is yet to be read."""


Sent: TypeAlias = SentSql | SentRows | SentPlan
"""A statement as its client sent it, in one of its forms."""


class Authorization(Protocol):
    """By what a client was let in that may end while it asks, such as a job's attempt.

    Once it has ended, a `Fence` of its ``name`` is put into the log; so a write that rests on it
    counts in front of the fence only.
    """

    @property
    def name(self) -> str:
        """The name in its fence."""
        ...

    async def check(self) -> None:
        """Return if it had not ended when this was called; else raise RequestError."""
        ...


class RunPermit(Protocol):
    """A request's place among those that are under way."""

    def rest(self) -> None:
        """Give it to the next one: there is nothing to be done but to wait."""
        ...

    async def resume(self, within_s: float) -> None:
        """Have one again, once it is this one's turn; raises RequestError."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """One statement to run, whatever door it came by.

    ``id`` is the client's idempotency key. ``fingerprint`` is a digest of the request as the client
    sent it: the same id with another fingerprint is refused. ``arrived_s`` is when the request
    came, by the event loop's clock, and ``age_s`` how long before that it was sent for the first
    time.
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
    """Those of the user, as this request shows them."""
    standing: Authorization | None = None
    """None for an admission that does not end."""
    cache: bool | None = None
    """True if a kept answer will do, and this one may be kept; None: not stated."""
    place: RunPermit | None = field(default=None, compare=False, repr=False)
    """None for the reader, which may be another process."""

    @property
    def key(self) -> tuple[str, str]:
        """The request's user and id. The same id of another user is another request."""
        return self.user, self.id


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The cache's part in an answer, for a request that may use the cache.

    ``age_s``: seconds since the query of a kept answer began. ``kept``: True if this answer is kept
    now; otherwise ``reason``.
    """

    hit: bool
    age_s: float = 0.0
    kept: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HaReport:
    """The ``ha`` block of an answer: where and how the request was carried out.

    ``outcomes``: for each cluster the state known when the answer leaves: ``applied``, ``queued``,
    ``failed: …``. ``after_offset``: a cluster that has applied so many records of the log shows
    whatever this answer may have shown; None if it showed nothing. ``cache``: None where it was not
    asked for.
    """

    cluster: str
    operation_class: OperationClass
    offset: int | None = None
    outcomes: Mapping[str, str] = field(default_factory=dict)
    after_offset: int | None = None
    cache: CacheReport | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """A request that its sender may run now, in its session.

    ``operation_class``: as what, a query or a statement of the session. ``still``: whoever runs a
    query asks when Spark begins to answer, and whoever changes a session once that has run; if not,
    it may have read tables that were not waited for, or not asked about.
    """

    operation_class: OperationClass
    still: Callable[[], bool]

    async def aclose(self) -> None:
        """Nothing to release."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A request that succeeded; its result must be read to its end, or it be closed."""

    report: HaReport
    result: ResultStream
    columns: tuple[Column, ...] | None = None
    affected_rows: int | None = None
    observed: tuple[bytes, ...] = ()
    """The results of a write's observations, see `haproc.engine.interface.Observed`."""

    @property
    def operation_class(self) -> OperationClass:
        """As what the request was carried out."""
        return self.report.operation_class

    async def aclose(self) -> None:
        """Let go of the result."""
        await self.result.aclose()
