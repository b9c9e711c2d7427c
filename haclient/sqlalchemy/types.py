"""SQLAlchemy types for Spark's types that SQLAlchemy does not have, and for Arrow's types."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
from sqlalchemy import cast, func, types
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.types import TypeEngine, UserDefinedType

if TYPE_CHECKING:
    OwnType = UserDefinedType[Any]
else:  # SQLAlchemy 1.4 has no parameter there
    OwnType = UserDefinedType

Process = Callable[[Any], Any]


class TINYINT(types.SmallInteger):
    """An integer of one byte."""

    __visit_name__ = "TINYINT"


class TIMESTAMP_NTZ(types.DateTime):
    """A date and time without a time zone; ``DateTime()`` becomes this type on Spark."""

    __visit_name__ = "TIMESTAMP_NTZ"


class INTERVAL(OwnType):
    """``INTERVAL DAY TO SECOND`` (timedelta), or another interval; no Delta table can store it."""

    cache_ok = True

    def __init__(self, fields: str = "DAY TO SECOND") -> None:
        self.fields = fields

    def get_col_spec(self, **_: Any) -> str:
        """Return the type as it is written in Spark's SQL."""
        return f"INTERVAL {self.fields}".rstrip()


class TextTime(types.Time):
    """A time of day, stored as a STRING; ``Time()`` becomes this type on Spark.

    Spark's tables cannot store times.
    """

    def bind_processor(self, dialect: Dialect) -> Process:
        """Return a function that turns a time into the text that is stored."""
        return lambda value: value.isoformat() if isinstance(value, time) else value

    def result_processor(self, dialect: Dialect, coltype: object) -> Process:
        """Return a function that turns the stored text into a time."""
        return lambda value: time.fromisoformat(value) if isinstance(value, str) else value

    def literal_processor(self, dialect: Dialect) -> Callable[[time], str]:
        """Return a function that writes a time as a literal in SQL."""
        return lambda value: f"'{value.isoformat()}'"


class MAP(OwnType):
    """A map from keys of one type to values of another; in Python a dict."""

    __visit_name__ = "MAP"
    cache_ok = True

    def __init__(self, key: Any, value: Any) -> None:
        self.key: TypeEngine[Any] = types.to_instance(key)
        self.value: TypeEngine[Any] = types.to_instance(value)


class _AsJson(OwnType):
    """The base of types whose values are sent to Spark as JSON text."""

    def bind_processor(self, dialect: Dialect) -> Process:
        """Return a function that turns a value into JSON text."""
        return lambda value: None if value is None else json.dumps(value, default=_as_text)

    def bind_expression(self, bindvalue: Any) -> ColumnElement[Any]:
        """Return SQL that turns the JSON text of a parameter into this type."""
        return cast(func.parse_json(bindvalue), self)


def _as_text(value: object) -> str:
    """Return a value as JSON text. Raises TypeError if Spark would read another value from it."""
    if isinstance(value, date | time | Decimal | UUID):
        return str(value)
    raise TypeError(f"JSON has no {type(value).__name__}")


class VARIANT(_AsJson):
    """A value that JSON can hold; a query gives the value itself, not its text."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Return the type as it is written in Spark's SQL."""
        return "VARIANT"

    def bind_expression(self, bindvalue: Any) -> ColumnElement[Any]:
        """Return SQL that turns the JSON text of a parameter into a VARIANT."""
        return func.parse_json(bindvalue, type_=self)

    def result_processor(self, dialect: Dialect, coltype: object) -> Process:
        """Return a function that turns the JSON text of a result into the value."""
        return lambda value: json.loads(value) if isinstance(value, str) else value


class STRUCT(_AsJson):
    """A struct of named fields, in order; in Python a dict."""

    __visit_name__ = "STRUCT"
    cache_ok = True

    def __init__(self, fields: dict[str, Any] | tuple[tuple[str, Any], ...]) -> None:
        pairs = fields.items() if isinstance(fields, dict) else fields
        self.fields = tuple((name, types.to_instance(kind)) for name, kind in pairs)


_SIMPLE: tuple[tuple[Callable[[Any], bool], Callable[[], TypeEngine[Any]]], ...] = (
    (pa.types.is_boolean, types.BOOLEAN),
    (pa.types.is_int8, TINYINT),
    (pa.types.is_int16, types.SMALLINT),
    (pa.types.is_int32, types.INTEGER),
    (pa.types.is_int64, types.BIGINT),
    (pa.types.is_float32, lambda: types.Float(24)),
    (pa.types.is_float64, lambda: types.Float(53)),
    (pa.types.is_string, types.String),
    (pa.types.is_large_string, types.String),
    (pa.types.is_binary, types.LargeBinary),
    (pa.types.is_large_binary, types.LargeBinary),
    (pa.types.is_date, types.DATE),
    (pa.types.is_time, types.TIME),
    (pa.types.is_duration, INTERVAL),
)


def of_arrow(kind: Any, is_variant: bool = False) -> TypeEngine[Any]:
    """Return SQLAlchemy's type for a column's Arrow type; NullType if it has none."""
    if is_variant:
        return VARIANT()
    if pa.types.is_decimal(kind):
        return types.DECIMAL(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return TIMESTAMP_NTZ() if kind.tz is None else types.TIMESTAMP(timezone=True)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = of_arrow(kind.value_type)
        if isinstance(item, types.ARRAY):  # SQLAlchemy counts dimensions and does not nest arrays
            return types.ARRAY(item.item_type, dimensions=(item.dimensions or 1) + 1)
        return types.ARRAY(item)
    if pa.types.is_map(kind):
        return MAP(of_arrow(kind.key_type), of_arrow(kind.item_type))
    if pa.types.is_struct(kind):
        return STRUCT(tuple((field.name, of_arrow(field.type)) for field in kind))
    return next((make() for test, make in _SIMPLE if test(kind)), types.NullType())
