"""What of an operation is shown to whoever may read everybody's. Values in, values out.

By default no literal of a statement is. Rows and plans are shown by a digest alone, under a key of
the ring's: equal ones can be told, and what few they could be cannot be tried.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

import pyarrow as pa

from haproc import protos
from haproc.classify.masking import masked, masked_insert
from haproc.classify.model import RefusedError
from haproc.classify.plans.commands import read_plan
from haproc.classify.plans.parsing import parse
from haproc.config.archive import Archive, Mask
from haproc.engine.statement import ArrowRows, SparkPlan, SqlText
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import ComputedPlan, QueryWrite, SpooledRows

SCHEMA: Final = "spark_catalog.haproc."
"""Before the names of the tables in which the pipeline keeps what it finds."""
_DIGEST_KEY: Final = b"haproc archive digest"
_PLAN_BYTES_MAX: Final = 1 << 20
"""Larger plans are not looked into for a text: rows make up most of them."""


@dataclass(frozen=True, slots=True)
class Shown:
    """An operation's statement, or its rows: how many and their digest; None: not known."""

    statement: str | None = None
    rows: int | None = None
    digest: str | None = None


class Showing:
    """See the module. ``secret``: the ring's."""

    def __init__(self, rules: Archive, secret: str) -> None:
        self._rules = rules
        self._key = hmac.digest(secret.encode(), _DIGEST_KEY, "sha256")
        self._open: Callable[[frozenset[str]], bool] = lru_cache(4096)(self._unmasked)

    def own(self, op: Operation) -> bool:
        """Whether this is the pipeline's own write, which is left out: it would tell of itself."""
        return (
            op.user == self._rules.user
            and bool(op.writes)
            and all(table.lower().startswith(SCHEMA) for table in op.writes)
        )

    def of(self, op: Operation) -> Shown:
        """Return what is shown of an operation."""
        match op.write:
            case SqlText(sql):
                return self._sql(op, sql)
            case QueryWrite(sql):
                return Shown(self._text(op, sql))
            case ArrowRows(_, rows):
                return Shown(None, _count(rows), self._digest(rows))
            case SparkPlan(plan):
                return Shown(self._in_plan(op, plan), None, self._digest(plan))
            case ComputedPlan():
                plan = op.write.plan
                return Shown(self._in_plan(op, plan), None, self._digest(op.write.query))
            case SpooledRows():
                return Shown(None, None, self._digest(op.fingerprint.encode()))

    def _sql(self, op: Operation, sql: str) -> Shown:
        insert = op.insert
        if insert is None:
            return Shown(self._text(op, sql))
        if self._shows_literals(op):
            return Shown(self._text(op, sql), insert.rows)
        columns = insert.signature.count(",") + 1
        length = self._rules.statement_characters_max
        return Shown(
            masked_insert(sql, insert.values_at, insert.rows, columns, length), insert.rows
        )

    def _text(self, op: Operation, sql: str) -> str | None:
        length = self._rules.statement_characters_max
        return masked(sql, length, secrets_only=self._shows_literals(op))

    def _shows_literals(self, op: Operation) -> bool:
        return self._rules.mask is Mask.SECRETS or (
            bool(self._rules.unmasked) and op.tables_known and self._open(op.writes)
        )

    def _unmasked(self, tables: frozenset[str]) -> bool:
        patterns = [pattern.lower() for pattern in self._rules.unmasked]
        return bool(tables) and all(
            any(fnmatchcase(table.lower(), pattern) for pattern in patterns) for table in tables
        )

    def _in_plan(self, op: Operation, plan: bytes) -> str | None:
        if len(plan) > _PLAN_BYTES_MAX:
            return None
        try:
            sql = read_plan(parse(protos.base.Plan, plan)).sql
        except RefusedError:
            return None
        return None if sql is None else self._text(op, sql.text)

    def _digest(self, data: bytes) -> str:
        return hmac.digest(self._key, data, "sha256").hex()[:32]


def _count(rows: bytes) -> int:
    with pa.ipc.open_stream(rows) as reader:
        return sum(batch.num_rows for batch in reader)
