"""The body of a SQL function, as a query whose plan shows what is in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from haproc.pin.inline import UnclearError
from haproc.pin.scan import Scan
from haproc.pin.sqltypes import quote_name

_TYPE_ENDS = frozenset(
    {"NOT", "NULL", "DEFAULT", "GENERATED", "COMMENT", "CHECK", "PRIMARY", "REFERENCES"}
    | {"CONSTRAINT", "UNIQUE", "MASK"}
)
_NO_COLUMNS = frozenset({"CONSTRAINT", "CHECK", "PRIMARY", "UNIQUE", "FOREIGN"})
_LABEL = re.compile(r"([A-Z][A-Za-z ]*): +(.*)\Z")


@dataclass(frozen=True, slots=True)
class Function:
    """A SQL function as its cluster describes it."""

    parameters: tuple[tuple[str, str], ...]
    """Names and types."""
    body: str
    returns: str = ""
    """The type, or the columns of the table, to which Spark casts what the body gives."""


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
