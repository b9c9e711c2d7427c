"""Many sets of parameters of one INSERT as Arrow rows, where each column has one type.

What the server then stores is the same as for the statement: it takes rows only where they fit
their columns without loss. Anything else stays a statement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from haclient.parameters import Parameters
from haclient.statements import ValueInsert

ROWS_MIN: Final = 1000
"""Fewer go as a statement, for which no server looks at the table first. Chosen."""
_BATCH_ROWS: Final = 10_000


def as_rows(insert: ValueInsert, sets: Sequence[Parameters]) -> pa.Table | None:
    """Return the rows of an INSERT, a column for each of its markers; None if that can't be."""
    markers = insert.markers
    if markers[0]:
        if not all(isinstance(each, Mapping) and each.keys() == set(markers) for each in sets):
            return None
        rows = [[each[name] for name in markers] for each in sets]  # type: ignore[call-overload]
    else:
        if not all(isinstance(each, list | tuple) and len(each) == len(markers) for each in sets):
            return None
        rows = list(sets)  # type: ignore[arg-type]
    arrays = [_array([row[at] for row in rows]) for at in range(len(markers))]
    if any(array is None for array in arrays):
        return None
    batch = pa.RecordBatch.from_arrays(arrays, [str(at) for at in range(len(markers))])
    return pa.Table.from_batches(
        [batch.slice(begin, _BATCH_ROWS) for begin in range(0, len(rows), _BATCH_ROWS)]
    )


def _array(values: list[Any]) -> pa.Array | None:
    """Return values of one kind as Arrow has them; None if they are not."""
    found = set(map(type, values)) - {type(None)}
    if len(found) != 1:
        return None
    make = _MAKE.get(found.pop())
    try:
        return make(values) if make is not None else None
    except (ValueError, TypeError, ArithmeticError):  # what is wrong with them the statement tells
        return None


def _integers(values: list[Any]) -> pa.Array:
    """Return them in the narrowest type, which fits most columns."""
    wide = pa.array(values, pa.int64())
    for narrow in (pa.int8(), pa.int16(), pa.int32()):
        try:
            return wide.cast(narrow)
        except pa.ArrowInvalid:
            continue
    return wide


def _moments(values: list[Any]) -> pa.Array | None:
    aware = {value.utcoffset() is not None for value in values if value is not None}
    return (
        pa.array(values, pa.timestamp("us", "UTC" if True in aware else None))
        if (len(aware) == 1)
        else None
    )


def _times(values: list[Any]) -> pa.Array | None:
    if any(value is not None and value.tzinfo is not None for value in values):
        return None
    return pa.array(values, pa.time64("us"))


_MAKE: Final[dict[type, Callable[[list[Any]], pa.Array | None]]] = {
    bool: lambda values: pa.array(values, pa.bool_()),
    int: _integers,
    float: lambda values: pa.array(values, pa.float64()),
    Decimal: pa.array,
    str: lambda values: pa.array(values, pa.string()),
    bytes: lambda values: pa.array(values, pa.binary()),
    date: lambda values: pa.array(values, pa.date32()),
    datetime: _moments,
    time: _times,
    timedelta: lambda values: pa.array(values, pa.duration("us")),
    UUID: lambda values: pa.array([None if v is None else str(v) for v in values], pa.string()),
}
