"""Expressions that stay text in a plan, as queries whose plans show what is in them.

Spark keeps the expressions of generated columns, checks and function bodies as text, and computes a
DEFAULT only for some formats. So each becomes a query of its own, over typed NULLs where it may
name columns or parameters; and the source of a MERGE and the values of an UPDATE, whose subqueries
have no printed plans, become one too. What a DEFAULT gives is of its column's type then: Spark
makes it that whenever it is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from haproc.classify.model import Kind
from haproc.pin.definitions import expressions
from haproc.pin.inline import UnclearError
from haproc.pin.scan import Scan
from haproc.pin.sqltypes import quote_name

_TYPE_ENDS = frozenset(
    {"NOT", "NULL", "DEFAULT", "GENERATED", "COMMENT", "CHECK", "PRIMARY", "REFERENCES"}
    | {"CONSTRAINT", "UNIQUE", "MASK"}
)
_BEFORE_COLUMN = {
    "EXISTS": frozenset({"NOT", "IF"}),
    "COLUMN": frozenset({"ADD", "ALTER", "CHANGE"}),
    "COLUMNS": frozenset({"ADD", "ALTER", "CHANGE"}),
}
"""What a column's name stands behind, where that is no column's own name: behind these words."""
_CHANGING = frozenset({"ADD", "ALTER", "CHANGE"})
_NO_COLUMNS = frozenset({"CONSTRAINT", "CHECK", "PRIMARY", "UNIQUE", "FOREIGN"})
_RETURNS_END = frozenset({"LANGUAGE", "DETERMINISTIC", "NOT", "COMMENT", "CONTAINS", "READS"})
_RETURNS_END |= frozenset({"SQL", "RETURN", "DEFAULT", "CALLED"})
_LABEL = re.compile(r"([A-Z][A-Za-z ]*): +(.*)\Z")


@dataclass(frozen=True, slots=True)
class Function:
    """A SQL function as its cluster describes it."""

    parameters: tuple[tuple[str, str], ...]
    """Names and types."""
    body: str
    returns: str = ""
    """The type, or the columns of the table, to which Spark casts what the body gives."""


def merge_source(scan: Scan) -> str:
    """Return the query of everything that a MERGE reads beside its target."""
    outside = [at for at in range(len(scan.tokens)) if not scan.depth[at]]
    merge = next((at for at in outside if scan.word(at) == "MERGE"), -1)
    using = next((at for at in outside if at > merge and scan.word(at) == "USING"), -1)
    on = next((at for at in outside if at > using and scan.word(at) == "ON"), -1)
    if merge < 0 or using < 0 or on <= using + 1:
        raise UnclearError("the source of the MERGE cannot be told apart")
    common = scan.sql[: scan.tokens[merge].start]
    source = scan.sql[scan.tokens[using + 1].start : scan.tokens[on].start]
    return f"{common} SELECT * FROM {source}".strip()


def update_values(scan: Scan) -> str:
    """Return the query that shows what an UPDATE computes; empty if it has no subqueries.

    Their plans are not printed.
    """
    outside = [at for at in range(len(scan.tokens)) if not scan.depth[at]]
    update = next((at for at in outside if scan.word(at) == "UPDATE"), -1)
    sets = next((at for at in outside if at > update + 1 and scan.word(at) == "SET"), -1)
    if update < 0 or sets < 0:
        raise UnclearError("the parts of the UPDATE cannot be told apart")
    if not any(
        scan.symbol(at) == "(" and scan.starts_query(at + 1) for at in range(len(scan.tokens))
    ):
        return ""
    common = [scan.name(at) for at in range(update) if not scan.depth[at] and scan.is_name(at)]
    if scan.name(update + 1) in common:
        raise UnclearError("the target of the UPDATE has the name of a query in front of it")
    end = len(scan.tokens)
    where = next((at for at in outside if at > sets and scan.word(at) == "WHERE"), end)
    values = [_assigned(scan, *item) for item in _assignments(scan, sets + 1, where)]
    return " ".join(
        [
            f"{scan.sql[: scan.tokens[update].start]}SELECT {', '.join(values)}",
            f"FROM {scan.text(update + 1, sets - 1)}",
            *([scan.text(where, end - 1)] if where < end else []),
        ]
    )


def _assignments(scan: Scan, first: int, end: int) -> Iterator[tuple[int, int]]:
    for at in range(first, end + 1):
        if at == end or (scan.symbol(at) == "," and not scan.depth[at]):
            yield first, at
            first = at + 1


def _assigned(scan: Scan, first: int, end: int) -> str:
    """Return the value in ``column = value``."""
    value = next((at + 1 for at in range(first, end) if scan.symbol(at) in ("=", "==")), end)
    if value == end:
        raise UnclearError("an assignment of the UPDATE cannot be told apart")
    is_default = value + 1 == end and scan.word(value) == "DEFAULT"
    return "NULL" if is_default else f"({scan.text(value, end - 1)})"


def definitions(kind: Kind, writes: frozenset[str], scan: Scan) -> list[str]:
    """Return the queries of all expressions in a CREATE or ALTER TABLE or a CREATE FUNCTION."""
    if kind is Kind.CREATE_FUNCTION:
        start = next((at for at in range(len(scan.tokens)) if scan.word(at) == "RETURN"), -1)
        if start < 0 or start + 1 >= len(scan.tokens):
            return []
        columns = _columns_in(scan, 0, start)
        body = scan.sql[scan.tokens[start + 1].start :]
        defaults = [_over(_value(scan, first, end), ()) for first, end in _found(scan, start)]
        return [function_query(Function(tuple(columns), body, _returns(scan, start))), *defaults]
    found = _found(scan)
    if not found:
        return []
    if kind is Kind.ALTER_TABLE:
        if len(writes) != 1:
            raise UnclearError("which table is altered cannot be told")
        (table,) = writes
        return [f"SELECT ({_value(scan, first, end)}) FROM {table}" for first, end in found]
    columns = _columns_in(scan, 0, len(scan.tokens))
    return [_over(_value(scan, first, end), columns) for first, end in found]


def _found(scan: Scan, end: int = -1) -> list[tuple[int, int]]:
    """Return where expressions stand; DROP DEFAULT and DEFAULT COLLATION have none."""
    return [
        (first, behind)
        for first, behind in expressions(scan, end)
        if first < behind and scan.word(first) != "COLLATION"
    ]


def function_query(function: Function) -> str:
    """Return the query that computes a function's body for NULLs."""
    body = function.body.strip()
    is_query = re.match(r"(?:SELECT|WITH|FROM|VALUES|TABLE)\b", body, re.IGNORECASE) is not None
    if is_query:
        return _over(f"EXISTS ({_table(body, function.returns)}\n)", function.parameters)
    body = f"CAST(({body}\n) AS {function.returns})" if function.returns else body
    return _over(body, function.parameters)


