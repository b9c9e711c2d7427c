"""Results on their way to a door, piece by piece: errors become what clients are told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from haproc.engine.arrow import empty_stream, rows_in
from haproc.engine.errors import EngineError
from haproc.engine.interface import Chunk, ResultStream
from haproc.failure import WriteOutcome
from haproc.route.failing import request_error

EMPTY = Chunk(empty_stream(), 0)
"""The result of a statement that gives none."""


class Collected:
    """A result that is already here."""

    def __init__(self, chunks: Sequence[bytes]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        if not self._chunks:
            yield EMPTY
        for data in self._chunks:
            yield Chunk(data, rows_in(data))

    async def aclose(self) -> None:
        """Nothing to release."""


class Replayed:
    """A result that is here in the pieces in which the cluster gave it."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        for chunk in self._chunks:
            yield chunk

    async def aclose(self) -> None:
        """Nothing to release."""


class Resumed:
    """A result whose first pieces are here, and the others where they came from.

    ``release`` is called, once, when the first ones are not needed any more.
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
    """A query's result whose first piece has arrived; raises RequestError."""

    def __init__(
        self, first: Chunk | None, rest: AsyncIterator[Chunk], stream: ResultStream, cluster: str
    ) -> None:
        self._first = first
        self._rest = rest
        self._stream = stream
        self._cluster = cluster

    @classmethod
    async def begin(cls, stream: ResultStream, cluster: str) -> Running:
        """Wait for the first piece, so that most errors come before an answer has begun."""
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
