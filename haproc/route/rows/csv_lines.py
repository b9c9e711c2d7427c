"""CSV by RFC 4180: a field in quotes may contain delimiters, line ends, and doubled quotes.

A field without quotes that equals `null` (empty, unless the request says otherwise) is NULL. A
field in quotes is the text between them, so "" is an empty text. Each field is read by its column's
type. If records have one field, every empty line is a record, even at the end: a block does not
show that it is the file's last. If they have several fields, an empty line is skipped. Quotes that
break RFC 4180 are refused, because Arrow would accept them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from haproc.engine.interface import Column
from haproc.route.rows.forms import Form, Readable, RowsError, names_of
from haproc.route.rows.lines import (
    BOM,
    Batches,
    about,
    blocks,
    check_nulls,
    check_range,
    decimals,
    decoded,
    integers,
    schema_of,
)

_LONE_CR: Final = re.compile(rb"\r(?!\n)")
_HEX: Final = (b"0x", b"0X")
_QUOTE: Final = ord('"')
_MISQUOTED: Final = "a field with a quote in it is to stand in quotes, alone, and the quote twice"


def csv_rows(source: Readable, form: Form, columns: Sequence[Column]) -> Batches:
    """Return the columns of a body of CSV, and an iterator over its rows; raises RowsError.

    ``columns``: those of the table.
    """
    own = [column.name for column in columns]
    records = Records(form.delimiter)
    found, at, names = (
        blocks(source, records.cut, form.first_line),
        form.first_line,
        form.names(own),
    )
    if names is None:
        first = next(found, b"")
        header = records.first(first)
        names, at = _names_in(header, form.delimiter, own), at + header.count(b"\n")
        found = chain([first[len(header) :]], found)
    schema, _ = schema_of(names, columns, form.kind)
    return schema, decoded(found, CsvLines(form, records, schema), at)


class Records:
    """Finds where the records of a CSV body end.

    A quote that does not begin a field is a character like any other. So a record with wrong quotes
    ends where a CSV reader would end it, and the error names its line.
    """

    def __init__(self, delimiter: str) -> None:
        before = rb"[^\r\n" + re.escape(delimiter.encode()) + rb"]"
        # Atomic groups: Python before 3.11.5 gets possessive ones wrong.
        quoted = rb'"(?>[^"]*(?:""[^"]*)*)"'
        field = rb'[^"\n]++|(?<!' + before + rb")" + quoted + rb"|(?<=" + before + rb')"'
        self._one = re.compile(rb"(?>(?:" + field + rb")*)\n")
        self._all = re.compile(rb"(?>(?:(?>(?:" + field + rb")*)\n)*)")
        self._beside = np.zeros(256, np.bool_)
        self._beside[list(delimiter.encode() + b'\r\n"')] = True

    def cut(self, data: bytes) -> int:
        """Return the position after the last whole record in ``data``; 0 if no record is whole."""
        if b'"' not in data:
            return data.rfind(b"\n") + 1
        if self.well_quoted(data):
            return _end_by_count(data)
        whole = self._all.match(data)
        return whole.end() if whole is not None else 0

    def well_quoted(self, data: bytes) -> bool:
        """True if quotes begin and end fields in turn, as RFC 4180 says.

        ``data`` must begin with a record. A quote after an even number of quotes begins a field,
        and the next one ends it; two side by side are one doubled quote. So counting shows where
        the fields are, much faster than reading each. A field that is still open at the end, or
        ends there, counts as right.
        """
        octets = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(octets == _QUOTE)
        begins, ends = quotes[::2], quotes[1::2]
        if data.startswith(b'"'):
            begins = begins[1:]
        if len(ends) and ends[-1] == len(data) - 1:
            ends = ends[:-1]
        before, behind = octets.take(begins - 1), octets.take(ends + 1)
        return bool(self._beside.take(before).all() and self._beside.take(behind).all())

    def first(self, data: bytes) -> bytes:
        """Return the first record of ``data``, with its line end; all of it if no record ends."""
        whole = self._one.match(data)
        return whole.group() if whole is not None else data

    def split(self, block: bytes) -> list[bytes]:
        """See `Lines`."""
        found, at = [], 0
        while whole := self._one.match(block, at):
            found.append(whole.group())
            at = whole.end()
        return [*found, block[at:]] if at < len(block) else found


def _end_by_count(data: bytes) -> int:
    """Do as `Records.cut`, for data in which quotes begin and end fields in turn."""
    end = data.rfind(b"\n")
    inside = data.count(b'"', 0, max(end, 0)) % 2
    while end >= 0 and inside:
        before = data.rfind(b"\n", 0, data.rfind(b'"', 0, end))
        inside = (inside - data.count(b'"', max(before, 0), end)) % 2
        end = before
    return end + 1


class CsvLines:
    """Implements `Lines` for CSV; ``schema``: the fields of a record, in their order."""

    def __init__(self, form: Form, records: Records, schema: pa.Schema) -> None:
        self._form = form
        self._schema = schema
        self._records = records
        self.split = records.split

    def decode(self, block: bytes) -> pa.RecordBatch:
        """See `Lines`."""
        if b'"' in block and not self._records.well_quoted(block):
            raise RowsError([_MISQUOTED])
        try:
            batch = self._read(block, self._schema)
        except (pa.ArrowException, ValueError, ArithmeticError) as error:
            raise RowsError([self._problem(block, error)]) from error
        check_nulls(batch, self._schema)
        return batch

    def _problem(self, block: bytes, error: Exception) -> str:
        """Return the message for ``error``, with the column that causes it if one is found."""
        plain = pa.schema([field.with_type(pa.binary()) for field in self._schema])
        if self._failure(block, plain) is None:
            for at, field in enumerate(self._schema):
                found = self._failure(block, plain.set(at, field))
                if found is not None:
                    return about(field, found, self._form.time_zone)
        hint = "; a carriage return that is not in quotes ends a record" * bool(
            _LONE_CR.search(block)
        )
        return str(error)[:200] + hint

    def _failure(self, block: bytes, schema: pa.Schema) -> Exception | None:
        try:
            self._read(block, schema)
        except (pa.ArrowException, ValueError, ArithmeticError) as error:
            return error
        return None

    def _read(self, block: bytes, schema: pa.Schema) -> pa.RecordBatch:
        if not (block if len(schema) == 1 else block.strip(b"\r\n")):
            return pa.RecordBatch.from_pylist([], schema=schema)
        if block.startswith(BOM):
            block = BOM + block  # Arrow leaves one out: this one is text
        zone, hexes = self._form.time_zone, any(each in block for each in _HEX)
        read = [field.with_type(_read_as(field.type, zone, hexes)) for field in schema]
        columns = self._columns_of(block, read)
        arrays = [
            values if values.type == field.type else _of_column(values, field.type, zone)
            for values, field in zip(columns, schema, strict=True)
        ]
        (batch,) = pa.Table.from_arrays(arrays, schema=schema).combine_chunks().to_batches()
        for at, field in enumerate(schema):
            if pa.types.is_floating(field.type):
                check_range(batch.column(at), partial(self._texts, block, schema, at))
        return batch

    def _texts(self, block: bytes, schema: pa.Schema, column: int) -> list[str | None]:
        plain = [field.with_type(pa.string()) for field in schema]
        return list(self._columns_of(block, plain)[column].to_pylist())

    def _columns_of(self, block: bytes, fields: Sequence[pa.Field]) -> list[pa.ChunkedArray]:
        """Let Arrow read a block of records; return its columns, of the types in ``fields``."""
        table = pa_csv.read_csv(
            pa.BufferReader(block),
            pa_csv.ReadOptions(
                use_threads=False,
                block_size=len(block) + 1,
                column_names=[field.name for field in fields],
            ),
            pa_csv.ParseOptions(
                delimiter=self._form.delimiter,
                newlines_in_values=True,
                ignore_empty_lines=len(fields) != 1,
            ),
            pa_csv.ConvertOptions(
                column_types=pa.schema(fields),
                null_values=[self._form.null],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        return list(table.combine_chunks().columns)


def _read_as(kind: pa.DataType, zone: str | None, hexes: bool) -> pa.DataType:
    """Return the type as which Arrow reads a column that will be converted to ``kind``."""
    if pa.types.is_decimal(kind) or (hexes and pa.types.is_integer(kind)):
        return pa.string()
    return pa.timestamp("us") if zone and pa.types.is_timestamp(kind) and kind.tz else kind


def _of_column(values: pa.ChunkedArray, kind: pa.DataType, zone: str | None) -> pa.ChunkedArray:
    """Convert a column, read by Arrow as the type of `_read_as`, to ``kind``.

    Raises ArrowInvalid.
    """
    if pa.types.is_timestamp(kind):
        return pc.assume_timezone(values, zone).cast(kind)
    texts = pc.ascii_trim_whitespace(values)
    return decimals(texts, kind) if pa.types.is_decimal(kind) else integers(texts, kind)


def _names_in(header: bytes, delimiter: str, own: Sequence[str]) -> list[str]:
    """Return the column names in a body's first record; raises RowsError.

    ``own``: the names of the table's columns; there may not be more.
    """
    try:
        line = header.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise RowsError([f"the first line is not UTF-8: {error.reason}"]) from error
    if not line:
        raise RowsError(["the first line is to name the columns, and is empty"])
    names = names_of(line, delimiter)
    if len(names) > len(own):
        more = f"names {len(names)} columns, the table has {len(own)}"
        raise RowsError([f"the first line {more}: {line[:80]!r}"])
    return names
