"""The rights of a user: roles, and the tables that statements may touch.

A role opens doors (`haproc.doors.roles`) and lets statements write; tables bound the objects that
statements touch (`haproc.classify.rules`). Values only: the check of a token finds the rights.
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
"""Spark's classes of code outside SQL, which could read the files of any table."""


_OF_NO_TABLE: Final = frozenset(
    {
        Kind.CREATE_FUNCTION,
        Kind.DROP_FUNCTION,
        Kind.CREATE_NAMESPACE,
        Kind.ALTER_NAMESPACE,
        Kind.DROP_NAMESPACE,
    }
)
"""Kinds that change objects which patterns of tables do not name and other users may need."""


class Role(StrEnum):
    """A role: the requests that a user's token allows."""

    READER = "reader"
    """Queries, and statements that change the own session."""
    WRITER = "writer"
    """All that a reader may do, DML, DDL, rows and jobs."""
    OPERATOR = "operator"
    """The operator door: commands, and the whole status page."""
    PEER = "peer"
    """Requests between HAProcs; only the ring's secret has this role."""


@dataclass(frozen=True, slots=True)
class Rights:
    """Roles, and patterns of tables (``spark_catalog.sales.*``, in lower case)."""

    roles: tuple[Role, ...] = (Role.READER, Role.WRITER)
    tables: tuple[str, ...] = (ANY_TABLE,)

    def has(self, role: Role) -> bool:
        """True if these rights include those of a role; a writer reads as well."""
        return role in self.roles or (role is Role.READER and Role.WRITER in self.roles)

    @property
    def bounded(self) -> bool:
        """True if there are tables that these rights do not include."""
        return ANY_TABLE not in self.tables

    def outside(self, kind: Kind, touched: Touched) -> str | None:
        """Return a part of a statement that these rights do not include; None if they include all.

        Fails closed: a statement that may touch more than is known is outside.
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
    """True if a statement runs code outside SQL, which could read the files of any table."""
    return not CODE.isdisjoint(touched.expressions or ())


NOTHING: Final = Rights(())
UNBOUNDED: Final = Rights()
"""The rights of a user for whom the configuration states nothing else."""


def _has_all_of(pattern: str, schema: str) -> bool:
    """True if a pattern surely matches each table of a schema.

    An empty schema means all schemas. Then it is False: the caller has handled `ANY_TABLE`.
    """
    begins = pattern.removesuffix("*")
    plain = begins != pattern and not any(each in begins for each in "*?[")
    return plain and bool(schema) and f"{schema}.".startswith(begins)
