"""Arrow IPC streams: reading their parts, making them, joining several into one."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.ipc

# Several Arrow IPC streams of one schema as one, without parsing the data.
#
# A stream is a sequence of messages: a schema, then batches, then an end marker. A message is a
# continuation marker (0xFFFFFFFF), the length of its metadata, the metadata (a flatbuffer that
# holds the body's length), and the body. The end marker is a continuation marker with length 0. So
# a stream continues another one if its schema and its end marker are left out.


_PREFIX: Final = struct.Struct("<II")
_CONTINUATION: Final = 0xFFFFFFFF
_BODY_LENGTH_FIELD: Final = 3
END_OF_STREAM: Final = _PREFIX.pack(_CONTINUATION, 0)


class FrameError(ValueError):
    """The bytes are not an Arrow IPC stream."""


def opening(stream: bytes) -> memoryview:
    """Return an Arrow IPC stream without its end marker, so that further batches can follow."""
    return memoryview(stream)[: _end_of_messages(stream)]


def continuation(stream: bytes) -> memoryview:
    """Return an Arrow IPC stream's batches: without its schema and its end marker."""
    return memoryview(stream)[_message_end(stream, 0) : _end_of_messages(stream)]


def joined(streams: Sequence[bytes]) -> bytes:
    """Return one Arrow IPC stream with the batches of all ``streams`` (at least one), in order."""
    if len(streams) == 1:
        return streams[0]
    return b"".join(
        (opening(streams[0]), *(continuation(stream) for stream in streams[1:]), END_OF_STREAM)
    )


def _end_of_messages(stream: bytes) -> int:
    end = 0
    for end in _message_ends(stream):  # noqa: B007
        pass
    return end


def _message_ends(stream: bytes) -> Iterator[int]:
    position = 0
    while position < len(stream) and stream[position : position + 8] != END_OF_STREAM:
        position = _message_end(stream, position)
        yield position


def _message_end(stream: bytes, start: int) -> int:
    """Return the position in ``stream`` behind the message that begins at ``start``."""
    try:
        marker, length = _PREFIX.unpack_from(stream, start)
        if marker != _CONTINUATION or length == 0:
            raise FrameError("not an Arrow IPC stream: a message does not start as it must")
        metadata = start + _PREFIX.size
        end: int = metadata + length + _body_length(stream, metadata)
    except struct.error as error:
        raise FrameError("not an Arrow IPC stream: it is cut off") from error
    if not metadata + length <= end <= len(stream):
        raise FrameError("not an Arrow IPC stream: a message is longer than the stream")
    return end


def _body_length(stream: bytes, metadata: int) -> int:
    """Read the length of a message's body from its metadata; 0 if the field is absent."""
    (root,) = struct.unpack_from("<I", stream, metadata)
    table = metadata + root
    (back,) = struct.unpack_from("<i", stream, table)
    vtable = table - back
    (vtable_size,) = struct.unpack_from("<H", stream, vtable)
    slot = 4 + 2 * _BODY_LENGTH_FIELD
    if slot + 2 > vtable_size:
        return 0
    (field,) = struct.unpack_from("<H", stream, vtable + slot)
    if field == 0:
        return 0
    length: int = struct.unpack_from("<q", stream, table + field)[0]
    return length


# Reading and making Arrow IPC streams.


_AFFECTED = ("num_affected_rows", "num_inserted_rows")


def rows(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a small result, given as Arrow IPC streams."""
    for chunk in chunks:
        with pa.ipc.open_stream(chunk) as reader:
            yield from reader.read_all().to_pylist()


def stream_of(table: pa.Table) -> bytes:
    """Return rows as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def with_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with int32 in place of year-month intervals; the bytes are the same.

    pyarrow has this type, but no class for its arrays. Only Arrow's C interface can give them
    another type.
    """
    plain = as_numbers(batch.schema)
    return batch if plain == batch.schema else retyped(batch, plain)


def as_numbers(schema: pa.Schema) -> pa.Schema:
    """Return the schema with int32 in place of year-month intervals, at any depth."""
    return pa.schema([field.with_type(as_numbers_type(field.type)) for field in schema])


def as_numbers_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with int32 in place of year-month intervals, at any depth."""
    if kind.id == pa.lib.Type_INTERVAL_MONTHS:
        return pa.int32()
    inner = [kind.field(at) for at in range(kind.num_fields)]
    plain = [field.with_type(as_numbers_type(field.type)) for field in inner]
    if plain == inner:
        return kind  # pyarrow can read a map with a key of type void, but cannot make one
    if pa.types.is_map(kind):
        return pa.map_(as_numbers_type(kind.key_type), as_numbers_type(kind.item_type))
    return pa.list_(plain[0]) if pa.types.is_list(kind) else pa.struct(plain)


def retyped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the same bytes, but with the types that ``schema`` has."""
    return batch if batch.schema == schema else pa.record_batch(_Retyped(batch, schema))


class _Retyped:
    """A batch and another schema for it, which pyarrow reads by Arrow's PyCapsule interface."""

    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        self._batch, self._schema = batch, schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._schema.__arrow_c_schema__(), self._batch.__arrow_c_array__()[1]


def empty_stream() -> bytes:
    """Return an Arrow IPC stream without columns and rows."""
    return stream_of(pa.table({}))


def affected_rows(chunks: Iterable[bytes]) -> int | None:
    """Return the number of rows that a write's small result reports; None if it reports none."""
    first = next(iter(rows(chunks)), None)
    if first is not None:
        for name in _AFFECTED:
            if isinstance(first.get(name), int):
                return int(first[name])
    return None


def rows_in(stream: bytes) -> int:
    """Return the number of rows in an Arrow IPC stream."""
    with pa.ipc.open_stream(stream) as reader:
        return sum(batch.num_rows for batch in reader)


def without_rows(stream: bytes) -> bytes:
    """Return an Arrow IPC stream with the schema of ``stream`` and no rows."""
    return no_rows(pa.ipc.read_schema(pa.py_buffer(stream)))


def no_rows(schema: pa.Schema) -> bytes:
    """Return an Arrow IPC stream with this schema and no rows."""
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, schema).close()
    return bytes(sink.getvalue().to_pybytes())
