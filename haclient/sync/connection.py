# Written by scripts/async_to_sync.py from haclient/aio/connection.py; edit that one.
"""PEP 249's connection, but to a ring of servers instead of one server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from haclient import exceptions, protocol
from haclient.arrow import Rows
from haclient.choosing import is_hedgeable
from haclient.exceptions import Failure, FailureKind, InterfaceError, NotSupportedError
from haclient.files import PIECE_BYTES, Loaded, LoadFile, form_of
from haclient.parameters import Parameters
from haclient.protocol import Body, Rejected, Statement, WireError
from haclient.request_ids import Age, new_request_id
from haclient.settings import SeenOffsets, Server, Settings
from haclient.sync.cursor import Cursor, Result, receive
from haclient.sync.load import Load
from haclient.sync.ring import Ring, Session, Work, exchange
from haclient.sync.transport import Response, StateLock, Transport, now, sleep
from haclient.sync.view import HttpDoors, View

_CANCEL_S = 45.0
"""The longest time of a request to cancel.

A server answers when it knows what became of the statement: within about 35 s.
"""
_PAUSE_S = 0.1
_CLOSE_S = 1.0
ANSWER_BYTES_MAX = 1 << 20
"""The most bytes of the answer to appended rows, which is a few numbers."""


class Connection:
    """A PEP 249 connection to a ring; sends nothing before the first statement.

    Threads may share it: each uses its own cursors. A session (USE, SET, temporary views) belongs
    to the connection, and so to all of its cursors.
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
        self._headers = protocol.headers(settings.token, settings.user)
        self._transport = Transport(settings)
        self._view = View(settings, HttpDoors(self._transport, self._headers))
        self._ring = Ring(settings, self._view)
        self._statement_headers = {
            **self._headers,
            "Content-Type": "application/json",
            "Accept": protocol.ARROW_STREAM,
        }
        start = protocol.session_start(settings.catalog, settings.schema)
        self._session = Session(self._transport, self._headers, start)
        self._running: list[tuple[str, Server]] = []
        self._last: tuple[str, Server] | None = None
        """The id of the last request that was sent, and the server that received it."""
        self._lock = StateLock()
        self._last_offset: int | None = None
        self._seen = SeenOffsets(settings.after_offset)
        self._closed = False

    @property
    def server(self) -> str:
        """Return the URL of the server that the next statement goes to first."""
        return self._view.current.url

    @property
    def servers(self) -> tuple[str, ...]:
        """Return the URLs of all servers in use, best first: the given and the learned ones."""
        return tuple(server.url for server in self._view.preferred)

    @property
    def last_offset(self) -> int | None:
        """Return the highest offset in the ring's log that an answer named; None if none has."""
        return self._last_offset

    @property
    def after_offset(self) -> int:
        """Return a token for another connection that must see this one's writes and reads.

        The token is an option of `connect`: the offset of the ring's log that session reads must
        show. This connection itself sends it with its own statements.
        """
        return self._seen.token

    def _saw(self, ha: Mapping[str, Any]) -> None:
        """Remember the log offsets in an answer's ``ha`` block (HAProc's facts) for later reads."""
        offset = ha.get("log_offset")
        with self._lock:
            if isinstance(offset, int):
                self._last_offset = max(offset, self._last_offset or 0)
            self._seen = self._seen.after(ha.get("cluster"), ha.get("after_offset"))

    @property
    def has_session(self) -> bool:
        """True if the connection has a session, which may have its own catalog and views."""
        return self._session.id is not None

    def cursor(self) -> Cursor:
        """Return a new PEP 249 cursor of this connection."""
        self.check_open()
        return Cursor(self)

    def execute(
        self, operation: str, parameters: Parameters | None = None, **options: Any
    ) -> Cursor:
        """Run a statement on a new PEP 249 cursor; return this cursor."""
        return self.cursor().execute(operation, parameters, **options)

    def append(
        self,
        table: str,
        data: Any,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
        age_s: float = 0.0,
        write_concern: str | None = None,
    ) -> dict[str, Any]:
        """Append rows to a table as one write, by column name; return the answer's ``ha`` block.

        The ``ha`` block has HAProc's facts about the write: cluster, log offset, outcome per
        cluster.

        ``table``: ``[catalog.][schema.]name``.

        ``data``: an object with an Arrow stream (a Table or reader of pyarrow, a DataFrame of
        pandas or polars, a relation of DuckDB, a cursor), an iterable of pyarrow batches, or a
        function that returns one of these. It may have any size: it is sent while it is read. A
        reader or an iterator of many rows cannot be read again: if the request must be sent to
        another server, InterfaceError is raised.

        ``age_s``: the time since this ``request_id`` was first sent; 0 if it was not sent before.
        """
        source = Rows(data)
        result = self.send_rows(
            table,
            source.body,
            protocol.ARROW_STREAM,
            {},
            request_id=request_id or new_request_id(),
            timeout_s=timeout_s,
            age_s=age_s,
            write_concern=write_concern,
            failed=lambda: source.error,
        )
        return result.ha

    def send_rows(
        self,
        table: str,
        make_body: Callable[[], Body],
        media_type: str,
        form: Mapping[str, str],
        *,
        request_id: str,
        timeout_s: float | None = None,
        age_s: float = 0.0,
        write_concern: str | None = None,
        failed: Callable[[], Exception | None] = lambda: None,
        where: tuple[str | None, str | None] | None = None,
    ) -> Result:
        """Append rows to a table as one write; the rows are encoded in ``media_type``.

        ``make_body`` is called for each attempt; ``failed`` returns the error of making the body,
        or None. ``where``: the catalog and schema of the table; None: those that `place` returns
        now.
        """
        self.check_open()
        catalog, schema = where or self.place()
        timeout_s = timeout_s or self.settings.timeout_s
        query = {
            "request_id": request_id,
            "timeout_s": str(protocol.server_timeout_s(timeout_s)),
            "catalog": catalog,
            "schema": schema,
            "write_concern": write_concern,
            **form,
        }
        headers = {**self._headers, "Content-Type": media_type}

        age = Age(age_s)

        def attempt(server: Server, deadline: float) -> Result:
            path = protocol.rows_path(table, {**query, "age_s": protocol.age_text(age.now())})
            body = make_body()
            try:
                response = self._request(server, "POST", path, headers, body, deadline)
            except WireError as error:
                if (why := failed()) is not None:
                    raise why from error
                raise
            return receive(response, server, request_id, ANSWER_BYTES_MAX)

        return self._run(request_id, timeout_s, Work(attempt, in_doubt=age_s > 0))

    def place(self) -> tuple[str | None, str | None]:
        """Return the catalog and schema in which table names without them are looked up.

        None: the server's default. In a session the server is asked for both.
        """
        found = self.settings.catalog, self.settings.schema
        if self._session.id is None:
            return found
        answer = self.execute("SELECT current_catalog(), current_schema()")
        catalog, schema = answer.fetchone() or found
        return catalog, schema

    def written(
        self, request_id: str, write_concern: str | None = None
    ) -> dict[str, Any] | Failure | None:
        """Return what became of a write: its ``ha`` block (HAProc's facts), or its failure.

        None if no server knows that it has ended. In the ``ha`` block, ``concern_met`` is True if
        the write has met ``write_concern``.
        """
        self.check_open()
        path = protocol.written_path(request_id, write_concern)

        def attempt(server: Server, deadline: float) -> dict[str, Any] | Failure | None:
            status, data = exchange(
                self._transport, server, "GET", path, self._headers, b"", deadline
            )
            return protocol.became(status, data)

        answer = self._ring.try_servers(request_id, self.settings.timeout_s, Work(attempt))
        if isinstance(answer, dict):
            self._saw(answer)
        return answer

    def load(
        self,
        path: str | Path,
        table: str,
        *,
        kind: str | None = None,
        columns: str | Sequence[str] | None = None,
        delimiter: str | None = None,
        null: str | None = None,
        time_zone: str | None = None,
        resume: str | None = None,
        piece_bytes: int = PIECE_BYTES,
        **options: Any,
    ) -> Loaded:
        """Load a file into a table, piece by piece; return how much was loaded.

        - ``kind``: ``csv``, ``jsonl``, ``parquet`` or ``arrow``; None: as the file's name shows;
        - ``columns``: the names of the file's columns, or a line of CSV with the names;
        - ``delimiter``, ``null``, ``time_zone``: as in the server's HTTP API for rows;
        - ``resume``: the id of an interrupted load;
        - ``options``: ``at_once`` (the number of pieces sent at the same time), ``timeout_s`` (of
          each piece), ``write_concern``, ``on_progress`` (called with a `Loaded`, first with an
          empty one)
        """
        if columns is not None and not isinstance(columns, str):
            columns = protocol.columns_text(columns)
        given = {"columns": columns, "delimiter": delimiter, "null": null, "time_zone": time_zone}
        file = LoadFile(Path(path), form_of(Path(path), kind, **given), piece_bytes)
        load = Load(self, file, table, resume=resume, where=self.place(), **options)
        return load.load_pieces()

    def run_statement(
        self, statement: Statement, stream: bool, is_cancelled: Callable[[], bool]
    ) -> Result:
        """Run a statement on the ring and return its answer; a cursor calls this."""
        self.check_open()
        statement = self._with_freshness(statement)
        limit = -1 if stream else self.settings.buffer_bytes_max
        age = Age(statement.age_s)

        def attempt(server: Server, deadline: float) -> Result:
            running = (statement.request_id, server)
            self._running.append(running)
            self._last = running
            try:
                return self._attempt(statement, age, server, deadline, limit)
            finally:
                self._running.remove(running)

        def cancel_at(server: Server) -> None:
            with contextlib.suppress(WireError):
                self._cancel_at(statement.request_id, server)

        may_hedge = self.settings.hedge_after is not None and self._session.id is None
        hedged = may_hedge and is_hedgeable(statement.text, statement.options)
        work = Work(
            attempt,
            is_cancelled,
            cancel_at if hedged else None,
            Result.close,
            statement.age_s > 0,
        )
        return self._run(statement.request_id, statement.timeout_s, work)

    def _with_freshness(self, statement: Statement) -> Statement:
        """Add the connection's read level and the log offsets that the answer must show.

        Every attempt sends the same ones.
        """
        freshness = (self.settings.consistency, self.settings.acceptable_offset_lag)
        usual = zip(("consistency", "acceptable_offset_lag"), freshness, strict=True)
        options = {name: value for name, value in usual if value is not None}
        return replace(statement, options={**options, **statement.options}, seen=self._seen)

    def _run(self, request_id: str, timeout_s: float, work: Work[Result]) -> Result:
        try:
            result = self._ring.try_servers(request_id, timeout_s, work)
        except exceptions.DatabaseError as error:
            self._saw({"log_offset": error.failure.log_offset})
            raise
        self._saw(result.ha)
        return result

    def _attempt(
        self, statement: Statement, age: Age, server: Server, deadline: float, limit: int
    ) -> Result:
        """Send the statement to one server; open the session first if it needs one."""
        while True:
            session_id = self._session.ensure(server, deadline)
            catalog, schema = self.settings.catalog, self.settings.schema
            body = statement.body(session_id, catalog, schema, age.now())
            response = self._request(
                server, "POST", protocol.STATEMENTS, self._statement_headers, body, deadline
            )
            try:
                return receive(response, server, statement.request_id, limit)
            except Rejected as error:
                needs_session = error.failure.error_class == protocol.SESSION_REQUIRED
                if not needs_session or session_id is not None:
                    raise
                self._session.start()

    def _request(
        self,
        server: Server,
        method: str,
        path: str,
        headers: dict[str, str],
        body: Body,
        deadline: float,
    ) -> Response:
        """Send a request; return the answer's status and headers, with the body unread.

        If a header reports that the server is leaving service, remember that.
        """
        response = self._transport.request(server, method, path, headers, body, deadline)
        if response.header(protocol.STATE_HEADER):
            self._view.left(server)
        return response

    def cancel(self, request_id: str) -> str:
        """Ask the server that runs this request, or ran it last, to end it; a cursor calls this.

        Returns what became of the statement; empty if no server knows it.
        """
        became = ""
        running = [server for running, server in tuple(self._running) if running == request_id]
        if not running and self._last is not None and self._last[0] == request_id:
            running = [self._last[1]]
        until = now() + _CANCEL_S
        for server in running:
            found = self._cancel_anywhere(request_id, server)
            # The request may still be on its way.
            while found is None and (request_id, server) in self._running and now() < until:
                sleep(_PAUSE_S)
                found = self._cancel_anywhere(request_id, server)
            became = found or became
        return became

    def _cancel_anywhere(self, request_id: str, server: Server) -> str | None:
        """Ask ``server`` to cancel; if it cannot be reached, ask the others.

        Each server can revoke a write. Returns what became of the statement; None if the server
        does not know it. Raises OperationalError if no server can be reached.
        """
        first: WireError | None = None
        for each in (server, *(other for other in self._view.preferred if other != server)):
            try:
                return self._cancel_at(request_id, each)
            except WireError as error:
                first = first or error
        failure = Failure(FailureKind.AVAILABILITY, f"{server} cannot receive it: {first}")
        raise exceptions.error_from(failure, request_id) from first

    def _cancel_at(self, request_id: str, server: Server) -> str | None:
        path = protocol.cancel_path(request_id)
        deadline = now() + _CANCEL_S
        status, body = exchange(self._transport, server, "POST", path, self._headers, b"", deadline)
        return protocol.cancelled_as(status, body)

    def commit(self) -> None:
        """Do nothing: every statement is durable when ``execute`` returns."""
        self.check_open()

    def rollback(self) -> None:
        """Raise NotSupportedError: a statement that succeeded cannot be undone."""
        raise NotSupportedError("there are no transactions: every statement stands by itself")

    def check_open(self) -> None:
        """Raise InterfaceError if the connection is closed."""
        if self._closed:
            raise InterfaceError("the connection is closed")

    def close(self) -> None:
        """Close the session and all connections to servers."""
        if self._closed:
            return
        self._closed = True
        self._session.close(self._view.current, now() + _CLOSE_S)
        self._view.close()
        self._transport.close()

    def __enter__(self) -> Connection:
        self.check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
