# Written by scripts/async_to_sync.py from haclient/aio/session.py; edit that one.
"""A session of the ring: opened when the first statement needs one (the server says so).

Its id is made here and goes with each statement, to whichever server: the ring keeps what the
session holds.
"""

from __future__ import annotations

import contextlib
import uuid

from haclient import protocol
from haclient.exceptions import Failure, Outcome
from haclient.protocol import Rejected
from haclient.settings import Server
from haclient.sync.transport import Lock, Transport
from haclient.wire import NotReached, WireError


class Session:
    """A connection's session; does nothing until it is needed."""

    def __init__(self, transport: Transport, headers: dict[str, str], start: list[str]) -> None:
        self.id: str | None = None
        self._transport = transport
        self._headers = {**headers, "Content-Type": "application/json"}
        self._begin_with = start
        self._opened = False
        self._lock = Lock()

    def start(self) -> None:
        """The connection needs a session from now on."""
        self.id = self.id or str(uuid.uuid4())

    def ensure(self, server: Server, deadline: float) -> str | None:
        """Have the session opened, at this server if need be; return its id, None: none needed."""
        if self.id is None or self._opened:
            return self.id
        with self._lock:
            if not self._opened:
                self._open(server, deadline)
        return self.id

    def _open(self, server: Server, deadline: float) -> None:
        body = protocol.opening_body(self._begin_with)
        path = protocol.session_path(str(self.id))
        try:
            status, answer = exchange(
                self._transport, server, "PUT", path, self._headers, body, deadline
            )
        except WireError as error:
            # The statement itself has not been sent yet.
            raise NotReached(str(error)) from error
        if status != 200:
            raise Rejected(_not_opened(protocol.failure(status, answer)))
        self._opened = True

    def close(self, server: Server, deadline: float) -> None:
        """Close it on the server, if that is easily done; an idle session ends there anyway."""
        if self.id is None or not self._opened:
            return
        path = protocol.session_path(self.id)
        with contextlib.suppress(WireError):
            exchange(self._transport, server, "DELETE", path, self._headers, b"", deadline)


def _not_opened(failure: Failure) -> Failure:
    return Failure(
        kind=failure.kind,
        message=f"the session could not be opened: {failure.message}",
        outcome=Outcome.NOT_SENT,
        error_class=failure.error_class,
        sqlstate=failure.sqlstate,
        hint=failure.hint,
        cluster=failure.cluster,
        status=failure.status,
    )


def exchange(
    transport: Transport,
    server: Server,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes,
    deadline: float,
) -> tuple[int, bytes]:
    """Send a request and read the whole answer; return its status and body. Raises WireError."""
    response = transport.request(server, method, path, headers, body, deadline)
    try:
        chunks: list[bytes] = []
        while chunk := response.read_some():
            chunks.append(chunk)
    finally:
        response.close()
    return response.status, b"".join(chunks)
