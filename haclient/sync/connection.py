# Written by scripts/async_to_sync.py from haclient/aio/connection.py; edit that one.
"""PEP 249's connection, to a ring instead of one server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from haclient import exceptions, protocol, rows
from haclient.exceptions import Failure, FailureKind, InterfaceError, NotSupportedError
from haclient.parameters import Parameters
from haclient.protocol import Rejected, Statement
from haclient.request_ids import new_request_id
from haclient.settings import Server, Settings
from haclient.sync.cursor import Cursor
from haclient.sync.result import Result, receive
from haclient.sync.ring import Ring
from haclient.sync.session import Session, exchange
from haclient.sync.transport import now
from haclient.wire import WireError

_CANCEL_S = 5.0
_CLOSE_S = 1.0


class Age:
    """How long ago a request was first sent."""

    def __init__(self, before_s: float) -> None:
        self._before_s = before_s
        self._began: float | None = None

    def now(self) -> float:
        """Return the age at an attempt; for the first one what the caller said."""
        if self._began is None:
            self._began = now()
            return self._before_s
        # Not 0 however quick: it is no first attempt.
        return self._before_s + max(now() - self._began, 0.001)


class Connection:
    """A connection; opens nothing until the first statement.

    Threads may share it: each uses cursors of its own. A session (USE, SET, temporary views)
    belongs to the connection, hence to all of its cursors.
    """

    Warning = exceptions.Warning
    Error = exceptions.Error
    InterfaceError = exceptions.InterfaceError
    DatabaseError = exceptions.DatabaseError
    DataError = exceptions.DataError
    OperationalError = exceptions.OperationalError
    IntegrityError = exceptions.IntegrityError
    InternalError = exceptions.InternalError
    ProgrammingError = exceptions.ProgrammingError
    NotSupportedError = exceptions.NotSupportedError

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._ring = Ring(settings)
        self._headers = protocol.headers(settings.token, settings.user)
        self._statement_headers = {
            **self._headers,
            "Content-Type": "application/json",
            "Accept": protocol.ARROW_STREAM,
        }
        start = protocol.session_start(settings.catalog, settings.schema)
        self._session = Session(self._ring.transport, self._headers, start)
        self._running: dict[str, Server] = {}
        self._closed = False

    @property
    def server(self) -> str:
        """URL of the server that the next statement goes to first."""
        return self._ring.current.url

    def cursor(self) -> Cursor:
        """Return a new cursor."""
        self.check_open()
        return Cursor(self)

    def execute(
        self, operation: str, parameters: Parameters | None = None, **options: Any
    ) -> Cursor:
        """Run a statement on a new cursor and return that."""
        return self.cursor().execute(operation, parameters, **options)

    def append(
        self,
        table: str,
        data: Any,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
        age_s: float = 0.0,
    ) -> dict[str, Any]:
        """Append rows to a table as one operation, by column name; return the ``ha`` block.

        ``age_s``: how long ago this ``request_id`` was first sent, if it was.

        ``data``: a pyarrow Table, RecordBatch, RecordBatchReader or iterable of batches, or a
        pandas DataFrame. ``table``: ``[catalog.][schema.]name``.
        """
        self.check_open()
        body = rows.arrow_stream(data)
        catalog, schema = self.settings.catalog, self.settings.schema
        if self._session.id is not None:
            answer = self.execute("SELECT current_catalog(), current_schema()")
            catalog, schema = answer.fetchone() or (catalog, schema)
        request_id = request_id or new_request_id()
        timeout_s = timeout_s or self.settings.timeout_s
        query = {
            "request_id": request_id,
            "timeout_s": str(protocol.server_timeout_s(timeout_s)),
            "catalog": catalog,
            "schema": schema,
        }
        headers = {**self._headers, "Content-Type": protocol.ARROW_STREAM}

        age = Age(age_s)

        def attempt(server: Server, deadline: float) -> Result:
            path = protocol.rows_path(table, {**query, "age_s": protocol.age_text(age.now())})
            response = self._ring.transport.request(server, "POST", path, headers, body, deadline)
            return receive(response, server, str(request_id), len(body) + (1 << 20))

        result = self._ring.run(request_id, timeout_s, attempt)
        return result.ha

    def run(self, statement: Statement, stream: bool, is_cancelled: Callable[[], bool]) -> Result:
        """Run a statement on the ring; what a cursor calls."""
        self.check_open()
        limit = -1 if stream else self.settings.buffer_bytes_max
        age = Age(statement.age_s)

        def attempt(server: Server, deadline: float) -> Result:
            self._running[statement.request_id] = server
            return self._attempt(statement, age, server, deadline, limit)

        try:
            result = self._ring.run(
                statement.request_id, statement.timeout_s, attempt, is_cancelled
            )
        finally:
            self._running.pop(statement.request_id, None)
        if result.ha.get("class") == "session":
            has_parameters = bool(statement.parameters)
            self._session.record(result.server, statement.text, has_parameters)
        return result

    def _attempt(
        self, statement: Statement, age: Age, server: Server, deadline: float, limit: int
    ) -> Result:
        """Send the statement to one server, after opening the session there if it needs one."""
        reopened = False
        while True:
            session_id = self._session.ensure(server, deadline)
            catalog, schema = self.settings.catalog, self.settings.schema
            body = statement.body(session_id, catalog, schema, age.now())
            response = self._ring.transport.request(
                server, "POST", protocol.STATEMENTS, self._statement_headers, body, deadline
            )
            try:
                return receive(response, server, statement.request_id, limit)
            except Rejected as error:
                wanted = error.failure.error_class
                if wanted == protocol.SESSION_REQUIRED and session_id is None:
                    self._session.start()
                elif wanted == protocol.SESSION_UNKNOWN and not reopened:
                    reopened = True
                    self._session.forget(server)
                else:
                    raise

    def cancel(self, request_id: str) -> None:
        """Ask the server that runs this request to end it; what a cursor calls."""
        server = self._running.get(request_id)
        if server is None:
            return
        path = protocol.cancel_path(request_id)
        try:
            exchange(
                self._ring.transport, server, "POST", path, self._headers, b"", now() + _CANCEL_S
            )
        except WireError as error:
            failure = Failure(FailureKind.AVAILABILITY, f"{server} cannot be told: {error}")
            raise exceptions.error_from(failure, request_id) from error

    def commit(self) -> None:
        """Do nothing: every statement is durable when ``execute`` returns."""
        self.check_open()

    def rollback(self) -> None:
        """Raise NotSupportedError: a statement that succeeded stands."""
        raise NotSupportedError("there are no transactions: every statement stands by itself")

    def check_open(self) -> None:
        """Raise InterfaceError if the connection is closed."""
        if self._closed:
            raise InterfaceError("the connection is closed")

    def close(self) -> None:
        """Close the session and all connections."""
        if self._closed:
            return
        self._closed = True
        self._session.close(self._ring.current, now() + _CLOSE_S)
        self._ring.close()

    def __enter__(self) -> Connection:
        self.check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
