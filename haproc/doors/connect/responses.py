"""A client's position in a result, and what the client does not have yet of each response."""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Final

import pyarrow as pa

from haproc import protos, wire
from haproc.doors.connect.digests import DIGEST_BYTES, RowDigest, UnknownTypeError
from haproc.engine.rewriting import top_level
from haproc.failure import ErrorClass, FailureKind, RequestError
from haproc.wire import varint

# A client's position in a result, and the way for any HAProc to go on from it.
#
# A client that lost its connection names the last response that it got by its id
# (`ReattachExecute`), perhaps to another HAProc, and sends no plan. So the id itself contains the
# number of the client's rows and their digest (`digests.py`), and the way to the remaining
# responses:
#
# - ``TAIL``: they are short, and inside the id. Nothing must run again. This is so for every answer
#   to a write, and for small results.
# - ``REQUEST``: the request is short, and inside the id. It runs again, and the client's rows are
#   skipped.
# - ``STORED``: as ``REQUEST``, with the request from the key-value store.
# - ``NOTHING``: the result cannot go on.
#
# Ids come back from clients, which could make up others. They need no signature: an id only has an
# effect for its sender, in the sender's own session, and a request in it is handled like any other
# of the sender's. But they are input: limited in size, and read with care.


ID_CHARS_MAX: Final = 16 << 10
"""A longer id is not from HAProc: its longest ids have about half of that."""
TAIL_BYTES_MAX: Final = 4 << 10
"""If the remaining responses of a result have at most this size, a response's id contains them.
Chosen: the result of `select 1` has a kilobyte."""
REQUEST_BYTES_MAX: Final = 2 << 10
"""If a request, compressed, has at most this size, a response's id contains it. Chosen: most
queries' requests are below 1 kB."""
_REST_BYTES_MAX: Final = 64 << 10
"""The most bytes that the part of an id behind its head may have after decompression."""
_HEAD = struct.Struct(f"<BB8sIQI{DIGEST_BYTES}s")
_VERSION: Final = 1

# Numbers of fields in ExecutePlanResponse.
_ARROW_BATCH: Final = 2
_RESULT_COMPLETE: Final = 14
_PROGRESS: Final = 18
COMPLETE: Final = bytes((_RESULT_COMPLETE << 3 | 2, 0))
"""The response that ends a complete result; Spark sends it to clients that can reattach only."""
_BESIDE: Final = frozenset({1, 4, 6, 7, 12, 13, 15})
"""The fields with ids, metrics, observed metrics and the schema: these may be in one response
together with the content of others."""
# Fields in its ArrowBatch.
_DATA: Final = 2
_CHUNK: Final = 4
_CHUNKS: Final = 5
# Fields in ExecutePlanRequest; an option's field 1 is ReattachOptions, whose field 1 is a boolean.
_SESSION: Final = 1
_PLAN: Final = 3
_OPTION: Final = 5
_OPERATION: Final = 6
_TAG: Final = 7


class Kind(Enum):
    """What a response contains."""

    ROWS = "rows"
    PROGRESS = "progress"
    COMPLETE = "complete"
    OTHER = "other"
    """The schema, metrics, a command's result: they come in the same order in every run."""


@dataclass(frozen=True, slots=True)
class ResponseParts:
    """What a response contains. ``data``: of its rows, an Arrow stream or a chunk of one."""

    kind: Kind
    data: memoryview | None = None
    last_chunk: bool = True
    beside: bool = False
    """True if all its content may be in one response together with another one's."""


class Way(IntEnum):
    """How a HAProc that has a response's id gets the responses after that one.

    - NOTHING: it cannot get them;
    - TAIL: the id contains them;
    - REQUEST: the id contains the request, which must run again;
    - STORED: the request is in the key-value store, and must run again.
    """

    NOTHING = 0
    TAIL = 1
    REQUEST = 2
    STORED = 3


@dataclass(frozen=True, slots=True)
class ResultPosition:
    """How much of a result a client has: ``rows``, with their digest, and ``others``.

    ``others``: the number of responses of `Kind.OTHER`.
    """

    rows: int = 0
    others: int = 0
    digest: bytes = bytes(DIGEST_BYTES)


