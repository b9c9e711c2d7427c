"""Which queries give the same as long as their tables do, and which tables those are.

Both witnesses must say so, as for a write that is replicated as it stands: the text by itself, and
what Spark makes of it, in a session of HAProc's own in which nothing temporary is. It fails closed:
what is not known to depend on Delta tables of the catalog alone is not repeatable. A view is not,
because its body may hold what no plan shows; nor is a table with a LOCATION of its own, because a
write to another table there would change it, too.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from haproc.classify.model import Classified
from haproc.engine.interface import Settings
from haproc.engine.staging import CATALOG
from haproc.pin.inline import UnclearError, rows_in
from haproc.pin.model import Pinned, Treatment
from haproc.pin.queries import query_differing
from haproc.pin.scan import Scan
from haproc.replicate.heard.written import defines
from haproc.replicate.member.core import Core
from haproc.route.analysis import Analysis
from haproc.route.explain import size_of
from haproc.route.kept_answers import Key, key_of
from haproc.route.offload import Texts
from haproc.witness.findings import Facts
from haproc.witness.judge import Verdict, judge_query
from haproc.witness.plan import UnreadableError
from haproc.witness.shape import misleading_texts, shape, writes_floats

OURS: Final = f"{CATALOG}."
READINGS_MAX: Final = 2_000
"""As many as verdicts on writes are remembered."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a query comes to. ``reason``: why it is not repeatable; empty if it is.

    ``since``: everything below that may change what a query is was applied when Spark was asked.
    """

    since: int
    tables: frozenset[str] = frozenset()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Text:
    """What a text says by itself. ``shape``: with neutral literals, see `haproc.witness.shape`."""

    pinned: Pinned
    shape: str
    known: Facts


class Repeatable:
    """See the module. Readings are remembered by shape until a record may define something anew."""

    def __init__(self, core: Core, analysis: Analysis, texts: Texts) -> None:
        self._core = core
        self._analysis = analysis
        self._texts = texts
        self._readings: OrderedDict[Key, Reading] = OrderedDict()

    async def reading(self, statement: Classified, settings: Settings, user: str) -> Reading:
        """Return what a query comes to as of now; raises EngineError."""
        text = await self._texts.run(user, len(statement.sql), _examined, statement.sql)
        since = self._core.schedule.done_below(defines)
        pinned = text.pinned
        if pinned.treatment is Treatment.REFUSE and not pinned.dispellable:
            return Reading(since, reason=pinned.reasons[0])
        key = key_of(f"{pinned.treatment} {text.shape}", settings)
        known = self._readings.get(key)
        if known is not None and self.holds(known):
            self._readings.move_to_end(key)
            return known
        reading = await self._looked_at(statement, text, settings, user, since)
        self._readings[key] = reading
        if len(self._readings) > READINGS_MAX:
            self._readings.popitem(last=False)
        return reading

    def holds(self, reading: Reading) -> bool:
        """Whether nothing may have been defined anew since."""
        return not self._core.heard.written.defined(reading.since)

    async def _looked_at(
        self, statement: Classified, text: _Text, settings: Settings, user: str, since: int
    ) -> Reading:
        explaining = await self._analysis.clean(settings, user)
        try:
            plan = await explaining.plan_of_shape(statement.sql, text.shape)
            facts = await explaining.facts([plan], text.known)
        except UnreadableError as error:
            return Reading(since, reason=f"HAProc cannot read what Spark makes of it: {error}")
        verdict: Verdict = await self._texts.run(
            user, size_of([plan]), judge_query, statement, text.pinned, plan, facts
        )
        if verdict.treatment is not Treatment.REPLICATE:
            return Reading(since, reason=verdict.reasons[0])
        for table in sorted(verdict.reads):
            if not (table.startswith(OURS) and await explaining.is_managed_delta(table)):
                return Reading(since, reason=f"{table} is no managed Delta table of {CATALOG}")
        return Reading(since, verdict.reads | statement.reads)


def _examined(sql: str) -> _Text:
    found, scan = query_differing(sql), Scan(sql)
    treatment = Treatment.REFUSE if found.reasons else Treatment.REPLICATE
    pinned = Pinned(
        treatment,
        sql,
        reasons=found.reasons,
        dispellable=found.dispellable,
        unknown=found.unknown,
    )
    try:
        rows = rows_in(scan)
    except UnclearError:
        rows = ()  # it is among the reasons
    decimals = not writes_floats(scan.tokens)
    known = Facts({}, decimals=decimals, rows=rows, misleading=misleading_texts(scan))
    return _Text(pinned, shape(scan), known)
