"""Which tables a query reads, so that it need not wait for what is still written to others.

A query shows nothing but its tables. So it is fresh enough once all that may change these is
applied, whatever else still runs in front of it, be it a table that is computed for an hour. Which
tables they are is what Spark's analysis says, in a session in which nothing temporary is. It fails
closed: a query in a client's session, one with views, functions of its own or tables of another
kind waits for everything, and so does one whose tables may have been defined anew since it was
analyzed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from haproc.engine.errors import EngineError
from haproc.engine.staging import CATALOG
from haproc.replicate.member.core import Core
from haproc.route.analysis import Analysis
from haproc.route.caching import unfit
from haproc.route.classifying import Understood
from haproc.route.kept_answers import Key, key_of
from haproc.witness.judge import user_functions
from haproc.witness.plan import Plan, UnreadableError
from haproc.witness.targets import tables_named

OURS: Final = f"{CATALOG}."
KNOWN_MAX: Final = 2_000
"""Queries whose tables are remembered; as many as verdicts on writes."""


@dataclass(frozen=True, slots=True)
class Tables:
    """What a query reads. ``since``: all below that may define it anew was applied by then."""

    names: frozenset[str]
    since: int


class Narrowing:
    """See the module."""

    def __init__(self, core: Core, analysis: Analysis) -> None:
        self._core = core
        self._analysis = analysis
        self._known: OrderedDict[Key, Tables] = OrderedDict()

    async def applied(self, asked: Understood) -> Callable[[], int] | None:
        """Return what tells how far all is applied that the query shows; None: not known."""
        if unfit(asked):
            return None
        key = key_of(asked.statement.sql, asked.settings)
        tables = self._known.get(key)
        if tables is None or not self._hold(tables):
            try:
                tables = await self._tables(asked)
            except (EngineError, UnreadableError):
                return None  # running it tells what is wrong
            if tables is None:
                return None
            self._known[key] = tables
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
        found, schedule = tables, self._core.schedule
        return lambda: schedule.applied_of(found.names) if self._hold(found) else schedule.low

    def _hold(self, tables: Tables) -> bool:
        return self._core.heard.definitions.unchanged(tables.names, tables.since)

    async def _tables(self, asked: Understood) -> Tables | None:
        core, user = self._core, asked.request.user
        definitions = core.watermarks.definitions_applied
        explaining = await self._analysis.clean(asked.settings, user)
        plan = await explaining.plan(asked.statement.sql)
        names = named(plan)
        if names is None:
            return None
        for table in sorted(names):
            if not (table.startswith(OURS) and await explaining.is_managed_delta(table)):
                return None
        if core.watermarks.definitions_applied != definitions:
            return None  # the look may have met the one before
        return Tables(names, core.schedule.applied_of(names))


def named(plan: Plan) -> frozenset[str] | None:
    """Return all that a query's plan reads; None if it may be more than the names say."""
    names, complete = tables_named(plan)
    return names if complete and not user_functions(plan) else None
