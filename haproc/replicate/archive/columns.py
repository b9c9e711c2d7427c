"""Makes the archive's rows as Arrow; selects the parts of an operation that they show."""

from __future__ import annotations

import hmac
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from haproc import protos
from haproc.classify.model import RefusedError
from haproc.classify.plans.commands import read_plan
from haproc.classify.plans.parsing import parse
from haproc.classify.showing import masked, masked_insert
from haproc.config.sections import Archive, Mask
from haproc.engine.statement import ArrowRows, SparkPlan, SqlText
from haproc.replicate.archive.account import APPLIED, Fates
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import ComputedPlan, QueryWrite, SpooledRows

OWN_SCHEMA_PREFIX: Final = "spark_catalog.haproc."
"""How the names of the tables begin in which the archive's pipeline stores its results."""
_DIGEST_KEY: Final = b"haproc archive digest"
_PLAN_BYTES_MAX: Final = 1 << 20
"""Larger plans are not searched for SQL text, because they consist mostly of rows."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What the archive shows of an operation: statement, number of rows, digest; None: unknown."""

    statement: str | None = None
    rows: int | None = None
    digest: str | None = None


class Showing:
    """Selects what the archive's readers see of an operation. Values in, values out.

    By default no literal of a statement is shown. Rows and plans are shown only by a digest under a
    key of the ring. Readers can recognise equal ones, but cannot find the content by trials.

    ``secret``: the ring's secret.
    """

    def __init__(self, rules: Archive, secret: str) -> None:
        self._rules = rules
        self._key = hmac.digest(secret.encode(), _DIGEST_KEY, "sha256")
        self._open: Callable[[frozenset[str]], bool] = lru_cache(4096)(self._unmasked)

    def own(self, op: Operation) -> bool:
        """True if the archive's own pipeline made the operation: such writes are not archived."""
        return (
            op.user == self._rules.user
            and bool(op.writes)
            and all(table.lower().startswith(OWN_SCHEMA_PREFIX) for table in op.writes)
        )

    def of(self, op: Operation) -> Shown:
        """Return what the archive shows of the operation."""
        match op.write:
            case SqlText(sql):
                return self._sql(op, sql)
            case QueryWrite(sql):
                return Shown(self._text(op, sql))
            case ArrowRows(_, rows):
                return Shown(None, _count(rows), self._digest(rows))
            case SparkPlan(plan):
                return Shown(self._in_plan(op, plan), None, self._digest(plan))
            case ComputedPlan():
                plan = op.write.plan
                return Shown(self._in_plan(op, plan), None, self._digest(op.write.query))
            case SpooledRows():
                return Shown(None, None, self._digest(op.fingerprint.encode()))

    def _sql(self, op: Operation, sql: str) -> Shown:
        insert = op.insert
        if insert is None:
            return Shown(self._text(op, sql))
        if self._shows_literals(op):
            return Shown(self._text(op, sql), insert.rows)
        columns = insert.signature.count(",") + 1
        length = self._rules.statement_characters_max
        return Shown(
            masked_insert(sql, insert.values_at, insert.rows, columns, length), insert.rows
        )

    def _text(self, op: Operation, sql: str) -> str | None:
        length = self._rules.statement_characters_max
        return masked(sql, length, secrets_only=self._shows_literals(op))

    def _shows_literals(self, op: Operation) -> bool:
        return self._rules.mask is Mask.SECRETS or (
            bool(self._rules.unmasked) and op.tables_known and self._open(op.writes)
        )

    def _unmasked(self, tables: frozenset[str]) -> bool:
        patterns = [pattern.lower() for pattern in self._rules.unmasked]
        return bool(tables) and all(
            any(fnmatchcase(table.lower(), pattern) for pattern in patterns) for table in tables
        )

    def _in_plan(self, op: Operation, plan: bytes) -> str | None:
        if len(plan) > _PLAN_BYTES_MAX:
            return None
        try:
            sql = read_plan(parse(protos.base.Plan, plan)).sql
        except RefusedError:
            return None
        return None if sql is None else self._text(op, sql.text)

    def _digest(self, data: bytes) -> str:
        return hmac.digest(self._key, data, "sha256").hex()[:32]


def _count(rows: bytes) -> int:
    with pa.ipc.open_stream(rows) as reader:
        return sum(batch.num_rows for batch in reader)


# The archive's rows as Arrow. Values in, values out.
#
# Each operation has one row: its offset and time, user, statement and tables, and for each cluster
# its outcome and latency. The latency is the time from its creation to its end on the cluster, in
# ms, by the clocks of both HAProcs; null if the cluster's HAProc was started since.


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
_BLOCK_SCHEMA: Final[Any] = pa.schema([field for field in SCHEMA if field.name not in _MADE_LAST])
_BLOCK_ROWS: Final = 1024
_ROW_BYTES: Final = 200
"""About how many bytes a row has without its statement."""


class Columns:
    """Collects the archive's rows; the outcomes of the operations are added at the end.

    The rows become Arrow block by block: tens of thousands of rows as Python objects would keep the
    garbage collector busy, which took half of all time.
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

    def add_operation_row(self, offset: int, op: Operation, shown: Shown) -> None:
        """Add the row of an operation; offsets must rise from call to call."""
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
        columns: list[Any] = list(zip(*self._block, strict=True)) or [()] * len(_BLOCK_SCHEMA)
        arrays = [
            pa.array(each, type=f.type) for each, f in zip(columns, _BLOCK_SCHEMA, strict=True)
        ]
        self._blocks.append(pa.Table.from_arrays(arrays, schema=_BLOCK_SCHEMA))
        self._block = []

    def table(self, below: int, fates: Fates, latencies: Mapping[str, Mapping[int, int]]) -> Any:
        """Return the rows below an offset, with outcomes, as an Arrow table of the schema `SCHEMA`.

        ``latencies``: by cluster and offset, the known latencies in ms.
        """
        self._end_block()
        count = bisect_left(self._offsets, below)
        offsets = self._offsets[:count]
        counts = [
            fates.rows(offset) if rows is None else rows
            for offset, rows in zip(offsets, self._counts[:count], strict=True)
        ]
        concatenated = pa.concat_tables(self._blocks).slice(0, count)
        made = {
            "offset": pa.array(offsets, pa.int64()),
            "rows": pa.array(counts, pa.int64()),
            "outcomes": self._outcomes(offsets, fates, latencies),
        }
        columns = [
            made[name] if name in made else concatenated.column(name) for name in SCHEMA.names
        ]
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
