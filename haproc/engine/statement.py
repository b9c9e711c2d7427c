"""A statement as a cluster runs it, whatever form it has.

Sessions and lanes take any form; what a form is to Spark says `engine.remote.plan_of` alone. As a
client sends it, with what has to be bound or fitted first, it is a `haproc.route.model.Sent`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias


@dataclass(frozen=True, slots=True)
class SqlText:
    """One SQL statement that stands alone: its parameters are bound."""

    sql: str


ROWS_MAX: Final = 1_000_000
"""Of one statement that brings rows. Chosen: each takes some 100 bytes of a driver, even if it has
next to none itself."""


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Rows to append to a table by column name; ``rows`` is one Arrow IPC stream."""

    table: str
    rows: bytes


@dataclass(frozen=True, slots=True)
class SparkPlan:
    """A Spark Connect plan that stands alone; ``plan`` is a serialized ``spark.connect.Plan``."""

    plan: bytes


Statement: TypeAlias = SqlText | ArrowRows | SparkPlan


def text_size(statement: Statement) -> int:
    """Return how many characters of SQL a statement has."""
    return len(statement.sql) if isinstance(statement, SqlText) else 0
