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
from haproc.replicate.records.contents import Skip


@dataclass(slots=True)
class Trouble:
    """A unit that failed; ``apart``: its operations are to run one by one."""

    offsets: tuple[int, ...]
    attempts: int = 0
    error: str = ""
    apart: bool = False
    since_s: float = 0.0
    """When it failed first, by the loop's clock."""
    poked: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def version(self) -> int:
        """The offset by which the unit is named."""
        return self.offsets[-1]

    async def pause(self, seconds: float) -> bool:
        """Wait before the next attempt, unless somebody wants it now; return whether one did."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.poked.wait()
        poked = self.poked.is_set()
        self.poked.clear()
        return poked

    def retry(self) -> None:
        """An operator wants it tried at once, apart if it is several operations."""
        self.attempts, self.apart = 0, len(self.offsets) > 1
        self.poked.set()


class Troubles:
    """See the module."""

    def __init__(self, stuck_after_attempts: int) -> None:
        self._stuck_after_attempts = stuck_after_attempts
        self._troubles: dict[int, Trouble] = {}
        self._skips: dict[int, Skip] = {}

    def failed(
        self, offsets: tuple[int, ...], error: EngineError, *, counts: bool = True
    ) -> Trouble:
        """Note a failed attempt; one that never reached the cluster does not count."""
        now_s = asyncio.get_running_loop().time()
        trouble = self._troubles.setdefault(offsets[-1], Trouble(offsets, since_s=now_s))
        trouble.attempts += counts
        trouble.error = f"{error.error_class or error.kind}: {error.message}"
        return trouble

    def stands(self, offset: int, error: str) -> Trouble:
        """Note that the cluster has said that it cannot apply an operation, in an earlier life."""
        now_s = asyncio.get_running_loop().time()
        attempts = self._stuck_after_attempts
        new = Trouble((offset,), attempts, error, since_s=now_s)
        return self._troubles.setdefault(offset, new)

    def over(self, offsets: tuple[int, ...], *, apart: bool = False) -> bool:
        """Note that a unit has an outcome, or was taken apart; whether it had failed before."""
        if self._skips and not apart:
            for offset in offsets:
                self._skips.pop(offset, None)
        return self._troubles.pop(offsets[-1], None) is not None

    def skip(self, skip: Skip) -> None:
        """Note what the log says is to be passed over here."""
        self._skips[skip.offset] = skip
        if trouble := self.of(skip.offset):
            trouble.poked.set()

    def of(self, offset: int) -> Trouble | None:
        """Return the trouble with the unit that an offset belongs to."""
        return next((t for t in self._troubles.values() if offset in t.offsets), None)

    def skip_wanted(self, offsets: Iterable[int]) -> bool:
        """Whether any of these is to be passed over."""
        return bool(self._skips) and any(offset in self._skips for offset in offsets)

    def stuck(self) -> Trouble | None:
        """Return the first one that failed so often that the cluster counts as stuck at it."""
        hard = [t for t in self._troubles.values() if t.attempts >= self._stuck_after_attempts]
        return min(hard, key=lambda trouble: trouble.version, default=None)
