"""Rows as text: cuts a body into blocks of whole records, and maps SQL types to Arrow's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from haproc.engine.interface import Column
from haproc.pin.sqltypes import SqlType, TypeTextError, parse_type
from haproc.route.rows.forms import FormKind, Readable, RowsError, clients_fault

# The Arrow types as which a table's columns are read from text.


_SIMPLE: Final = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_LTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    "TIME": pa.time64("us"),
}


DIGITS: Final = 10
"""The number of digits of a DECIMAL whose type does not state it."""
_DIGITS_MAX: Final = 38
_EXACT: Final = Context(prec=_DIGITS_MAX, traps=[Inexact, InvalidOperation])
_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,9})?", re.ASCII)
_HEX: Final = "^-?0[xX]"


def number(text: str, precision: int, scale: int) -> Decimal:
    """Return the number in ``text`` with a DECIMAL's digits; raises ValueError, ArithmeticError.

    Arrow does not notice all overflows in this conversion: it returns a wrong value, or reads
    beyond its tables and ends the process.
    """
    value = Decimal(text) if _NUMBER.fullmatch(text) else None
    if value is None or (value and value.adjusted() >= precision - scale):
        raise ValueError(f"{text[:40]!r} is no DECIMAL({precision},{scale})")
    return value.quantize(Decimal(1).scaleb(-scale), context=_EXACT)


def decimals(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Convert texts to the DECIMAL type ``kind``.

    Raises as `number` does, or pa.ArrowInvalid, for a text that is no such number.
    """
    whole = f"0*[0-9]{{0,{kind.precision - kind.scale}}}"
    plain = pc.match_substring_regex(texts, rf"^[-+]?{whole}(\.[0-9]{{0,{_DIGITS_MAX}}})?$")
    if pc.all(plain).as_py() is not False:
        return texts.cast(kind)  # all of them have few enough digits
    values = [
        None if text is None else number(text, kind.precision, kind.scale)
        for text in texts.to_pylist()
    ]
    return pa.chunked_array([pa.array(values, kind)])


def check_range(values: pa.Array, written: Callable[[], Sequence[Any]]) -> None:
    """Raise ValueError if a value is infinite because its text is a number out of range.

    ``written`` returns the values as the client wrote them; infinity may be written as such.
    """
    infinite = pc.is_inf(values)
    if pc.any(infinite).as_py() is not True:
        return
    texts = written()
    for at in pc.indices_nonzero(infinite).to_pylist():
        if not (isinstance(texts[at], str) and "inf" in texts[at].lower()):
            raise ValueError(f"{str(texts[at])[:40]!r} is out of range")


