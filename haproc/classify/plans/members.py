"""Members of the protocol's messages, as the tables of this package list them."""

from __future__ import annotations


def members(text: str) -> frozenset[str]:
    """Return the names in a text, of which each is a field in one of Spark Connect's choices."""
    return frozenset(text.split())