START: Final = ResultPosition()


@dataclass(frozen=True, slots=True)
class ResponseId:
    """The content of a response's id. ``run`` identifies one run of a Spark Connect operation.

    ``index``: the response's number in that run, from 0; ``rest``: the data for ``way``, see `Way`.
    """

    run: bytes
    index: int
    position: ResultPosition
    way: Way
    rest: bytes = b""


def packed(rest: bytes) -> str:
    """Return an id's ``rest`` as text, compressed; the same rest always gives the same text."""
    writer = zlib.compressobj(1, wbits=12, memLevel=1)  # 13 µs; with the default memory 180
    return _text(writer.compress(rest) + writer.flush())


def id_text(run: bytes, index: int, position: ResultPosition, way: Way, rest: str = "") -> str:
    """Return a response's id as text; ``rest``: the result of `packed`."""
    head = _HEAD.pack(_VERSION, way, run, index, position.rows, position.others, position.digest)
    return f"{_text(head)}.{rest}"


def read_id(text: str) -> ResponseId | None:
    """Return the content of an id that a client sent; None if it is no id of HAProc's."""
    if len(text) > ID_CHARS_MAX:
        return None
    head_text, _, rest_text = text.partition(".")
    try:
        version, way, run, index, rows, others, digest = _HEAD.unpack(_bytes(head_text))
        rest = _decompressed(_bytes(rest_text)) if rest_text else b""
        if version != _VERSION:
            return None
        return ResponseId(run, index, ResultPosition(rows, others, digest), Way(way), rest)
    except (ValueError, binascii.Error, struct.error, zlib.error):
        return None


def tail_of(responses: Sequence[bytes]) -> bytes:
    """Return responses, one after the other, as the ``rest`` of an id."""
    return b"".join(struct.pack("<I", len(each)) + each for each in responses)


def responses_of(tail: bytes) -> list[bytes]:
    """Return the responses in a result of `tail_of`; ValueError if it is cut off, or is none."""
    responses, at = [], 0
    while at < len(tail):
        if at + 4 > len(tail):
            raise ValueError("a rest ends in the middle")
        (size,) = struct.unpack_from("<I", tail, at)
        at += 4
        if at + size > len(tail):
            raise ValueError("a rest ends in the middle")
        responses.append(tail[at : at + size])
        seen(responses[-1])
        at += size
    return responses


def seen(response: bytes) -> ResponseParts:
    """Return what a serialized ExecutePlanResponse contains; ValueError if it is none.

    Nothing is copied, and no message is built: a schema may be nested deeper than protobuf can
    read.
    """
    kind = Kind.OTHER
    data: memoryview | None = None
    last_chunk = beside = True
    for number, value in fields(memoryview(response)):
        beside = beside and number in _BESIDE
        if number == _ARROW_BATCH and isinstance(value, memoryview):
            kind = Kind.ROWS
            batch = dict(fields(value))
            found = batch.get(_DATA, memoryview(b""))
            data = found if isinstance(found, memoryview) else None
            chunk, chunks = batch.get(_CHUNK, 0), batch.get(_CHUNKS, 0)
            if isinstance(chunk, int) and isinstance(chunks, int):
                last_chunk = chunk + 1 >= chunks
        elif number == _PROGRESS:
            kind = Kind.PROGRESS
        elif number == _RESULT_COMPLETE:
            kind = Kind.COMPLETE
    return ResponseParts(kind, data, last_chunk, beside)


@dataclass(frozen=True, slots=True)
class RequestRead:
    """The parts of a serialized ExecutePlanRequest that `delivery` needs."""

    session_id: str = ""
    operation_id: str = ""
    plan_hash: bytes = b""
    reattachable: bool = False
    tags: tuple[str, ...] = ()


