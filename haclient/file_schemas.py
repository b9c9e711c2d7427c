"""Finds the columns and SQL types of a table that can hold a file's rows.

Parquet and Arrow state their types. Text files do not: all texts are read, and a column gets the
type that fits every value. For CSV it is the type that the ring's reader would take, else STRING.
JSON has no dates, so its texts are STRING.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from haclient.columns import is_variant, type_name
from haclient.exceptions import DataError, InterfaceError
from haclient.files import FileForm, FileKind, LoadFile
from haclient.statements import pieces, quoted, unquoted

_PLAIN_TYPES: Final = frozenset(
    {"BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BINARY"}
    | {"DATE", "TIMESTAMP", "TIMESTAMP_NTZ"}
)
_LIKE_A_CODE: Final = re.compile(rb"(?<![\w.:-])(?:\+|-?0)[0-9]")
"""Finds digits with a zero or a plus before them, such as a postal code."""
_UNSIGNED: Final = {8: "SMALLINT", 16: "INT", 32: "BIGINT", 64: "DECIMAL(20,0)"}


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table: its name, and its type in SQL."""

    name: str
    type: str

    def __str__(self) -> str:
        return f"{quoted(self.name)} {self.type}"


def table_of(file: LoadFile, stated: Mapping[str, str]) -> list[TableColumn]:
    """Return the columns of a table for this file. Raises OSError, DataError, InterfaceError.

    ``stated``: types that the user gives, by column; they replace the file's own or inferred ones.
    """
    form = file.form
    is_text = form.kind in (FileKind.CSV, FileKind.JSON_LINES)
    if form.columns == "*" or (form.columns is not None and form.kind is not FileKind.CSV):
        raise InterfaceError("--create makes all columns that the file names: leave --columns out")
    schema = _of_texts(file, frozenset(stated)) if is_text else file.schema()
    if not schema.names:
        raise DataError(f"{file.path.name} names no columns, so no table can be made of it")
    if unknown := sorted(stated.keys() - {name.lower() for name in schema.names}):
        known = ", ".join(schema.names)
        raise InterfaceError(f"--types: the file has no column {unknown[0]}; it has {known}")
    return [_column(field, form, stated.get(field.name.lower())) for field in schema]


def _column(field: Any, form: FileForm, stated: str | None) -> TableColumn:
    if stated is not None:
        return TableColumn(field.name, stated)
    kind = field.type
    if form.kind is FileKind.CSV and pa.types.is_binary(kind):
        raise DataError(f"column {field.name} is no UTF-8")
    if form.kind is FileKind.CSV and pa.types.is_time(kind):
        kind = pa.string()
    if form.time_zone is not None and pa.types.is_timestamp(kind):
        kind = pa.timestamp("us", "UTC")  # its texts are times in that zone
    try:
        return TableColumn(field.name, sql_type(kind))
    except DataError as error:
        raise DataError(f"column {field.name}: {error.message}") from error


def sql_type(kind: Any) -> str:
    """Return the SQL type that can hold every value of an Arrow type; DataError if none can."""
    types = pa.types
    if types.is_dictionary(kind):
        return sql_type(kind.value_type)
    if types.is_null(kind):
        return "STRING"
    if types.is_unsigned_integer(kind):
        return _UNSIGNED[kind.bit_width]
    if types.is_decimal(kind):
        scale = max(kind.scale, 0)
        digits = kind.precision - min(kind.scale, 0)
        if digits <= 38:
            return f"DECIMAL({digits},{scale})"
    elif types.is_float16(kind):
        return "FLOAT"
    elif types.is_fixed_size_binary(kind) or types.is_binary_view(kind):
        return "BINARY"
    elif types.is_string_view(kind):
        return "STRING"
    elif types.is_map(kind):
        return f"MAP<{sql_type(kind.key_type)}, {sql_type(kind.item_type)}>"
    elif types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{quoted(f.name)}: {sql_type(f.type)}' for f in kind)}>"
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return f"ARRAY<{sql_type(kind.value_type)}>"
    elif (name := type_name(kind)) in _PLAIN_TYPES:
        return name
    raise DataError(f"{kind} is no type of a table: give one with --types")


def _of_texts(file: LoadFile, stated: frozenset[str]) -> Any:
    """Read all texts of a file; return a schema whose types fit them.

    Columns in ``stated`` are not checked, because the user gives their types.
    """
    is_csv = file.form.kind is FileKind.CSV
    found: dict[str, Any] = {}
    for piece in file.pieces():
        body = piece.body()
        data = body if isinstance(body, bytes) else b"".join(body)
        try:
            columns = dict(_csv_types(data, piece.query) if is_csv else _json_types(data, stated))
        except (pa.ArrowException, ValueError, RecursionError) as error:
            where = f"{file.path.name}, from {piece.begins} on"
            raise DataError(f"{where}: no {file.form.kind}: {error}") from error
        for name, kind in columns.items():
            found[name] = kind if name not in found else _both(name, found[name], kind, is_csv)
    return pa.schema(found)


