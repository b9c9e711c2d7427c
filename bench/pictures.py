"""Draw the curves in a benchmark's file of results, each with the values it is compared with.

Only figures that were measured at several sizes (the row has ``at``) are drawn. A picture has a
panel for each pair of unit and quantity (the row's ``over``). It needs matplotlib (the extra
``bench``); without matplotlib no picture is made.

``python -m bench.pictures [NAME ...]`` draws stored results again (by default all).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).with_name("results")
_PANEL_INCHES: Final = (6.0, 4.0)
_COLUMNS: Final = 2
_BESIDE: Final = ("--", ":", "-.")
_FAR_APART: Final = 20.0
"""An axis is logarithmic if its largest value is more than this many times its smallest."""

_Row = Mapping[str, Any]


def draw(kept: Path) -> None:
    """Draw the curves in the results file ``kept`` into a .png beside it, if it has any curves."""
    rows = [row for row in json.loads(kept.read_text()) if "at" in row]
    if not rows:
        return
    try:
        import matplotlib
    except ImportError:
        print(f"  no picture of {kept.name}: pip install matplotlib", file=sys.stderr)
        return
    matplotlib.use("agg")
    from matplotlib import pyplot

    panels = _grouped(rows, "over", "unit")
    columns = min(_COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    width, height = _PANEL_INCHES
    figure = pyplot.figure(figsize=(width * columns, height * lines), layout="constrained")
    for number, panel in enumerate(panels, 1):
        _panel(figure.add_subplot(lines, columns, number), panel)
    figure.savefig(kept.with_suffix(".png"), dpi=100, metadata={"Software": None})
    pyplot.close(figure)


def _grouped(rows: Sequence[_Row], *keys: str) -> list[list[_Row]]:
    """Group the rows that have equal values under ``keys``; groups are in order of first rows."""
    groups: dict[tuple[Any, ...], list[_Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [*groups.values()]


def _panel(axes: Any, rows: Sequence[_Row]) -> None:
    for curve in _grouped(rows, "name"):
        places = [row["at"] for row in curve]
        (line,) = axes.plot(places, [row["value"] for row in curve], "o-", label=curve[0]["name"])
        # What is compared with the curve's own beginning needs no other line.
        others = [r for r in curve if r["compared_value"] not in (None, curve[0]["value"])]
        for style, beside in zip(cycle(_BESIDE), _grouped(others, "compared_with"), strict=False):
            axes.plot(
                [row["at"] for row in beside],
                [row["compared_value"] for row in beside],
                style,
                color=line.get_color(),
                alpha=0.6,
                label=f"  {beside[0]['compared_with']}",
            )
    axes.set_xlabel(rows[0]["over"])
    axes.set_ylabel(rows[0]["unit"])
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small")
    places = [row["at"] for row in rows]
    values = [v for row in rows for v in (row["value"], row["compared_value"]) if v]
    if max(places) > _FAR_APART * min(places):
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:,g}")
    if max(values) > _FAR_APART * min(values):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,g}")


def main() -> None:
    """Draw the results whose names are arguments; without arguments draw all."""
    names = sys.argv[1:] or sorted(path.stem for path in RESULTS.glob("*.json"))
    for name in names:
        draw(RESULTS / f"{name}.json")


if __name__ == "__main__":
    main()
