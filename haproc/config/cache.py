"""Answers that are kept to be given again: keys below ``cache``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cache:
    """Which queries' answers are kept, and how much of them."""

    by_default: bool = False
    """Whether answers are kept to queries of which neither the request nor a rule says anything."""
    bytes_max: int = 128 << 20
    """Memory for all kept answers; the least recently used answer goes first. Chosen: little beside
    what requests may take."""
    answer_bytes_max: int = 8 << 20
    """A larger answer is not kept. Chosen: what is read at a glance, not whole tables."""