def _table(query: str, columns: str) -> str:
    """Return the query with its columns cast to those of the table that a function returns."""
    scan = Scan(f"({columns})")
    found = _columns_in(scan, 0, len(scan.tokens))
    if not found:
        return query
    names = ", ".join(f"c{at}" for at in range(len(found)))
    casts = ", ".join(f"CAST(c{at} AS {kind})" for at, (_, kind) in enumerate(found))
    return f"SELECT {casts} FROM ({query}\n) AS q({names})"


def _returns(scan: Scan, body: int) -> str:
    """Return the type behind RETURNS, or the columns behind RETURNS TABLE; empty without one."""
    outside = [at for at in range(body) if not scan.depth[at]]
    start = next((at + 1 for at in outside if scan.word(at) == "RETURNS"), -1)
    if start < 0:
        return ""
    if scan.word(start) == "TABLE":
        opens = scan.symbol(start + 1) == "(" and scan.closing[start + 1] > start + 2
        return scan.text(start + 2, scan.closing[start + 1] - 1) if opens else ""
    end = next((at for at in outside if at > start and scan.word(at) in _RETURNS_END), body)
    return scan.text(start, end - 1) if end > start else ""


def described_function(rows: Sequence[str]) -> Function:
    """Read the answer of DESCRIBE FUNCTION EXTENDED; raises UnclearError for foreign code."""
    label, parts = "", dict[str, list[str]]()
    for row in rows:
        match = _LABEL.match(row) if label != "Body" else None
        if match is not None and not row.startswith(" "):
            label = match[1]
            parts[label] = [match[2]]
        elif label:
            parts[label].append(row.strip() if label != "Body" else row)
    if "Body" not in parts or parts.get("Type") not in (["SCALAR"], ["TABLE"]):
        raise UnclearError("it is no SQL function")
    parameters = []
    for line in parts.get("Input", []):
        if not line or line == "()":
            continue
        name, _, behind = line.partition(" ")
        kind = re.split(r"\s(?:DEFAULT|COMMENT|NOT)\s|\s'", behind.strip(), maxsplit=1)[0]
        parameters.append((name.strip("`"), kind.strip()))
    returns = [line.strip() for line in parts.get("Returns", []) if line.strip()]
    text = (" " if parts["Type"] == ["SCALAR"] else ", ").join(returns)
    return Function(tuple(parameters), "\n".join(parts["Body"]), text)


