"""Reads a body of rows in any format, and yields them fitted to their table, piece by piece."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from haproc.engine.interface import Chunk, Column
from haproc.engine.statement import ROWS_MAX
from haproc.failure import ErrorClass, RequestError, refused
from haproc.route.rows.csv_lines import csv_rows
from haproc.route.rows.fitting import converted, encoded, fits, untyped
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

# The size of an Arrow stream, by its messages before any of it is unpacked.
#
# A short stream can hold very much: compressed, a batch may be a thousand times as long, and rows
# of nothing but NULL take no bytes at all. A stream is a sequence of messages: a length, metadata
# (a flatbuffer, which holds the body's length), a body. In the body of a compressed batch each
# buffer begins with its unpacked length.


_CONTINUES: Final = 0xFFFFFFFF
_DICTIONARY, _RECORDS = 2, 3
_RAW: Final = -1
"""Stands in place of the unpacked length, before a buffer that is not compressed although its batch
is."""
AS_STREAM: Final = 2
"""How many times as large as its rows a stream may be, for padding and short views. Chosen."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The rows of an Arrow stream, and its bytes unpacked; dictionaries count once."""

    rows: int = 0
    size_bytes: int = 0


def extent(source: Readable, batch_bytes_max: int) -> Extent:
    """Return the size of an Arrow stream without unpacking it.

    Raises RowsError if a batch is surely larger than ``batch_bytes_max``. A batch counts with its
    dictionaries; its encoding may make it `AS_STREAM` times as large as its rows. Afterwards
    ``source`` is at its beginning.
    """
    try:
        found = _extent(source, batch_bytes_max)
    except struct.error as error:
        raise RowsError(["not an Arrow IPC stream: it is cut off, or nonsense"]) from error
    source.seek(0)
    return found


def _extent(source: Readable, batch_bytes_max: int) -> Extent:
    position = rows = size = 0
    dictionary_bytes: dict[int, int] = {}
    while True:
        source.seek(position)
        length, metadata_at = _length(source.read(8), position)
        if not length:
            return Extent(rows, size + sum(dictionary_bytes.values()))
        source.seek(metadata_at)
        message = _Table.root(source.read(length))
        kind, body, position = message.byte(1), metadata_at + length, metadata_at + length
        position += message.long(3)
        if position < body:
            raise struct.error
        header = message.table(2)
        if kind == _DICTIONARY and header is not None and (batch := header.table(1)) is not None:
            number = header.long(0)
            before = dictionary_bytes.get(number, 0) if header.byte(2) else 0  # else it is replaced
            dictionary_bytes[number] = before + _unpacked(source, batch, body, position)
        elif kind == _RECORDS and header is not None:
            rows += header.long(0)
            here = _unpacked(source, header, body, position)
            size += here
            if here + sum(dictionary_bytes.values()) > AS_STREAM * batch_bytes_max:
                break
        if sum(dictionary_bytes.values()) > AS_STREAM * batch_bytes_max:
            break
    raise RowsError([f"a record batch has more than {batch_bytes_max} bytes unpacked: cut it"])


def _length(prefix: bytes, position: int) -> tuple[int, int]:
    """Return the length of a message's metadata, 0 at the stream's end, and where it begins."""
    if len(prefix) < 4:
        return 0, position
    (length,) = struct.unpack_from("<I", prefix)
    if length != _CONTINUES:
        return length, position + 4  # the form before 2020
    return struct.unpack_from("<I", prefix, 4)[0], position + 8


def _unpacked(source: Readable, batch: _Table, body: int, end: int) -> int:
    """Return how many bytes a batch takes unpacked; its body is from ``body`` to ``end``."""
    if batch.table(3) is None:
        return end - body
    size = 0
    for offset, length in batch.pairs(2):
        if length:
            if offset < 0 or length < 0:
                raise struct.error
            source.seek(body + offset)
            (unpacked,) = struct.unpack("<q", source.read(8))
            if unpacked < _RAW:
                raise struct.error
            size += length if unpacked == _RAW else unpacked
    return size


class _Table:
    """A table of the flatbuffers format; its fields are found by number. Raises struct.error."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - self._number("<i", at)
        self._fields_size = self._number("<H", self._fields)

    @classmethod
    def root(cls, data: bytes) -> _Table:
        (at,) = struct.unpack_from("<I", data)
        return cls(data, at)

    def byte(self, field: int) -> int:
        at = self._place(field)
        return self._number("<B", at) if at else 0

    def long(self, field: int) -> int:
        at = self._place(field)
        return self._number("<q", at) if at else 0

    def table(self, field: int) -> _Table | None:
        at = self._place(field)
        return _Table(self._data, at + self._number("<I", at)) if at else None

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """Return a field that is a list of pairs of numbers."""
        if not (at := self._place(field)):
            return []
        at += self._number("<I", at)
        count = self._number("<I", at)
        if count > len(self._data) // 16:
            raise struct.error
        return [struct.unpack_from("<qq", self._data, at + 4 + 16 * n) for n in range(count)]

    def _place(self, field: int) -> int:
        slot = 4 + 2 * field
        if slot + 2 > self._fields_size:
            return 0
        offset = self._number("<H", self._fields + slot)
        return self._at + offset if offset else 0

    def _number(self, kind: str, at: int) -> int:
        if at < 0:
            raise struct.error
        number: int = struct.unpack_from(kind, self._data, at)[0]
        return number


# The bytes that rows take if no value is shared.


_VIEW_BYTES: Final = 16


def batch_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch if each value is stored by itself."""
    return sum(map(unpacked_bytes, batch.columns))


