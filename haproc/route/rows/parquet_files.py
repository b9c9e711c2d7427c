"""A Parquet file, read row group by row group, a few rows at a time.

Texts stay dictionaries until it is known how much they amount to: a short file can hold a long text
a million times. Arrow makes none of those that are written as differences (DELTA_*), so of these
fewer rows are read at a time, by what they might amount to.
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
"""Of a column, at a time. Chosen."""
BATCH_ROWS_MAX: Final = 64_000
LIST_ITEMS_MAX: Final = 32 << 20
"""Of a column in one row group; chosen: a quarter GiB of numbers."""
PREFIXED_BYTES_MAX: Final = 1 << 30
"""What the texts of a column can come to at a time that share beginnings, at worst; chosen: with
row groups of 128 MiB eight rows, of which 300,000 a second were read."""
_ITEM_BYTES: Final = 8
_METADATA_BYTES_MAX: Final = 16 << 20
_METADATA_ITEMS_MAX: Final = 1_000_000
"""Of a file's own description; chosen."""


def parquet_rows(source: Readable, columns: Sequence[Column], piece_bytes: int) -> Batches:
    """Return the columns of a file, and its rows in batches of about so many bytes."""
    limits = {
        "thrift_string_size_limit": _METADATA_BYTES_MAX,
        "thrift_container_size_limit": _METADATA_ITEMS_MAX,
    }
    with pq.ParquetFile(source, **limits) as peek:
        texts, instants = _dictionaries(peek), _instants(peek, columns)
    file = pq.ParquetFile(
        source,
        read_dictionary=texts,
        buffer_size=READ_BYTES,
        coerce_int96_timestamp_unit="us",
        **limits,
    )
    return _with_instants(file.schema_arrow, instants), _batches(file, instants, piece_bytes)


def _leaves(file: pq.ParquetFile) -> Iterator[Any]:
    schema = file.metadata.schema
    return (schema.column(at) for at in range(len(schema)))


def _dictionaries(file: pq.ParquetFile) -> list[str]:
    """Return the texts that can be read as dictionaries: of which no part is differences."""
    groups = [file.metadata.row_group(at) for at in range(file.num_row_groups)]
    return [
        leaf.path
        for at, leaf in enumerate(_leaves(file))
        if leaf.physical_type == "BYTE_ARRAY"
        and not any(each.startswith("DELTA_") for g in groups for each in g.column(at).encodings)
    ]


def _instants(file: pq.ParquetFile, columns: Sequence[Column]) -> frozenset[str]:
    """Return the columns that are moments in Spark's older form, which does not say so."""
    table = {column.name.lower(): column.type_text.upper() for column in columns}
    return frozenset(
        leaf.path
        for leaf in _leaves(file)
        if leaf.physical_type == "INT96" and table.get(leaf.path.lower()) == "TIMESTAMP"
    )


def _with_instants(schema: pa.Schema, instants: frozenset[str]) -> pa.Schema:
    fields = [
        field.with_type(pa.timestamp("us", "UTC")) if field.name in instants else field
        for field in schema.remove_metadata()
    ]
    return pa.schema(fields)


def _items(group: Any) -> int:
    """Return how many values a row group has; raises RowsError for too many in lists.

    A list of a billion equal values takes some bytes of a file, and a row is read as a whole.
    """
    columns = [group.column(at) for at in range(group.num_columns)]
    for column in columns:
        if column.num_values - group.num_rows > LIST_ITEMS_MAX:
            told = f"{column.path_in_schema[:80]} has more than {LIST_ITEMS_MAX} items in lists"
            raise RowsError([f"{told} in one row group: write smaller groups"])
    return sum(column.num_values for column in columns)


def _prefixed_bytes(group: Any) -> int:
    """Return how long a text can be that is written as the one before it and a difference.

    Its column holds each piece of it once, but a million such texts need not be longer.
    """
    columns = [group.column(at) for at in range(group.num_columns)]
    sizes = (c.total_uncompressed_size for c in columns if "DELTA_BYTE_ARRAY" in c.encodings)
    return max(sizes, default=0)


def _batches(
    file: pq.ParquetFile, instants: frozenset[str], piece_bytes: int
) -> Iterator[pa.RecordBatch]:
    schema = _with_instants(file.schema_arrow, instants)
    for group in range(file.num_row_groups):
        about = file.metadata.row_group(group)
        size = max(about.total_byte_size, _items(about) * _ITEM_BYTES)
        width = max(1, size // max(1, about.num_rows))
        at_once = PREFIXED_BYTES_MAX // max(1, _prefixed_bytes(about))
        rows = min(BATCH_ROWS_MAX, max(1, min(piece_bytes // width, at_once)))
        for batch in file.iter_batches(rows, row_groups=[group], use_threads=False):
            batch.validate(full=True)  # its reader takes any bytes for a text
            plain = batch.replace_schema_metadata(None)
            if instants:
                plain = pa.RecordBatch.from_arrays(
                    [c.cast(f.type) for c, f in zip(plain.columns, schema, strict=True)],
                    schema=schema,
                )
            yield plain
