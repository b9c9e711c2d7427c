"""The types of results, in Arrow and as Spark's text; VARIANTs and special values as texts."""

from __future__ import annotations

import base64
import datetime
import json
import math
import re
import struct
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from dmq import Json
from haproc.engine.arrow import as_numbers, as_numbers_type, retyped, stream_of, with_numbers
from haproc.engine.interface import Column

# Dates and times as text, also in years that Python's own classes do not have.
#
# Spark has the years from -290,308 to 294,247. A year of more than four digits has a sign, as in
# ISO 8601 and in Spark: ``+12024-01-02``.


_DAYS_OF_400_YEARS: Final = 146_097
_EPOCH_DAY: Final = datetime.date(1970, 1, 1).toordinal()
_MIDNIGHT: Final = datetime.datetime(1970, 1, 1)
_DAY_US: Final = 86_400_000_000


def date_text(days: int) -> str:
    """Return the date that is ``days`` days after 1970-01-01."""
    cycles, rest = divmod(days + _EPOCH_DAY - 1, _DAYS_OF_400_YEARS)
    found = datetime.date.fromordinal(rest + 1)  # in the first 400 years
    year = found.year + 400 * cycles
    text = f"{year:04}" if 0 <= year <= 9999 else f"{year:+05}"
    return f"{text}-{found:%m-%d}"


def timestamp_text(micros: int, zone: str = "") -> str:
    """Return the time ``micros`` microseconds after 1970-01-01 in ISO 8601, with ``zone``."""
    days, rest = divmod(micros, _DAY_US)
    unit = "microseconds" if micros % 1000 else "milliseconds"
    time = (_MIDNIGHT + datetime.timedelta(microseconds=rest)).time()
    return f"{date_text(days)}T{time.isoformat(timespec=unit)}{zone}"


# Values of type VARIANT as JSON text, from the two binary values that Spark gives for each.
#
# The metadata has the names of all fields, and the value refers to them by number. Each value
# begins with a byte that says what follows: see `VariantUtils` in PySpark.


_PRIMITIVE, _SHORT_STRING, _OBJECT, _ARRAY = range(4)
_NAMED: Final = {0: "null", 1: "true", 2: "false"}
_INTEGER_BYTES: Final = {3: 1, 4: 2, 5: 4, 6: 8}
_DECIMAL_BYTES: Final = {8: 4, 9: 8, 10: 16}


def json_of(value: bytes, metadata: bytes) -> str:
    """Return a VARIANT, given by its two binary values, as JSON text.

    Raises ValueError if the bytes are no VARIANT. Dates, times and binary in it become texts, as in
    a result's other columns.
    """
    try:
        return _json(value, 0, _names(metadata))
    except (IndexError, struct.error) as error:
        raise ValueError("a VARIANT that cannot be read") from error


def _names(metadata: bytes) -> list[str]:
    size = (metadata[0] >> 6) + 1
    count = _unsigned(metadata, 1, size)
    offsets = [_unsigned(metadata, 1 + (1 + at) * size, size) for at in range(count + 1)]
    texts = 1 + (count + 2) * size
    return [metadata[texts + begin : texts + end].decode() for begin, end in pairwise(offsets)]


def _json(value: bytes, at: int, names: list[str]) -> str:
    basic, info = value[at] & 3, value[at] >> 2
    if basic == _SHORT_STRING:
        return _text(value[at + 1 : at + 1 + info].decode())
    if basic == _OBJECT:
        fields = _object(value, at + 1, info)
        return f"{{{','.join(f'{_text(names[n])}:{_json(value, v, names)}' for n, v in fields)}}}"
    if basic == _ARRAY:
        items = _array(value, at + 1, info)
        return f"[{','.join(_json(value, each, names) for each in items)}]"
    return _primitive(value, at + 1, info)


def _object(value: bytes, at: int, info: int) -> Iterator[tuple[int, int]]:
    """Yield, for each field of a VARIANT object, the number of its name and its value's offset."""
    offset, number, large = (info & 3) + 1, (info >> 2 & 3) + 1, info >> 4 & 1
    count = _unsigned(value, at, 4 if large else 1)
    numbers = at + (4 if large else 1)
    offsets = numbers + count * number
    values = offsets + (count + 1) * offset
    for each in range(count):
        yield (
            _unsigned(value, numbers + each * number, number),
            values + _unsigned(value, offsets + each * offset, offset),
        )


