"""The rights of a user: roles, and patterns of the tables that statements may touch.

A role opens doors (`haproc.doors.roles`) and lets statements write; the patterns limit the tables
that statements touch (`haproc.classify.rules`). This module only has the values: the check of a
token finds the user's rights.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from haproc.classify.model import Kind, Touched

ANY_TABLE: Final = "*"
_CODE: Final = """
    CallMethodViaReflection HiveGenericUDF HiveSimpleUDF HiveUDAFFunction PythonUDAF PythonUDF
    PythonUDTF PythonWorkerLogs ScalaAggregator ScalaUDAF ScalaUDF ScriptTransformation TryReflect
"""
CODE: Final = frozenset(_CODE.lower().split())
"""Spark's classes of code that is not SQL and could read the files of any table, in lower case."""


_OF_NO_TABLE: Final = frozenset(
    {
        Kind.CREATE_FUNCTION,
        Kind.DROP_FUNCTION,
        Kind.CREATE_NAMESPACE,
        Kind.ALTER_NAMESPACE,
        Kind.DROP_NAMESPACE,
    }
)
"""Kinds that change objects other than tables: no pattern of tables names these, and other users
may need them."""


class Role(StrEnum):
    """A role decides which requests a user may send."""

    READER = "reader"
    """Queries, and statements that change the user's own session."""
    WRITER = "writer"
    """All that a reader may do, and DML, DDL, rows and jobs."""
    OPERATOR = "operator"
    """All commands of the operator door, and the whole status page."""
    PEER = "peer"
    """Requests between HAProcs; only who sends the ring's secret has this role."""


@dataclass(frozen=True, slots=True)
class Rights:
    """A user's roles, and patterns of tables (``spark_catalog.sales.*``, in lower case)."""

    roles: tuple[Role, ...] = (Role.READER, Role.WRITER)
    tables: tuple[str, ...] = (ANY_TABLE,)

    def has(self, role: Role) -> bool:
        """True if these rights include this role; a writer may also do what a reader may."""
        return role in self.roles or (role is Role.READER and Role.WRITER in self.roles)

    @property
    def bounded(self) -> bool:
        """True if there are tables that these rights do not include."""
        return ANY_TABLE not in self.tables

    def outside(self, kind: Kind, touched: Touched) -> str | None:
        """Return what a statement touches outside these rights, in words; None if there is nothing.

        In doubt it is outside: a statement that may touch more than is known.
        """
        if not self.bounded:
            return None
        if kind in _OF_NO_TABLE:
            return f"no table alone ({kind.value.replace('_', ' ')})"
        for table in sorted(touched.tables):
            if not any(fnmatchcase(table, pattern) for pattern in self.tables):
                return table
        for schema in sorted(touched.schemas):
            if not any(_has_all_of(pattern, schema) for pattern in self.tables):
                return f"{schema}.*" if schema else "all schemas"
        code = touched.expressions is None or runs_code(touched)
        if not touched.known or kind is Kind.UNKNOWN or code:
            return "tables, files or code that HAProc cannot name"
        return None


def runs_code(touched: Touched) -> bool:
    """True if a statement runs code that is not SQL and could read the files of any table."""
    return not CODE.isdisjoint(touched.expressions or ())


NOTHING: Final = Rights(())
UNBOUNDED: Final = Rights()
"""The rights of a user if the configuration states none: reader and writer, of all tables."""


def _has_all_of(pattern: str, schema: str) -> bool:
    """True if it is certain that ``pattern`` matches each table of ``schema``.

    An empty schema means all schemas. Then the result is False: the caller has handled `ANY_TABLE`.
    """
    begins = pattern.removesuffix("*")
    plain = begins != pattern and not any(each in begins for each in "*?[")
    return plain and bool(schema) and f"{schema}.".startswith(begins)
