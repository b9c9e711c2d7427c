# Written by scripts/async_to_sync.py from haclient/aio/cursor.py; edit that one.
"""PEP 249's cursor, and the answer that it reads; also Arrow, pandas, cancelling."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from haclient import columns, protocol
from haclient.arrow import ArrowResult, BrokenStream, Frames, Rows, read_whole
from haclient.exceptions import (
    DatabaseError,
    Failure,
    FailureKind,
    InterfaceError,
    Outcome,
    ProgrammingError,
    error_from,
)
from haclient.parameters import ROWS_MIN, Parameters, as_rows, encode
from haclient.protocol import Broken, Rejected, Statement, WireError
from haclient.request_ids import new_request_id
from haclient.settings import Server
from haclient.statements import is_row_insert, value_insert
from haclient.sync.transport import Response

if TYPE_CHECKING:
    from haclient.sync.connection import Connection


# A statement's answer: the ``ha`` block and the record batches, read wholly or as they arrive.


class Result:
    """One answer. ``ha``: HAProc's facts in it; ``server``: the server that sent it."""

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
        """Store a result that has been read completely."""
        self.schema, self._batches = schema, batches

    def stream(self, response: Response, frames: Frames, batches: list[Any]) -> None:
        """Store the batches read so far, and the response with the rest of the result."""
        self.schema, self._batches = frames.schema, batches
        self._response, self._frames = response, frames
        response.without_deadline()

    def next_batch(self) -> Any:
        """Return the next batch of rows, None at the end; OperationalError if the stream breaks."""
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
        """Stop reading the result, and close the response."""
        response, self._response = self._response, None
        self._batches, self._next = [], 0
        if response is not None:
            response.close()


def receive(response: Response, server: Server, request_id: str, buffer_bytes_max: int) -> Result:
    """Read an answer: all of it if it has at most ``buffer_bytes_max`` bytes, else its beginning.

    The rest is then streamed. Raises WireError if the connection fails, and Rejected for an error
    answer.
    """
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


# PEP 249's cursor, and its extensions: Arrow, pandas, the ``ha`` block, cancelling.


