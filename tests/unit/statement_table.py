"""Reads statements.txt: the expected classification of each statement."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_PART = re.compile(r"(?:`(?:[^`]|``)*`|[^.])+")


@dataclass(frozen=True, slots=True)
class Expected:
    """A line of the table."""

    sql: str
    kind: str
    operation_class: str = ""
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    tables_known: bool = True
    error_class: str = ""


def statements() -> list[Expected]:
    """Return all lines, refused statements too."""
    text = Path(__file__).with_name("statements.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [_expected(line) for line in lines]


def accepted() -> list[Expected]:
    """Return the statements that are not refused."""
    return [expected for expected in statements() if not expected.error_class]


def unread() -> list[Expected]:
    """Return the statements that only Spark's reading refuses."""
    return [expected for expected in statements() if expected.kind == "unread"]


def _expected(line: str) -> Expected:
    if line.startswith(("refused", "unread")):
        kind, error_class, sql = line.split(None, 2)
        return Expected("" if sql == '""' else sql, kind, error_class=error_class)
    kind, operation_class, reads, writes, sql = line.split(None, 4)
    return Expected(
        sql,
        kind,
        operation_class,
        reads=_tables(reads.removesuffix("?")),
        writes=_tables(writes),
        tables_known=not reads.endswith("?"),
    )


def _tables(text: str) -> frozenset[str]:
    return frozenset() if text == "-" else frozenset(_full(name) for name in text.split(","))


def _full(name: str) -> str:
    parts = len(_PART.findall(name))
    return {1: "spark_catalog.default.", 2: "spark_catalog."}.get(parts, "") + name
