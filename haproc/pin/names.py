"""Names without parentheses: whether one is an alias, a table, a column, or a function after all.

``current_date``, ``user`` and a few others are functions for Spark where no column has the name.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

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
    return scan.opening[at] >= 0 and scan.word(scan.opening[at] - 1) == "INSERT"


class Columns:
    """What the statement itself shows of its columns' names.

    The first place that tells decides. That depends on the name alone, except at that place
    itself, where the next one decides: so two are kept for each name, and each place is looked at
    once.
    """

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._telling: dict[str, list[tuple[int, bool]]] = {}

    def is_elsewhere(self, at: int, name: str) -> bool:
        """Whether another place than ``at`` shows that there is a column of that name."""
        telling = self._telling.get(name)
        if telling is None:
            telling = self._telling[name] = list(islice(self._told(name), 2))
        return next((is_column for place, is_column in telling if place != at), False)

    def _told(self, name: str) -> Iterator[tuple[int, bool]]:
        scan = self._scan
        for place in scan.places.get(name, ()):
            if scan.symbol(place - 1) == "." or scan.kind(place) is TokenKind.QUOTED_NAME:
                yield place, scan.symbol(place + 1) != "("
            elif scan.symbol(place + 1) not in ("(", ".") and is_declared(scan, place):
                yield place, scan.word(place - 1) not in TABLE_WORDS
