"""Which tables a query reads, so that it need not wait for what is still written to others.

A query shows nothing but its tables. So it is fresh enough once all that may change these is
applied, whatever else still runs in front of it, be it a table that is computed for an hour.
Which tables they are is what Spark reads in it, in a
session in which nothing temporary is. It fails closed: a query in a session that holds something
temporary, or one that reads tables of another kind waits for everything, and so does one of which
something may have been defined anew since it was read: a table, a view, a function. If a statement
changes the session meanwhile, the names may mean something else by the time the query runs: whoever
runs it looks again once Spark has begun to answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from haproc import protos
from haproc.classify.model import RefusedError
from haproc.classify.plans.commands import read_opened
from haproc.classify.plans.members import members
from haproc.classify.plans.reading import Does
from haproc.engine.errors import EngineError
from haproc.engine.staging import CATALOG
from haproc.engine.statement import SparkPlan, SqlText
from haproc.replicate.member.core import Core
from haproc.route.caching import TEXT_MAX, unfit, unfit_text
from haproc.route.classifying import Understood, only_selects, read_of
from haproc.route.model import SentPlan
from haproc.route.readings import Readings
from haproc.sessions.client import ClientSession

OURS: Final = f"{CATALOG}."


@dataclass(frozen=True, slots=True)
class Tables:
    """What a query reads: tables, and ``rests_on``, what else decides which these are.

    ``since``: all below that may define any of it anew was applied by then.
    """

    names: frozenset[str]
    rests_on: frozenset[str]
    since: int


LAZY: Final = members(
    """
    read sql project filter join set_op sort aggregate local_relation range subquery_alias hint
    repartition repartition_by_expression to_df to_schema with_columns with_columns_renamed drop
    unpivot deduplicate fill_na drop_na replace limit offset tail
    """
)
"""Relations of a plan that Spark only analyzes when asked for its plan, and does not run."""
_SHOWN: Final = ("show_string", "html_string")
"""Those that show another one as text."""


class Narrowing:
    """See the module."""

    def __init__(self, core: Core, readings: Readings) -> None:
        self._core = core
        self._readings = readings

    async def applied(self, asked: Understood) -> Callable[[], int] | None:
        """Return what tells how far all is applied that the query shows; None: not known."""
        if asked.session is not None:
            return await self._in_session(asked, asked.session)
        if unfit(asked):
            return None
        try:
            tables = await self._tables(asked)
        except (EngineError, RefusedError):
            return None  # running it tells what is wrong
        if tables is None:
            return None
        found, schedule = tables, self._core.schedule
        return lambda: schedule.applied_of(found.names) if self._hold(found) else schedule.low

    async def _in_session(
        self, asked: Understood, session: ClientSession
    ) -> Callable[[], int] | None:
        """Say it of a query that its client's session runs; nothing is remembered of it."""
        if not asked.request.relayed or session.holds_temporaries or session.handles:
            return None
        unchanged = session.unchanged()
        try:
            query = query_in(asked)
            shown = query is not None or not unfit_text(asked)
            tables = await self._tables(asked, query) if shown else None
        except (EngineError, RefusedError):
            return None  # running it tells what is wrong
        if tables is None:
            return None
        found, schedule = tables, self._core.schedule
        return lambda: (
            schedule.applied_of(found.names) if unchanged() and self._hold(found) else schedule.low
        )

    def _hold(self, tables: Tables) -> bool:
        return self._core.log_state.definitions.unchanged(tables.rests_on, tables.since)

    async def _tables(self, asked: Understood, query: SparkPlan | None = None) -> Tables | None:
        """Return what a query reads: its text, or a plan."""
        core, user = self._core, asked.request.user
        definitions = core.watermarks.definitions_applied
        found = await self._readings.query(
            query or SqlText(asked.statement.sql), asked.settings, user
        )
        if not found.known or found.of_session or found.elsewhere:
            return None
        if not (query is None or asked.statement.reads <= found.reads):
            return None
        if not all(each.startswith(OURS) for each in found.reads):
            return None
        if core.watermarks.definitions_applied != definitions:
            return None  # the look may have met the one before
        applied = core.schedule.applied_of(found.rests_on)
        return Tables(found.reads, found.rests_on, applied)


def query_in(asked: Understood) -> SparkPlan | None:
    """Return a plan whose analysis shows all that a client's plan reads; None: there is none.

    Raises RefusedError.
    """
    sent, settings = asked.request.statement, asked.settings
    if not isinstance(sent, SentPlan) or len(sent.plan) > TEXT_MAX:
        return None
    read = read_of(sent)
    plan, reading = read.message, read.reading
    shown = plan.root.WhichOneof("rel_type")
    if shown in _SHOWN:
        inner = protos.base.Plan()
        inner.root.CopyFrom(getattr(plan.root, shown).input)
        plan, reading = inner, read_opened(inner)
    if reading.does is not Does.QUERIES or not reading.relations <= LAZY:
        return None
    if reading.user_code or reading.paths or reading.blobs or reading.handles or reading.options:
        return None
    return SparkPlan(plan.SerializeToString()) if only_selects(reading, settings) else None
