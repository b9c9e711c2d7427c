"""Asks Spark what it makes of a statement, and remembers the verdicts.

Analyses run in sessions of HAProc's own, which hold no temporary views, variables or functions,
just like the lanes in which every cluster applies the statement. A client's session that holds such
things is asked too: if it reads the statement otherwise, the statement rests on the session. A
verdict holds for a shape and its settings until a definition changes on this cluster.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from haproc.classify.model import Classified, Kind, RefusedError
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Engine, Session, Settings
from haproc.failure import ErrorClass
from haproc.pin.model import Pinned, Treatment
from haproc.route.explain import ALONE, Carried, Explaining, size_of
from haproc.route.kept_answers import key_of
from haproc.route.offload import Inline, Texts
from haproc.route.planning import Planning
from haproc.route.readings import Readings
from haproc.route.remembered import Remembered
from haproc.route.shared_sessions import SharedSessions
from haproc.sessions.client import ClientSession
from haproc.witness.asking import Form, Questions, questions, session_questions
from haproc.witness.findings import Facts, assigns_completed, subqueries_shown
from haproc.witness.judge import (
    HINT_ANALYSIS,
    OF_ROWS,
    Verdict,
    judge,
    judge_definition,
    judge_of_session,
    query_refusal,
    session_refusal,
)
from haproc.witness.plan import Plan, UnreadableError, read_plan

VERDICTS_MAX: Final = 2_000
SESSIONS_MAX: Final = 16
"""Sessions for analyses, one for each distinct settings."""

_IN_FULL = (
    ("spark.sql.debug.maxToStringFields", "100000"),
    ("spark.sql.maxPlanStringLength", "100000000"),
    ("spark.sql.redaction.string.regex", "(?!)"),
)
"""Without these Spark leaves out parts of a plan, or shows something else in their place."""
HINT_COMPLETED: Final = "convert it in the query: to_timestamp(text, 'yyyy-MM-dd HH:mm:ss')"
_EXEMPT = frozenset({Kind.ROWS, Kind.UNKNOWN, Kind.COPY, Kind.RESTORE})
"""Not analyzed: rows are what they are, for the unknown an operator's rule vouches."""
OF_ONE_RUN: Final = re.compile(r"#\d+L?|@[0-9a-f]+|-?\d{12,}")
"""What Spark numbers anew in every plan."""


@dataclass(frozen=True, slots=True)
class _Key:
    digest: bytes
    """Of the shape, which may be as long as a statement, and the settings."""
    treatment: Treatment
    dispellable: bool


