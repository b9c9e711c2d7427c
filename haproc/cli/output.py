"""What commands print: tables for people, JSON for machines, errors on standard error."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any, Final

FAILED = 1
USAGE = 2
NOT_READY = 3


_ACTING: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""What a terminal acts upon instead of showing it: controls, and marks of a text's direction. Also
halves of characters, which cannot be printed."""


def harmless(text: str) -> str:
    """Return a line of text of somebody else's, as a terminal may show it."""
    return _shown(text).replace("\n", "\\n")


def _shown(text: str) -> str:
    return _ACTING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def line(text: str) -> None:
    """Print a line of text of somebody else's."""
    print(harmless(text))


def error(message: str) -> None:
    """Print an error."""
    print(f"haproc: {_shown(message)}", file=sys.stderr)


def dump(value: Any) -> None:
    """Print JSON."""
    print(_shown(json.dumps(value, indent=2, ensure_ascii=False, default=str)))


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print an aligned table."""
    lines = [list(header), *([harmless(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(cells[n]) for cells in lines) for n in range(len(header))]
    for cells in lines:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        )