def _both(name: str, one: Any, other: Any, is_csv: bool) -> Any:
    """Return a type that holds the values of both types. Raises DataError if there is none."""
    try:
        schemas = [pa.schema({name: kind}) for kind in (one, other)]
        return pa.unify_schemas(schemas, promote_options="permissive").field(name).type
    except pa.ArrowException:
        if is_csv:  # each field is a text
            return pa.string()
        raise _mixed(name, f"{one} and {other}") from None


def _mixed(name: str, what: str) -> DataError:
    return DataError(f"column {name} holds {what}: give its type with --types")


def _csv_types(data: bytes, query: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield the names and types of the columns in some CSV records, read as the ring reads them."""
    names = next(csv.reader([query["columns"]], strict=True))
    if len({name.lower() for name in names}) < len(names):
        raise ValueError(f"a column comes twice: {query['columns']}")
    if not data.strip(b"\r\n"):
        yield from ((name, pa.null()) for name in names)
        return
    table = _csv_table(data, query, names, {})
    numbers = {
        field.name: pa.string()
        for field in table.schema
        if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    }
    codes: frozenset[str] = frozenset()
    if numbers and _LIKE_A_CODE.search(data):
        texts = _csv_table(data, query, names, numbers)
        codes = frozenset(name for name in numbers if _has_codes(texts.column(name)))
    for field in table.schema:
        yield field.name, pa.string() if field.name in codes else field.type


def _has_codes(texts: Any) -> bool:
    """True if any text is a number with a leading zero or plus, which a number type would lose."""
    return bool(pc.any(pc.match_substring_regex(texts, r"^\s*(\+|-?0)\d")).as_py())


def _csv_table(
    data: bytes, query: Mapping[str, str], names: list[str], types: Mapping[str, Any]
) -> Any:
    return pa_csv.read_csv(
        pa.BufferReader(data),
        pa_csv.ReadOptions(column_names=names, use_threads=False, block_size=len(data) + 1),
        pa_csv.ParseOptions(
            delimiter=query.get("delimiter", ","),
            newlines_in_values=True,
            ignore_empty_lines=len(names) != 1,
        ),
        pa_csv.ConvertOptions(
            column_types=dict(types),
            null_values=[query.get("null", "")],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _json_types(data: bytes, stated: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yield the names and types of the columns in some lines of JSON."""
    values: dict[str, list[Any]] = {}
    for line in filter(bytes.strip, data.split(b"\n")):
        row = json.loads(line)
        if not isinstance(row, dict):
            raise ValueError(f"not an object: {line[:40]!r}")
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    for name, given in values.items():
        if name.lower() in stated:
            yield name, pa.null()
            continue
        try:
            yield name, pa.array(given).type
        except (pa.ArrowException, OverflowError) as error:
            raise _mixed(name, f"values of different types ({error})") from error


def create_statement(table: str, columns: Iterable[TableColumn]) -> str:
    """Return the CREATE TABLE statement for a table with these columns."""
    return f"CREATE TABLE {table_name(table)} ({', '.join(map(str, columns))}) USING delta"


def table_name(table: str) -> str:
    """Return a table's name for SQL: its parts in backquotes, unless it has backquotes already."""
    return table if "`" in table else ".".join(map(quoted, table.split(".")))


def stated_types(text: str | None) -> dict[str, str]:
    """Parse a text such as ``id INT, price DECIMAL(10,2)``; return the types by column.

    Raises InterfaceError.
    """
    given = text or ""
    parts, begin, depth = [], 0, 0
    for _, start, end in pieces(given):
        symbol = given[start:end]
        depth += (symbol in "(<") - (symbol in ")>")
        if symbol == "," and not depth:
            parts.append(given[begin:start].strip())
            begin = end
    parts.append(given[begin:].strip())
    found: dict[str, str] = {}
    for part in filter(None, parts):
        kind, _, end = next(pieces(part))
        name, type_text = part[:end], part[end:].strip()
        if kind not in ("word", "name") or not type_text:
            raise InterfaceError(f"--types: {part!r} is not NAME TYPE")
        found[unquoted(name).lower()] = type_text
    return found


def of_result(schema: Any) -> list[TableColumn]:
    """Return the columns of a result, as the columns of the table that was queried."""
    return [TableColumn(field.name, _type_there(field)) for field in schema]


def _type_there(field: Any) -> str:
    if is_variant(field):
        return "VARIANT"
    try:
        return sql_type(field.type)
    except DataError:  # a type that files do not have: shown under its own name
        return type_name(field.type)


def differences(wanted: Sequence[TableColumn], there: Sequence[TableColumn]) -> list[str]:
    """Return a text for each difference between a file's columns and those of a table.

    ``wanted``: the file's columns; ``there``: the table's.
    """
    ours, theirs = ({c.name.lower(): c for c in columns} for columns in (wanted, there))
    lacking = [f"it has no {each}" for name, each in ours.items() if name not in theirs]
    more = [f"the file has no {each}" for name, each in theirs.items() if name not in ours]
    others = [
        f"{each} is {ours[name].type} in the file"
        for name, each in theirs.items()
        if name in ours and _plain(ours[name].type) != _plain(each.type)
    ]
    return [*lacking, *more, *others]


def _plain(type_text: str) -> str:
    return "".join(type_text.upper().replace("`", "").split())
