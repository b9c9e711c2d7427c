"""The time of classification: ``python -m bench.bench_classify``.

It stands in front of every query, and of INSERTs of literals. Bars are chosen: a small part of what
Spark takes for one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.report import Row, report
from haproc.classify.classifier import classify
from haproc.classify.names import Context
from haproc.classify.rules import Rules

SECONDS = 0.5
_ROWS = ", ".join(f"({number}, 'name {number}', {number}.25)" for number in range(10_000))
_STATEMENTS = {
    "SELECT 1": "SELECT 1",
    "SELECT with a join": (
        "SELECT a, count(*) FROM t JOIN u ON t.x = u.x WHERE b > 3 GROUP BY a ORDER BY a LIMIT 10"
    ),
}
_STATEMENT_BAR_US = 1_000.0
_ONE_ROW = "INSERT INTO s.t (a, b, c) VALUES (1, 'abc', 2.50)"
_ONE_ROW_BAR_US = 40.0
_MANY_ROWS = f"INSERT INTO t VALUES {_ROWS}"
_MANY_ROWS_BAR_US = 120_000.0


def best_us(action: Callable[[], object]) -> float:
    """Return the shortest time the action took, in microseconds."""
    best, end = float("inf"), time.perf_counter() + SECONDS
    while True:
        start = time.perf_counter()
        action()
        stop = time.perf_counter()
        best = min(best, stop - start)
        if stop > end:
            return best * 1e6


def main() -> None:
    """Measure, print, and keep the results."""
    context, rules = Context(), Rules.builtin()

    def classify_us(sql: str) -> float:
        return best_us(lambda: classify(sql, context, rules))

    rows = [
        Row(name, "µs", classify_us(sql), "the bar", _STATEMENT_BAR_US)
        for name, sql in _STATEMENTS.items()
    ]
    rows.append(Row("INSERT of 1 row", "µs", classify_us(_ONE_ROW), "the bar", _ONE_ROW_BAR_US))
    rows.append(
        Row("INSERT of 10,000 rows", "µs", classify_us(_MANY_ROWS), "the bar", _MANY_ROWS_BAR_US)
    )
    report("classify", rows)


if __name__ == "__main__":
    main()
