"""Prints what a benchmark found, and keeps it beside the benchmark.

Every figure stands beside what it is compared with, measured in the same run where that is
possible, so that a result means something on another machine, too.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.pictures import draw

RESULTS = Path(__file__).with_name("results")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure; ``compared_with`` says in words what ``compared_value`` (same unit) is.

    ``at``: it is one of several of its name, each at another number of what it is ``over``. Those
    are drawn as a curve, see `bench.pictures`.
    """

    name: str
    unit: str
    value: float
    compared_with: str = ""
    compared_value: float | None = None
    over: str = ""
    at: float | None = None

    @property
    def ratio(self) -> float | None:
        """The value as a multiple of what it is compared with."""
        return self.value / self.compared_value if self.compared_value else None

    def stored_fields(self) -> dict[str, Any]:
        """Return the row as it is kept."""
        place = ("over", "at") if self.at is None else ()
        row = {key: value for key, value in asdict(self).items() if key not in place}
        return {**row, "ratio": self.ratio}


def ms(name: str, seconds: tuple[float, float], compared_with: str) -> Row:
    """Return a row in milliseconds of two times in seconds."""
    return Row(name, "ms", seconds[0] * 1e3, compared_with, seconds[1] * 1e3)


def median_and_worst(name: str, unit: str, values: Sequence[float], bar: float) -> list[Row]:
    """Return the rows of several values of one kind, both beside the bar."""
    found = (("median", statistics.median(values)), ("worst", max(values)))
    return [Row(f"{name}, {which}", unit, value, "bar", bar) for which, value in found]


def report(name: str, rows: Sequence[Row]) -> None:
    """Print the rows as a table, and keep them as bench/results/<name>.json and, drawn, .png."""
    RESULTS.mkdir(exist_ok=True)
    found = [row.stored_fields() for row in rows]
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")
    show(name, rows)
    draw(RESULTS / f"{name}.json")


def show(name: str, rows: Sequence[Row]) -> None:
    """Print the rows as a table."""
    lines = [("what", "value", "unit", "compared with", "value", "ratio")]
    lines += [
        (
            row.name if row.at is None else f"{row.name}, {row.at:,g} {row.over}",
            _figure(row.value),
            row.unit,
            row.compared_with,
            _figure(row.compared_value),
            _figure(row.ratio),
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rights = {1, 4, 5}
    print(f"\n{name}")
    for line in lines:
        cells = (
            cell.rjust(width) if column in rights else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  " + "  ".join(cells).rstrip())


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