def integers(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Convert texts of decimal digits to the integer type ``kind``; raises ArrowInvalid.

    A hexadecimal number is refused: Arrow would take 0xFF for -1.
    """
    wrong = pc.index(pc.match_substring_regex(texts, _HEX), True).as_py()
    if wrong >= 0:
        raise pa.ArrowInvalid(f"{texts[wrong].as_py()[:40]!r} is no decimal number")
    return texts.cast(kind)


def schema_of(
    names: Sequence[str], columns: Sequence[Column], kind: FormKind
) -> tuple[pa.Schema, list[SqlType]]:
    """Return the Arrow and the SQL types as which the columns ``names`` of a body are read.

    ``columns``: those of the table. A column that must not be null becomes a field that is not
    nullable. Raises RowsError if the table has no such column, or its type cannot be written as
    text.
    """
    table = {column.name.lower(): column for column in columns}
    fields: list[pa.Field] = []
    types: list[SqlType] = []
    problems: list[str] = []
    for name in names:
        column = table.get(name.lower())
        if column is None:
            problems.append(f"the table has no column {name[:80]}")
            continue
        wanted = _parsed(column)
        read_as = None if wanted is None else arrow_type(wanted, kind)
        if wanted is None or read_as is None:
            problems.append(
                f"column {column.name} is {column.type_text}, which {kind.value} has no form for"
            )
            continue
        fields.append(pa.field(name, read_as, column.nullable))
        types.append(wanted)
    if problems:
        raise RowsError(problems)
    return pa.schema(fields), types


def _parsed(column: Column) -> SqlType | None:
    try:
        return parse_type(column.type_text)
    except TypeTextError:
        return None


def arrow_type(wanted: SqlType, kind: FormKind) -> pa.DataType | None:
    """Return the Arrow type that holds every value of a SQL type.

    None if such values cannot be written in this format.
    """
    if wanted.name == "DECIMAL":
        return pa.decimal128(wanted.precision or DIGITS, wanted.scale)
    if kind is FormKind.JSON_LINES and wanted.name in ("BINARY", "ARRAY", "MAP", "STRUCT"):
        return _of_json(wanted)
    return _SIMPLE.get(wanted.name)


def _of_json(wanted: SqlType) -> pa.DataType | None:
    if wanted.name == "BINARY":
        return pa.binary()
    inner = [arrow_type(argument, FormKind.JSON_LINES) for argument in wanted.arguments]
    if None in inner:
        return None
    if wanted.name == "ARRAY":
        return pa.list_(inner[0])
    if wanted.name == "MAP":
        return pa.map_(inner[0], inner[1]) if wanted.arguments[0].name == "STRING" else None
    return pa.struct(list(zip(wanted.fields, inner, strict=True)))


def about(field: pa.Field, error: Exception, zone: str | None) -> str:
    """Return the message for an error in one column; ``zone``: the time zone in the form."""
    moment = pa.types.is_timestamp(field.type) and field.type.tz is not None
    hint = " (give each a time zone, or say time_zone)" if moment and zone is None else ""
    return f"column {field.name} ({field.type}): {str(error)[:200]}{hint}"


def check_nulls(batch: pa.RecordBatch, schema: pa.Schema) -> None:
    """Raise RowsError if a column that must not be null, by ``schema``, has a null."""
    problems = [
        f"column {field.name} must not be null"
        for field, values in zip(schema, batch.columns, strict=True)
        if values.null_count and not field.nullable
    ]
    if problems:
        raise RowsError(problems)


# Rows as lines of text: cut into blocks of whole records; a wrong record is found by its line.
#
# One block is decoded at a time, so no more of a body is in memory. If a block cannot be decoded,
# its records are halved again and again: each part with the wrong record fails, too. So an error
# names its line, whatever the decoder's message is.


BLOCK_BYTES: Final = 1 << 20
"""Bytes of a block. Chosen: records are cut with the interpreter's lock held, for up to 20 ms a
block."""
RECORD_BYTES_MAX: Final = 4 << 20
"""The most bytes of one record. Chosen. Longer records must be sent as Arrow or Parquet."""
Batches: TypeAlias = tuple[pa.Schema, Iterator[pa.RecordBatch]]
"""The columns of a body, and an iterator over its rows."""
BOM: Final = b"\xef\xbb\xbf"


class Lines(Protocol):
    """Separates and decodes the records of one text format."""

    def split(self, block: bytes) -> list[bytes]:
        """Return the records in a block; the last one may lack its line end."""
        ...

    def decode(self, block: bytes) -> pa.RecordBatch:
        """Return the rows in a block of whole records; raises RowsError."""
        ...


def blocks(source: Readable, cut: Callable[[bytes], int], first_line: int = 1) -> Iterator[bytes]:
    """Yield a body in blocks of whole records; raises RowsError for a record that never ends.

    ``cut`` returns the position after the last whole record in some bytes, 0 if there is none. A
    byte order mark at the file's beginning (``first_line`` is 1) is removed; elsewhere it is a
    character.
    """
    rest = source.read(BLOCK_BYTES)
    if first_line == 1:
        rest = rest.removeprefix(BOM)
    while data := source.read(BLOCK_BYTES):
        rest += data
        if end := cut(rest):
            yield rest[:end]
            rest = rest[end:]
        elif len(rest) > RECORD_BYTES_MAX:
            raise RowsError([f"a record has more than {RECORD_BYTES_MAX} bytes, or never ends"])
    if rest:
        whole = rest if rest.endswith(b"\n") else rest + b"\n"
        if (end := cut(whole)) < len(whole):
            if end:
                yield rest[:end]  # an earlier error comes first
            raise RowsError(["the last record never ends: a quote is not closed"])
        yield whole  # with its end: without it Arrow takes an empty last field for one in quotes


def decoded(found: Iterator[bytes], lines: Lines, first_line: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in the blocks ``found``; a RowsError names the line of the wrong record.

    ``first_line``: the number of the first block's first line.
    """
    at = first_line
    while (block := _next(found, at)) is not None:
        try:
            batch = _decoded(block, lines)
        except RowsError as error:
            raise _located(block, lines, at, error) from error
        yield batch
        at += block.count(b"\n")


def _next(found: Iterator[bytes], at: int) -> bytes | None:
    try:
        return next(found, None)
    except RowsError as error:
        raise _at_line(error, at) from error


def _at_line(error: RowsError, at: int) -> RowsError:
    return RowsError([f"line {at}: {problem}" for problem in error.problems])


def _decoded(block: bytes, lines: Lines) -> pa.RecordBatch:
    with clients_fault("not to be read"):
        return lines.decode(block)


def _located(block: bytes, lines: Lines, at: int, error: RowsError) -> RowsError:
    """Find the first record in a block that cannot be decoded; return its error, with its line.

    ``at``: the line in which the block begins. ``error``: the error of the whole block.
    """
    records = lines.split(block)
    while len(records) > 1:
        first = records[: len(records) // 2]
        failed = _failure(lines, b"".join(first))
        if failed is None:
            at += sum(record.count(b"\n") for record in first)
            records = records[len(first) :]
        else:
            records, error = first, failed
    return _at_line(_failure(lines, b"".join(records)) or error, at)


def _failure(lines: Lines, block: bytes) -> RowsError | None:
    try:
        _decoded(block, lines)
    except RowsError as error:
        return error
    return None
