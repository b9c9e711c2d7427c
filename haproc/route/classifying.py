"""Finds the class of a request's statement, in any form: SQL text, rows or plan."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, assert_never

from haproc import protos
from haproc.classify.bounds import Bounds
from haproc.classify.classifier import Unparsed, classify, decided, gives_rows
from haproc.classify.model import (
    Classified,
    Kind,
    OperationClass,
    Recognised,
    RefusedError,
    Touched,
    WriteConcern,
)
from haproc.classify.names import Context, parts_of
from haproc.classify.plans.classifying import classify_plan, text_of, unparsed
from haproc.classify.plans.commands import read_opened
from haproc.classify.plans.parsing import PlanReading, opened, parse
from haproc.classify.rights import UNBOUNDED, Rights
from haproc.classify.rules import Rules, about, first
from haproc.engine.errors import EngineError
from haproc.engine.interface import Settings
from haproc.engine.statement import (
    ArrowRows,
    SparkPlan,
    SqlText,
    Statement,
)
from haproc.failure import ErrorClass, RequestError
from haproc.failure import refused as refusal
from haproc.pin.parameters import bound
from haproc.pin.sqltypes import quote_name
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import ComputedPlan, QueryWrite, SpooledRows
from haproc.route.model import ReadPlan, Request, SentPlan, SentRows, SentSql
from haproc.route.offload import Texts, plan_work
from haproc.route.streams import refused
from haproc.sessions.client import ClientSession

SAME_MAX: Final = 64
SAME_CHARACTERS_MAX: Final = 1024
"""The most remembered classifications (SAME_MAX), and the longest text of one. PySpark sends each
text twice: when a DataFrame is made of it, and when that is collected. Chosen."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Those for whom Spark reads a statement: user, settings, and the client's session or None."""

    settings: Settings
    session: ClientSession | None
    user: str

    @property
    def context(self) -> Context:
        """The catalog and schema to which names without them belong, and the user."""
        return Context(self.settings.catalog, self.settings.schema, self.user)

    @property
    def has_temporaries(self) -> bool:
        """True if the session holds temporary objects, so that a name may mean one of these."""
        return self.session is not None and self.session.holds_temporaries


@dataclass(frozen=True, slots=True)
class Understood:
    """A request with its session, its settings and its statement's classification."""

    request: Request
    session: ClientSession | None
    settings: Settings
    statement: Classified

    @property
    def asker(self) -> Asker:
        """The user, settings and session of this request, for Spark's reading of its statement."""
        return Asker(self.settings, self.session, self.request.user)


async def with_bound(request: Request, texts: Texts) -> Request:
    """Write the parameters of a SQL text into the text; return the changed request.

    Requests in other forms are returned unchanged. Raises RequestError.
    """
    match request.statement:
        case SentSql(text, given) if given is not None:
            size = len(text) + len(given.json)
            try:
                sql = await texts.work_on_text(request.user, size, bound, text, given)
            except RefusedError as error:
                raise refused(error) from error
            return replace(request, statement=SentSql(sql))
        case SentSql() | SentRows() | SentPlan():
            return request
        case _:
            assert_never(request.statement)


def as_it_runs(understood: Understood) -> Statement:
    """Return the statement in the form in which an Engine runs it, a SQL text or a plan.

    Only for queries and session statements, which do not enter the log.
    """
    match understood.request.statement:
        case SentSql():
            return SqlText(understood.statement.sql)
        case SentRows():
            raise AssertionError("rows are for the log")
        case SentPlan(data):
            return SparkPlan(data)
        case _:
            assert_never(understood.request.statement)


class Classifying:
    """Finds the class of statements, by built-in and operators' rules. Methods raise RequestError.

    ``recognised`` lets Spark's parser find out what a text is: it gets the text, the settings and
    the user, and raises RefusedError or EngineError. ``failed`` turns an EngineError into the
    client's error.
    """

    def __init__(
        self,
        texts: Texts,
        rules: Rules,
        bounds: Bounds,
        recognised: Callable[[str, Settings, str], Awaitable[Recognised]],
        failed: Callable[[EngineError], RequestError],
    ) -> None:
        self._texts = texts
        self._rules = rules
        self._bounds = bounds
        self._recognised = recognised
        self._failed = failed

        @lru_cache(SAME_MAX)
        def same(
            sql: str, context: Context, override: OperationClass | None
        ) -> Classified | Unparsed:
            return classify(sql, context, rules, override, bounds)

        self._same = same

    async def with_read(self, request: Request) -> Request:
        """Parse the request's Spark Connect plan, if it has one that is not parsed yet.

        Returns the request with the parsed plan.
        """
        sent = request.statement
        if not isinstance(sent, SentPlan) or sent.read is not None:
            return request
        return replace(request, statement=SentPlan(sent.plan, await self._read(sent.plan)))

    async def _read(self, plan: bytes) -> ReadPlan:
        try:
            return await plan_work(self._texts, len(plan), _read, plan)
        except RefusedError as error:
            raise refused(error) from error

    async def request(self, request: Request, settings: Settings) -> Classified:
        """Classify the statement of a request, in any form.

        Parameters must be in the text already (`with_bound`).
        """
        match request.statement:
            case SentSql(text):
                return await self.text(
                    text, settings, request.user, request.operation_class, request.rights
                )
            case SentRows(table):
                return self._rows(table, settings, request.user, request.rights)
            case SentPlan(data, read):
                reading = (read or await self._read(data)).reading
                return await self.plan(reading, settings, request)
            case _:
                assert_never(request.statement)

    async def concern_of(self, op: Operation) -> WriteConcern | None:
        """Return the write concern that the operators' rules ask of an operation in the log.

        None if no rule decides about it, or that rule asks for none.
        """
        match op.write:
            case SqlText(text) | QueryWrite(text):
                pass
            case ArrowRows(table) | SpooledRows(table):
                text = _as_insert(table)
            case SparkPlan() | ComputedPlan():
                text = text_of((await self._read(op.write.plan)).reading)
            case _:
                assert_never(op.write)
        kind = Kind.INSERT if op.kind is Kind.ROWS else op.kind
        rules = await self._texts.work_on_text(
            op.user, len(text), about, self._rules, kind, text, op.user
        )
        is_plain = op.insert is not None or isinstance(op.write, ArrowRows | SpooledRows)
        expressions = frozenset[str]() if is_plain else None
        touched = Touched(op.reads | op.writes, op.tables_known, expressions=expressions)
        rule = first(rules, kind, touched)
        return None if rule is None else rule.write_concern

    async def text(
        self,
        sql: str,
        settings: Settings,
        user: str,
        override: OperationClass | None = None,
        rights: Rights = UNBOUNDED,
    ) -> Classified:
        """Classify a SQL text.

        ``override``: the class that the request asks for. ``rights``: those of the user.
        """
        context = Context(settings.catalog, settings.schema, user, rights)
        values = (sql, context, self._rules, override, self._bounds)
        try:
            if len(sql) <= SAME_CHARACTERS_MAX:
                found = self._same(sql, context, override)
            else:
                found = await self._texts.work_on_text(user, len(sql), classify, *values)
            if isinstance(found, Unparsed):
                parsed = await self._parsed([found.sql], settings, user)
                found = decided(parsed[found.sql], found.sql, context, self._rules, override)
        except RefusedError as error:
            raise refused(error) from error
        return found

    async def _parsed(
        self, texts: Sequence[str], settings: Settings, user: str
    ) -> dict[str, Recognised]:
        """Let Spark's parser find out what each of ``texts`` is; raises RefusedError, too."""
        try:
            return {text: await self._recognised(text, settings, user) for text in texts}
        except EngineError as error:
            raise self._failed(error) from error

    async def plan(
        self,
        reading: PlanReading,
        settings: Settings,
        request: Request,
        *,
        there: bool = False,
    ) -> Classified:
        """Classify the plan of a request.

        ``there``: True if the plan's target table is known to exist.
        """
        user, override = request.user, request.operation_class
        context = Context(settings.catalog, settings.schema, user, request.rights)
        size, values = _texts_size(reading), (reading, context, self._rules, self._bounds, override)
        try:
            texts = await plan_work(
                self._texts, size, lambda: [*unparsed(reading, context, self._bounds)]
            )
            parsed = await self._parsed(texts, settings, user)
            return await plan_work(
                self._texts, size, lambda: classify_plan(*values, parsed, there=there)
            )
        except RefusedError as error:
            raise refused(error) from error

    def _rows(self, table: str, settings: Settings, user: str, rights: Rights) -> Classified:
        """Classify rows that a client appends to ``table``.

        Operators' rules treat them as an INSERT into it.
        """
        context = Context(settings.catalog, settings.schema, user, rights)
        try:
            found = classify(_as_insert(table), context, self._rules)
        except RefusedError as error:
            raise refused(error) from error
        assert isinstance(found, Classified), "its words show that"
        asynchronous = OperationClass.ASYNCHRONOUS
        return replace(found, kind=Kind.ROWS, operation_class=asynchronous, insert=None)


def _as_insert(table: str) -> str:
    """Return the INSERT statement that stands for rows of ``table`` when rules are matched.

    Raises RequestError if ``table`` is no valid name.
    """
    parts = parts_of(table)
    if parts is None:
        raise refusal(
            ErrorClass.TABLE_NAME,
            f"{table!r} is no table name",
            "write [catalog.][schema.]name, with backquotes where a part needs them",
        )
    name = ".".join(quote_name(part) for part in parts)
    return f"INSERT INTO {name} VALUES (1)"


def only_selects(reading: PlanReading, settings: Settings) -> bool:
    """True if each SQL text inside the plan is a query of tables, not SHOW or similar.

    Others would be run by Spark while it reads the plan.
    """
    context, rules = Context(settings.catalog, settings.schema), Rules.builtin()
    return all(gives_rows(classify(part.text, context, rules)) for part in reading.sqls)


def read_of(sent: SentPlan) -> ReadPlan:
    """Return the plan as parsed by the door, or parse it now; raises RefusedError."""
    return sent.read or _read(sent.plan)


def _read(data: bytes) -> ReadPlan:
    plan = opened(parse(protos.base.Plan, data))
    return ReadPlan(plan, read_opened(plan))


def _texts_size(reading: PlanReading) -> int:
    parts = [*reading.sqls] if reading.sql is None else [*reading.sqls, reading.sql]
    return sum(len(part.text) for part in parts) + sum(map(len, reading.expressions))
