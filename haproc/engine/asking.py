"""Queries of a session, and what their results will look like."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from haproc.engine import arrow
from haproc.engine.errors import EngineError
from haproc.engine.interface import Column, Observed, ResultStream
from haproc.engine.plugin_plans import reading_plan
from haproc.engine.remote import RemoteSession, plan_of, sql_relation
from haproc.engine.statement import SparkPlan, SqlText, Statement
from haproc.engine.stream import QueryStream
from haproc.engine.table import columns_of
from haproc.engine.tasks import Planned
from haproc.offloop import by_size


class Asking(ABC):
    """Implements Queries; what becomes of a session that was lost is its heirs' business."""

    def __init__(self, remote: RemoteSession, small_statement_timeout_s: float) -> None:
        self._remote = remote
        self._timeout_s = small_statement_timeout_s

    @abstractmethod
    async def _begin(self) -> int:
        """Return the session's epoch, once it holds what it has to; raises EngineError."""

    @abstractmethod
    async def _recover(self, error: EngineError, epoch: int) -> bool:
        """Make the session anew if the error says that it is lost; True if that was all."""

    @abstractmethod
    def in_use(self) -> AbstractContextManager[None]:
        """Keep the session from being closed."""

    async def query(
        self,
        statement: Statement,
        *,
        timeout_s: float,
        planned: Planned | None = None,
        observed: Observed | None = None,
    ) -> ResultStream:
        """Start a statement that only reads, or changes only this session's state."""
        return self._stream(plan_of(statement), timeout_s, planned, observed)

    async def reading(
        self,
        statement: SqlText | SparkPlan,
        *,
        timeout_s: float,
        parsed_only: bool = False,
    ) -> str:
        """Return what Spark's parser and analyzer make of a statement, which does not run.

        See Queries.
        """
        given = statement.sql if isinstance(statement, SqlText) else statement.plan
        plan = await by_size(len(given), reading_plan, statement, parsed_only=parsed_only)
        async with contextlib.aclosing(self._stream(plan, timeout_s)) as stream:
            chunks = [chunk.data async for chunk in stream]
        return await by_size(sum(map(len, chunks)), _only_value, chunks)

    def _stream(
        self,
        plan: Any,
        timeout_s: float,
        planned: Planned | None = None,
        observed: Observed | None = None,
    ) -> QueryStream:
        return QueryStream(
            self._remote,
            plan,
            timeout_s,
            begin=self._begin,
            recover=self._recover,
            in_use=self.in_use,
            planned=planned,
            observed=observed,
        )

    async def columns(self, sql: str) -> list[Column]:
        """Return a query's columns without running it (commands would run: not for them)."""
        return columns_of(await self._schema(sql_relation(sql)))

    async def schema(self, query: Statement) -> bytes:
        """Return a query's schema, a serialized ``spark.connect.DataType``, without running it."""
        return bytes((await self._schema(plan_of(query).root)).SerializeToString())

    async def _schema(self, relation: Any) -> Any:
        epoch = await self._begin()
        try:
            return await self._remote.schema(relation, self._timeout_s)
        except EngineError as error:
            if not await self._recover(error, epoch):
                raise
            return await self._remote.schema(relation, self._timeout_s)


def _only_value(chunks: Sequence[bytes]) -> str:
    (row,) = arrow.rows(chunks)
    (value,) = row.values()
    return str(value)
