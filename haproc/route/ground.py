"""On what stands that is looked up on this cluster for a write, by offsets of the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from haproc.replicate.log_state.definitions import ANYTHING
from haproc.replicate.member.core import Core


@dataclass(frozen=True, slots=True)
class Ground:
    """Taken before the look. ``low``: everything below was applied here then.

    ``definitions``: how often something was defined anew on this cluster until then.
    """

    core: Core
    low: int
    definitions: int

    @classmethod
    def now(cls, core: Core) -> Ground:
        """Return what stands now."""
        return cls(core, core.schedule.low, core.watermarks.definitions_applied)

    def below(self, names: frozenset[str]) -> int:
        """Return, after the look, below which all was applied that may define a name anew.

        If something was defined meanwhile, the look may have met what was before.
        """
        if self.core.watermarks.definitions_applied != self.definitions:
            return self.low
        return max(self.low, applied_to(self.core, names)())


def applied_to(core: Core, names: frozenset[str]) -> Callable[[], int]:
    """Return what tells how far all is applied that may define one of these names anew."""
    schedule = core.schedule
    if ANYTHING in names:
        return lambda: schedule.low
    return lambda: schedule.applied_of(names)
