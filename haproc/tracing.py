"""Where traces are taken: a hook at each place, which does nothing unless tracing is on.

A request is a span: of its client's trace if it brings a ``traceparent``, of a new one else. Its
span has the moments `DURABLE` and `APPLIED`; below it are the statements that Spark runs for it
here. What other clusters do with an operation is not in it: the log has no place for a trace.

Names, ids and figures are told, never texts or values of statements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Protocol

DURABLE: Final = "durable"
"""The log holds the operation, for all clusters."""
APPLIED: Final = "applied"
"""Its outcome on this cluster is known."""


@dataclass(frozen=True, slots=True)
class StatementSpan:
    """``headers`` go with the statement; ``end`` is called when it has ended."""

    headers: tuple[tuple[str, str], ...]
    end: Callable[[], None]


class Tracing(Protocol):
    """What takes traces, see `haproc.otel`; the functions of this module say what each does."""

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
    """Continue the trace that the headers or metadata of a request name, if they do.

    ``call``: the name of a span for all of it, if it is more than what `request` covers.
    """
    return _OFF if on is None else on.received(carrier, call)


def request(key: tuple[str, str]) -> AbstractContextManager[None]:
    """Cover a request, which is known by its user and id, up to its answer."""
    return _OFF if on is None else on.request(key)


def reached(moment: str, offset: int) -> None:
    """Note a moment of the request that runs in this task."""
    if on is not None:
        on.reached(moment, offset)


def applying(
    keys: Iterable[tuple[str, str]], offsets: Sequence[int]
) -> AbstractContextManager[None]:
    """Cover operations that are applied as one, if a request under way brought one of them."""
    return _OFF if on is None else on.applying(keys, offsets)


def statement(rpc: str) -> StatementSpan | None:
    """Begin the span of a statement that Spark runs; None if nothing that is traced needs it."""
    return None if on is None else on.statement(rpc)
