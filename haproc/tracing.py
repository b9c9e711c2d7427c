"""Functions that the code calls for tracing; each does nothing unless tracing is on.

A request is a span: of its client's trace if it has a ``traceparent``, otherwise of a new trace.
The span has the events `DURABLE` and `APPLIED`. Below it are the statements that this cluster's
Spark runs for it. The work of other clusters on the operation is not in the trace: the log has no
place for a trace's id.

Spans contain names, ids and figures, never texts or values of statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Protocol

DURABLE: Final = "durable"
"""The event: the log has the operation, so it is durable for all clusters."""
APPLIED: Final = "applied"
"""The event: the operation's outcome on this cluster is known."""


@dataclass(frozen=True, slots=True)
class StatementSpan:
    """The span of a call to Spark: send it with ``headers``, and call ``end`` when it has ended."""

    headers: tuple[tuple[str, str], ...]
    end: Callable[[], None]


class Tracing(Protocol):
    """The recorder of traces, see `haproc.otel`; this module's functions describe its methods."""

    def received(self, carrier: Mapping[str, str], call: str) -> AbstractContextManager[None]: ...

    def request(self, key: tuple[str, str]) -> AbstractContextManager[None]: ...

    def reached(self, moment: str, offset: int) -> None: ...

    def applying(
        self, keys: Iterable[tuple[str, str]], offsets: Sequence[int]
    ) -> AbstractContextManager[None]: ...

    def statement(self, rpc: str) -> StatementSpan | None: ...

    def headers(self) -> Mapping[str, str]: ...


on: Tracing | None = None
_OFF: Final[AbstractContextManager[None]] = nullcontext()


def use(tracing: Tracing | None) -> None:
    """Switch tracing on; off with None."""
    global on
    on = tracing


def received(carrier: Mapping[str, str], call: str = "") -> AbstractContextManager[None]:
    """Continue, within this context, the trace that a request's headers or gRPC metadata name.

    With ``call``, a span of this name covers the context: give it if the call lasts longer than the
    `request` in it.
    """
    return _OFF if on is None else on.received(carrier, call)


def request(key: tuple[str, str]) -> AbstractContextManager[None]:
    """Make a span of a request within this context; ``key``: its user and request id."""
    return _OFF if on is None else on.request(key)


def reached(moment: str, offset: int) -> None:
    """Add the event ``moment`` (DURABLE or APPLIED) to the span of the request in this task."""
    if on is not None:
        on.reached(moment, offset)


def applying(
    keys: Iterable[tuple[str, str]], offsets: Sequence[int]
) -> AbstractContextManager[None]:
    """Make a span of operations that are applied in one statement.

    There is none if no request with a running span sent one of them. ``keys``: the user and request
    id of each operation.
    """
    return _OFF if on is None else on.applying(keys, offsets)


def statement(rpc: str) -> StatementSpan | None:
    """Begin the span of the call ``rpc`` to Spark.

    None if tracing is off, or the current task has no trace.
    """
    return None if on is None else on.statement(rpc)
