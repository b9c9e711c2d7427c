"""A client's request and HAProc's answer, whatever door they pass through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from haproc.classify.model import OperationClass
from haproc.engine.interface import Column, ResultStream


class Consistency(StrEnum):
    """How fresh a query's answer must be."""

    ANY = "any"


class Fanout(StrEnum):
    """How a synchronous operation reaches the other clusters."""

    SERIAL = "serial"
    PARALLEL = "parallel"


class FailureKind(StrEnum):
    """Who must act on a failed request."""

    APPLICATION = "application"
    """The statement is wrong; every cluster would say the same."""
    AVAILABILITY = "availability"
    """This HAProc cannot answer now; the next one may, with the same request id."""
    REFUSED = "refused"
    """HAProc will not run this request as it stands; nothing was changed."""


class Outcome(StrEnum):
    """What became of a failed write."""

    NOT_SENT = "NOT_SENT"
    """It is in no log and on no cluster."""
    REJECTED = "REJECTED"
    """It has no effect on any cluster, now or later."""
    UNKNOWN = "UNKNOWN"
    """It may have been or may yet be applied; asking again with the same request id tells."""


class RequestError(Exception):
    """A request failed; carries everything that the client is told."""

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        error_class: str,
        sqlstate: str = "",
        outcome: Outcome = Outcome.NOT_SENT,
        hint: str = "",
        offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.error_class = error_class
        self.sqlstate = sqlstate
        self.outcome = outcome
        self.hint = hint
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Request:
    """One statement to run.

    ``id`` is the client's idempotency key. ``statement`` has its parameters bound already.
    ``fingerprint`` is a digest of the request as the client sent it: the same id with another
    fingerprint is refused.
    """

    id: str
    statement: str
    fingerprint: str
    user: str = "anonymous"
    catalog: str | None = None
    schema: str | None = None
    session_id: str | None = None
    consistency: Consistency = Consistency.ANY
    operation_class: OperationClass | None = None
    fanout: Fanout | None = None
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """Rows to append to one table as one operation; ``rows`` is an Arrow IPC stream."""

    id: str
    table: str
    rows: bytes
    fingerprint: str
    user: str = "anonymous"
    catalog: str | None = None
    schema: str | None = None
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class HaReport:
    """The ``ha`` block of an answer: where and how the request was carried out.

    ``outcomes`` says for each cluster what is known when the answer leaves: ``applied``,
    ``queued``, ``failed: …``.
    """

    cluster: str
    operation_class: OperationClass
    offset: int | None = None
    outcomes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """A request that succeeded; ``result`` must be read to its end or closed."""

    report: HaReport
    result: ResultStream
    columns: tuple[Column, ...] | None = None
    affected_rows: int | None = None
