"""A second reading of a statement's tables, by sqlglot, which can only raise doubt.

The tables that decide which operations may run side by side come from HAProc's own scanner. Where
sqlglot can read the statement too and names a table that the scanner did not see, one of both is
wrong, and the statement counts as one of unknown tables. What sqlglot cannot read (it does not
know all of Spark, nor of Delta) stays as the scanner found it.
"""

from __future__ import annotations

import functools
import logging

import sqlglot
from sqlglot import exp

from haproc.classify.model import Kind
from haproc.classify.names import Context, qualified
from haproc.classify.reader import Recognised

# A longer text is read by the scanner alone: sqlglot takes about a second for 600 kB.
LENGTH_MAX = 20_000
_KEPT = 256
"""Findings remembered: PySpark sends a text first to learn its schema, then to have its rows."""

_CHECKED = frozenset(
    {
        Kind.SELECT,
        Kind.VALUES,
        Kind.INSERT,
        Kind.INSERT_OVERWRITE,
        Kind.UPDATE,
        Kind.DELETE,
        Kind.MERGE,
        Kind.CREATE_TABLE_AS,
        Kind.CREATE_VIEW,
    }
)
_ROOTS = (
    exp.Query,
    exp.Insert,
    exp.MultitableInserts,
    exp.Update,
    exp.Delete,
    exp.Merge,
    exp.Create,
)

# It logs each statement that it can't read; here that is nothing to report.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


def is_doubtful(sql: str, recognised: Recognised, context: Context) -> bool:
    """Whether sqlglot sees a table in the statement that ``recognised`` does not hold."""
    if recognised.kind not in _CHECKED or not recognised.tables_known or len(sql) > LENGTH_MAX:
        return False
    tables = _tables(sql, context)
    return not tables <= (recognised.reads | recognised.writes)


@functools.lru_cache(maxsize=_KEPT)
def _tables(sql: str, context: Context) -> frozenset[str]:
    """Return the tables that sqlglot finds; none where it can't read the statement."""
    try:
        trees = sqlglot.parse(sql, dialect="databricks")
    except Exception:  # it has errors of its own, and fails in any way on what it does not know
        return frozenset()
    if len(trees) != 1 or not isinstance(trees[0], _ROOTS):
        return frozenset()
    tree = trees[0]
    common = {table.alias_or_name.lower() for table in tree.find_all(exp.CTE)}
    found = set()
    for table in tree.find_all(exp.Table):
        parts = tuple(part.name for part in table.parts if isinstance(part, exp.Identifier))
        if len(parts) != len(table.parts) or (len(parts) == 1 and parts[0].lower() in common):
            continue
        found.add(qualified(parts, context))
    return frozenset(found)
