"""Which DDL touches nothing but the tables that it names, so that it need not wait for all others.

What names a place may touch the files of a table that it does not name. What is about a schema
or a function touches names that it does not say. So this is a closed list, and whatever is not
certain is not on it. Decided once, where the operation is made, and written into its record.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from haproc.classify.model import Kind
from haproc.classify.tokens import LexicalError, TokenKind, tokenize
from haproc.engine.statement import ArrowRows, SparkPlan
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import ComputedPlan, SpooledRows

_KINDS: Final = frozenset(
    {
        Kind.CREATE_TABLE,
        Kind.CREATE_TABLE_AS,
        Kind.ALTER_TABLE,
        Kind.DROP_TABLE,
        Kind.CREATE_VIEW,
        Kind.ALTER_VIEW,
        Kind.DROP_VIEW,
    }
)
_PLACES: Final = (b"path", b"location")
"""In the names of options of a plan that say where a table's files are."""
_GOES_ON: Final = frozenset({"FROM", "AS"})
"""Behind a column of the name ``location``."""


def names_all(op: Operation) -> bool:
    """Whether an operation is DDL that touches nothing but the tables that it names."""
    if not (op.tables_known and op.writes) or op.kind not in _KINDS:
        return False
    match op.write:
        case ArrowRows() | SpooledRows():
            return False
        case SparkPlan(plan):
            return not _says_place(plan)
        case ComputedPlan(query, template):
            return not (_says_place(query) or _says_place(template))
    return not _may_say_place(op.write.sql, renames=op.kind in (Kind.ALTER_TABLE, Kind.ALTER_VIEW))


def _says_place(plan: bytes) -> bool:
    plan = plan.lower()
    return any(word in plan for word in _PLACES)


def _may_say_place(sql: str, *, renames: bool) -> bool:
    """Whether a text may say where files are, or ``renames`` what it names."""
    try:
        tokens = [token for token in tokenize(sql) if token.kind is not TokenKind.HINT]
    except LexicalError:
        return True
    if renames and any(token.upper == "RENAME" for token in tokens):
        return True
    return any(
        (token.upper == "OPTIONS" and following.is_symbol("("))
        or (token.upper == "LOCATION" and not _is_column(following))
        for token, following in pairwise(tokens)
    )


def _is_column(following: object) -> bool:
    kind, upper = getattr(following, "kind", None), getattr(following, "upper", "")
    return kind is TokenKind.SYMBOL or upper in _GOES_ON
