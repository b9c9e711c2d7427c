"""Rows instead of a query: the text of an equivalent query that gives the same rows everywhere.

The query of a statement that has to be materialised runs once, under `fetch_query`, and its rows
come back as Arrow. `materialised` then writes ``SELECT CAST(c1 AS …) AS a, … FROM VALUES (…), …``
with literals of exact types, and puts it behind the statement's head. That is one form for INSERT,
INSERT OVERWRITE, BY NAME, PARTITION and CREATE TABLE AS alike, since names, types and number of
columns stay those of the query, and rows have no order.

Arrow cannot carry Spark's year-month and calendar intervals, nor VARIANT in a readable form, so
`fetch_query` asks for these as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from haproc.classify.model import RefusedError
from haproc.failure import ErrorClass
from haproc.pin.literals import LiteralError, literal
from haproc.pin.model import Source
from haproc.pin.sqltypes import (
    YEAR_MONTH_UNITS,
    SqlType,
    TypeTextError,
    parse_type,
    quote_name,
)

_YEAR_MONTH = re.compile(r"INTERVAL '(-?)([0-9]+)(?:-([0-9]+))?' (YEAR TO MONTH|YEAR|MONTH)")
_PLAINER = {"VARIANT": SqlType("STRING"), "DECIMAL": SqlType("DECIMAL")}
"""How values are written inside VALUES, where the CAST or parse_json around them gives the type.
All decimals of a column have its scale, so their common type holds them all."""
_MICROS = frozenset({"TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"})


class NamedColumn(Protocol):
    """A column of a query, as an engine tells it: its name and Spark's text of its type."""

    @property
    def name(self) -> str: ...

    @property
    def type_text(self) -> str: ...


@dataclass(frozen=True, slots=True)
class QueryColumn:
    """A `NamedColumn`."""

    name: str
    type_text: str


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be replicated as rows. Chosen, not measured."""

    rows_max: int = 50_000
    bytes_max: int = 16 * 1024 * 1024
    """Of the statement's text."""


def fetch_query(query: str, columns: Sequence[NamedColumn]) -> str:
    """Return the query to run for its rows: the query itself, or one that Arrow can carry."""
    kinds = [_kind(column) for column in columns]
    if not any(_travels_as_text(kind) for kind in kinds):
        return query
    names = [f"c{at}" for at in range(1, len(columns) + 1)]
    items = [_fetched(name, kind) for name, kind in zip(names, kinds, strict=True)]
    return f"SELECT {', '.join(items)} FROM (\n{query}\n) AS q({', '.join(names)})"


def materialised(
    source: Source,
    rows: pa.Table,
    columns: Sequence[NamedColumn],
    limits: Limits | None = None,
) -> str:
    """Return the statement with its query replaced by the rows that the query gave.

    ``rows`` is what `fetch_query` answered; raises RefusedError if there are too many, or if a
    type has no literals.
    """
    return source.head + query_of_rows(rows, columns, limits or Limits())


def query_of_rows(rows: pa.Table, columns: Sequence[NamedColumn], limits: Limits) -> str:
    """Return a query that gives exactly these rows, with these columns' names and types."""
    check_size(rows, limits)
    if not columns or rows.num_columns != len(columns):
        raise RefusedError(
            ErrorClass.CANNOT_MATERIALISE, "the rows have other columns than the query"
        )
    kinds = [_kind(column) for column in columns]
    names = [f"c{at}" for at in range(1, len(columns) + 1)]
    items = [
        f"CAST({name} AS {kind.text}) AS {quote_name(column.name)}"
        if kind.name != "VARIANT"
        else f"parse_json({name}) AS {quote_name(column.name)}"
        for name, kind, column in zip(names, kinds, columns, strict=True)
    ]
    select = f"SELECT {', '.join(items)} FROM VALUES "
    table = f" AS q({', '.join(names)})"
    if not rows.num_rows:
        nothing = ", ".join("NULL" for _ in names)
        return f"{select}({nothing}){table} WHERE FALSE"
    written = [_written(rows.column(at), kind, columns[at]) for at, kind in enumerate(kinds)]
    text = ", ".join(f"({', '.join(row)})" for row in zip(*written, strict=True))
    if len(text) > limits.bytes_max:
        raise _too_large(f"{len(text)} characters of rows", f"{limits.bytes_max}")
    return f"{select}{text}{table}"


def check_size(rows: pa.Table, limits: Limits) -> None:
    """Refuse more rows than may be replicated; raises RefusedError."""
    if rows.num_rows > limits.rows_max:
        raise _too_large(f"{rows.num_rows} rows", f"{limits.rows_max}")
    if rows.nbytes > limits.bytes_max:
        raise _too_large(f"{rows.nbytes} bytes of rows", f"{limits.bytes_max}")


