"""How many bytes rows take where each value stands for itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_VIEW_BYTES: Final = 16


def batch_bytes(batch: pa.RecordBatch) -> int:
    """Return what a batch takes in plain form."""
    return sum(map(unpacked_bytes, batch.columns))


def halved(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch in pieces that take so much at most, unless one row takes more."""
    if batch.num_rows <= 1 or batch_bytes(batch) <= bytes_max:
        yield batch
        return
    half = batch.num_rows // 2
    yield from halved(batch.slice(0, half), bytes_max)
    yield from halved(batch.slice(half), bytes_max)


def unpacked_bytes(values: pa.Array) -> int:
    """Return how many bytes the values take where each stands for itself.

    In a dictionary or a view one long text may stand for many values at next to no cost.
    """
    types, kind, count = pa.types, values.type, len(values)
    if types.is_dictionary(kind):
        return _bytes_of_indices(values)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        # A view is four numbers, the first one its length; where there is no value, it is any.
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
