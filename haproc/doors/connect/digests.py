"""Digests of a result's rows, independent of its batches and of Arrow's form.

Two clusters return the same rows in different batches, and the same values in different bytes:
padding, offsets of slices, dictionaries, compression, the content of null slots. So each column
becomes a few streams that depend on its rows alone, each with a running hash: the positions of
nulls, the bytes of fixed-width values, the lengths and then the bytes of strings, the lengths of
lists, and their items in the same way. Null slots are removed before values are read. Values are
equal only if all their bits are: -0.0 is not 0.0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import compute, types

from haproc.engine.arrow import with_numbers

DIGEST_BYTES: Final = 16
"""The length of a digest. Two different results have the same digest once in 2**64 comparisons."""


class UnknownTypeError(Exception):
    """A column's type is not known to this module, so rows with it have no digest."""


class RowDigest:
    """The digest of all rows that were added so far, in their order."""

    def __init__(self) -> None:
        self.rows = 0
        self._types: tuple[str, ...] | None = None
        self._columns: list[_Column] = []

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Add a batch's rows to the digest; this takes about 0.6 ms for each MiB.

        Raises UnknownTypeError, and ValueError if the batch has other columns than the first one.
        """
        names = tuple(f"{field.name!r} {_name_of(field.type)}" for field in batch.schema)
        if self._types is None:
            self._types = names
            self._columns = [_Column(field.type) for field in batch.schema]
        elif names != self._types:
            raise ValueError("a result whose columns change is none")
        self.rows += batch.num_rows
        for column, values in zip(self._columns, with_numbers(batch).columns, strict=True):
            column.add_values(values)

    def digest(self) -> bytes:
        """Return the digest of the rows so far. All results without rows have the same digest."""
        if not self.rows:
            return bytes(DIGEST_BYTES)
        whole = hashlib.sha256(f"{self.rows} {self._types}".encode())
        for column in self._columns:
            column.feed(whole.update)
        return whole.digest()[:DIGEST_BYTES]


class _Column:
    """The running hashes of one column, or of the items inside a column's values."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = _plain(kind)
        self._rows = 0
        self._nulls = hashlib.sha256()
        self._lengths = hashlib.sha256()
        self._values = hashlib.sha256()
        self._inside = [_Column(each) for each in _inside(self._kind)]

    def add_values(self, values: Any) -> None:
        array = _plain_values(values)
        first, self._rows = self._rows, self._rows + len(array)
        if types.is_null(self._kind):
            return
        if array.null_count:
            places = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))
            self._nulls.update(_integers(places + first))
            array = array.drop_null()
        if not len(array):
            return
        if types.is_struct(self._kind):
            for index, column in enumerate(self._inside):
                column.add_values(array.field(index))
        elif types.is_fixed_size_list(self._kind):
            self._inside[0].add_values(array.flatten())
        elif self._inside:
            self._add_lists(array)
        elif types.is_boolean(self._kind):
            self._values.update(_bits(array))
        elif _is_text(self._kind):
            self._add_texts(array)
        else:
            self._values.update(_fixed_width(array))

    def _add_lists(self, array: Any) -> None:
        offsets = array.offsets.to_numpy()
        self._lengths.update(_integers(np.diff(offsets)))
        begin, count = int(offsets[0]), int(offsets[-1] - offsets[0])
        inside = (array.keys, array.items) if types.is_map(self._kind) else (array.values,)
        for column, values in zip(self._inside, inside, strict=True):
            column.add_values(values.slice(begin, count))

    def _add_texts(self, array: Any) -> None:
        large = types.is_large_string(array.type) or types.is_large_binary(array.type)
        _, lengths, data = array.buffers()
        offsets = np.frombuffer(lengths, np.int64 if large else np.int32)
        offsets = offsets[array.offset : array.offset + len(array) + 1]
        self._lengths.update(_integers(np.diff(offsets)))
        if data is not None:
            self._values.update(memoryview(data)[int(offsets[0]) : int(offsets[-1])])

    def feed(self, update: Callable[[bytes], None]) -> None:
        update(self._rows.to_bytes(8, "little"))
        for stream in (self._nulls, self._lengths, self._values):
            update(stream.digest())
        for column in self._inside:
            column.feed(update)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column's values, without dictionary encoding and the like."""
    while True:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif types.is_dictionary(kind) or types.is_run_end_encoded(kind):
            kind = kind.value_type
        else:
            return kind


def _plain_values(values: Any) -> Any:
    if isinstance(values.type, pa.BaseExtensionType):
        return _plain_values(values.storage)
    if types.is_dictionary(values.type):
        return _plain_values(values.dictionary_decode())
    if types.is_run_end_encoded(values.type):
        return _plain_values(compute.run_end_decode(values))
    return values


def _inside(kind: pa.DataType) -> list[pa.DataType]:
    if types.is_struct(kind):
        return [kind.field(index).type for index in range(kind.num_fields)]
    if types.is_map(kind):
        return [kind.key_type, kind.item_type]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [kind.value_type]
    return []


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


def _name_of(kind: pa.DataType) -> str:
    """Return a type's name without what does not change its values, such as nullability."""
    kind = _plain(kind)
    if types.is_struct(kind):
        fields = (kind.field(index) for index in range(kind.num_fields))
        return f"struct<{', '.join(f'{each.name!r} {_name_of(each.type)}' for each in fields)}>"
    if inside := _inside(kind):
        size = kind.list_size if types.is_fixed_size_list(kind) else ""
        return f"{type(kind).__name__}{size}<{', '.join(map(_name_of, inside))}>"
    if types.is_null(kind) or _is_text(kind) or _width(kind):
        return str(kind)
    raise UnknownTypeError(f"no digest of values of type {kind}")


def _width(kind: pa.DataType) -> int:
    """Return the number of bits of each value of a type; 0 if its values differ in length."""
    try:
        return int(kind.bit_width)
    except ValueError:
        return 0


def _integers(values: Any) -> Any:
    return np.ascontiguousarray(values, "<i8")


def _bits(array: Any) -> Any:
    """Return the values of a boolean column, one byte for each."""
    packed = np.frombuffer(array.buffers()[1], np.uint8)
    first = array.offset
    bits = np.unpackbits(packed[first // 8 :], bitorder="little")
    return np.ascontiguousarray(bits[first % 8 :][: len(array)])


def _fixed_width(array: Any) -> memoryview:
    width = _width(array.type) // 8
    data = memoryview(array.buffers()[1])
    return data[array.offset * width : (array.offset + len(array)) * width]
