"""What a user may do: roles, and the tables that statements may touch.

A role opens doors (`haproc.doors.roles`) and lets statements write; tables bound what statements
touch (`haproc.classify.rules`). Values only: where a token is checked, its user's rights are found.
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
"""Spark's classes of what runs code outside SQL, which could read the files of any table."""


_OF_NO_TABLE: Final = frozenset(
    {
        Kind.CREATE_FUNCTION,
        Kind.DROP_FUNCTION,
        Kind.CREATE_NAMESPACE,
        Kind.ALTER_NAMESPACE,
        Kind.DROP_NAMESPACE,
    }
)
"""Kinds that change what patterns of tables do not name, and other users rest on."""


class Role(StrEnum):
    """What a user's token opens."""

    READER = "reader"
    """Queries, and statements that change the own session."""
    WRITER = "writer"
    """All that a reader may do, DML, DDL, rows and jobs."""
    OPERATOR = "operator"
    """The operator door: commands, and all that the status page shows."""
    PEER = "peer"
    """What HAProcs ask each other; the ring's secret alone has it."""


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
        """Return what of a statement these rights do not include; None: they include all of it.

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
    """True if a statement runs code outside SQL: that could read the files of any table."""
    return not CODE.isdisjoint(touched.expressions or ())


NOTHING: Final = Rights(())
UNBOUNDED: Final = Rights()
"""Those of a user of whom the configuration says nothing more."""


def _has_all_of(pattern: str, schema: str) -> bool:
    """True if a pattern matches each table of a schema; an empty one stands for all schemas."""
    begins = pattern.removesuffix("*")
    plain = begins != pattern and not any(each in begins for each in "*?[")
    return plain and bool(schema) and f"{schema}.".startswith(begins)
