"""A body of rows in any form, as rows that fit their table; a piece at a time."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from haproc.engine.interface import Chunk, Column
from haproc.engine.statement import ROWS_MAX
from haproc.failure import ErrorClass, RequestError, refused
from haproc.route.rows.csv_lines import csv_rows
from haproc.route.rows.fitting import converted, encoded, fits, plain, untyped
from haproc.route.rows.forms import (
    ARROW,
    NOT_OF_FORM,
    Form,
    FormKind,
    Readable,
    RowsError,
    clients_fault,
)
from haproc.route.rows.json_lines import json_rows
from haproc.route.rows.lines import Batches
from haproc.route.rows.sizes import AS_STREAM, batch_bytes, extent, halved

PIECE_BYTES: Final = 4 << 20
PIECE_BATCHES_MAX: Final = 1000
"""The most batches that are processed at a time; chosen, not measured."""
BEHIND_MAX: Final = 4096
_NO_ARROW: Final = NOT_OF_FORM[FormKind.ARROW]

Opener = Callable[[Readable, Sequence[Column], int], Batches]
"""Opens a body of so many bytes a batch."""


def makes_a_record(stream: bytes, bytes_max: int) -> bool:
    """True if an Arrow IPC stream's rows fit into one record.

    An invalid stream is reported when it is read.
    """
    try:
        with clients_fault(_NO_ARROW):
            found = extent(io.BytesIO(stream), bytes_max)
    except RowsError:
        return True
    return found.size_bytes <= AS_STREAM * bytes_max and found.rows <= ROWS_MAX


def read(stream: bytes, bytes_max: int) -> pa.Table:
    """Return the rows of an Arrow IPC stream that make a record; raises RowsError."""
    with clients_fault(_NO_ARROW):
        return _read(stream, bytes_max)


def _read(stream: bytes, bytes_max: int) -> pa.Table:
    found = extent(io.BytesIO(stream), bytes_max)
    if found.rows > ROWS_MAX:
        raise RowsError([f"{found.rows} rows are more than {ROWS_MAX}"])
    batches: list[pa.RecordBatch] = []
    size = 0
    source = pa.BufferReader(stream)
    with pa.ipc.open_stream(source) as reader:
        schema = reader.schema
        for batch in reader:
            batch.validate(full=True)
            size += batch_bytes(batch)
            if size > bytes_max:
                raise RowsError([f"the rows are larger than {bytes_max} bytes unpacked"])
            batches.append(batch)
        behind = len(stream) - source.tell()
    if behind:
        raise RowsError([f"{behind} bytes stand behind the end of the stream: send one stream"])
    return pa.Table.from_batches(batches, schema)


def fitted(stream: bytes, columns: Sequence[Column], bytes_max: int, form: Form = ARROW) -> bytes:
    """Return a client's Arrow rows as Spark takes them; RequestError if they don't fit."""
    try:
        with clients_fault(_NO_ARROW):
            table = _read(stream, bytes_max)
            table = table.rename_columns(_names(table.schema, form, columns))
            if problems := fits(table.schema, columns):
                raise RowsError(problems)
            return plain(table, columns)
    except RowsError as error:
        raise misfit(error) from error


def _names(schema: pa.Schema, form: Form, columns: Sequence[Column]) -> list[str]:
    """Return the column names of a form that has names of its own; raises RowsError."""
    names = form.names([column.name for column in columns])
    if names is None:
        return list(schema.names)
    if len(names) != len(schema):
        raise RowsError([f"the rows have {len(schema)} columns, and {len(names)} are named"])
    return names


def misfit(error: RowsError) -> RequestError:
    """Return the client's error for its rows."""
    return refused(
        ErrorClass.ROWS_MISFIT, str(error), "send the table's columns by name, of types that fit"
    )


def pieces(
    source: Readable,
    columns: Sequence[Column],
    bytes_max: int,
    form: Form = ARROW,
    parquet: Opener | None = None,
) -> Iterator[Chunk]:
    """Yield a client's rows as Spark takes them, piece by piece, at least one; RequestError.

    ``source`` is read to its end. No record batch may be larger than ``bytes_max``. ``parquet``
    opens Parquet, where that is read; it may end the process.
    """
    if form.kind is FormKind.PARQUET and parquet is None:
        raise AssertionError("Parquet is read by a process of its own")
    try:
        with clients_fault(NOT_OF_FORM[form.kind]):
            schema, batches = _opened(source, form, columns, bytes_max, parquet)
            if form.kind is not FormKind.ARROW:  # nobody but us cut these batches
                batches = _cut(batches, min(PIECE_BYTES, bytes_max))
            names = _names(schema, form, columns)
            schema = pa.schema([f.with_name(n) for f, n in zip(schema, names, strict=True)])
            if problems := [*fits(schema, columns), *untyped(schema)]:
                raise RowsError(problems)
            for group in _groups(batches, bytes_max):
                renamed = [batch.rename_columns(schema.names) for batch in group]
                table = converted(pa.Table.from_batches(renamed, schema), columns)
                yield Chunk(encoded(table), table.num_rows)
    except RowsError as error:
        raise misfit(error) from error


def _opened(
    source: Readable,
    form: Form,
    columns: Sequence[Column],
    bytes_max: int,
    parquet: Opener | None,
) -> Batches:
    match form.kind:
        case FormKind.ARROW:
            extent(source, bytes_max)
            reader = pa.ipc.open_stream(source)
            return reader.schema, _to_the_end(reader, source)
        case FormKind.CSV:
            return csv_rows(source, form, columns)
        case FormKind.JSON_LINES:
            return json_rows(source, form, columns)
        case FormKind.PARQUET:
            assert parquet is not None
            return parquet(source, columns, PIECE_BYTES)


def _to_the_end(reader: pa.RecordBatchReader, source: Readable) -> Iterator[pa.RecordBatch]:
    with reader:
        for batch in reader:
            batch.validate(full=True)
            yield batch
    if behind := len(source.read(BEHIND_MAX)):
        raise RowsError([f"{behind} bytes or more stand behind the end of the stream"])


def _cut(batches: Iterable[pa.RecordBatch], bytes_max: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from halved(batch, bytes_max)


def _groups(batches: Iterable[pa.RecordBatch], bytes_max: int) -> Iterator[list[pa.RecordBatch]]:
    """Yield batches, as many at a time as make a piece; at least one list, perhaps empty."""
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        unpacked = batch_bytes(batch)
        if unpacked > bytes_max:
            raise RowsError([f"a record batch has more than {bytes_max} bytes unpacked: cut it"])
        group.append(batch)
        size += unpacked
        if size >= PIECE_BYTES or len(group) >= PIECE_BATCHES_MAX:
            yield group
            group, size = [], 0
    yield group
