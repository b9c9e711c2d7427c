"""Asks Spark what it makes of a plan that writes: the second witness, for plans.

As for SQL (`haproc.route.analysis`) it is asked in a session of HAProc's own, without temporaries,
under the request's settings, as the lanes are; and beside it in the client's session, if that holds
temporaries. A part that only the client's session can analyze, or that reads otherwise there,
rests on the session: rows are computed in it.

What Spark said is remembered as long as no definition changes here: a program that loads piece
after piece asks the same each time, for the rows themselves are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from haproc.classify.model import Classified
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Analyzed, Settings
from haproc.engine.statement import SparkPlan
from haproc.pin.model import Pinned, Treatment
from haproc.route.analysis import OF_ONE_RUN, Analysis
from haproc.route.explain import Explaining
from haproc.route.remembered import Remembered
from haproc.sessions.client import ClientSession
from haproc.witness.findings import Facts
from haproc.witness.judge import HINT_PLAN, Verdict, judge_of_session
from haproc.witness.plan import Plan, UnreadableError
from haproc.witness.plans import shape_of, texts_in

OF_SESSION: Final = "temporary views, functions or files"
REMEMBERED_MAX: Final = 1_000
REMEMBERED_BYTES_MAX: Final = 16 << 10
"""Of a question, and of what Spark says. Chosen."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What became of a part of a plan; ``analyzed`` is what Spark said, in whichever session."""

    verdict: Verdict
    analyzed: Analyzed | None = None


@dataclass(frozen=True, slots=True)
class _Said:
    """What Spark says of a part of a plan."""

    plan: Plan
    facts: Facts
    analyzed: Analyzed


class PlanAnalysis:
    """See the module."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._remembered = Remembered[tuple[bytes, Settings], _Said](
            lambda: analysis.epoch, REMEMBERED_MAX
        )

    @property
    def epoch(self) -> int:
        """How often something was defined anew here: what is remembered holds as long."""
        return self._analysis.epoch

    async def verdict(
        self,
        statement: Classified,
        pinned: Pinned,
        query: bytes,
        settings: Settings,
        session: ClientSession | None,
        user: str,
        *,
        only_there: bool = False,
    ) -> Looked:
        """Return what becomes of a part of a plan, given as a query; raises EngineError.

        ``only_there``: only the client's session can analyze it. An EngineError of kind APPLICATION
        is Spark's own answer to a plan that is wrong.
        """
        clean = await self._analysis.clean(settings, user)
        plan = SparkPlan(query)
        if session is None or not (only_there or session.holds_temporaries):
            return await self._judged(statement, pinned, plan, clean, settings)
        theirs = None if only_there else await _shown(clean, plan)
        async with self._analysis.in_place(settings, session) as spark:
            own = await self._analysis.explaining(spark, user).spoken(plan)
        shown = await _read(clean, own)
        if shown is None or shown != theirs:
            return Looked(judge_of_session(statement, pinned, OF_SESSION), own)
        return await self._judged(statement, pinned, plan, clean, settings)

    async def _judged(
        self,
        statement: Classified,
        pinned: Pinned,
        query: SparkPlan,
        explaining: Explaining,
        settings: Settings,
    ) -> Looked:
        epoch = self._analysis.epoch
        shape = _shape(pinned, query)
        said = None if shape is None else self._remembered.find((shape, settings))
        if said is None:
            analyzed = await explaining.spoken(query)
            try:
                plan = await explaining.read(analyzed)
                known = Facts({}, misleading=texts_in(query.plan))
                said = _Said(plan, await explaining.facts([plan], known), analyzed)
            except UnreadableError as error:
                reason = f"HAProc cannot read what Spark makes of the plan: {error}"
                verdict = Verdict(pinned.otherwise, (reason,), known=False, hint=HINT_PLAN)
                return Looked(verdict, analyzed)
            if shape is not None and len(analyzed.text) <= REMEMBERED_BYTES_MAX:
                self._remembered.keep((shape, settings), said, epoch)
        verdict = await explaining.judged(statement, pinned, said.plan, said.facts)
        return Looked(verdict, said.analyzed)


def _shape(pinned: Pinned, query: SparkPlan) -> bytes | None:
    """Return by what an answer is remembered; None: Spark's may be another one the next time."""
    if pinned.treatment is not Treatment.REPLICATE or len(query.plan) > REMEMBERED_BYTES_MAX:
        return None
    return shape_of(query.plan)


async def _shown(explaining: Explaining, query: SparkPlan) -> str | None:
    """Return what a session makes of it, see `_read`; None if it cannot analyze it."""
    try:
        return await _read(explaining, await explaining.spoken(query))
    except EngineError as error:
        if error.kind is ErrorKind.APPLICATION:
            return None
        raise


async def _read(explaining: Explaining, analyzed: Analyzed) -> str | None:
    """Return the plan in it, without what every run numbers anew; None: there is none."""
    try:
        plan = await explaining.read(analyzed)
    except UnreadableError:
        return None
    except EngineError as error:
        if error.kind is ErrorKind.APPLICATION:
            return None
        raise
    lines = (f"{node.indent} {node.name} {node.text}" for node in plan.nodes)
    return OF_ONE_RUN.sub("", "\n".join([plan.types, *lines]))
