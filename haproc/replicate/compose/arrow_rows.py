"""Rows that came as Arrow, as literals: each value exactly, in the type that its column has."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from haproc.pin.literals import string_literal
from haproc.replicate.compose.terms import NULL, Cell, cell_of

ROWS_MAX: Final = 1_000
"""More of them are better off as they are. Chosen."""
BYTES_MAX: Final = 256 << 10


def _floating(suffix: str) -> Callable[[float], str]:
    def text(value: float) -> str:
        if not math.isfinite(value):
            raise ValueError(f"{value} has no literal")
        return f"{value!r}{suffix}"

    return text


_TEXTS: Final[Mapping[pa.DataType, Callable[[Any], str]]] = {
    pa.bool_(): lambda value: "TRUE" if value else "FALSE",
    pa.int8(): lambda value: f"{value}Y",
    pa.int16(): lambda value: f"{value}S",
    pa.int32(): str,
    pa.int64(): lambda value: f"{value}L",
    pa.float32(): _floating("F"),
    pa.float64(): _floating("D"),
    pa.string(): string_literal,
    pa.binary(): lambda value: f"X'{value.hex()}'",
    pa.date32(): lambda value: f"DATE'{value.isoformat()}'",
}


def literal_cells(stream: bytes) -> tuple[tuple[str, ...], list[tuple[Cell, ...]]]:
    """Return the columns of an Arrow IPC stream, and its rows as literals.

    Raises ValueError for rows that are too many, and values that have no literal.
    """
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        table = reader.read_all()
    if table.num_rows > ROWS_MAX or table.nbytes > BYTES_MAX:
        raise ValueError("too many rows")
    columns = [_cells(column) for column in table.columns]
    return tuple(table.column_names), list(zip(*columns, strict=True))


def _cells(column: pa.ChunkedArray) -> list[Cell]:
    text = _decimal if pa.types.is_decimal128(column.type) else _TEXTS.get(column.type)
    if text is None:
        raise ValueError(f"{column.type} has no literals here")
    return [NULL if value is None else _cell(text(value)) for value in _values(column)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError) as error:
        raise ValueError("a value that Python does not know") from error


def _cell(text: str) -> Cell:
    cell = cell_of(text)
    if cell is None:
        raise ValueError(f"{text} is no literal")
    return cell


def _decimal(value: decimal.Decimal) -> str:
    return f"{value:f}BD"
