"""Pauses between attempts that double from one to the next, up to a longest one. All in seconds."""

from __future__ import annotations


class Backoff:
    """The pauses of one series of attempts."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = self._next_s = first_s
        self._longest_s = longest_s

    def pause_s(self) -> float:
        """Return the length of the next pause; each is twice the one before, up to the longest."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._longest_s)
        return pause_s

    def reset(self) -> None:
        """Begin again with the first pause, after a success."""
        self._next_s = self._first_s
