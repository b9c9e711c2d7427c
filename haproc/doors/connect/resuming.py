"""One run of a query, followed: what a client has after each response, and what it had before.

A run that goes on for a client who has some rows already passes over so many, in whatever batches
they come now, and looks whether they are the same ones. They may end inside a batch, whose other
rows are then written anew. Rows that differ, or are too few, end the result: never is a row left
out or given twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from haproc import protos, wire
from haproc.doors.connect.digests import RowDigest, UnknownTypeError
from haproc.doors.connect.responses import START, Kind, ResponseParts, ResultPosition, seen
from haproc.failure import ErrorClass, FailureKind, RequestError


@dataclass(frozen=True, slots=True)
class Followed:
    """A response to give, and where the client stands once it has it; None: nobody can tell."""

    kind: Kind
    response: bytes
    position: ResultPosition | None
    beside: bool = False
    """Whether another response may have in it what this one has."""


def merged(held: Sequence[Followed]) -> list[Followed]:
    """Return responses as fewer, which say the same; clients send a call for each.

    The fields of two messages, one behind the other, are those of one message. The end of a result
    stays alone.
    """
    found: list[Followed] = []
    for each in held:
        last = found[-1] if found else None
        if last is None or not (last.beside or each.beside) or Kind.COMPLETE is each.kind:
            found.append(each)
            continue
        kind = last.kind if each.beside else each.kind
        both = last.response + each.response
        found[-1] = Followed(kind, both, each.position, last.beside and each.beside)
    return found


class Following:
    """Follows one run, for a client that stands at ``start``."""

    def __init__(self, start: ResultPosition = START) -> None:
        self._start = start
        self._others = 0
        self._chunks: list[memoryview] = []
        self._digest: RowDigest | None = RowDigest()

    @property
    def _rows(self) -> int:
        return self._digest.rows if self._digest is not None else 0

    def take(self, response: bytes) -> list[Followed]:
        """Return what the client gets of the run's next response.

        Long ones take a millisecond or more. Raises RequestError where the rows are not the same,
        ValueError for what is no response.
        """
        looked = seen(response)
        if looked.kind is Kind.ROWS:
            return self._take_rows(response, looked)
        if looked.kind is Kind.OTHER:
            self._others += 1
            if self._others <= self._start.others:
                return []
        elif looked.kind is Kind.COMPLETE:
            self.ended()
        return [Followed(looked.kind, response, self._position(), looked.beside)]

    def ended(self) -> None:
        """Say that the run has no more rows. Raises RequestError if the client has more."""
        if self._rows < self._start.rows:
            raise _changed(f"it has {self._rows} rows now, {self._start.rows} were delivered")

    def _position(self) -> ResultPosition | None:
        if self._digest is None:
            return None
        others = max(self._others, self._start.others)
        if self._rows < self._start.rows:
            return ResultPosition(self._start.rows, others, self._start.digest)
        return ResultPosition(self._rows, others, self._digest.digest())

    def _take_rows(self, response: bytes, looked: ResponseParts) -> list[Followed]:
        if looked.data is None:
            raise ValueError("an Arrow batch without bytes")
        passing = self._rows < self._start.rows
        if self._digest is None:
            return [Followed(Kind.ROWS, response, None)]
        self._chunks.append(looked.data)
        if not looked.last_chunk:
            return [] if passing else [Followed(Kind.ROWS, response, None)]
        data, self._chunks = _joined(self._chunks), []
        try:
            return self._take_batches(response, data, passing)
        except (UnknownTypeError, pa.ArrowException) as error:
            if passing:
                raise _changed("its rows cannot be compared") from error
            self._digest = None
            return [Followed(Kind.ROWS, response, None)]

    def _take_batches(self, response: bytes, data: Any, passing: bool) -> list[Followed]:
        assert self._digest is not None
        left: list[pa.RecordBatch] = []
        schema = None
        for batch in _batches(data):
            schema = batch.schema
            self._pass_over(batch, left)
        if not passing:
            return [Followed(Kind.ROWS, response, self._position())]
        if schema is None or not left:
            return []
        return [Followed(Kind.ROWS, _with_rows(response, left, self._start.rows), self._position())]

    def _pass_over(self, batch: pa.RecordBatch, left: list[pa.RecordBatch]) -> None:
        """Add a batch's rows; what the client doesn't have of them is appended to ``left``."""
        assert self._digest is not None
        missing = self._start.rows - self._rows
        if missing <= 0:
            self._add(batch)
            left.append(batch)
            return
        self._add(batch.slice(0, missing))
        if self._rows == self._start.rows and self._digest.digest() != self._start.digest:
            raise _changed(f"the first {self._start.rows} rows are not those delivered")
        if batch.num_rows > missing:
            rest = batch.slice(missing)
            self._add(rest)
            left.append(rest)

    def _add(self, batch: pa.RecordBatch) -> None:
        assert self._digest is not None
        self._digest.add(batch)


def _joined(chunks: list[memoryview]) -> Any:
    return pa.py_buffer(chunks[0] if len(chunks) == 1 else b"".join(chunks))


def _batches(data: Any) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(data) as reader:
        yield from reader


def _with_rows(response: bytes, batches: list[pa.RecordBatch], first: int) -> bytes:
    """Return a response with these rows instead of its own; ``first`` of them in the result."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        batch = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        writer.write_batch(batch)
    message = wire.parsed(protos.base.ExecutePlanResponse, response)
    rows = protos.base.ExecutePlanResponse.ArrowBatch(
        row_count=batch.num_rows, data=sink.getvalue().to_pybytes(), start_offset=first
    )
    message.arrow_batch.CopyFrom(rows)
    return bytes(message.SerializeToString())


def _changed(what: str) -> RequestError:
    return RequestError(
        FailureKind.REFUSED,
        f"the result broke off and was made anew, but {what}: it cannot be gone on with",
        error_class=ErrorClass.RESULT_CHANGED,
        sqlstate="40000",
        hint="run the query again; one that gives the same rows in the same order each time "
        "(ORDER BY, no chance in it) goes on where it was",
    )
