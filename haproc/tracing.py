"""The hooks of tracing, each of which does nothing unless tracing is on.

A request is a span: of its client's trace if it brings a ``traceparent``, otherwise of a new one.
Its span has the moments `DURABLE` and `APPLIED`; below it are the statements that Spark runs for it
here. The work of other clusters on an operation is not in it: the log has no place for a trace.

Spans contain names, ids and figures, never texts or values of statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Protocol

DURABLE: Final = "durable"
"""The log holds the operation, for all clusters."""
APPLIED: Final = "applied"
"""The operation's outcome on this cluster is known."""


@dataclass(frozen=True, slots=True)
class StatementSpan:
    """``headers`` go with the statement; ``end`` is called when it has ended."""

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
    """Switch tracing on, or off."""
    global on
    on = tracing


def received(carrier: Mapping[str, str], call: str = "") -> AbstractContextManager[None]:
    """Continue the trace that a request's headers or metadata name, if they name one.

    ``call``: the name of a span for the whole call, if that is more than `request` covers.
    """
    return _OFF if on is None else on.received(carrier, call)


def request(key: tuple[str, str]) -> AbstractContextManager[None]:
    """Make a span of a request, which is known by its user and id, up to its answer."""
    return _OFF if on is None else on.request(key)


def reached(moment: str, offset: int) -> None:
    """Note a moment of the request that runs in this task."""
    if on is not None:
        on.reached(moment, offset)


def applying(
    keys: Iterable[tuple[str, str]], offsets: Sequence[int]
) -> AbstractContextManager[None]:
    """Make a span of operations that are applied as one, if a running request brought one.

    ``keys``: the users and ids of the operations' requests.
    """
    return _OFF if on is None else on.applying(keys, offsets)


def statement(rpc: str) -> StatementSpan | None:
    """Begin the span of a statement that Spark runs; None if it belongs to no trace."""
    return None if on is None else on.statement(rpc)
