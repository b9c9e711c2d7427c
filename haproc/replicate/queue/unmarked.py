"""The statements without a mark (DDL) that run, or that an earlier process may have run.

Each has an intent of its own, stored before it starts: its offset, and what stood there before it.
There is none before somebody has looked: what has no intent was not begun, and an operation in
doubt is one of which it is known what stood there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

UNMARKED_MAX: Final = 4
"""At a time, so that their intents fit beside the cursor. Chosen: of those that take long at most
three run, so that short ones never wait for them."""


class Unmarked:
    """See the module. Operations are known by their offsets; ``stored`` is what progress says."""

    def __init__(self, stored: Iterable[tuple[int, str]] = (), low: int = 0) -> None:
        self._stood = {offset: before for offset, before in stored if offset >= low}
        self._old = frozenset(self._stood)
        self._begun = set(self._stood)

    def may_begin(self, offset: int, *, beside: bool) -> bool:
        """Whether there is room for one more; ``beside``: it may take long."""
        most = UNMARKED_MAX - 1 if beside else UNMARKED_MAX
        return offset in self._begun or len(self._begun) < most

    def begins(self, offset: int) -> None:
        """It takes its place; its statement may run once it is stored what `stood` there."""
        self._begun.add(offset)

    def over(self, offset: int) -> None:
        """It needs no more running."""
        self._begun.discard(offset)
        self._stood.pop(offset, None)

    def keep(self, expected: Callable[[int], bool]) -> None:
        """Forget whatever is not to be run any more."""
        for offset in [offset for offset in self._begun if not expected(offset)]:
            self.over(offset)

    def doubted(self, offset: int) -> bool:
        """Whether an earlier process may have run it."""
        return offset in self._old and offset in self._stood

    def stood(self, offset: int, before: str) -> None:
        """Note what stands there before it, empty if it is about nothing that can be looked at.

        That is its intent, and part of the progress from here on.
        """
        self._stood[offset] = before

    def before(self, offset: int) -> str:
        """Return that; empty if it is not known."""
        return self._stood.get(offset, "")

    @property
    def stored(self) -> tuple[tuple[int, str], ...]:
        """What to store of it."""
        return tuple(sorted(self._stood.items()))
