"""Text of somebody else's on a terminal, such as a job's output."""

from __future__ import annotations

import re
from typing import Final

_ACTING: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Characters that a terminal obeys instead of showing them, as `haproc.cli.output` has them."""


def harmless(line: str) -> str:
    """Return a line as a terminal may show it."""
    shown = _ACTING.sub(lambda found: f"\\u{ord(found[0]):04x}", line)
    return shown.replace("\n", "\\n")
