"""Rows to append, as one Arrow IPC stream: whole if they are few, else in pieces as they are sent.

A request may have to be sent again, with the same bytes. What can be read again is encoded anew for
each attempt; what cannot, an iterator or a reader, is kept as far as it is small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from haclient.exceptions import DataError, InterfaceError

BATCH_BYTES: Final = 4 << 20
"""A larger batch is cut: neither side has more than a few of them in memory."""
WHOLE_BYTES_MAX: Final = 8 << 20
"""Up to here the rows are sent as they are, with their length."""


class Rows:
    """Anything that gives an Arrow stream, an iterable of pyarrow batches, or a function.

    A function returns any of the others, with the same rows each time. Raises InterfaceError,
    DataError; what reading the rows raises is in ``error``, too.
    """

    def __init__(self, data: Any) -> None:
        self.error: Exception | None = None
        self._open = _opener(data)
        self._consumed = False
        self._once = _is_read_once(data)
        self._whole: bytes | None = None

    def body(self) -> bytes | Iterator[bytes]:
        """Return the bytes if they are few, else their pieces, each time from the beginning."""
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
    """Yield the stream in pieces."""
    # pandas' own description of its index means nothing to a table.
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
    """Collects what Arrow writes."""

    closed = False

    def __init__(self) -> None:
        self._data = bytearray()

    def write(self, data: Any) -> int:
        self._data += data
        return len(data)

    def flush(self) -> None:
        """Nothing is behind it."""

    def close(self) -> None:
        """Nothing to close: what was written is still to be taken."""

    def taken(self) -> bytes:
        """Return what has come since the last time."""
        data, self._data = bytes(self._data), bytearray()
        return data


def _is_read_once(data: Any) -> bool:
    """Return whether a second reading may give other rows than the first, or none.

    What gives an Arrow stream and has a length is a collection (a table, a DataFrame); without one
    it may be a stream that is gone once it was read.
    """
    if hasattr(data, "__arrow_c_stream__"):
        return not hasattr(type(data), "__len__")
    return isinstance(data, Iterator)


def _opener(data: Any) -> Callable[[], tuple[Any, Iterable[Any]]]:
    """Return what gives the schema and the batches from the beginning."""
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
    """Return the schema, taken from the first batch if need be, and all batches."""
    if schema is not None:
        return schema, batches
    first = next(batches, None)
    if not isinstance(first, pa.RecordBatch):
        raise InterfaceError("expected pyarrow record batches, and at least one")

    def all_batches() -> Iterator[Any]:
        yield first
        yield from batches

    return first.schema, all_batches()
