"""``SET name=value``, told by its text."""

from __future__ import annotations

import re
from typing import Final

_ASSIGNS: Final = re.compile(
    r"\s*SET\s+(?P<quote>`?)(?P<key>[\w.:-]+)(?P=quote)\s*=(?P<value>[^;`'\"]*);?\s*",
    re.IGNORECASE | re.ASCII,
)


def assigned(sql: str) -> tuple[str, str] | None:
    """Return the setting and the value of ``SET name=value``; None for anything else."""
    match = _ASSIGNS.fullmatch(sql)
    return None if match is None else (match["key"], match["value"].strip())
