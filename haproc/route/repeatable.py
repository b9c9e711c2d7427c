"""Which queries give the same as long as their tables do, and which tables those are.

What Spark reads in a query must say so, as for a write that is replicated as it stands, in a
session of HAProc's own in which nothing temporary is. It fails closed: what is not known to depend
on Delta tables of the catalog alone is not repeatable. Nor is what reads a table with a LOCATION of
its own, because a write to another table there would change it, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from haproc.classify.model import Classified, RefusedError
from haproc.engine.interface import Settings
from haproc.engine.staging import CATALOG
from haproc.engine.statement import SqlText
from haproc.replicate.log_state.written import defines
from haproc.replicate.member.core import Core
from haproc.route.readings import Readings

OURS: Final = f"{CATALOG}."


@dataclass(frozen=True, slots=True)
class Reading:
    """What a query comes to. ``reason``: why it is not repeatable; empty if it is.

    ``since``: everything below that may change what a query is was applied when Spark was asked.
    """

    since: int
    tables: frozenset[str] = frozenset()
    reason: str = ""


class Repeatable:
    """See the module."""

    def __init__(self, core: Core, readings: Readings) -> None:
        self._core = core
        self._asking = readings

    async def reading(self, statement: Classified, settings: Settings, user: str) -> Reading:
        """Return what a query comes to as of now; raises EngineError."""
        since = self._core.schedule.done_below(defines)
        try:
            found = await self._asking.query(SqlText(statement.sql), settings, user)
        except RefusedError as error:
            return Reading(since, reason=error.message)
        if found.reasons:
            return Reading(since, reason=found.reasons[0])
        strange = [*found.elsewhere, *(each for each in found.reads if not each.startswith(OURS))]
        if strange:
            return Reading(since, reason=f"{min(strange)} is no managed Delta table of {CATALOG}")
        return Reading(since, found.reads)

    def holds(self, reading: Reading) -> bool:
        """Whether nothing may have been defined anew since."""
        return not self._core.log_state.written.defined(reading.since)
