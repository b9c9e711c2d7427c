"""Names without parentheses: whether one is an alias, a table, a column, or a function after all.

``current_date``, ``user`` and a few others are functions for Spark where no column has the name.
"""

from __future__ import annotations

from haproc.classify.tokens import TokenKind
from haproc.pin.scan import Scan

_FROM_CALLS = frozenset({"extract", "trim", "ltrim", "rtrim", "substring", "substr", "overlay"})
TABLE_WORDS = frozenset({"FROM", "JOIN", "INTO", "UPDATE", "TABLE", "VIEW", "USING"})
_ROW_WORDS = frozenset(
    {"TRUE", "FALSE", "NULL", "DEFAULT", "VALUES", "AS", "CASE", "WHEN", "THEN", "ELSE", "END"}
    | {"AND", "OR", "NOT", "IS", "IN", "LIKE", "ILIKE", "RLIKE", "REGEXP", "BETWEEN", "DIV"}
    | {"FROM", "TO", "FOR", "LEADING", "TRAILING", "BOTH", "PLACING", "ESCAPE", "DISTINCT"}
    | {"ANY", "ALL", "SOME", "COLLATE", "INTERVAL", "STRING", "BOOLEAN", "BYTE", "TINYINT"}
    | {"SHORT", "SMALLINT", "INT", "INTEGER", "LONG", "BIGINT", "FLOAT", "REAL", "DOUBLE", "DATE"}
    | {"TIME", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "DECIMAL", "DEC", "NUMERIC"}
    | {"BINARY", "VARIANT", "VOID", "CHAR", "VARCHAR", "ARRAY", "MAP", "STRUCT"}
    | {unit + end for end in ("", "S") for unit in ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY")}
    | {unit + end for end in ("", "S") for unit in ("HOUR", "MINUTE", "SECOND")}
    | {unit + end for end in ("", "S") for unit in ("MILLISECOND", "MICROSECOND", "NANOSECOND")}
)
"""What may stand in an expression that sees no column without being a value of its own."""


def has_meaning_in_rows(scan: Scan, at: int) -> bool:
    """Whether a word in a VALUES list is something else than a session variable."""
    if scan.word(at) in _ROW_WORDS or scan.symbol(at + 1) in ("(", "->", "=>"):
        return True
    return scan.kind(at + 1) is TokenKind.STRING or scan.is_alias(at)


def is_declared(scan: Scan, at: int) -> bool:
    """Whether the name is an alias, a table or the target of an assignment."""
    before = scan.word(at - 1)
    if before == "AS" or scan.ends_operand(at - 1):
        return True
    if before == "FROM":
        is_expression = scan.word(at - 2) == "DISTINCT"
        return not is_expression and scan.enclosing_call(at) not in _FROM_CALLS
    if before in TABLE_WORDS:
        return True
    is_first = before == "SET" or (scan.symbol(at - 1) == "," and not scan.depth[at])
    if is_first and scan.symbol(at + 1) == "=" and scan.word(0) != "INSERT":
        return True
    return _is_in_column_list(scan, at)


def _is_in_column_list(scan: Scan, at: int) -> bool:
    """Whether the name stands in MERGE's ``INSERT (a, b)``."""
    for opening in range(at - 1, -1, -1):
        if scan.symbol(opening) == "(" and scan.depth[opening] == scan.depth[at] - 1:
            return scan.word(opening - 1) == "INSERT"
    return False


def is_column_elsewhere(scan: Scan, at: int, name: str) -> bool:
    """Whether the statement itself shows that there is a column of that name."""
    for other in range(len(scan.tokens)):
        if other == at or not scan.is_name(other) or scan.name(other) != name:
            continue
        if scan.symbol(other - 1) == "." or scan.kind(other) is TokenKind.QUOTED_NAME:
            return scan.symbol(other + 1) != "("
        if scan.symbol(other + 1) not in ("(", ".") and is_declared(scan, other):
            return scan.word(other - 1) not in TABLE_WORDS
    return False