def _over(expression: str, columns: Sequence[tuple[str, str]]) -> str:
    nulls = ", ".join(f"CAST(NULL AS {kind}) AS {quote_name(name)}" for name, kind in columns)
    behind = f" FROM (SELECT {nulls})" if nulls else ""
    return f"SELECT ({expression}\n){behind}"


def _value(scan: Scan, first: int, end: int) -> str:
    """Return the text of an expression; a default's as what its column makes of it."""
    text, default = _text(scan, first, end), first - 1
    if scan.word(default) != "DEFAULT":
        return text
    start = _column_start(scan, default)
    if scan.word(default - 1) == "SET":  # of a column that is there; of both Spark makes one type
        return f"coalesce({scan.text(start, default - 2)}, ({text}\n))"
    _, kind = _column(scan, start, default)
    return f"CAST(({text}\n) AS {kind})"


def _column_start(scan: Scan, default: int) -> int:
    """Return where the column or parameter begins that a DEFAULT belongs to."""
    depth, angles = scan.depth[default], 0
    for at in range(default - 1, -1, -1):
        symbol = scan.symbol(at)
        if symbol in ("<", ">", ">>", ">>>"):
            angles += len(symbol) if symbol != "<" else -1
        if scan.depth[at] < depth or (symbol == "," and scan.depth[at] == depth and not angles):
            return at + 1
        if not depth and _is_before_column(scan, at) and scan.is_name(at + 1):
            return at + 1
    raise UnclearError("which column a default belongs to cannot be told")


def _is_before_column(scan: Scan, at: int) -> bool:
    word, before = scan.word(at), scan.word(at - 1)
    if word in _CHANGING:
        return before not in _BEFORE_COLUMN and before not in _CHANGING
    return before in _BEFORE_COLUMN.get(word, ())


def _text(scan: Scan, first: int, end: int) -> str:
    """Return the text of an expression, without the words of its column that follow a default."""
    if scan.symbol(first) == "(" and scan.closing[first] == end - 1:
        return scan.text(first, end - 1)
    depth = scan.depth[first] if first < end else 0
    for at in range(first + 1, end):
        word = scan.word(at)
        ends = word in ("COMMENT", "CHECK", "GENERATED", "CONSTRAINT", "MASK", "AFTER")
        ends = ends or (word == "FIRST" and scan.symbol(at + 1) != "(")
        ends = ends or (word == "NOT" and scan.word(at - 1) != "IS" and scan.word(at + 1) == "NULL")
        if ends and scan.depth[at] == depth:
            return scan.text(first, at - 1)
    return scan.text(first, end - 1)


def _columns_in(scan: Scan, start: int, end: int) -> list[tuple[str, str]]:
    """Return names and types of the first list of columns in parentheses."""
    opening = next((at for at in range(start, end) if scan.symbol(at) == "("), -1)
    if opening < 0:
        return []
    columns = []
    first, depth = opening + 1, scan.depth[opening] + 1
    angles = 0
    for at in range(opening + 1, scan.closing[opening] + 1):
        if scan.symbol(at) in ("<", ">", ">>", ">>>"):
            angles += 1 if scan.symbol(at) == "<" else -len(scan.symbol(at))
        ends = at == scan.closing[opening] or (
            scan.symbol(at) == "," and scan.depth[at] == depth and angles <= 0
        )
        if ends:
            if first < at and not (
                scan.word(first) in _NO_COLUMNS and scan.symbol(first + 1) != ":"
            ):
                columns.append(_column(scan, first, at))
            first, angles = at + 1, 0
    return columns


def _column(scan: Scan, first: int, end: int) -> tuple[str, str]:
    if not scan.is_name(first) or first + 1 >= end:
        raise UnclearError("a column has no name or no type")
    kind_at = first + 1 + (scan.symbol(first + 1) == ":")
    stop = next(
        (
            at
            for at in range(kind_at, end)
            if scan.word(at) in _TYPE_ENDS and scan.depth[at] == scan.depth[first]
        ),
        end,
    )
    if stop == kind_at:
        raise UnclearError("a column has no type")
    return scan.name(first), scan.text(kind_at, stop - 1)
