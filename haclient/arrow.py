"""Arrow IPC streams: encodes rows to send, reads the batches of an answer, exports results."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from haclient.exceptions import DataError, InterfaceError

# Year-month intervals, for which Arrow has a type and pyarrow no class, in a readable form.
#
# Their bytes are those of int32. Only Arrow's C interface can give them that type (`_Retyped`).
# Then they become intervals of months, days and nanoseconds, with values `pyarrow.MonthDayNano`.


def readable_schema(schema: Any) -> Any:
    """Return the schema that `readable` gives to batches of this schema."""
    return _with_types(schema, pa.month_day_nano_interval())


def readable(batch: Any) -> Any:
    """Return the batch with year-month intervals as MonthDayNano, also inside nested values."""
    target = readable_schema(batch.schema)
    if target == batch.schema:
        return batch
    numbers = pa.record_batch(_Retyped(batch, _with_types(batch.schema, pa.int32())))
    columns = [
        column
        if field.type == wanted.type
        else pa.array([_value(v, field.type) for v in column.to_pylist()], wanted.type)
        for column, field, wanted in zip(numbers.columns, batch.schema, target, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


class _Retyped:
    """A batch whose memory is read under another schema, by Arrow's PyCapsule interface."""

    def __init__(self, batch: Any, schema: Any) -> None:
        self._batch, self._schema = batch, schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._schema.__arrow_c_schema__(), self._batch.__arrow_c_array__()[1]


_MONTHS: Final = 21
"""Arrow's number of the type year-month interval.

pyarrow 18, which Superset uses, has no name for it.
"""


def _is_months(kind: Any) -> bool:
    return bool(kind.id == _MONTHS)


def _with_types(schema: Any, months: Any) -> Any:
    """Return the schema with the type ``months`` wherever it has year-month intervals."""
    fields = [field.with_type(_with_type(field.type, months)) for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def _with_type(kind: Any, months: Any) -> Any:
    if _is_months(kind):
        return months
    inner = [kind.field(at).type for at in range(kind.num_fields)]
    if all(_with_type(each, months) == each for each in inner):
        return kind  # pyarrow can read a map with a key of type void, but cannot make one
    if pa.types.is_map(kind):
        return pa.map_(_with_type(kind.key_type, months), _with_type(kind.item_type, months))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_type(kind.value_type, months)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_type(field.type, months)) for field in kind])
    return kind