def _array(value: bytes, at: int, info: int) -> Iterator[int]:
    """Yield the offset of each item of a VARIANT array."""
    offset, large = (info & 3) + 1, info >> 2 & 1
    count = _unsigned(value, at, 4 if large else 1)
    offsets = at + (4 if large else 1)
    values = offsets + (count + 1) * offset
    for each in range(count):
        yield values + _unsigned(value, offsets + each * offset, offset)


def _primitive(value: bytes, at: int, kind: int) -> str:
    if kind in _NAMED:
        return _NAMED[kind]
    if kind in _INTEGER_BYTES:
        return str(_signed(value, at, _INTEGER_BYTES[kind]))
    if kind in _DECIMAL_BYTES:
        unscaled = _signed(value, at + 1, _DECIMAL_BYTES[kind])
        return format(Decimal(unscaled).scaleb(-value[at]), "f")
    if kind not in _OTHERS:
        raise ValueError(f"a VARIANT of kind {kind}, which is not known")
    return _OTHERS[kind](value, at)


def _float(found: float, digits: str) -> str:
    if math.isfinite(found):
        return digits
    return _text("NaN" if math.isnan(found) else "Infinity" if found > 0 else "-Infinity")


def _double(value: bytes, at: int) -> str:
    (found,) = struct.unpack_from("<d", value, at)
    return _float(found, repr(found))


def _single(value: bytes, at: int) -> str:
    (found,) = struct.unpack_from("<f", value, at)
    short = next(text for digits in range(6, 10) if _same(text := f"{found:.{digits}g}", found))
    return _float(found, short)


def _same(text: str, found: float) -> bool:
    return not math.isfinite(found) or struct.pack("<f", float(text)) == struct.pack("<f", found)


def _counted(value: bytes, at: int) -> bytes:
    return value[at + 4 : at + 4 + _unsigned(value, at, 4)]


_OTHERS: Final[dict[int, Callable[[bytes, int], str]]] = {
    7: _double,
    11: lambda value, at: _text(date_text(_signed(value, at, 4))),
    12: lambda value, at: _text(timestamp_text(_signed(value, at, 8), "Z")),
    13: lambda value, at: _text(timestamp_text(_signed(value, at, 8))),
    14: _single,
    15: lambda value, at: _text(base64.b64encode(_counted(value, at)).decode()),
    16: lambda value, at: _text(_counted(value, at).decode()),
}


def _text(text: Any) -> str:
    return json.dumps(text, ensure_ascii=False)


def _unsigned(data: bytes, at: int, size: int) -> int:
    return _number(data, at, size, signed=False)


def _signed(data: bytes, at: int, size: int) -> int:
    return _number(data, at, size, signed=True)


def _number(data: bytes, at: int, size: int, *, signed: bool) -> int:
    found = data[at : at + size]
    if len(found) < size:
        raise IndexError
    return int.from_bytes(found, "little", signed=signed)


# Spark's types by their text (``decimal(10,2)``, ``array<int>``), Arrow's types as such text.


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
_HEAD: Final = re.compile(r"([a-z_]+)(?:\(\s*(\d+)\s*(?:,\s*(-?\d+)\s*)?\))?")
"""Matches the name of a type (of the outermost one), and a DECIMAL's precision and scale."""


def manifest_column(column: Column, position: int) -> dict[str, Json]:
    """Return a column in the form of the ``manifest.schema.columns`` of an answer."""
    text = column.type_text.strip().lower()
    found = _HEAD.match(text)
    name, precision, scale = found.groups() if found else (text, None, None)
    name = _SYNONYMS.get(name, name)
    described: dict[str, Json] = {
        "name": column.name,
        "type_name": _NAMES.get(name, "USER_DEFINED_TYPE"),
        "type_text": column.type_text,
        "position": position,
        "nullable": column.nullable,
    }
    if name == "decimal":
        described |= {"type_precision": int(precision or 10), "type_scale": int(scale or 0)}
    if name == "interval" and (units := text.removeprefix("interval").strip().upper()):
        described["type_interval_type"] = units
    return described


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """Return the columns of a result, with Spark's types, by its Arrow schema."""
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
    """Return the Spark type, as text, of a result's column with this Arrow type."""
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


