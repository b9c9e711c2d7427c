"""Spark's types by their text (``decimal(10,2)``, ``array<int>``), Arrow's types as such text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from dmq import Json
from haproc.engine.interface import Column
from haproc.statements.plain_arrow import is_variant

_NAMES: Final = {
    "boolean": "BOOLEAN",
    "tinyint": "BYTE",
    "smallint": "SHORT",
    "int": "INT",
    "bigint": "LONG",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP_NTZ",
    "time": "TIME",
    "string": "STRING",
    "varchar": "STRING",
    "char": "CHAR",
    "binary": "BINARY",
    "decimal": "DECIMAL",
    "interval": "INTERVAL",
    "array": "ARRAY",
    "struct": "STRUCT",
    "map": "MAP",
    "void": "NULL",
    "variant": "VARIANT",
}
_SYNONYMS: Final = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}
_HEAD: Final = re.compile(r"\s*([a-z_]+)")
_ARGUMENTS: Final = re.compile(r"\(\s*(\d+)\s*(?:,\s*(-?\d+)\s*)?\)")


@dataclass(frozen=True, slots=True)
class TypeHead:
    """The outermost type: its name, precision and scale where it has them, interval's fields."""

    name: str
    precision: int | None = None
    scale: int | None = None
    interval: str = ""


def head_of(type_text: str) -> TypeHead:
    """Read the outermost type of a Spark type text."""
    text = type_text.strip().lower()
    found = _HEAD.match(text)
    name = found[1] if found else text
    name = _SYNONYMS.get(name, name)
    if name == "interval":
        return TypeHead(name, interval=text.removeprefix("interval").strip().upper())
    arguments = _ARGUMENTS.match(text, found.end()) if found else None
    if name == "decimal":
        precision = int(arguments[1]) if arguments else 10
        scale = int(arguments[2]) if arguments and arguments[2] else 0
        return TypeHead(name, precision, scale)
    return TypeHead(name)


def manifest_column(column: Column, position: int) -> dict[str, Json]:
    """Return a column as ``manifest.schema.columns`` lists it."""
    head = head_of(column.type_text)
    described: dict[str, Json] = {
        "name": column.name,
        "type_name": _NAMES.get(head.name, "USER_DEFINED_TYPE"),
        "type_text": column.type_text,
        "position": position,
        "nullable": column.nullable,
    }
    if head.precision is not None:
        described["type_precision"] = head.precision
        described["type_scale"] = head.scale
    if head.interval:
        described["type_interval_type"] = head.interval
    return described


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """Return the columns that a result's Arrow schema stands for."""
    return tuple(Column(field.name, text_of(field.type), field.nullable) for field in schema)


_SIMPLE: Final = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.null(): "void",
    pa.duration("us"): "interval day to second",
    pa.time64("ns"): "time(6)",
}


def text_of(kind: pa.DataType) -> str:
    """Return the Spark type that an Arrow type of a result stands for."""
    simple = _SIMPLE.get(kind)
    if simple is not None:
        return simple
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_map(kind):
        return f"map<{text_of(kind.key_type)},{text_of(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{text_of(kind.value_type)}>"
    if is_variant(kind):
        return "variant"
    if pa.types.is_struct(kind):
        inner = ",".join(f"{_quoted(f.name)}:{text_of(f.type)}" for f in kind)
        return f"struct<{inner}>"
    if kind.id == pa.lib.Type_INTERVAL_MONTHS:
        return "interval year to month"
    if pa.types.is_interval(kind):
        return "interval"
    return str(kind)


def _quoted(name: str) -> str:
    plain = re.fullmatch(r"\w+", name)
    return name if plain else "`" + name.replace("`", "``") + "`"
