# Written by scripts/async_to_sync.py from haclient/aio/session.py; edit that one.
"""A session on the server that survives the server.

It is opened when the first statement needs one (the server says so), under an id made here. Every
statement that changed the session is kept in a journal. A server that does not have the session,
because the client has just come to it or because it was restarted, is given the whole journal
before the statement.
"""

from __future__ import annotations

import contextlib
import uuid

from haclient import protocol
from haclient.exceptions import Failure, FailureKind, Outcome
from haclient.protocol import Rejected
from haclient.settings import Server
from haclient.sync.transport import Lock, Transport
from haclient.wire import NotReached, WireError

JOURNAL_STATEMENTS_MAX = 10_000
"""A session with more is not rebuilt elsewhere; chosen, not measured."""


class Session:
    """A connection's session; does nothing until it is needed."""

    def __init__(self, transport: Transport, headers: dict[str, str], start: list[str]) -> None:
        self.id: str | None = None
        self._transport = transport
        self._headers = {**headers, "Content-Type": "application/json"}
        self._journal = start
        self._opened_on: int | None = None
        self._lost = ""
        self._lock = Lock()

    def start(self) -> None:
        """The connection needs a session from now on."""
        self.id = self.id or str(uuid.uuid4())

    def ensure(self, server: Server, deadline: float) -> str | None:
        """Have the session on this server and return its id, or None if none is needed."""
        if self.id is None or self._opened_on == server.index:
            return self.id
        with self._lock:
            if self._opened_on != server.index:
                self._open(server, deadline)
        return self.id

    def forget(self, server: Server) -> None:
        """This server does not know the session any more."""
        if self._opened_on == server.index:
            self._opened_on = None

    def record(self, server: Server, statement: str, has_parameters: bool) -> None:
        """A statement has changed the session on this server."""
        with self._lock:
            if has_parameters:
                self._lost = "a session statement had parameters"
            elif len(self._journal) >= JOURNAL_STATEMENTS_MAX:
                self._lost = f"it has more than {JOURNAL_STATEMENTS_MAX} session statements"
            elif not self._journal or self._journal[-1] != statement:
                self._journal.append(statement)
            if self._opened_on != server.index:
                self._opened_on = None  # rebuilt elsewhere meanwhile, without this statement

    def _open(self, server: Server, deadline: float) -> None:
        if self._lost:
            raise Rejected(
                Failure(
                    kind=FailureKind.CLIENT,
                    message=f"the session cannot be rebuilt on {server}: {self._lost}",
                    error_class="HACLIENT_SESSION_LOST",
                    sqlstate="08003",
                    hint="open a new connection; write session statements without parameters",
                )
            )
        body = protocol.statements_body(self._journal)
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
        self._opened_on = server.index

    def close(self, server: Server, deadline: float) -> None:
        """Close it on the server, if that is easily done; an idle session ends there anyway."""
        if self.id is None or self._opened_on != server.index:
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
