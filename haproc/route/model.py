"""A client's request and HAProc's answer, whatever door they pass through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from haproc.classify.model import OperationClass, WriteConcern
from haproc.config.model import Consistency
from haproc.engine.interface import Column, ResultStream
from haproc.pin.parameters import Given


@dataclass(frozen=True, slots=True)
class Freshness:
    """How fresh a query's answer must be, and what the client has seen.

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
    """How a synchronous operation reaches the other clusters."""

    SERIAL = "serial"
    PARALLEL = "parallel"


@dataclass(frozen=True, slots=True)
class SentSql:
    """SQL text, and the parameters that are to be bound into it."""

    text: str
    parameters: Given | None = None


@dataclass(frozen=True, slots=True)
class SentRows:
    """Rows to append to a table; ``stream`` is an Arrow IPC stream, not looked at yet."""

    table: str
    stream: bytes


Sent: TypeAlias = SentSql | SentRows
"""A statement as its client sent it, in one of its forms."""


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
    timeout_s: float = 60.0
    age_s: float = 0.0
    arrived_s: float | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Whose request it is, and its id: another user's of the same id is another one."""
        return self.user, self.id


@dataclass(frozen=True, slots=True)
class HaReport:
    """The ``ha`` block of an answer: where and how the request was carried out.

    ``outcomes`` says for each cluster what is known when the answer leaves: ``applied``,
    ``queued``, ``failed: …``. ``after_offset``: a cluster that has applied so many records of the
    log shows whatever this answer may have shown; None if it showed nothing.
    """

    cluster: str
    operation_class: OperationClass
    offset: int | None = None
    outcomes: Mapping[str, str] = field(default_factory=dict)
    after_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A request that succeeded; ``result`` must be read to its end or closed."""

    report: HaReport
    result: ResultStream
    columns: tuple[Column, ...] | None = None
    affected_rows: int | None = None