def halved(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yield the batch in parts of at most ``bytes_max`` bytes; a single row may take more."""
    if batch.num_rows <= 1 or batch_bytes(batch) <= bytes_max:
        yield batch
        return
    half = batch.num_rows // 2
    yield from halved(batch.slice(0, half), bytes_max)
    yield from halved(batch.slice(half), bytes_max)


def unpacked_bytes(values: pa.Array) -> int:
    """Return the bytes of the values if each is stored by itself.

    In a dictionary or a view, many values can share one long text.
    """
    types, kind, count = pa.types, values.type, len(values)
    if types.is_dictionary(kind):
        return _bytes_of_indices(values)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        # A view is four numbers, the first one its length, which has no meaning for a null.
        begin, buffer = values.offset, values.buffers()[1] if count else b""
        views = memoryview(buffer).cast("B")[_VIEW_BYTES * begin : _VIEW_BYTES * (begin + count)]
        lengths = views.cast("i")[::4]
        return sum(length for length in lengths if length > 0)
    if types.is_struct(kind):
        return sum(map(unpacked_bytes, values.flatten())) + count // 8
    if types.is_map(kind):
        return unpacked_bytes(values.keys) + unpacked_bytes(values.items) + 4 * count
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return unpacked_bytes(values.flatten()) + 4 * count
    return int(values.nbytes)


def _bytes_of_indices(values: pa.DictionaryArray) -> int:
    known = values.dictionary
    try:
        return len(values) * int(known.type.bit_width) // 8
    except ValueError:  # the values differ in length
        pass
    try:
        lengths = pc.take(pc.binary_length(known), values.indices)
    except pa.ArrowNotImplementedError:  # neither texts nor bytes
        return len(values) * unpacked_bytes(known)
    return 4 * len(values) + (pc.sum(lengths).as_py() or 0)


PIECE_BYTES: Final = 4 << 20
PIECE_BATCHES_MAX: Final = 1000
"""The most batches that make one piece; chosen, not measured."""
BEHIND_MAX: Final = 4096
_NO_ARROW: Final = NOT_OF_FORM[FormKind.ARROW]

Opener = Callable[[Readable, Sequence[Column], int], Batches]
"""Opens a body for reading; the number is the bytes of a batch."""


def makes_a_record(stream: bytes, bytes_max: int) -> bool:
    """True if the rows of an Arrow IPC stream fit into one record.

    True also if the stream is invalid: the error is raised when it is read.
    """
    try:
        with clients_fault(_NO_ARROW):
            found = extent(io.BytesIO(stream), bytes_max)
    except RowsError:
        return True
    return found.size_bytes <= AS_STREAM * bytes_max and found.rows <= ROWS_MAX


def read(stream: bytes, bytes_max: int) -> pa.Table:
    """Return the rows of an Arrow IPC stream.

    Raises RowsError if they cannot be read, or do not fit into one record.
    """
    batches: list[pa.RecordBatch] = []
    size = 0
    with clients_fault(_NO_ARROW):
        found = extent(io.BytesIO(stream), bytes_max)
        if found.rows > ROWS_MAX:
            raise RowsError([f"{found.rows} rows are more than {ROWS_MAX}"])
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
    """Convert a client's Arrow rows to the form that Spark takes, for a table with ``columns``.

    Raises RequestError if they do not fit the table.
    """
    try:
        with clients_fault(_NO_ARROW):
            table = read(stream, bytes_max)
            table = table.rename_columns(_names(table.schema, form, columns))
            if problems := fits(table.schema, columns):
                raise RowsError(problems)
            return encoded(converted(table, columns))
    except RowsError as error:
        raise misfit(error) from error


def _names(schema: pa.Schema, form: Form, columns: Sequence[Column]) -> list[str]:
    """Return the names of the rows' columns: those in ``form``, or else in the schema.

    Raises RowsError if the number of names is wrong.
    """
    names = form.names([column.name for column in columns])
    if names is None:
        return list(schema.names)
    if len(names) != len(schema):
        raise RowsError([f"the rows have {len(schema)} columns, and {len(names)} are named"])
    return names


def misfit(error: RowsError) -> RequestError:
    """Turn a RowsError into the RequestError that the client receives."""
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
    """Yield a client's rows in pieces that Spark takes, at least one piece; raises RequestError.

    ``source`` is read to its end. No record batch may be larger than ``bytes_max``. ``parquet``
    opens Parquet; only a process of its own passes it, because that may end the process.
    """
    if form.kind is FormKind.PARQUET and parquet is None:
        raise AssertionError("Parquet is read by a process of its own")
    try:
        with clients_fault(NOT_OF_FORM[form.kind]):
            schema, batches = _opened(source, form, columns, bytes_max, parquet)
            if form.kind is not FormKind.ARROW:  # HAProc chose the size of these batches
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
    """Group batches so that each group makes one piece; yields an empty one if there are none."""
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
