"""A request as a door gives it to the registry; its repetitions; the limits of its result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import pyarrow as pa

from haproc.engine.arrow import stream_of
from haproc.engine.interface import Chunk
from haproc.failure import ErrorClass, refused
from haproc.route.model import Freshness, Request

# Checks of a request that has the id of a known one: is it the same?
#
# They raise RequestError.


def check_same(first: Request, request: Request) -> None:
    """Raise RequestError if a known request id comes with another statement."""
    if first.fingerprint != request.fingerprint:
        raise refused(
            ErrorClass.REQUEST_ID_REUSED,
            f"request_id {request.id} was used for another request",
            "use a new request_id for each statement; repeat it only for the same one",
        )


def check_as_fresh(first: Request, delivery: Delivery | None, understood: StatementRequest) -> None:
    """Raise RequestError if the result of an earlier request does not do for this one.

    It does not do if the client wants another format or limit now, or may need a fresher result.
    ``first`` and ``delivery``: the earlier request.
    """
    request = understood.request
    fresh = request.freshness in (first.freshness, Freshness())
    if delivery != understood.delivery or not fresh:
        raise refused(
            ErrorClass.REQUEST_ID_REUSED,
            f"request_id {request.id} was used with another format, disposition, "
            "limit or consistency",
            "fetch its result as it is, or use another request_id",
        )


def asks_for_other(request: Request, first: Request) -> bool:
    """True if a repeated write needs an answer of its own.

    That is so if it asks for another write concern, or comes from another attempt of a job.
    """
    other = first.write_concern is not request.write_concern
    return other or first.authorization != request.authorization


# Cutting a result at the client's row and byte limits.
#
# Bytes are those of the values as Arrow holds them, without a stream's framing. Chunks go in, and
# whole Arrow streams come out; None after the limit. There is no I/O.


class Cutter:
    """Cuts a result at the client's limits for rows and bytes; it gets the chunks in order.

    ``truncated``: True once rows were left out; then the rest of the result is not needed.
    """

    def __init__(self, rows_max: int | None, bytes_max: int | None) -> None:
        self._rows_left = rows_max
        self._bytes_left = bytes_max
        self._first = True
        self.truncated = False

    def take(self, chunk: Chunk) -> Chunk | None:
        """Return the part of the next chunk that is within the limits; None if that has no rows.

        For the first chunk, a part without rows is returned, too: it has the schema.
        """
        rows = chunk.rows
        if self._rows_left is not None:
            rows = min(rows, self._rows_left)
        if self._bytes_left is not None:
            rows = self._rows_that_fit(chunk, rows)
        if rows < chunk.rows:
            self.truncated = True
        if rows == 0 and not self._first:
            return None  # the first chunk has the schema
        taken = chunk if rows == chunk.rows else _head(chunk, rows)
        self._first = False
        if self._rows_left is not None:
            self._rows_left -= rows
        if self._bytes_left is not None:
            self._bytes_left -= _table(taken.data).nbytes
        return taken

    def _rows_that_fit(self, chunk: Chunk, rows: int) -> int:
        assert self._bytes_left is not None
        table = _table(chunk.data)
        if rows == chunk.rows and table.nbytes <= self._bytes_left:
            return rows
        low, high = 0, rows
        while low < high:
            middle = (low + high + 1) // 2
            if table.slice(0, middle).nbytes <= self._bytes_left:
                low = middle
            else:
                high = middle - 1
        return low


def _head(chunk: Chunk, rows: int) -> Chunk:
    return Chunk(stream_of(_table(chunk.data).slice(0, rows)), rows)


def _table(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


# A statement as a door hands it in: the request, and the delivery of its answer.


TIMEOUT_MAX_S: Final = 86_400.0
"""The longest timeout, in seconds, that a request may ask for; chosen."""


class Format(StrEnum):
    """The format in which a client wants a result's rows."""

    JSON_ARRAY = "JSON_ARRAY"
    ARROW_STREAM = "ARROW_STREAM"


class Disposition(StrEnum):
    """Where a client wants a result's rows: in the answer, or behind links."""

    INLINE = "INLINE"
    EXTERNAL_LINKS = "EXTERNAL_LINKS"


class OnWaitTimeout(StrEnum):
    """What happens with a statement that takes longer than ``wait_timeout``."""

    CONTINUE = "CONTINUE"
    CANCEL = "CANCEL"


@dataclass(frozen=True, slots=True)
class Delivery:
    """How a client wants its result; ``rows_max``, ``bytes_max``: None: no limit."""

    format: Format = Format.JSON_ARRAY
    disposition: Disposition = Disposition.INLINE
    rows_max: int | None = None
    bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class StatementRequest:
    """A checked request of a client, and how it wants the answer."""

    request: Request
    delivery: Delivery | None = None
    """How the client wants the result; None: the result is not kept, and a repeated write finds its
    outcome in the log."""
    wait_s: float = 0.0
    on_wait_timeout: OnWaitTimeout = OnWaitTimeout.CONTINUE
    own_id: bool = True
    """True if the client chose the request's id, so that it can repeat the request."""


def fingerprint_of(user: str, parts: Mapping[str, Any]) -> str:
    """Return a digest by which a repeated request is recognised.

    Raises RequestError if a text is not valid Unicode. ``parts``: the statement and where it runs,
    but not how its answer is delivered. So a retry that has less time left, or wants a stream, is
    still the same request.
    """
    canonical = json.dumps([user, parts], ensure_ascii=False, sort_keys=True)
    try:
        return hashlib.sha256(canonical.encode()).hexdigest()
    except UnicodeEncodeError:
        raise refused(ErrorClass.BAD_REQUEST, "the request holds half a surrogate pair") from None