class Cursor(ArrowResult):
    """A PEP 249 cursor: runs statements, one after another, and has the last one's result.

    ``description``, ``rowcount`` and ``arraysize`` are PEP 249's. ``ha`` is the last answer's
    ``ha`` block (cluster, class, log offset, outcome per cluster), ``request_id`` the last
    request's id, ``server`` the URL that answered.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.arraysize = 1
        self.description: list[columns.Column] | None = None
        self.rowcount = -1
        self.ha: dict[str, Any] = {}
        self.request_id = ""
        self.server = ""
        self._result: Result | None = None
        self._batch: Any = None
        self._rows: list[tuple[Any, ...]] | None = None
        self._position = 0
        self._closed = False
        self._cancelled = False

    def execute(
        self,
        operation: str,
        parameters: Parameters | None = None,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
        stream: bool = False,
        age_s: float = 0.0,
        **options: str | int | None,
    ) -> Cursor:
        """Run one statement with ``?`` (a sequence) or ``:name`` (a mapping) parameters.

        - ``request_id``: the request's id, under which it can be repeated; made here unless given;
        - ``timeout_s``: the time limit over all attempts;
        - ``stream``: True: return rows as they arrive, without reading the whole result first;
        - ``age_s``: the time since this ``request_id`` was first sent; 0 if it was not sent before;
        - ``options``: ``consistency``, ``acceptable_offset_lag``, ``operation_class``, ``fanout``,
          ``write_concern``, ``apply_budget_s`` (the time that a write may run on a cluster),
          ``cache`` (False: no answer from the server's cache)
        """
        statement = self._statement(operation, request_id, timeout_s, age_s, options)
        self._run(replace(statement, parameters=encode(parameters)), stream)
        return self

    def executemany(
        self,
        operation: str,
        seq_of_parameters: Iterable[Parameters],
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
        age_s: float = 0.0,
        **options: str | int | None,
    ) -> Cursor:
        """Run a statement for each set of parameters.

        An ``INSERT … VALUES (…)`` with one row becomes one write for all sets: all rows or none. If
        all its values are parameter markers, and there are more than a thousand sets, they are sent
        as rows in Arrow, if the values fit the columns without loss; their number is then not
        limited.

        Any other statement is run once for each set, in order, with the request ids
        ``<request_id>.1``, ``<request_id>.2`` …, up to the first error; ``timeout_s`` then holds
        for each run.
        """
        given = list(seq_of_parameters)
        statement = self._statement(operation, request_id, timeout_s, age_s, options)
        if len(given) > ROWS_MIN and self._run_as_rows(statement, given):
            return self
        sets = [encode(each) or [] for each in given]
        if not sets:
            self._reset()
            self.rowcount = 0
        elif is_row_insert(operation):
            self._run(replace(statement, parameter_rows=sets), False)
            if self.rowcount < 0:  # all rows or none
                self.rowcount = len(sets)
        else:
            self._run_each(statement, sets)
        return self

    def _run_as_rows(self, statement: Statement, given: list[Parameters]) -> bool:
        """Send the parameter sets of an INSERT as rows; return True if the ring accepted them.

        False: they were not appended, so the caller must send them with the statement.
        """
        insert = None if self.connection.has_session else value_insert(statement.text)
        rows = None if insert is None else as_rows(insert, given)
        if insert is None or rows is None or statement.options.keys() - {"write_concern"}:
            return False
        self._reset()
        self.request_id = statement.request_id
        try:
            result = self.connection.send_rows(
                insert.table,
                Rows(rows).body,
                protocol.ARROW_STREAM,
                {"columns": protocol.columns_text(insert.columns)},
                request_id=statement.request_id,
                timeout_s=statement.timeout_s,
                age_s=statement.age_s,
                write_concern=statement.options.get("write_concern"),
            )
        except DatabaseError as error:
            if error.outcome is Outcome.NOT_SENT and error.error_class in protocol.ROWS_UNFIT:
                return False
            raise
        self.ha, self.server = result.ha, result.server.url
        affected = result.ha.get("affected_rows")
        self.rowcount = affected if isinstance(affected, int) else len(given)
        return True

    def _statement(
        self,
        operation: str,
        request_id: str | None,
        timeout_s: float | None,
        age_s: float,
        options: dict[str, Any],
    ) -> Statement:
        self._check_open()
        if timeout_s is not None and timeout_s <= 0:
            raise InterfaceError("timeout_s must be greater than 0")
        if age_s < 0:
            raise InterfaceError("age_s must not be negative")
        return Statement(
            request_id=request_id or new_request_id(),
            text=operation,
            timeout_s=timeout_s or self.connection.settings.timeout_s,
            options=protocol.check_options(options),
            age_s=age_s,
        )

    def _run_each(self, statement: Statement, sets: list[list[dict[str, Any]]]) -> None:
        base, total = statement.request_id, 0
        for at, encoded in enumerate(sets, start=1):
            one = replace(statement, request_id=f"{base}.{at}", parameters=encoded)
            self._run(one, False)
            total = total + self.rowcount if total >= 0 and self.rowcount >= 0 else -1
        self.request_id, self.rowcount = base, total

    def _run(self, statement: Statement, stream: bool) -> None:
        self._reset()
        self.request_id = statement.request_id
        self._cancelled = False
        result = self.connection.run_statement(statement, stream, lambda: self._cancelled)
        self._result = result
        self.ha = result.ha
        self.server = result.server.url
        self.description = columns.describe(result.schema)
        affected = result.ha.get("affected_rows")
        self.rowcount = affected if isinstance(affected, int) else -1

    def cancel(self) -> str:
        """Ask the server to end the running statement; call it while ``execute`` runs.

        A write is revoked if no cluster has committed it. If that server cannot be reached, the
        next one is asked to cancel. Returns what became of the statement: ``canceled``,
        ``revoked``, ``committed``, ``rejected``, ``undecided`` or ``ended``, see docs/guide/sql.md;
        empty if no server knows it.

        ``execute`` then sends the statement to no other server. It raises OperationalError, or for
        a revoked write the error of its rejection.
        """
        self._cancelled = True
        return self.connection.cancel(self.request_id) if self.request_id else ""

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the next row; None when there are no more rows."""
        while self._rows is None or self._position >= len(self._rows):
            if not self._next_rows():
                return None
        row = self._rows[self._position]
        self._position += 1
        return row

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """Return the next rows, at most ``size``; without ``size`` at most ``arraysize``."""
        wanted = self.arraysize if size is None else size
        found: list[tuple[Any, ...]] = []
        while len(found) < wanted and (row := self.fetchone()) is not None:
            found.append(row)
        return found

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all remaining rows."""
        found = self._rows[self._position :] if self._rows is not None else []
        while self._next_rows():
            found += self._rows or []
        self._rows = None
        return found

    def fetch_arrow_batches(self) -> Iterator[Any]:
        """Yield the remaining rows as pyarrow record batches, as they arrive."""
        result = self._held()
        if self._batch is not None:
            rest = self._batch.slice(self._position)
            self._batch = self._rows = None
            if rest.num_rows:
                yield rest
        while (batch := result.next_batch()) is not None:
            yield batch

    def fetch_arrow_table(self) -> Any:
        """Return the remaining rows as a pyarrow table."""
        schema = self._held().schema
        batches: list[Any] = []
        for batch in self.fetch_arrow_batches():
            batches.append(batch)
        return pa.Table.from_batches(batches, schema=schema)

    def fetch_pandas(self) -> Any:
        """Return the remaining rows as a pandas DataFrame (needs pandas)."""
        table = self.fetch_arrow_table()
        return table.to_pandas()

    def _next_rows(self) -> bool:
        batch = self._held().next_batch()
        self._batch, self._position = batch, 0
        self._rows = None if batch is None else columns.rows(batch)
        return batch is not None

    def _held(self) -> Result:
        self._check_open()
        if self._result is None or self.description is None:
            raise ProgrammingError("there is no result to fetch: execute a query first")
        return self._result

    def _reset(self) -> None:
        result, self._result = self._result, None
        self._batch = self._rows = self.description = None
        self.rowcount, self.ha, self.server, self._position = -1, {}, "", 0
        if result is not None:
            result.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InterfaceError("the cursor is closed")
        self.connection.check_open()

    def nextset(self) -> None:
        """Discard the result and return None: a statement has only one result set."""
        self._held()
        self._reset()

    def setinputsizes(self, sizes: object) -> None:
        """Do nothing: PEP 249 allows that, and no sizes are needed."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Do nothing: PEP 249 allows that, and no sizes are needed."""

    def close(self) -> None:
        """Discard the result and close the PEP 249 cursor."""
        if not self._closed:
            self._reset()
            self._closed = True

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> tuple[Any, ...]:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