def _value(value: Any, kind: Any) -> Any:
    """Return a value with MonthDayNano in place of numbers of months; ``kind``: its old type."""
    if value is None:
        return None
    if _is_months(kind):
        return pa.MonthDayNano((value, 0, 0))
    if pa.types.is_map(kind):
        return [(_value(k, kind.key_type), _value(v, kind.item_type)) for k, v in value]
    if pa.types.is_list(kind):
        return [_value(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _value(value[field.name], field.type) for field in kind}
    return value


# Cutting an Arrow IPC stream into record batches while it arrives.
#
# pyarrow pulls a stream from a file, which suits neither asyncio nor a connection with checks of
# its liveness. So the bytes are pushed in here. A message is framed as: 0xFFFFFFFF, the length of
# its metadata (int32), the metadata (a flatbuffer with the length of the body), the body. Length 0
# ends the stream. Only these lengths are read here; whole messages go to pyarrow.


_CONTINUATION = 0xFFFFFFFF
_SCHEMA, _DICTIONARY = 1, 2
_END_OF_STREAM = struct.pack("<II", _CONTINUATION, 0)


class BrokenStream(Exception):
    """The received bytes are not an Arrow IPC stream, or end in the middle of a message."""


class Frames:
    """Cuts an Arrow stream into record batches while its bytes arrive."""

    def __init__(self) -> None:
        self.schema: Any = None
        """The result's pyarrow schema; None until it has arrived."""
        self._data = bytearray()
        self._head = b""
        self._ended = False

    def feed(self, data: bytes) -> list[Any]:
        """Add bytes that have arrived; return the record batches that are now complete."""
        self._data += data
        position, complete = 0, bytearray()
        while not self._ended and (length := self._message_length(position)) is not None:
            kind = self._kind(position) if length > 8 else None
            message = self._data[position : position + length]
            position += length
            if kind is None:
                self._ended = True
            elif kind in (_SCHEMA, _DICTIONARY):
                self._head += bytes(message)
                if kind == _SCHEMA:
                    self.schema = readable_schema(_read(self._head).schema)
            else:
                complete += message
        del self._data[:position]
        if not complete:
            return []
        try:
            return [readable(batch) for batch in _read(self._head + bytes(complete))]
        except pa.ArrowInvalid as error:
            raise BrokenStream(f"the answer cannot be read: {error}") from error

    def finish(self) -> None:
        """Raise BrokenStream if the bytes have ended in the middle of a batch."""
        if self._data and not self._ended:
            raise BrokenStream("the answer ends in the middle of a batch")

    def _message_length(self, start: int) -> int | None:
        """Return the length of the message that begins at ``start``; None if bytes are missing."""
        if len(self._data) - start < 8:
            return None
        mark, metadata = struct.unpack_from("<Ii", self._data, start)
        if mark != _CONTINUATION or metadata < 0:
            raise BrokenStream("the answer is not an Arrow stream")
        if metadata == 0:
            return 8
        if len(self._data) - start < 8 + metadata:
            return None
        length = 8 + metadata + int(self._field(start, 3, "<q"))
        return length if len(self._data) - start >= length else None

    def _kind(self, start: int) -> int:
        return self._field(start, 1, "<B")

    def _field(self, start: int, slot: int, form: str) -> int:
        """Return one number of the message's metadata (a flatbuffer); 0 if it is left out."""
        try:
            table = start + 8 + struct.unpack_from("<I", self._data, start + 8)[0]
            vtable = table - struct.unpack_from("<i", self._data, table)[0]
            if 4 + 2 * slot >= struct.unpack_from("<H", self._data, vtable)[0]:
                return 0
            offset = struct.unpack_from("<H", self._data, vtable + 4 + 2 * slot)[0]
            return int(struct.unpack_from(form, self._data, table + offset)[0]) if offset else 0
        except struct.error as error:
            raise BrokenStream("the answer is not an Arrow stream") from error


def _read(stream: bytes) -> Any:
    return pa.ipc.open_stream(stream + _END_OF_STREAM)


def read_whole(stream: bytes) -> tuple[Any, list[Any]]:
    """Return the schema and the batches of a complete Arrow stream. Raises BrokenStream."""
    try:
        reader = pa.ipc.open_stream(stream)
        return readable_schema(reader.schema), [readable(batch) for batch in reader]
    except (pa.ArrowInvalid, OSError) as error:
        raise BrokenStream(f"the answer cannot be read: {error}") from error


# Rows to append, as one Arrow IPC stream: whole if they are few, else in pieces as they are sent.
#
# A request may have to be sent again, with the same bytes. Data that can be read again is encoded
# again for each attempt; an iterator or a reader is kept if it is small.


BATCH_BYTES: Final = 4 << 20
"""A larger batch is cut, so that client and server have only a few MiB of it in memory."""
WHOLE_BYTES_MAX: Final = 8 << 20
"""Up to this size the rows are sent as one body of known length, else in pieces."""


class Rows:
    """The rows to append, from any of the forms that ``append`` accepts.

    A function as ``data`` must return the same rows at each call. Raises InterfaceError and
    DataError; an error of reading the rows is also stored in ``error``.
    """

    def __init__(self, data: Any) -> None:
        self.error: Exception | None = None
        self._open = _opener(data)
        self._consumed = False
        self._once = _is_read_once(data)
        self._whole: bytes | None = None

    def body(self) -> bytes | Iterator[bytes]:
        """Return the rows as an Arrow stream: bytes if they are few, else an iterator of pieces.

        Each call begins with the first row. Raises InterfaceError if the rows cannot be read again.
        """
        if self._whole is not None:
            return self._whole
        if self._once and self._consumed:
            raise InterfaceError(
                "the rows came from an iterator or a reader, which cannot be read a second time, "
                "and the request has to be sent again: give a Table, or a function that returns a "
                "new iterator; with the same request_id they are not appended twice"
            )
        pieces = self._pieces()
        first: list[bytes] = []
        for piece in pieces:
            first.append(piece)
            if sum(map(len, first)) > WHOLE_BYTES_MAX:
                self._consumed = True
                return _chained(first, pieces)
        self._whole = b"".join(first)
        return self._whole

    def _pieces(self) -> Iterator[bytes]:
        try:
            yield from _encoded(*self._open())
        except Exception as error:
            self.error = error
            raise


def _chained(first: list[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    while first:
        yield first.pop(0)
    yield from rest


def _encoded(schema: Any, batches: Iterable[Any]) -> Iterator[bytes]:
    """Yield the batches as an Arrow stream, in pieces."""
    # A table has no use for pandas' description of its index.
    schema = schema.remove_metadata()
    sink = _Sink()
    with pa.ipc.new_stream(pa.PythonFile(sink, "w"), schema) as writer:
        for batch in batches:
            plain = batch.replace_schema_metadata(None)
            rows = max(1, batch.num_rows * BATCH_BYTES // max(1, batch.nbytes))
            for begin in range(0, max(1, batch.num_rows), rows):
                writer.write_batch(plain.slice(begin, rows))
                yield sink.taken()
    yield sink.taken()


class _Sink:
    """A file that collects the bytes that Arrow writes into it."""

    closed = False

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: Any) -> int:
        self._data += data
        return len(data)

    def flush(self) -> None:
        """Do nothing: there is no file to flush."""

    def close(self) -> None:
        """Do nothing: the collected bytes are still needed."""

    def taken(self) -> bytes:
        """Return the bytes collected since the last call."""
        data, self._data = bytes(self._data), bytearray()
        return data


def _is_read_once(data: Any) -> bool:
    """True if reading the data a second time may give other rows, or none.

    An object with an Arrow stream and a length is a collection (a table, a DataFrame). One without
    a length may be a stream that can be read only once.
    """
    if hasattr(data, "__arrow_c_stream__"):
        return not hasattr(type(data), "__len__")
    return isinstance(data, Iterator)


def _opener(data: Any) -> Callable[[], tuple[Any, Iterable[Any]]]:
    """Return a function that reads the data from the beginning: its schema and its batches."""
    if callable(data) and not isinstance(data, Iterable):
        return lambda: _opener(data())()
    if type(data).__module__.partition(".")[0] == "pandas":
        try:
            data = pa.Table.from_pandas(data, preserve_index=False)
        except pa.ArrowException as error:
            raise DataError(f"the DataFrame has no Arrow form: {error}") from error
    if hasattr(data, "__arrow_c_stream__"):
        return lambda: _streamed(data)
    if isinstance(data, pa.RecordBatch):
        return lambda: (data.schema, (data,))
    if isinstance(data, Iterable):
        return lambda: _opened(iter(data), getattr(data, "schema", None))
    raise InterfaceError(f"a {type(data).__name__} cannot be appended")


def _streamed(data: Any) -> tuple[Any, Iterable[Any]]:
    try:
        reader = pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowException, TypeError) as error:
        raise DataError(f"a {type(data).__name__} gave no Arrow stream: {error}") from error
    return reader.schema, reader


def _opened(batches: Iterator[Any], schema: Any) -> tuple[Any, Iterator[Any]]:
    """Return the schema and all batches; without a ``schema`` take that of the first batch."""
    if schema is not None:
        return schema, batches
    first = next(batches, None)
    if not isinstance(first, pa.RecordBatch):
        raise InterfaceError("expected pyarrow record batches, and at least one")

    def all_batches() -> Iterator[Any]:
        yield first
        yield from batches

    return first.schema, all_batches()


# A result as an Arrow stream, which pyarrow, pandas, polars and DuckDB read directly.


class AsyncArrowResult:
    """The base of asynchronous cursors: no Arrow stream, because reading that would block."""


class ArrowResult:
    """The base of blocking cursors: other libraries can read their rows as an Arrow stream."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the remaining rows as an Arrow stream, which reads from the server."""
        schema = self._held().schema
        reader = pa.RecordBatchReader.from_batches(schema, self.fetch_arrow_batches())
        return reader.__arrow_c_stream__(requested_schema)

    def fetch_arrow_batches(self) -> Iterator[Any]:
        """Yield the remaining rows as pyarrow record batches."""
        raise NotImplementedError

    def _held(self) -> Any:
        raise NotImplementedError
