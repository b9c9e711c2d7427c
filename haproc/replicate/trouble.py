"""What keeps failing on this cluster, and which operations an operator wants passed over.

A unit that fails, for reasons of the environment or because the cluster goes away under it, is
tried again for ever. After some attempts the cluster counts as stuck at it. An operator may have
it tried at once, taken apart (a combined statement), or passed over.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from haproc.engine.errors import EngineError
from haproc.replicate.checks import Skip


@dataclass(slots=True)
class Trouble:
    """A unit that failed; ``apart``: its operations are to run one by one."""

    offsets: tuple[int, ...]
    attempts: int = 0
    error: str = ""
    apart: bool = False
    poked: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def version(self) -> int:
        """The offset by which the unit is named."""
        return self.offsets[-1]

    async def pause(self, seconds: float) -> None:
        """Wait before the next attempt, unless somebody wants it now."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.poked.wait()
        self.poked.clear()


class Troubles:
    """See the module."""

    def __init__(self, stuck_after_attempts: int) -> None:
        self._stuck_after_attempts = stuck_after_attempts
        self._troubles: dict[int, Trouble] = {}
        self.skips: dict[int, Skip] = {}
        """What is to be passed over here, by offset, as the log says it."""

    def failed(
        self, offsets: tuple[int, ...], error: EngineError, *, counts: bool = True
    ) -> Trouble:
        """Note a failed attempt; one that never reached the cluster does not count."""
        trouble = self._troubles.setdefault(offsets[-1], Trouble(offsets))
        trouble.attempts += counts
        trouble.error = f"{error.error_class or error.kind}: {error.message}"
        return trouble

    def over(self, offsets: tuple[int, ...], *, apart: bool = False) -> bool:
        """Note that a unit has an outcome, or was taken apart; whether it had failed before."""
        if self.skips and not apart:
            for offset in offsets:
                self.skips.pop(offset, None)
        return self._troubles.pop(offsets[-1], None) is not None

    def of(self, offset: int) -> Trouble | None:
        """Return the trouble with the unit that an offset belongs to."""
        return next((t for t in self._troubles.values() if offset in t.offsets), None)

    def skip_wanted(self, offsets: Iterable[int]) -> bool:
        """Whether any of these is to be passed over."""
        return bool(self.skips) and any(offset in self.skips for offset in offsets)

    def stuck(self) -> Trouble | None:
        """Return the first one that failed so often that the cluster counts as stuck at it."""
        hard = [t for t in self._troubles.values() if t.attempts >= self._stuck_after_attempts]
        return min(hard, key=lambda trouble: trouble.version, default=None)
