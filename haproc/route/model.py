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
"""Chosen: sessions are not lost so often in a row. After that the client gets the rejection."""
_AGAIN: Final = frozenset({ErrorClass.SESSION_GONE.value, ErrorClass.ROWS_GONE.value})


def retry_ids(request_id: str) -> Iterator[str]:
    """Yield a request's retry ids in their order."""
    yield request_id
    for number in range(2, IDS_MAX + 1):
        yield f"{request_id}~{number}"


def may_be_made_again(rejection: ApplicationFailure | None) -> bool:
    """True if a write with this rejection may be made again, under its request's next retry id."""
    return rejection is not None and rejection.error_class in _AGAIN


# The interface between the doors and the HAProc behind them.


class Service(Protocol):
    """Runs clients' requests. Every method raises RequestError and nothing else."""

    async def execute(self, request: Request) -> Answer:
        """Run the statement, whatever form it has; a query's result streams."""
        ...

    def find_write(self, request_id: str, user: str) -> Callable[[], Awaitable[Answer]] | None:
        """Return a function that awaits the outcome of this user's write; None if it is not known.

        It is known if this HAProc has read it from the log, within the idempotency window.
        """
        ...

    async def revoke(self, request_id: str, user: str) -> Revoked | None:
        """Revoke this user's write; None if it was not read from the log here."""
        ...

    async def is_final(self, offset: int) -> bool:
        """True if a write that was rejected here has no effect on any cluster, now or later.

        False also where that is not known.
        """
        ...

    async def concern_met(self, offset: int, concern: WriteConcern | None) -> bool:
        """True if a write that is applied here has met this concern, now or in a moment.

        ``concern``: None means the default. A rule may ask for more.
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
        """Open a client's session here; a new one, or ``afresh``, begins with the statements.

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


# A client's request and HAProc's answer, at any door.


@dataclass(frozen=True, slots=True)
class Freshness:
    """The freshness that a query's answer needs, and the offsets that the client has seen.

    ``lag_max``: the records that may be missing at level bounded. ``after_offset``: the number of
    records, counted from the log's beginning, that the answer must show at every level but any.
    ``seen``: such a number for each cluster that answered the client; it counts on all other
    clusters, because no cluster goes back behind what it has shown.
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

    ``schema`` has none of the rows, ``few`` all of them if they fit into one record.
    """

    schema: bytes
    few: bytes | None = None


class ManyRows(Protocol):
    """A body of rows that may be too large for memory; `release` it as often as it was held.

    Once it is `fit` to a table, iterating gives its rows as Spark takes them.
    """

    async def fit(self, columns: Sequence[Column]) -> Fitted:
        """Check that all rows fit the columns; raises RequestError if one does not."""
        ...

    def passed(self) -> None:
        """Note that its rows have left memory: they are in the log, or never will be."""
        ...

    def __aiter__(self) -> AsyncGenerator[Chunk, None]: ...

    def hold(self) -> None:
        """Add a holder."""
        ...

    def release(self) -> None:
        """Drop a holder; without holders the body is deleted."""
        ...


@dataclass(frozen=True, slots=True)
class SentRows:
    """Rows to append to a table, not checked yet; ``stream``: bytes if they are in memory."""

    table: str
    stream: bytes | ManyRows
    form: Form = ARROW

    @property
    def body(self) -> ManyRows | None:
        """The rows, if they are not in memory."""
        return None if isinstance(self.stream, bytes) else self.stream


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """A plan, parsed and not compressed, which is not changed any more, and its reading."""

    message: Any
    reading: PlanReading


@dataclass(frozen=True, slots=True)
class SentPlan:
    """A Spark Connect plan that writes; ``plan`` is a serialized ``spark.connect.Plan``."""

    plan: bytes
    read: ReadPlan | None = field(default=None, compare=False, repr=False)
    """The plan as the door has read it; None: it is not read yet."""


Sent: TypeAlias = SentSql | SentRows | SentPlan
"""A statement as its client sent it, in one of its forms."""


class Authorization(Protocol):
    """The reason for which a client was admitted, if it may end meanwhile: a job's attempt.

    When it has ended, a `Fence` of its ``name`` is appended to the log. A write that rests on it
    counts only before that fence.
    """

    @property
    def name(self) -> str:
        """The name in its fence."""
        ...

    async def check(self) -> None:
        """Raise RequestError if it had ended when this was called."""
        ...


class RunPermit(Protocol):
    """A request's permit to run."""

    def rest(self) -> None:
        """Return the permit while the request only waits."""
        ...

    async def resume(self, within_s: float) -> None:
        """Wait for a permit again; raises RequestError after ``within_s``."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """One statement to run, whatever door it came by.

    ``id`` is the client's idempotency key. ``fingerprint`` is a digest of the request as the client
    sent it: the same id with another fingerprint is refused. ``arrived_s`` is the loop's clock when
    the request came, and ``age_s`` the time between its first sending and ``arrived_s``.
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
    """The user's rights in this request."""
    authorization: Authorization | None = None
    """None: the client's admission does not end."""
    cache: bool | None = None
    """True if a kept answer will do, and this one may be kept; None: not stated."""
    permit: RunPermit | None = field(default=None, compare=False, repr=False)
    """The permit that the request returns while it only waits; None: it has none to return."""

    @property
    def key(self) -> tuple[str, str]:
        """The request's user and id. The same id of another user is another request."""
        return self.user, self.id


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The cache's part in an answer, for a request that may use the cache.

    ``age_s``: seconds since the query of a kept answer began. ``kept``: True if this answer is kept
    now; otherwise ``reason`` says why it is not.
    """

    hit: bool
    age_s: float = 0.0
    kept: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class HaReport:
    """The ``ha`` block of an answer: where and how the request was carried out.

    ``outcomes``: for each cluster the state known when the answer leaves: ``applied``, ``queued``,
    ``failed: …``. ``after_offset``: a cluster that has applied this number of records shows
    everything that this answer may have shown; None if it showed nothing. ``cache``: None if not
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
    """A request that its door may run now, in the client's session.

    ``operation_class``: a query, or a statement of the session. ``still``: the door calls it when
    Spark begins to answer a query, or when a session statement has run. If it returns False, Spark
    may have read tables that were not waited for, or that no rule was asked about.
    """

    operation_class: OperationClass
    still: Callable[[], bool]

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A request that succeeded; its result must be read to its end, or closed."""

    report: HaReport
    result: ResultStream
    columns: tuple[Column, ...] | None = None
    affected_rows: int | None = None
    observed: tuple[bytes, ...] = ()
    """The results of a write's observations, see `haproc.engine.interface.Observed`."""

    @property
    def operation_class(self) -> OperationClass:
        """The class under which the request was carried out."""
        return self.report.operation_class

    async def aclose(self) -> None:
        """Close the result."""
        await self.result.aclose()
