"""Asks one Spark session what it makes of texts; long answers are read beside the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Final

from haproc.classify.model import Classified
from haproc.classify.tokens import LexicalError
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Analyzed, Column, Session, Settings
from haproc.engine.statement import SparkPlan, SqlText, Statement, text_size
from haproc.engine.status import Link, kind_of_chain
from haproc.engine.tasks import Planned
from haproc.pin.inline import UnclearError, made_items
from haproc.pin.model import Pinned
from haproc.pin.scan import Scan
from haproc.route.offload import Texts
from haproc.route.planning import Planning
from haproc.route.readings import is_legacy
from haproc.route.views import rows_of
from haproc.spark_error import Details
from haproc.witness.explained import details_in_own_lines, explaining, in_own_lines
from haproc.witness.findings import (
    Facts,
    harmless_functions,
    needs_types,
    tables_read,
)
from haproc.witness.judge import Verdict, judge_query, unknown_functions
from haproc.witness.plan import Failure, Plan, UnreadableError, read_plan, read_query
from haproc.witness.probes import described_function, function_query
from haproc.witness.shape import misleading_texts, shape

FUNCTIONS_MAX: Final = 64
"""SQL functions that one statement may call, those called by these included."""


@dataclass(frozen=True, slots=True)
class Carried:
    """How a text is sent: by itself, or as a query with DataFrames, which it calls by ``frames``.

    Spark makes temporary views of those while it looks at the text.
    """

    sent: Callable[[str], SqlText | SparkPlan] = SqlText
    frames: frozenset[str] = frozenset()


_ANALYSIS: Final = "org.apache.spark.sql.AnalysisException"
"""What Spark's analyzer throws; it names only the class of that itself, such as one of Delta's."""


class Explaining:
    """One user's questions to one session. Every method raises EngineError.

    An EngineError of kind APPLICATION is Spark's own answer to a statement that is wrong.
    """

    def __init__(
        self,
        spark: Session,
        texts: Texts,
        user: str,
        timeout_s: float,
        planning: Planning,
        settings: Settings | None = None,
    ) -> None:
        """``settings``: the session's, which `facts` have to do with."""
        self._spark = spark
        self._settings = settings or Settings()
        self._planning = planning
        self._texts = texts
        self._user = user
        self._timeout_s = timeout_s

    async def text(self, sql: str) -> str:
        """Return what EXPLAIN EXTENDED says."""
        try:
            return "\n".join(str(row[0]) for row in await self._rows(SqlText(explaining(sql))))
        except EngineError as error:
            raise EngineError(
                error.kind,
                in_own_lines(error.message),
                error_class=error.error_class,
                sqlstate=error.sqlstate,
                details=details_in_own_lines(error.details),
            ) from error

    async def plan(self, sql: str) -> Plan:
        """Return the analyzed plan; raises UnreadableError."""
        text = await self.text(sql)
        plan = await self._texts.run(self._user, len(text), read_plan, text)
        if isinstance(plan, Failure):
            raise _error(replace(plan, message=in_own_lines(plan.message)))
        return plan

    async def plan_of_shape(self, sql: str, shape: str) -> Plan:
        """Return the plan of a text's shape, or of the text as it stands."""
        try:
            return await self.plan(shape)
        except (UnreadableError, EngineError):
            if shape == sql:
                raise
        return await self.plan(sql)

    async def spoken(self, query: SparkPlan) -> Analyzed:
        """Return what Spark says of a relation."""
        async with self._turn():
            return await self._spark.analyzed(query)

    async def read(self, analyzed: Analyzed) -> Plan:
        """Return the analyzed plan in it; raises UnreadableError."""
        size = len(analyzed.text)
        columns = bool(analyzed.columns)
        plan = await self._texts.run(self._user, size, _query_in, analyzed.text, columns)
        if isinstance(plan, Failure):
            raise _error(plan)
        return plan

    async def judged(
        self, statement: Classified, pinned: Pinned, plan: Plan, facts: Facts
    ) -> Verdict:
        """Return the verdict on a part of a plan, see `judge_query`."""
        size = size_of([plan])
        return await self._texts.run(self._user, size, judge_query, statement, pinned, plan, facts)

    async def facts(self, plans: Sequence[Plan], known: Facts) -> Facts:
        """Return what is known, with types of columns and bodies of functions."""
        size = size_of(plans)
        bodies: dict[str, Plan] = {}
        misleading = known.misleading
        wanted = set(await self._texts.run(self._user, size, unknown_functions, plans))
        looked: set[str] = set()
        while wanted and len(looked) < FUNCTIONS_MAX:
            name = wanted.pop()
            looked.add(name)
            found = await self._body(name)
            if found is not None:
                bodies[name], texts = found
                misleading |= texts
                wanted |= unknown_functions([bodies[name]]) - looked
        shown = tuple(bodies.values())
        of_bodies = Facts(
            await self._schemas([*plans, *shown]),
            misleading=misleading,
            ansi=self._settings.ansi,
            legacy=is_legacy(self._settings),
        )
        return replace(
            of_bodies,
            functions=await self._texts.run(
                self._user, size_of(shown), harmless_functions, bodies, of_bodies
            ),
            bodies=shown,
            decimals=known.decimals,
            rows=known.rows,
        )

    async def _body(self, name: str) -> tuple[Plan, frozenset[str]] | None:
        """Return the plan of a SQL function's body, and the texts that mislead in it.

        None for any other function, and for one whose plan does not show all.
        """
        try:
            rows = await self._rows(SqlText(f"DESCRIBE FUNCTION EXTENDED {name}"))
            function = described_function([str(row[0]) for row in rows])
            body = Scan(function.body)
            if made_items(body):
                return None
            query = function_query(function)
            return await self.plan_of_shape(query, shape(Scan(query))), misleading_texts(body)
        except (UnclearError, LexicalError):
            return None
        except EngineError as error:
            if error.kind is ErrorKind.APPLICATION:
                return None
            raise

    async def _schemas(self, plans: Sequence[Plan]) -> dict[str, dict[str, str]]:
        tables = await self._texts.run(self._user, size_of(plans), _tables_to_know, plans)
        schemas = {}
        for table in tables:
            columns = await self._columns(f"SELECT * FROM {table}")
            schemas[table] = {column.name.lower(): column.type_text for column in columns}
        return schemas

    async def _rows(self, statement: Statement) -> list[tuple[object, ...]]:
        async with self._turn(text_size(statement)) as planned:
            asked = self._spark.query(statement, timeout_s=self._timeout_s, planned=planned)
            return await rows_of(await asked)

    async def _columns(self, query: str) -> list[Column]:
        async with self._turn(len(query)):
            return await self._spark.columns(query)

    def _turn(self, size: int = 0) -> AbstractAsyncContextManager[Planned]:
        return self._planning.turn(self._user, self._timeout_s, size)


def _query_in(text: str, columns: bool) -> Plan | Failure:
    return read_query(text, columns=columns)


def _tables_to_know(plans: Sequence[Plan]) -> list[str]:
    """Return the tables whose columns' types have a say in what differs."""
    return sorted({name for plan in plans if needs_types(plan) for name in tables_read(plan)})


def size_of(plans: Sequence[Plan]) -> int:
    """Return how long the plans' texts are together."""
    return sum(len(node.text) for plan in plans for node in plan.nodes)


def _error(failure: Failure) -> EngineError:
    java_classes = (failure.java_class,) if failure.java_class else ()
    link = Link(failure.error_class, failure.sqlstate, java_classes)
    return EngineError(
        kind_of_chain([link]),
        failure.message,
        error_class=failure.error_class,
        sqlstate=failure.sqlstate,
        details=Details((*java_classes, _ANALYSIS)),
    )
