"""Asks Spark what it makes of a statement, and remembers the verdicts.

Analyses run in sessions of HAProc's own, which hold no temporary views, variables or functions,
just like the lanes in which every cluster applies the statement. A client's session that holds such
things is asked too: if it reads the statement otherwise, the statement rests on the session. A
verdict holds for a shape and its settings until a definition changes on this cluster.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from haproc.classify.insert import plain_insert
from haproc.classify.model import Kind, RefusedError, Statement
from haproc.classify.names import Context
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Engine, Session, Settings
from haproc.engine.status import Link, kind_of_chain
from haproc.pin.model import Pinned, Treatment
from haproc.pin.scan import Scan
from haproc.route.sessions import ClientSession, SharedSessions
from haproc.route.views import rows_of
from haproc.witness.commands import is_deltas_own
from haproc.witness.findings import Facts, harmless_functions, needs_types, tables_read
from haproc.witness.judge import (
    OF_ROWS,
    Verdict,
    judge,
    judge_definition,
    query_refusal,
    session_refusal,
    unknown_functions,
)
from haproc.witness.plan import Failure, Plan, UnreadableError, read_plan
from haproc.witness.probes import (
    UnclearError,
    definitions,
    described_function,
    function_query,
    merge_source,
)
from haproc.witness.shape import shape, writes_floats

VERDICTS_MAX = 2_000
SESSIONS_MAX = 16
"""Sessions for analyses, one for each distinct settings."""
FUNCTIONS_MAX = 64
"""SQL functions that one statement may call, those called by these included."""

_IN_FULL = (
    ("spark.sql.debug.maxToStringFields", "100000"),
    ("spark.sql.maxPlanStringLength", "100000000"),
)
"""Without these Spark leaves out parts of a plan."""
_EXEMPT = frozenset({Kind.ROWS, Kind.UNKNOWN, Kind.COPY, Kind.RESTORE})
"""Not analyzed: rows are what they are, for the unknown an operator's rule vouches."""
_OF_ONE_RUN = re.compile(r"#\d+L?|@[0-9a-f]+|-?\d{12,}")
_Result = TypeVar("_Result")
DIFFERS = "HAPROC_ANALYSIS_DIFFERS"


@dataclass(frozen=True, slots=True)
class _Key:
    shape: str
    settings: Settings
    treatment: Treatment
    dispellable: bool