# Arrow types of Spark that pyarrow, or a client, does not read, in a form that they read.
#
# A VARIANT comes as a struct of binary; the metadata of one of its fields shows what it is. It
# becomes JSON text, and our own metadata shows that. For year-month intervals pyarrow has a type,
# but no class of arrays.


NOTE: Final = b"haproc.type"
"""The key in an Arrow field's metadata under which clients find the type that its values had in
Spark."""
VARIANT: Final = b"variant"


def is_variant(kind: pa.DataType) -> bool:
    """True if Spark's values of this Arrow type are VARIANTs."""
    return pa.types.is_struct(kind) and any((each.metadata or {}).get(VARIANT) for each in kind)


def holds(kind: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    """True if ``test`` is true for this type, or for a type inside it."""
    inner = (kind.field(at).type for at in range(kind.num_fields))
    return test(kind) or any(holds(each, test) for each in inner)


def readable(data: bytes) -> bytes:
    """Return an Arrow stream with its VARIANTs as JSON text; unchanged if it has none."""
    with pa.ipc.open_stream(data) as reader:
        schema = reader.schema
        if not any(holds(field.type, is_variant) for field in schema):
            return data
        target = pa.schema([_readable_field(field) for field in schema])
        return stream_of(
            pa.Table.from_batches([_readable(each, target) for each in reader], target)
        )


def _readable(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    columns = zip(with_numbers(batch).columns, batch.schema, target, strict=True)
    arrays = [_made(column, field.type, new.type) for column, field, new in columns]
    numbers = pa.RecordBatch.from_arrays(arrays, schema=as_numbers(target))
    return retyped(numbers, target)


def _readable_field(field: pa.Field) -> pa.Field:
    kind = _readable_type(field.type)
    if is_variant(field.type):
        return field.with_type(kind).with_metadata({NOTE: VARIANT})
    return field.with_type(kind)


def _readable_type(kind: pa.DataType) -> pa.DataType:
    if is_variant(kind):
        return pa.string()
    if not holds(kind, is_variant):
        return kind
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, _readable_field(kind.item_field))
    if pa.types.is_list(kind):
        return pa.list_(_readable_field(kind.value_field))
    return pa.struct([_readable_field(field) for field in kind])


def _made(array: pa.Array, kind: pa.DataType, target: pa.DataType) -> pa.Array:
    """Return ``array`` with its VARIANTs as JSON text.

    ``kind``: its type, ``target``: the type afterwards. Month intervals in it are stored as
    numbers.
    """
    if is_variant(kind):
        return pa.array(_jsons(array), pa.string())
    if kind == target:
        return array
    own, children = array.buffers()[: 1 if pa.types.is_struct(kind) else 2], _children(array)
    inner = [
        _made(child, kind.field(at).type, target.field(at).type)
        for at, child in enumerate(children)
    ]
    return pa.Array.from_buffers(
        as_numbers_type(target), len(array), own, array.null_count, array.offset, inner
    )


def _children(array: pa.Array) -> list[pa.Array]:
    """Return the arrays of the values inside a list, map or struct, whole.

    They need no cutting: a batch that came in a stream begins where its arrays begin. In a struct
    that is NULL, the fields become NULL, too: bytes in their place are no values then.
    """
    if pa.types.is_struct(array.type):
        return list(array.flatten())
    return [array.values]


def _jsons(array: pa.StructArray) -> Iterator[str | None]:
    names = [field.name for field in array.type]
    values, metadata = (array.field(names.index(name)) for name in ("value", "metadata"))
    for there, value, names_of in zip(array.is_valid(), values, metadata, strict=True):
        yield json_of(value.as_py(), names_of.as_py()) if there.as_py() else None
