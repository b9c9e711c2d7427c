"""Reads a Parquet file row group by row group, a few rows at a time.

Texts stay Arrow dictionaries until their size is known: a short file can hold a long text a million
times. Arrow cannot read a column as a dictionary if a part of it is written as differences
(DELTA_*). So fewer rows of such a column are read at a time, by their largest possible size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from haproc.engine.interface import Column
from haproc.route.rows.forms import Readable, RowsError
from haproc.route.rows.lines import Batches

READ_BYTES: Final = 1 << 20
"""Bytes of a column that Arrow reads from the file at a time. Chosen."""
BATCH_ROWS_MAX: Final = 64_000
LIST_ITEMS_MAX: Final = 32 << 20
"""The most list items that a column may have in one row group. Chosen: a quarter GiB of numbers."""
REPEATED_BYTES_MAX: Final = 1 << 30
"""The most bytes that repeated texts may take in the rows read at a time. Chosen: with row groups
of 128 MiB that is eight rows, and 300,000 rows a second were read."""
_REPEATING: Final = frozenset({"DELTA_BYTE_ARRAY", "PLAIN_DICTIONARY", "RLE_DICTIONARY"})
"""Parquet encodings that store a long text once for many rows."""
_ITEM_BYTES: Final = 8
_METADATA_BYTES_MAX: Final = 16 << 20
_METADATA_ITEMS_MAX: Final = 1_000_000
"""The most bytes of a text (_METADATA_BYTES_MAX), and the most items of a list, in a file's
metadata. Chosen."""


def parquet_rows(source: Readable, columns: Sequence[Column], piece_bytes: int) -> Batches:
    """Return the columns of a Parquet file, and its rows in batches of about ``piece_bytes``."""
    limits = {
        "thrift_string_size_limit": _METADATA_BYTES_MAX,
        "thrift_container_size_limit": _METADATA_ITEMS_MAX,
    }
    with pq.ParquetFile(source, **limits) as peek:
        texts, instants = frozenset(_dictionaries(peek)), _instants(peek)
    file = pq.ParquetFile(
        source,
        read_dictionary=sorted(texts),
        buffer_size=READ_BYTES,
        coerce_int96_timestamp_unit="us",
        **limits,
    )
    schema = _with_instants(file.schema_arrow, instants)
    return schema, _batches(file, texts, instants, piece_bytes)


def _leaves(file: pq.ParquetFile) -> Iterator[Any]:
    schema = file.metadata.schema
    return (schema.column(at) for at in range(len(schema)))


def _dictionaries(file: pq.ParquetFile) -> list[str]:
    """Return the text columns that can be read as dictionaries.

    Those are columns of which no part is written as differences.
    """
    groups = [file.metadata.row_group(at) for at in range(file.num_row_groups)]
    return [
        leaf.path
        for at, leaf in enumerate(_leaves(file))
        if leaf.physical_type == "BYTE_ARRAY"
        and not any(each.startswith("DELTA_") for g in groups for each in g.column(at).encodings)
    ]


def _instants(file: pq.ParquetFile) -> frozenset[str]:
    """Return the TIMESTAMP columns in Spark's older form, INT96.

    Arrow's schema does not show this form.
    """
    return frozenset(leaf.path for leaf in _leaves(file) if leaf.physical_type == "INT96")


def _with_instants(schema: pa.Schema, instants: frozenset[str]) -> pa.Schema:
    fields = [
        field.with_type(pa.timestamp("us", "UTC")) if field.name in instants else field
        for field in schema.remove_metadata()
    ]
    return pa.schema(fields)


def _values_bytes(file: pq.ParquetFile, group: Any) -> int:
    """Return the bytes of a row group's values in memory; a text counts as a reference.

    Raises RowsError if the row group has too many list items: a list of a billion equal values
    takes a few bytes of a file, and a row is read as a whole.
    """
    size = 0
    for at, leaf in enumerate(_leaves(file)):
        column = group.column(at)
        if column.num_values - group.num_rows > LIST_ITEMS_MAX:
            message = f"{column.path_in_schema[:80]} has more than {LIST_ITEMS_MAX} items in lists"
            raise RowsError([f"{message} in one row group: write smaller groups"])
        size += column.num_values * max(_ITEM_BYTES, leaf.length or 0)
    return size


def _repeated_bytes(group: Any, texts: frozenset[str]) -> int:
    """Return the most bytes that the texts of one row can take in memory.

    ``texts``: columns that do not count, because they are read as dictionaries. A column may store
    a piece of a text once for many rows, so one text may be as large as the column. A row with a
    list has several texts.
    """
    columns = [group.column(at) for at in range(group.num_columns)]
    return sum(
        column.total_uncompressed_size * -(-column.num_values // max(1, group.num_rows))
        for column in columns
        if column.physical_type == "BYTE_ARRAY"
        and column.path_in_schema not in texts
        and not _REPEATING.isdisjoint(column.encodings)
    )


def _batches(
    file: pq.ParquetFile, texts: frozenset[str], instants: frozenset[str], piece_bytes: int
) -> Iterator[pa.RecordBatch]:
    schema = _with_instants(file.schema_arrow, instants)
    for group in range(file.num_row_groups):
        about = file.metadata.row_group(group)
        size = max(about.total_byte_size, _values_bytes(file, about))
        width = max(1, size // max(1, about.num_rows))
        at_once = REPEATED_BYTES_MAX // max(1, _repeated_bytes(about, texts))
        rows = min(BATCH_ROWS_MAX, max(1, min(piece_bytes // width, at_once)))
        for batch in _read(file, group, rows):
            batch.validate(full=True)  # its reader takes any bytes for a text
            plain = batch.replace_schema_metadata(None)
            if instants:
                plain = pa.RecordBatch.from_arrays(
                    [c.cast(f.type) for c, f in zip(plain.columns, schema, strict=True)],
                    schema=schema,
                )
            yield plain


def _read(file: pq.ParquetFile, group: int, rows: int) -> Iterator[pa.RecordBatch]:
    try:
        yield from file.iter_batches(rows, row_groups=[group], use_threads=False)
    except MemoryError as error:  # Arrow's own, too
        raise RowsError(
            [f"row group {group + 1} takes too much memory: write smaller ones, or shorter texts"]
        ) from error
