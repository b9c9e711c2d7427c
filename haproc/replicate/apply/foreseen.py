"""What stands under the names that DDL is about, looked up while it is still being analyzed.

Neither needs the other, and each takes about as long as the statement itself. Such a look counts
only where nothing was finished on this cluster since before it began: whatever changed something
under these names meanwhile would have had to end before DDL about them starts.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from haproc.engine.errors import EngineError
from haproc.engine.interface import Named
from haproc.replicate.member.core import Core

LOOKS_MAX: Final = 16
"""Kept at a time; one more takes the place of the oldest, whose statement then looks itself."""
AGE_MS_MAX: Final = 5_000
"""Later the storage may be another one. Chosen: longer than an analysis takes on a busy machine."""


@dataclass(slots=True, eq=False)
class _Look:
    finished: int
    began_ms: int
    over: bool = False
    found: str = ""
    """Empty if it failed."""


class Foreseen:
    """See the module."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._looks: OrderedDict[tuple[Named, ...], _Look] = OrderedDict()

    def look(self, named: tuple[Named, ...]) -> None:
        """Begin to look, for a statement that is about to be written to the log."""
        if not named:
            return
        core = self._core
        look = self._looks[named] = _Look(core.schedule.finished, core.unix_ms())
        self._looks.move_to_end(named)
        if len(self._looks) > LOOKS_MAX:
            self._looks.popitem(last=False)
        core.tasks.spawn(self._run(named, look))

    async def _run(self, named: tuple[Named, ...], look: _Look) -> None:
        try:
            look.found = await self._core.engine.standing(named)
        except EngineError:
            pass  # whoever needs it looks again, and is told
        finally:
            look.over = True
            self._core.news.moved()

    async def standing(self, named: tuple[Named, ...]) -> str:
        """Return what stands there now; raises EngineError. Nothing about it runs here."""
        look = self._looks.pop(named, None)
        if look is not None and self._counts(look):
            await self._core.news.until(lambda: look.over)
            if look.found and self._counts(look):
                return look.found
        return await self._core.engine.standing(named)

    def _counts(self, look: _Look) -> bool:
        core = self._core
        recent = core.unix_ms() - look.began_ms <= AGE_MS_MAX
        return recent and look.finished == core.schedule.finished