class Analysis:
    """The second witness, for one HAProc. ``epoch`` counts the definitions that changed here."""

    def __init__(
        self,
        engine: Engine,
        epoch: Callable[[], int],
        now: Callable[[], float],
        timeout_s: float,
        planning: Planning,
        texts: Texts | None = None,
    ) -> None:
        self._sessions = SharedSessions(
            lambda key, _: engine.session(f"analysis/{key}"), SESSIONS_MAX
        )
        self._parsing = SharedSessions(
            lambda key, _: engine.session(f"analysis/texts/{key}"), SESSIONS_MAX
        )
        """In which nothing is looked up, so DDL leaves them as they are."""
        self._of_frames = SharedSessions(
            lambda key, _: engine.session(f"analysis/frames/{key}"), SESSIONS_MAX
        )
        """Apart, because the DataFrames of a text are temporary views while it is looked at."""
        self._one_with_frames = defaultdict[str, asyncio.Lock](asyncio.Lock)
        """By user: who waits for its turn to be planned waits with it."""
        self._setting = set[asyncio.Task[None]]()
        self._epoch = epoch
        self._now = now
        self._timeout_s = timeout_s
        self._planning = planning
        self._texts = texts or Inline()
        self._verdicts = Remembered[_Key, Verdict](epoch, VERDICTS_MAX)

    @property
    def epoch(self) -> int:
        """What was said is said again as long as this is the same."""
        return self._epoch()

    async def verdict(
        self,
        statement: Classified,
        pinned: Pinned,
        settings: Settings,
        session: ClientSession | None,
        user: str = "",
        carried: Carried = ALONE,
    ) -> Verdict:
        """Return what becomes of a write whose text is ``pinned``; raises EngineError.

        ``carried`` says how a text is sent, if DataFrames come with it: no two such are alike.
        An EngineError of kind APPLICATION is Spark's own answer to a statement that is wrong.
        """
        proposed = Verdict(pinned.treatment, pinned.reasons, hint=pinned.hint)
        if statement.kind in _EXEMPT or statement.insert is not None:
            return proposed
        size = len(pinned.sql)
        asked = await self._texts.run(user, size, questions, statement, pinned)
        if asked is None:
            return proposed
        if asked.unclear:
            return _unreadable(asked.unclear)
        if session is not None and session.holds_temporaries:
            return await self._beside(statement, pinned, asked, settings, session, user, carried)
        if carried.frames:
            async with self._one_with_frames[user]:
                return await self._verdict(statement, pinned, asked, settings, user, carried)
        epoch = self._epoch()
        digest = key_of(asked.shape, settings)
        key = _Key(digest, pinned.treatment, pinned.dispellable)
        known = self._verdicts.find(key) if asked.shape else None
        if known is not None:
            return known
        verdict = await self._verdict(statement, pinned, asked, settings, user)
        if asked.shape:
            self._verdicts.keep(key, verdict, epoch)
        return verdict

    async def confirm_query(
        self,
        statement: Classified,
        settings: Settings,
        session: ClientSession | None,
        user: str = "",
    ) -> None:
        """Refuse what was taken for a query and may do more; most need no look at all."""
        if not statement.confirm:
            return
        try:
            async with self.in_place(settings, session) as spark:
                plan = await self.explaining(spark, user).plan(statement.sql)
            refusal = query_refusal(plan)
        except UnreadableError as error:
            refusal = f"HAProc cannot read what Spark makes of it: {error}"
        if refusal:
            raise RefusedError(
                ErrorClass.ANALYSIS_DIFFERS,
                refusal,
                "send a query by itself, without other statements",
            )

    async def confirm_session_statement(
        self, statement: Classified, session: ClientSession
    ) -> None:
        """Refuse a session statement in which Spark sees code outside SQL."""
        if statement.kind not in (Kind.TEMPORARY_VIEW, Kind.CACHE):
            return
        sql, user = statement.sql, session.user
        asked = await self._texts.run(user, len(sql), session_questions, sql)
        refusal = asked.unclear
        if not refusal:
            try:
                async with self.in_place(session.settings, session) as spark:
                    explaining = self.explaining(spark, user)
                    plans = await explaining.plans(asked.as_it_stands.texts)
                refusal = session_refusal(statement, plans)
            except UnreadableError as error:
                refusal = f"HAProc cannot read what Spark makes of it: {error}"
        if refusal:
            raise RefusedError(
                ErrorClass.ANALYSIS_DIFFERS, refusal, "call only functions of SQL, by their names"
            )

    @asynccontextmanager
    async def in_place(
        self, settings: Settings, session: ClientSession | None
    ) -> AsyncIterator[Session]:
        """Give a session that reads a statement as the client's does, and shows plans in full."""
        if session is None or not session.holds_temporaries:
            yield await self._session(settings, self._sessions)
            return
        # Statements that change settings, and others that look, may be under way in it.
        session.shown_in_full += 1
        try:
            async with session.settling:
                await session.spark.configure(_in_full(session.settings))
            yield session.spark
        finally:
            session.shown_in_full -= 1
            # Not waited for: a statement that Spark is slow with may be setting something.
            setting = asyncio.create_task(self._set_back(session))
            self._setting.add(setting)
            setting.add_done_callback(self._setting.discard)

    @staticmethod
    async def _set_back(session: ClientSession) -> None:
        async with session.settling:
            if not session.shown_in_full:
                with suppress(EngineError):  # it is lost, and made anew from its own settings
                    await session.spark.configure(session.settings)

    async def _verdict(
        self,
        statement: Classified,
        pinned: Pinned,
        asked: Questions,
        settings: Settings,
        user: str,
        carried: Carried = ALONE,
    ) -> Verdict:
        """Ask Spark and judge."""
        if not asked.as_it_stands.texts:
            return Verdict(Treatment.REPLICATE, rests_on=statement.reads | statement.writes)
        explaining = await self.clean(settings, user, carried)
        try:
            own, hidden, form = await self._plans(explaining, asked)
            plans = [*own, *hidden]
            size = size_of(plans)
            if statement.kind not in OF_ROWS:
                facts = await explaining.facts(hidden, Facts({}, misleading=form.misleading))
                main = own[0] if own else None
                return await self._texts.run(
                    user, size, judge_definition, statement, pinned, main, hidden, facts
                )
            updates = statement.kind is Kind.UPDATE
            known = Facts(
                {},
                decimals=asked.decimals,
                rows=asked.rows,
                misleading=form.misleading,
                subqueries=subqueries_shown(hidden[0]) if updates and hidden else 0,
            )
            source = asked.as_it_stands.hidden[0] if statement.kind is Kind.MERGE else ""
            facts = await explaining.facts(plans, known, source)
            verdict = await self._texts.run(user, size, judge, statement, pinned, plans, facts)
            if verdict.treatment is not Treatment.MATERIALISE or pinned.source is None:
                return verdict
            if not assigns_completed(plans[0], facts):
                return verdict
            # As rows, texts would be fitted to the table's types by each cluster alone.
            is_fitted = await explaining.gives_texts(pinned.source.query)
            refused = replace(verdict, treatment=Treatment.REFUSE, hint=HINT_COMPLETED)
            return refused if is_fitted else verdict
        except UnreadableError as error:
            return _unreadable(str(error))

    async def _plans(
        self, explaining: Explaining, asked: Questions
    ) -> tuple[list[Plan], list[Plan], Form]:
        """Return the plans of the neutral form, or of the statement as it stands, and which it is.

        Its own, and those of what is hidden.
        """
        form = asked.neutral
        if form != asked.as_it_stands:
            try:
                return await explaining.plans(form.own), await explaining.plans(form.hidden), form
            except UnreadableError:
                pass
            except EngineError as error:
                if error.kind is not ErrorKind.APPLICATION:
                    raise
        form = asked.as_it_stands
        own = await explaining.plans(form.own)
        try:
            return own, await explaining.plans(form.hidden), form
        except EngineError as error:  # not of the statement: Spark has explained that
            if error.kind is not ErrorKind.APPLICATION or not asked.shape:
                raise
            raise UnreadableError(f"a part of it alone is an error: {error.message}") from error

    async def _beside(
        self,
        statement: Classified,
        pinned: Pinned,
        asked: Questions,
        settings: Settings,
        session: ClientSession,
        user: str,
        carried: Carried,
    ) -> Verdict:
        """Return the verdict on a statement whose session holds temporaries.

        What the client's own session makes of it must be what the lanes make of it.
        """
        lanes = await self.clean(settings, user, carried)
        theirs = await self._shown(lanes, asked)
        async with self.in_place(settings, session) as spark:
            own = await self._shown(self.explaining(spark, user, carried), asked)
        if own == theirs:  # if neither could, this says why
            return await self._verdict(statement, pinned, asked, settings, user, carried)
        return judge_of_session(statement, pinned, "temporary views, functions or variables")

    async def _shown(self, explaining: Explaining, asked: Questions) -> str | None:
        """Return what a session makes of the statement, without what every run numbers anew.

        None if it cannot analyze it.
        """
        try:
            texts = [await explaining.text(text) for text in asked.as_it_stands.texts]
            plans = [read_plan(text) for text in texts]
        except UnreadableError:
            return None
        except EngineError as error:
            if error.kind is ErrorKind.APPLICATION:
                return None
            raise
        if not all(isinstance(plan, Plan) for plan in plans):
            return None
        return OF_ONE_RUN.sub("", "\n".join(texts))

    def readings(self, paths: tuple[str, ...]) -> Readings:
        """Return what has Spark read statements; ``paths``: below which it may look at files."""
        return Readings(
            self._shared,
            self._for_texts,
            self._epoch,
            self._texts,
            self._planning,
            self._timeout_s,
            paths,
        )

    async def _shared(self, settings: Settings) -> Session:
        """Return a session of HAProc's own with these settings, in which nothing temporary is."""
        return await self._session(settings, self._sessions)

    async def _for_texts(self, settings: Settings) -> Session:
        """Return one with these settings to have texts parsed."""
        return await self._session(settings, self._parsing)

    async def clean(self, settings: Settings, user: str, carried: Carried = ALONE) -> Explaining:
        """Return how to ask a session of HAProc's own, in which nothing temporary is."""
        if carried.frames:
            spark = await self._session(settings, self._of_frames, user)
        else:
            spark = await self._session(settings, self._sessions)
        return self.explaining(spark, user, carried, settings)

    def explaining(
        self,
        spark: Session,
        user: str,
        carried: Carried = ALONE,
        settings: Settings | None = None,
    ) -> Explaining:
        """Return how to ask a session."""
        timeout_s, planning = self._timeout_s, self._planning
        return Explaining(spark, self._texts, user, timeout_s, planning, carried, settings)

    async def _session(
        self, settings: Settings, sessions: SharedSessions, user: str = ""
    ) -> Session:
        wanted = _in_full(settings)
        epoch = 0 if sessions is self._parsing else self._epoch()
        spark = await sessions.get(wanted, epoch, self._now(), user)
        await spark.configure(wanted)
        return spark


def _unreadable(reason: str) -> Verdict:
    said = f"HAProc cannot read what Spark makes of the statement: {reason}"
    return Verdict(Treatment.REFUSE, (said,), known=False, hint=HINT_ANALYSIS)


def _in_full(settings: Settings) -> Settings:
    names = {name for name, _ in _IN_FULL}
    confs = [each for each in settings.confs if each[0] not in names]
    return replace(settings, confs=tuple(sorted([*confs, *_IN_FULL])))
