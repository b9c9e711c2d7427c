"""What commands print: tables for people, JSON for machines, errors on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

FAILED = 1
USAGE = 2
NOT_READY = 3


def error(message: str) -> None:
    """Print an error."""
    print(f"haproc: {message}", file=sys.stderr)


def dump(value: Any) -> None:
    """Print JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print an aligned table."""
    lines = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(header))]
    for line in lines:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )
