"""The classification of a request's statement, in any form: the first step of its way."""

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
"""The number of remembered classifications, and the longest text of one. PySpark sends each text
twice: when a DataFrame is made of it, and when that is collected. Chosen."""


@dataclass(frozen=True, slots=True)
class Asker:
    """The user, the settings and, if needed, the session for which Spark reads a statement."""

    settings: Settings
    session: ClientSession | None
    user: str

    @property
    def context(self) -> Context:
        """The catalog and schema of unqualified names."""
        return Context(self.settings.catalog, self.settings.schema, self.user)

    @property
    def has_temporaries(self) -> bool:
        """True if names may mean something else in the session."""
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
        """The user, the settings and the session for which Spark reads the statement."""
        return Asker(self.settings, self.session, self.request.user)


async def with_bound(request: Request, texts: Texts) -> Request:
    """Return the request with its parameters in its statement; raises RequestError."""
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
    """Return a statement as a cluster runs it; only for statements that do not enter the log."""
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
    """Classifies by an operator's rules. Methods raise RequestError.

    ``recognised`` lets Spark's parser classify a text (settings, user; raises RefusedError,
    EngineError), ``failed`` returns the client's error for an EngineError.
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
        """Return the request with its plan read, if it has one."""
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
        """Return the classification of a request's statement; its parameters are bound."""
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
        """Return the write concern that the present rules ask of an operation in the log."""
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
        """Return the classification of a text."""
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
        """Return the classifications of texts by Spark's parser; raises RefusedError, too."""
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
        """Return the classification of a request's plan; ``there``: its target exists."""
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
        """Return the classification of rows for a table; rules treat them as an INSERT."""
        context = Context(settings.catalog, settings.schema, user, rights)
        try:
            found = classify(_as_insert(table), context, self._rules)
        except RefusedError as error:
            raise refused(error) from error
        assert isinstance(found, Classified), "its words show that"
        asynchronous = OperationClass.ASYNCHRONOUS
        return replace(found, kind=Kind.ROWS, operation_class=asynchronous, insert=None)


def _as_insert(table: str) -> str:
    """Return the statement that rules see for rows of a table; raises RequestError."""
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
    """True if Spark runs no SQL text, such as SHOW, while it reads the plan."""
    context, rules = Context(settings.catalog, settings.schema), Rules.builtin()
    return all(gives_rows(classify(part.text, context, rules)) for part in reading.sqls)


def read_of(sent: SentPlan) -> ReadPlan:
    """Return a plan's reading: the one made at the door, or a new one; raises RefusedError."""
    return sent.read or _read(sent.plan)


def _read(data: bytes) -> ReadPlan:
    plan = opened(parse(protos.base.Plan, data))
    return ReadPlan(plan, read_opened(plan))


def _texts_size(reading: PlanReading) -> int:
    parts = [*reading.sqls] if reading.sql is None else [*reading.sqls, reading.sql]
    return sum(len(part.text) for part in parts) + sum(map(len, reading.expressions))
