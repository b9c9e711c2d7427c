"""Copies the operations that every cluster has applied from the log to ``haproc.operations``.

Run ``python -m haproc.pipeline.archive`` repeatedly: each run goes on after the newest offset in
the table, and ends once it has all operations that can be read.

Exactly once: a page's rows are merged by their offset. So a row that is written again, by another
run at the same time or by a killed run whose write is still on its way, changes nothing. The only
state is the table: its newest offset is the position.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa

from haproc.pipeline import ring, tables
from haproc.pipeline.ring import ClientDoors, HttpAnswer, RingError

PATH: Final = "/api/ha/operations"
ROWS: Final = 20_000
"""The most rows in one write: a second or two of a small cluster's time."""
PASSED_MAX: Final = 1000
"""The most offsets without a row, mostly the archive's own writes, that a run passes before it
writes a row which only stores its position. That row is a write itself, so it must be rare."""
POSITION: Final = "position"
"""The ``kind`` of a row that stands for no operation, and only stores the position by its
offset."""


@dataclass(frozen=True, slots=True)
class Page:
    """The operations from offset ``start`` on and below ``end``, as an Arrow table ``rows``.

    ``applied_to``: the offset below which every cluster has applied the log: there the last page
    ends.
    """

    rows: Any
    start: int
    end: int
    applied_to: int


class Asks(Protocol):
    """Sends requests to the ring's client doors."""

    def ask(self, path: str, body: object = None) -> HttpAnswer:
        """Return the answer to a GET, or to a POST with ``body`` as JSON; raises RingError."""
        ...


def pages(doors: Asks, position: int, rows: int = ROWS) -> Iterator[Page]:
    """Yield the operations from offset ``position`` on, in pages of at most ``rows``.

    Ends with the newest operation that every cluster has applied. Raises RingError.
    """
    while True:
        answer = doors.ask(f"{PATH}?from={position}&rows={rows}")
        with pa.ipc.open_stream(answer.body) as reader:
            table = reader.read_all()
        start, end, applied_to = map(
            answer.number,
            ("HAProc-Operations-Start", "HAProc-Operations-End", "HAProc-Applied-To"),
        )
        yield Page(table, start, end, applied_to)
        if end >= applied_to:
            return
        position = end


def position_row(schema: Any, page_end: int) -> Any:
    """Return a row for no operation, whose offset stores ``page_end`` as the archive's position."""
    row = {"offset": page_end - 1, "kind": POSITION}
    return pa.Table.from_pylist([row], schema=schema)


class Operations:
    """The table ``haproc.operations``; ``spark``: a PySpark session on the ring."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def position(self) -> int:
        """Return the offset after the newest one in the table; 0 for an empty table."""
        (row,) = self._spark.sql(f"SELECT max(offset) FROM {tables.OPERATIONS}").collect()
        return 0 if row[0] is None else int(row[0]) + 1

    def merge(self, rows: Any) -> None:
        """Insert those of the rows whose offsets are not in the table yet."""
        from pyspark.sql import functions

        newest = self._spark.createDataFrame(rows).selectExpr("*", "CAST(time AS DATE) AS day")
        below = min(rows.column("offset").to_pylist())
        merged = newest.alias("new").mergeInto(
            tables.OPERATIONS,
            functions.expr(f"operations.offset >= {below} AND operations.offset = new.offset"),
        )
        merged.whenNotMatched().insertAll().merge()


def archive(operations: Operations, doors: Asks, rows: int = ROWS) -> int:
    """Write all operations that can be read and are not in the table; return their number."""
    begun = position = written = operations.position()
    count = 0
    for page in pages(doors, begun, rows):
        if 0 < position < page.start:
            print(f"offsets {position} to {page.start - 1} are not in the log any more")
        position = page.end
        if page.rows.num_rows:
            operations.merge(page.rows)
            count, written = count + page.rows.num_rows, position
        elif position - written > PASSED_MAX:
            operations.merge(position_row(page.rows.schema, position))
            written = position
        doors.ask(f"{PATH}/archived", {"below": position})
    return count


def main() -> int:
    """Run the program: archive once; return the exit code, 1 after an error of the ring."""
    parser = ring.arguments("Archive what every cluster has applied.")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"of one write ({ROWS})")
    options = parser.parse_args()
    try:
        doors: ClientDoors = ring.doors(options)
        with ring.session(options) as spark:
            tables.create(spark, tables.OPERATIONS, tables.CREATE_OPERATIONS)
            print(f"{archive(Operations(spark), doors, options.rows):,} operations archived")
    except RingError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