def _too_large(what: str, limit: str) -> RefusedError:
    return RefusedError(
        ErrorClass.TOO_LARGE_TO_MATERIALISE,
        f"the statement has to be replicated as rows, but its query gives {what}, "
        f"more than {limit}",
        "write it so that it means the same on every cluster, or send the rows in several parts",
    )


def _kind(column: NamedColumn) -> SqlType:
    try:
        kind = parse_type(column.type_text)
    except TypeTextError as error:
        raise _unsupported(column.name, column.type_text) from error
    if kind.name == "INTERVAL" and kind.units is None:
        raise _unsupported(column.name, column.type_text)
    return kind


def _unsupported(name: str, type_text: str) -> RefusedError:
    return RefusedError(
        ErrorClass.CANNOT_MATERIALISE,
        f"column {name} of type {type_text} cannot be replicated as rows",
        "cast it to a type that has literals",
    )


def _is_year_month(kind: SqlType) -> bool:
    return kind.name == "INTERVAL" and kind.units is not None and kind.units[0] in YEAR_MONTH_UNITS


def _travels_as_text(kind: SqlType) -> bool:
    return kind.name == "VARIANT" or _is_year_month(kind)


def _fetched(name: str, kind: SqlType) -> str:
    if kind.name == "VARIANT":
        return f"to_json({name}) AS {name}"
    return f"CAST({name} AS STRING) AS {name}" if _is_year_month(kind) else name


def _written(column: pa.ChunkedArray, kind: SqlType, of: NamedColumn) -> list[str]:
    """Return one literal for each row; NULLs stay untyped, the CAST around types the column."""
    try:
        convert = _converter(kind, column.type)
        if kind.name in _PLAINER:
            kind = _PLAINER[kind.name]
        return [
            "NULL" if value is None else literal(convert(value), kind)
            for value in _with_integers(column).to_pylist()
        ]
    except (LiteralError, TypeError, ValueError, OverflowError) as error:
        raise _unsupported(of.name, of.type_text) from error


def _with_integers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of dates or times as integers, which know no limit on the year."""
    type_ = column.type
    if pa.types.is_date32(type_):
        return column.cast(pa.int32())
    if pa.types.is_time64(type_):
        return column.cast(pa.time64("us")).cast(pa.int64())
    if pa.types.is_timestamp(type_) or pa.types.is_duration(type_):
        return column.cast(pa.int64())
    return column


def _converter(kind: SqlType, type_: pa.DataType) -> Callable[[Any], Any]:
    """Return what turns an Arrow value as Python gives it into what `literal` takes."""
    if kind.name == "ARRAY":
        inner = _converter(kind.arguments[0], type_.value_type)
        return lambda items: [_through(inner, item) for item in items]
    if kind.name == "MAP":
        of_key = _converter(kind.arguments[0], type_.key_type)
        of_value = _converter(kind.arguments[1], type_.item_type)
        return lambda pairs: [(of_key(k), _through(of_value, v)) for k, v in pairs]
    if kind.name == "STRUCT":
        return _struct_converter(kind, type_)
    if _is_year_month(kind):
        return _months
    if kind.name in ("DATE", "TIME", "INTERVAL", *_MICROS):
        return _counted(type_)
    return lambda value: value


def _through(convert: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else convert(value)


def _struct_converter(kind: SqlType, type_: pa.DataType) -> Callable[[Any], Any]:
    fields = [type_.field(at) for at in range(type_.num_fields)]
    inner = [_converter(of, field.type) for of, field in zip(kind.arguments, fields, strict=True)]
    names = [field.name for field in fields]
    if len(set(names)) < len(names) or tuple(names) != kind.fields:
        raise LiteralError("the names of a struct's fields are not clear")
    return lambda value: [
        _through(convert, value[name]) for convert, name in zip(inner, names, strict=True)
    ]


def _counted(type_: pa.DataType) -> Callable[[Any], Any]:
    """Integers pass; inside nested types a date or time is still Python's own."""

    per_micro = 1000 if pa.types.is_time64(type_) and type_.unit == "ns" else 1

    def count(value: Any) -> Any:
        return value if isinstance(value, int) else pa.scalar(value, type_).value // per_micro

    return count


def _months(text: str) -> int:
    """Read ``INTERVAL '1-2' YEAR TO MONTH``, as Spark writes year-month intervals."""
    match = _YEAR_MONTH.fullmatch(text)
    if match is None:
        raise LiteralError(f"{text!r} is not a year-month interval")
    first, second = int(match[2]), int(match[3] or 0)
    months = first if match[4] == "MONTH" else first * 12 + second
    return -months if match[1] else months
