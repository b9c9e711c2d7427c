"""Results that are passed to a door piece by piece, and clients' errors for failures of Spark."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from haproc.classify.model import RefusedError
from haproc.engine.arrow import empty_stream, rows_in
from haproc.engine.errors import UNKNOWN, EngineError, ErrorKind, NoQueryError
from haproc.engine.interface import Chunk, ResultStream
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome
from haproc.failure import refused as refusal

# Clients' errors for failed requests.


def refused(error: RefusedError) -> RequestError:
    """Turn a RefusedError into the RequestError that the client receives."""
    return refusal(error.error_class, error.message, error.hint)


def timed_out(
    timeout_s: float, cluster: str, outcome: WriteOutcome = WriteOutcome.UNKNOWN
) -> RequestError:
    """Return the client's error for a request whose timeout is over."""
    return RequestError(
        FailureKind.AVAILABILITY,
        f"cluster {cluster} did not finish within {timeout_s:g} s",
        error_class=ErrorClass.TIMEOUT,
        outcome=outcome,
        hint="ask again with the same request_id",
    )


def request_error(error: EngineError, cluster: str, outcome: WriteOutcome) -> RequestError:
    """Turn an error of a cluster's Spark into the RequestError that the client receives.

    ``outcome``: what is known of the write's effect if it is no application error.
    """
    if isinstance(error, NoQueryError):
        return refusal(
            ErrorClass.ANALYSIS_DIFFERS,
            f"Spark takes the statement for {', '.join(error.effects)}, not for a query",
            "send a query by itself, without other statements, and call only functions of SQL",
        )
    if error.kind is ErrorKind.APPLICATION:
        is_ours = error.error_class.startswith("HAPROC_")
        return RequestError(
            FailureKind.REFUSED if is_ours else FailureKind.APPLICATION,
            error.message,
            error_class=error.error_class,
            sqlstate=error.sqlstate,
            outcome=WriteOutcome.REJECTED,
            details=error.details,
        )
    unexplained = error.kind is ErrorKind.ENVIRONMENT and error.error_class in ("", UNKNOWN)
    return RequestError(
        FailureKind.AVAILABILITY,
        f"cluster {cluster}: {error.message}",
        error_class=ErrorClass.UNKNOWN_ERROR
        if unexplained
        else error.error_class or ErrorClass(f"HAPROC_{error.kind.upper()}"),
        sqlstate=error.sqlstate,
        outcome=outcome,
        hint="ask the next HAProc with the same request_id",
    )


def no_query(me: str, found: str) -> RequestError:
    """Return the error for a forwarded statement that is no query by this cluster's rules.

    ``found``: the class of the statement here.
    """
    return refusal(
        ErrorClass.NO_QUERY,
        f"cluster {me} takes the statement for {found}, not for a query",
        "the HAProcs' rules differ: restart those that have not read them",
    )


# Results on their way to a door, piece by piece: errors become clients' errors.


EMPTY = Chunk(empty_stream(), 0)
"""The only chunk of a result without rows and columns."""


class Collected:
    """A result whose Arrow streams are in memory already."""

    def __init__(self, chunks: Sequence[bytes]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        if not self._chunks:
            yield EMPTY
        for data in self._chunks:
            yield Chunk(data, rows_in(data))

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""


class Replayed:
    """A result whose chunks, as the cluster gave them, are in memory already."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        for chunk in self._chunks:
            yield chunk

    async def aclose(self) -> None:
        """Do nothing: there is nothing to release."""


class Resumed:
    """A result whose first chunks are in memory; the others still come from the cluster.

    ``release`` is called once, when the first chunks are not needed in memory any more.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        rest: AsyncIterator[Chunk],
        result: ResultStream,
        release: Callable[[], None],
    ) -> None:
        self._chunks = chunks
        self._rest = rest
        self._result = result
        self._release = release

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        for chunk in self._chunks:
            yield chunk
        self._let_go()
        async for chunk in self._rest:
            yield chunk

    async def aclose(self) -> None:
        """Stop the query if it still runs."""
        self._let_go()
        await self._result.aclose()

    def _let_go(self) -> None:
        if self._chunks:
            self._chunks = ()
            self._release()


class Running:
    """A query's result whose first chunk has arrived; iterating raises RequestError."""

    def __init__(
        self, first: Chunk | None, rest: AsyncIterator[Chunk], stream: ResultStream, cluster: str
    ) -> None:
        self._first = first
        self._rest = rest
        self._stream = stream
        self._cluster = cluster

    @classmethod
    async def begin(cls, stream: ResultStream, cluster: str) -> Running:
        """Wait for the result's first chunk: most errors come before it, and before the answer."""
        rest = aiter(stream)
        try:
            return cls(await anext(rest, None), rest, stream, cluster)
        except BaseException:
            await stream.aclose()
            raise

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        yield self._first or EMPTY
        try:
            async for chunk in self._rest:
                yield chunk
        except EngineError as error:
            raise request_error(error, self._cluster, WriteOutcome.NOT_SENT) from error

    async def aclose(self) -> None:
        """Stop the query if it still runs."""
        await self._stream.aclose()
