"""A result as an Arrow stream: what pyarrow, pandas, polars and DuckDB read without us."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa


class AsyncArrowResult:
    """A result that is awaited: such a stream, which blocks, is not offered."""


class ArrowResult:
    """A result whose remaining rows any library can take that knows Arrow's PyCapsule interface."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the remaining rows as a stream; it reads from the connection as it is read."""
        schema = self._held().schema
        reader = pa.RecordBatchReader.from_batches(schema, self.fetch_arrow_batches())
        return reader.__arrow_c_stream__(requested_schema)

    def fetch_arrow_batches(self) -> Iterator[Any]:
        """Yield the remaining rows as pyarrow record batches."""
        raise NotImplementedError

    def _held(self) -> Any:
        raise NotImplementedError