def read_request(request: bytes) -> RequestRead:
    """Return these parts of a serialized ExecutePlanRequest; ValueError if it is none."""
    texts: dict[int, str] = {}
    tags: list[str] = []
    plan_hash, reattachable = b"", False
    for number, value in fields(memoryview(request)):
        if isinstance(value, int):
            continue
        if number in (_SESSION, _OPERATION):
            texts[number] = str(value, "utf-8")
        elif number == _TAG:
            tags.append(str(value, "utf-8"))
        elif number == _PLAN:
            plan_hash = hashlib.sha256(value).digest()
        elif number == _OPTION and isinstance(found := dict(fields(value)).get(1), memoryview):
            reattachable = dict(fields(found)).get(1) == 1
    session_id, operation_id = texts.get(_SESSION, ""), texts.get(_OPERATION, "")
    return RequestRead(session_id, operation_id, plan_hash, reattachable, tuple(tags))


def fields(message: memoryview) -> list[tuple[int, int | memoryview]]:
    """Return the fields of a protobuf message: each one's number, and its value or its bytes.

    Numbers (varints) are given as values, all other fields as bytes. Raises ValueError if it is no
    message.
    """
    return [
        (
            number,
            varint(message, inner, end)[0] if message[start] & 7 == 0 else message[inner:end],
        )
        for number, start, inner, end in top_level(message)
    ]


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _decompressed(data: bytes) -> bytes:
    reader = zlib.decompressobj()
    rest = reader.decompress(data, _REST_BYTES_MAX)
    if not reader.eof or reader.unused_data:
        raise ValueError("a rest is longer than any of ours, or cut")
    return rest


# One run of a query, followed: the client's position before and after each response.
#
# A run that continues for a client with some rows skips as many, in whatever batches they come now,
# and checks that they are the same. They may end inside a batch; its other rows are then written
# anew. If the rows differ, or are too few, the result ends: no row is ever left out or sent twice.


@dataclass(frozen=True, slots=True)
class Followed:
    """A response for the client, and the client's position once it has this response.

    ``position`` is None if it is unknown; then nobody can continue after this response.
    """

    kind: Kind
    response: bytes
    position: ResultPosition | None
    beside: bool = False
    """True if another response may contain this response's content."""


def merged(held: Sequence[Followed]) -> list[Followed]:
    """Return the content of these responses in fewer ones: clients send a call for each response.

    Two messages, one after the other, are one message with the fields of both. The response that
    ends the result stays alone.
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
    """Follows one run of a query, for a client that has the result up to the position ``start``."""

    def __init__(self, start: ResultPosition = START) -> None:
        self._start = start
        self._others = 0
        self._chunks: list[memoryview] = []
        self._digest: RowDigest | None = RowDigest()

    @property
    def _rows(self) -> int:
        return self._digest.rows if self._digest is not None else 0

    def take(self, response: bytes) -> list[Followed]:
        """Return what the client does not have yet of the run's next response.

        Long responses take a millisecond or more. Raises RequestError if the run's first rows are
        not the rows that the client has, and ValueError for an invalid response.
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
        """Note that the run has no more rows.

        Raises RequestError if the client has more than these.
        """
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
        left: list[pa.RecordBatch] = []
        with pa.ipc.open_stream(data) as reader:
            for batch in reader:
                self._pass_over(batch, left)
        if not passing:
            return [Followed(Kind.ROWS, response, self._position())]
        if not left:
            return []
        return [Followed(Kind.ROWS, _with_rows(response, left, self._start.rows), self._position())]

    def _pass_over(self, batch: pa.RecordBatch, left: list[pa.RecordBatch]) -> None:
        """Add a batch's rows to the digest; append to ``left`` those that the client lacks."""
        digest = self._digest
        assert digest is not None
        missing = self._start.rows - self._rows
        if missing <= 0:
            digest.add_batch(batch)
            left.append(batch)
            return
        digest.add_batch(batch.slice(0, missing))
        if self._rows == self._start.rows and digest.digest() != self._start.digest:
            raise _changed(f"the first {self._start.rows} rows are not those delivered")
        if batch.num_rows > missing:
            rest = batch.slice(missing)
            digest.add_batch(rest)
            left.append(rest)


def _joined(chunks: list[memoryview]) -> Any:
    return pa.py_buffer(chunks[0] if len(chunks) == 1 else b"".join(chunks))


def _with_rows(response: bytes, batches: list[pa.RecordBatch], first: int) -> bytes:
    """Return a response with the rows of ``batches`` instead of its own.

    ``first``: the place of the first of these rows in the whole result.
    """
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
