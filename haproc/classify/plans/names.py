"""Names in plans: texts, as SQL would write them."""

from __future__ import annotations

from haproc.classify.names import parts_of
from haproc.classify.plans import refusals


def name_in(text: str, use: str) -> tuple[str, ...]:
    """Return the parts of a table's name; RefusedError, which says its use, if the text is none."""
    parts = parts_of(text)
    if parts is None:
        raise refusals.unreadable_name(text, use)
    return parts
