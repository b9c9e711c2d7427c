"""What can go wrong with a local ring."""

from __future__ import annotations


class RingError(Exception):
    """A local ring, or a part of it, can't be found, made or started."""
