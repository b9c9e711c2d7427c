# Written by scripts/async_to_sync.py from haclient/aio/result.py; edit that one.
"""A statement's answer: the ``ha`` block and the record batches, read wholly or as they come."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from haclient import protocol
from haclient.exceptions import Failure, FailureKind, Outcome, error_from
from haclient.frames import BrokenStream, Frames, read_whole
from haclient.protocol import Rejected
from haclient.settings import Server
from haclient.sync.transport import Response
from haclient.wire import Broken, WireError


class Result:
    """One answer. ``ha`` is its ``ha`` block, ``server`` the URL that gave it."""

    def __init__(self, ha: dict[str, Any], server: Server, request_id: str) -> None:
        self.ha = ha
        self.server = server
        self.request_id = request_id
        self.schema: Any = pa.schema([])
        self._batches: list[Any] = []
        self._next = 0
        self._frames: Frames | None = None
        self._response: Response | None = None

    def hold(self, schema: Any, batches: list[Any]) -> None:
        """Take a complete result."""
        self.schema, self._batches = schema, batches

    def stream(self, response: Response, frames: Frames, batches: list[Any]) -> None:
        """Take the beginning of a result and the response that has the rest."""
        self.schema, self._batches = frames.schema, batches
        self._response, self._frames = response, frames
        response.without_deadline()

    def next_batch(self) -> Any:
        """Return the next record batch, None at the end. Raises OperationalError on a break."""
        while self._next >= len(self._batches):
            if self._response is None or self._frames is None:
                return None
            self._next, self._batches = 0, []
            try:
                data = self._response.read_some()
                self._batches = self._frames.feed(data)
                if not data:
                    self._frames.finish()
                    self._response = None
            except (WireError, BrokenStream) as error:
                self.close()
                raise error_from(self._broken_off(error), self.request_id) from error
        batch = self._batches[self._next]
        self._batches[self._next] = None
        self._next += 1
        return batch

    def _broken_off(self, error: Exception) -> Failure:
        is_query = self.ha.get("class") == "query"
        return Failure(
            kind=FailureKind.AVAILABILITY,
            message=f"the result broke off after rows had been handed out: {error}",
            outcome=Outcome.NOT_SENT if is_query else Outcome.UNKNOWN,
            error_class="HACLIENT_RESULT_BROKEN",
            sqlstate="08006",
            hint="run the statement again, or raise buffer_bytes_max so that it is read wholly",
            cluster=str(self.ha.get("cluster", "")),
        )

    def close(self) -> None:
        """Read no more."""
        response, self._response = self._response, None
        self._batches, self._next = [], 0
        if response is not None:
            response.close()


def receive(response: Response, server: Server, request_id: str, buffer_bytes_max: int) -> Result:
    """Read an answer, up to the limit; raises WireError, or Rejected for an error answer."""
    chunks: list[bytes] = []
    size = 0
    whole = False
    try:
        while response.status != 200 or size <= buffer_bytes_max:
            chunk = response.read_some()
            if not chunk:
                whole = True
                break
            chunks.append(chunk)
            size += len(chunk)
        if response.status != 200:
            retry_after = response.header("Retry-After")
            raise Rejected(protocol.failure(response.status, b"".join(chunks), retry_after))
        ha = protocol.report(response.header(protocol.REPORT_HEADER))
        result = Result(ha, server, request_id)
        if whole:
            _read_whole(result, response, b"".join(chunks))
        else:
            _begin_stream(result, response, chunks)
    except BrokenStream as error:
        response.close()
        raise Broken(str(error)) from error
    except BaseException:
        response.close()
        raise
    return result


def _read_whole(result: Result, response: Response, body: bytes) -> None:
    if (response.header("Content-Type") or "").startswith("application/json"):
        result.ha = json.loads(body or b"{}").get("ha") or result.ha
    elif body:
        result.hold(*read_whole(body))


def _begin_stream(result: Result, response: Response, chunks: list[bytes]) -> None:
    frames = Frames()
    batches: list[Any] = []
    for chunk in chunks:
        batches += frames.feed(chunk)
    while frames.schema is None:
        chunk = response.read_some()
        if not chunk:
            raise BrokenStream("the answer ends before its schema")
        batches += frames.feed(chunk)
    result.stream(response, frames, batches)
