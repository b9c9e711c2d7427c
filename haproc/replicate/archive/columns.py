"""Rows of the archive as Arrow. Values in, values out.

One row for each operation: its offset and time, whose it was, what it did and to which tables, and
for each cluster how it ended there and how long after it was made (milliseconds, by the clocks of
both HAProcs; null where the cluster's HAProc was started since).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from haproc.replicate.archive.fates import APPLIED, Fates
from haproc.replicate.archive.showing import Shown
from haproc.replicate.records.operation import Operation

_TEXTS: Final[Any] = pa.list_(pa.string())
_OUTCOME: Final[Any] = pa.struct(
    [("outcome", pa.string()), ("error", pa.string()), ("latency_ms", pa.int64())]
)
SCHEMA: Final[Any] = pa.schema(
    [
        ("offset", pa.int64()),
        ("time", pa.timestamp("us", tz="UTC")),
        ("user", pa.string()),
        ("class", pa.string()),
        ("kind", pa.string()),
        ("statement", pa.string()),
        ("rows", pa.int64()),
        ("digest", pa.string()),
        ("reads", _TEXTS),
        ("writes", _TEXTS),
        ("bytes", pa.int64()),
        ("origin", pa.string()),
        ("request", pa.string()),
        ("outcomes", pa.map_(pa.string(), _OUTCOME)),
    ]
)
_MADE_LAST: Final = frozenset({"offset", "rows", "outcomes"})
_GATHERED: Final[Any] = pa.schema([field for field in SCHEMA if field.name not in _MADE_LAST])
_BLOCK_ROWS: Final = 1024
_ROW_BYTES: Final = 200
"""About what a row takes beside its texts."""


class Columns:
    """Gathers rows; how their operations ended is said last.

    What is gathered becomes Arrow block by block: tens of thousands of rows as objects would keep
    Python's garbage collector busy, which took half of all time.
    """

    def __init__(self, clusters: Sequence[str]) -> None:
        self._clusters = clusters
        self._offsets: list[int] = []
        self._counts: list[int | None] = []
        self._block: list[tuple[Any, ...]] = []
        self._blocks: list[Any] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, offset: int, op: Operation, shown: Shown) -> None:
        """Add an operation."""
        self._offsets.append(offset)
        self._counts.append(shown.rows)
        self._block.append(
            (
                op.created_ms * 1000 or None,
                op.user,
                op.operation_class,
                op.kind,
                shown.statement,
                shown.digest,
                _sorted(op.reads),
                _sorted(op.writes),
                op.size_bytes,
                op.origin,
                op.id,
            )
        )
        self.size_bytes += _ROW_BYTES + len(shown.statement or "")
        if len(self._block) >= _BLOCK_ROWS:
            self._end_block()

    def _end_block(self) -> None:
        columns: list[Any] = list(zip(*self._block, strict=True)) or [()] * len(_GATHERED)
        arrays = [pa.array(each, type=f.type) for each, f in zip(columns, _GATHERED, strict=True)]
        self._blocks.append(pa.Table.from_arrays(arrays, schema=_GATHERED))
        self._block = []

    def table(self, below: int, fates: Fates, latencies: Mapping[str, Mapping[int, int]]) -> Any:
        """Return the rows below an offset as an Arrow table of `SCHEMA`.

        ``latencies``: by cluster, milliseconds by offset, as far as they are known.
        """
        self._end_block()
        count = bisect_left(self._offsets, below)
        offsets = self._offsets[:count]
        counts = [
            fates.rows(offset) if rows is None else rows
            for offset, rows in zip(offsets, self._counts[:count], strict=True)
        ]
        gathered = pa.concat_tables(self._blocks).slice(0, count)
        made = {
            "offset": pa.array(offsets, pa.int64()),
            "rows": pa.array(counts, pa.int64()),
            "outcomes": self._outcomes(offsets, fates, latencies),
        }
        columns = [made[name] if name in made else gathered.column(name) for name in SCHEMA.names]
        return pa.Table.from_arrays(columns, schema=SCHEMA)

    def _outcomes(
        self,
        offsets: Sequence[int],
        fates: Fates,
        latencies: Mapping[str, Mapping[int, int]],
    ) -> Any:
        clusters = self._clusters
        applied = dict.fromkeys(clusters, APPLIED)
        endings = [fates.endings(offset, clusters) or applied for offset in offsets]
        by_cluster = [latencies.get(name, {}) for name in clusters]
        statuses = [ended[name].status for ended in endings for name in clusters]
        errors = [ended[name].error or None for ended in endings for name in clusters]
        late = [known.get(offset) for offset in offsets for known in by_cluster]
        items = pa.StructArray.from_arrays(
            [
                pa.array(statuses, pa.string()),
                pa.array(errors, pa.string()),
                pa.array(late, pa.int64()),
            ],
            fields=list(_OUTCOME),
        )
        count, width = len(offsets), len(clusters)
        ends = pa.array([row * width for row in range(count + 1)], pa.int32())
        return pa.MapArray.from_arrays(ends, pa.array([*clusters] * count, pa.string()), items)


@lru_cache(4096)
def _sorted(names: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(names))