class Analysis:
    """The second witness, for one HAProc. ``epoch`` counts the definitions that changed here."""

    def __init__(
        self, engine: Engine, epoch: Callable[[], int], now: Callable[[], float], timeout_s: float
    ) -> None:
        self._sessions = SharedSessions(lambda key: engine.session(f"analysis/{key}"), SESSIONS_MAX)
        self._epoch = epoch
        self._now = now
        self._timeout_s = timeout_s
        self._verdicts: OrderedDict[_Key, Verdict] = OrderedDict()
        self._verdicts_epoch = -1

    async def verdict(
        self,
        statement: Statement,
        pinned: Pinned,
        settings: Settings,
        session: ClientSession | None,
    ) -> Verdict:
        """Return what becomes of a write whose text is ``pinned``; raises EngineError.

        An EngineError of kind APPLICATION is Spark's own answer to a statement that is wrong.
        """
        if statement.kind in _EXEMPT or _is_plain(statement, pinned):
            return Verdict(pinned.treatment, pinned.reasons, hint=pinned.hint)
        scan = Scan(pinned.sql)
        if statement.kind not in OF_ROWS and is_deltas_own(scan):
            return await self._deltas_own(statement, pinned, scan, settings)
        epoch = self._epoch()
        key = _Key(shape(scan), settings, pinned.treatment, pinned.dispellable)
        temporaries = session is not None and session.holds_temporaries
        known = None if temporaries else self._remembered(key, epoch)
        if known is not None:
            return known
        try:
            verdict = await self._verdict(statement, pinned, scan, key.shape, settings)
        except EngineError:
            if not temporaries or pinned.source is None:
                raise
            verdict = Verdict(Treatment.MATERIALISE, known=False)
        if session is not None and temporaries:
            return await self._in_session(statement, pinned, settings, session, verdict)
        self._remember(key, verdict, epoch)
        return verdict

    async def confirm_query(self, statement: Statement, spark: Session) -> None:
        """Refuse what was taken for a query and may do more; most need no look at all."""
        if not statement.confirm:
            return
        try:
            refusal = query_refusal(await self._plan(spark, statement.sql))
        except UnreadableError as error:
            refusal = f"HAProc cannot read what Spark makes of it: {error}"
        if refusal:
            raise RefusedError(DIFFERS, refusal, "send a query by itself, without other statements")

    async def confirm_session_statement(self, statement: Statement, spark: Session) -> None:
        """Refuse a session statement in which Spark sees code outside SQL."""
        if statement.kind not in (Kind.TEMPORARY_VIEW, Kind.CACHE):
            return
        scan = Scan(statement.sql)
        texts = [statement.sql]
        try:
            if scan.word(0) == "CREATE" and any(scan.word(at) == "FUNCTION" for at in range(1, 7)):
                texts += definitions(replace(statement, kind=Kind.CREATE_FUNCTION), scan)
            plans = [await self._plan(spark, text) for text in texts]
        except (UnreadableError, UnclearError) as error:
            raise RefusedError(DIFFERS, f"HAProc cannot look into it: {error}") from error
        refusal = session_refusal(statement, plans)
        if refusal:
            raise RefusedError(DIFFERS, refusal, "call only functions of SQL, by their names")

    # -- verdicts kept -------------------------------------------------------------------------

    def _remembered(self, key: _Key, epoch: int) -> Verdict | None:
        if epoch != self._verdicts_epoch:
            self._verdicts.clear()
            self._verdicts_epoch = epoch
        verdict = self._verdicts.get(key)
        if verdict is not None:
            self._verdicts.move_to_end(key)
        return verdict

    def _remember(self, key: _Key, verdict: Verdict, epoch: int) -> None:
        if epoch == self._epoch() == self._verdicts_epoch:
            self._verdicts[key] = verdict
            if len(self._verdicts) > VERDICTS_MAX:
                self._verdicts.popitem(last=False)

    # -- analyses ------------------------------------------------------------------------------

    async def _verdict(
        self,
        statement: Statement,
        pinned: Pinned,
        scan: Scan,
        neutral: str,
        settings: Settings,
    ) -> Verdict:
        spark = await self._session(settings)
        try:
            if statement.kind not in OF_ROWS:
                return await self._definition(spark, statement, pinned, scan)
            plans = await self._plans(spark, statement, scan, neutral)
            facts = await self._facts(spark, plans, decimals=not writes_floats(scan.tokens))
            return judge(statement, pinned, plans, facts)
        except (UnreadableError, UnclearError) as error:
            return Verdict(
                Treatment.REFUSE,
                (f"HAProc cannot read what Spark makes of the statement: {error}",),
                known=False,
            )

    async def _definition(
        self, spark: Session, statement: Statement, pinned: Pinned, scan: Scan
    ) -> Verdict:
        main = await self._plan(spark, scan.sql)
        plans = [await self._plan(spark, text) for text in definitions(statement, scan)]
        return judge_definition(statement, pinned, main, plans, await self._facts(spark, plans))

    async def _plans(
        self, spark: Session, statement: Statement, scan: Scan, neutral: str
    ) -> list[Plan]:
        """Return the statement's plan, and that of the source of a MERGE."""
        try:
            return await self._plans_of(spark, statement, Scan(neutral))
        except (EngineError, UnreadableError):
            if neutral == scan.sql:
                raise
        return await self._plans_of(spark, statement, scan)

    async def _plans_of(self, spark: Session, statement: Statement, scan: Scan) -> list[Plan]:
        plans = [await self._plan(spark, scan.sql)]
        if statement.kind is Kind.MERGE:
            plans.append(await self._plan(spark, merge_source(scan)))
        return plans

    async def _deltas_own(
        self, statement: Statement, pinned: Pinned, scan: Scan, settings: Settings
    ) -> Verdict:
        try:
            texts = definitions(statement, scan)
            if not texts:
                return Verdict(Treatment.REPLICATE, rests_on=statement.reads | statement.writes)
            spark = await self._session(settings)
            plans = [await self._plan(spark, text) for text in texts]
            facts = await self._facts(spark, plans)
            return judge_definition(statement, pinned, None, plans, facts)
        except (UnreadableError, UnclearError) as error:
            return Verdict(Treatment.REFUSE, (str(error),), known=False)

    async def _facts(
        self, spark: Session, plans: Sequence[Plan], *, decimals: bool = False
    ) -> Facts:
        """Return what the plans do not show: types of columns, bodies of SQL functions."""
        bodies: dict[str, Plan] = {}
        wanted = list(unknown_functions(plans))
        while wanted and len(bodies) < FUNCTIONS_MAX:
            name = wanted.pop()
            body = None if name in bodies else await self._body(spark, name)
            if body is not None:
                bodies[name] = body
                wanted += unknown_functions([body])
        shown = tuple(bodies.values())
        schemas = await self._schemas(spark, [*plans, *shown])
        return Facts(schemas, harmless_functions(bodies, schemas), shown, decimals=decimals)

    async def _body(self, spark: Session, name: str) -> Plan | None:
        """Return the plan of a SQL function's body; None for any other function."""
        try:
            rows = await self._rows(spark, f"DESCRIBE FUNCTION EXTENDED {name}")
            function = described_function([str(row[0]) for row in rows])
            return await self._plan(spark, function_query(function))
        except UnclearError:
            return None
        except EngineError as error:
            if error.kind is ErrorKind.APPLICATION:
                return None
            raise

    async def _schemas(self, spark: Session, plans: Sequence[Plan]) -> dict[str, dict[str, str]]:
        tables = {name for plan in plans if needs_types(plan) for name in tables_read(plan)}
        schemas = {}
        for table in sorted(tables):
            columns = await spark.columns(f"SELECT * FROM {table}")
            schemas[table] = {column.name.lower(): column.type_text for column in columns}
        return schemas

    async def _in_session(
        self,
        statement: Statement,
        pinned: Pinned,
        settings: Settings,
        session: ClientSession,
        verdict: Verdict,
    ) -> Verdict:
        """Compare with what the client's own session makes of the statement."""
        ours = await self._attempt(lambda: self._text(session.spark, pinned.sql, session.settings))
        spark = await self._session(settings)
        lanes = await self._attempt(lambda: self._explained(spark, pinned.sql))
        if ours is not None and lanes is not None and _same(ours, lanes):
            return verdict
        reason = "it rests on temporary views, functions or variables of the session"
        treatment = Treatment.REFUSE if pinned.source is None else Treatment.MATERIALISE
        reasons = (*verdict.reasons, reason)
        return replace(verdict, treatment=treatment, reasons=reasons, known=False, of_session=True)

    async def _attempt(self, explain: Callable[[], Awaitable[str]]) -> str | None:
        try:
            text = await explain()
            return text if isinstance(read_plan(text), Plan) else None
        except UnreadableError:
            return None
        except EngineError as error:
            if error.kind is ErrorKind.APPLICATION:
                return None
            raise

    async def _text(self, spark: Session, sql: str, settings: Settings) -> str:
        await spark.configure(_in_full(settings))
        try:
            return await self._explained(spark, sql)
        finally:
            await spark.configure(settings)

    async def _plan(self, spark: Session, sql: str) -> Plan:
        """Return Spark's analysis; raises EngineError if the statement is wrong for Spark."""
        plan = read_plan(await self._explained(spark, sql))
        if isinstance(plan, Failure):
            raise _error(plan)
        return plan

    async def _explained(self, spark: Session, sql: str) -> str:
        rows = await self._rows(spark, f"EXPLAIN EXTENDED {sql}")
        return "\n".join(str(row[0]) for row in rows)

    async def _rows(self, spark: Session, sql: str) -> list[tuple[object, ...]]:
        return await rows_of(await spark.query(sql, timeout_s=self._timeout_s))

    async def _session(self, settings: Settings) -> Session:
        wanted = _in_full(settings)
        spark = await self._sessions.get(wanted, self._epoch(), self._now())
        await spark.configure(wanted)
        return spark


def _is_plain(statement: Statement, pinned: Pinned) -> bool:
    """Whether it is an INSERT of literals, perhaps only now that its clock reads are pinned."""
    if statement.insert is not None:
        return True
    if statement.kind is not Kind.INSERT or pinned.treatment is not Treatment.REPLICATE:
        return False
    return pinned.source is None and plain_insert(pinned.sql, Context()) is not None


def _in_full(settings: Settings) -> Settings:
    names = {name for name, _ in _IN_FULL}
    confs = [each for each in settings.confs if each[0] not in names]
    return replace(settings, confs=tuple(sorted([*confs, *_IN_FULL])))


def _same(one: str, other: str) -> bool:
    """Whether two analyses are the same but for what every run numbers anew."""
    return _OF_ONE_RUN.sub("", one) == _OF_ONE_RUN.sub("", other)


def _error(failure: Failure) -> EngineError:
    link = Link(
        failure.error_class, failure.sqlstate, (failure.java_class,) if failure.java_class else ()
    )
    return EngineError(
        kind_of_chain([link]),
        failure.message,
        error_class=failure.error_class,
        sqlstate=failure.sqlstate,
    )
