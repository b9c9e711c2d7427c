"""Rows to append, as one Arrow IPC stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from haclient.exceptions import DataError, InterfaceError


def arrow_stream(data: Any) -> bytes:
    """Return a pyarrow Table, batch, reader or iterable of batches, or a DataFrame, as bytes.

    Bytes, because the request may have to be sent again. Raises InterfaceError, DataError.
    """
    if type(data).__module__.partition(".")[0] == "pandas":
        try:
            data = pa.Table.from_pandas(data, preserve_index=False)
        except pa.ArrowException as error:
            raise DataError(f"the DataFrame has no Arrow form: {error}") from error
    if isinstance(data, pa.Table):
        schema, batches = data.schema, iter(data.to_batches())
    elif isinstance(data, pa.RecordBatch):
        schema, batches = data.schema, iter((data,))
    elif isinstance(data, Iterable):
        schema, batches = _opened(iter(data), getattr(data, "schema", None))
    else:
        raise InterfaceError(f"a {type(data).__name__} cannot be appended")
    sink = pa.BufferOutputStream()
    # pandas' own description of its index means nothing to a table.
    schema = schema.remove_metadata()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.replace_schema_metadata(None))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _opened(batches: Iterator[Any], schema: Any) -> tuple[Any, Iterator[Any]]:
    """Return the schema, taken from the first batch if need be, and all batches."""
    if schema is not None:
        return schema, batches
    first = next(batches, None)
    if not isinstance(first, pa.RecordBatch):
        raise InterfaceError("expected pyarrow record batches, and at least one")

    def all_batches() -> Iterator[Any]:
        yield first
        yield from batches

    return first.schema, all_batches()
