"""Random, difficult sequences of statements on one table, to test their combination.

Keys occur twice, are NULL, or are written in many ways; literals have other types than their
columns; statements may fail, and some cannot be combined.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from haproc.classify.insert import literal_type, plain_insert
from haproc.classify.model import Kind, OperationClass
from haproc.classify.names import Context
from haproc.engine.interface import Column
from haproc.engine.statement import SqlText
from haproc.replicate.compose.merging import statement
from haproc.replicate.compose.reading import change_of
from haproc.replicate.compose.window import ComposedWindow
from haproc.replicate.records.operation import Operation

KINDS = {kind.name: kind for kind in (Kind.INSERT, Kind.UPDATE, Kind.DELETE, Kind.MERGE)}
STRINGS = (
    *("'a'", "'A'", "'a '", "''", "'it''s'", "'0'", "'1'", "'1.0'", "'b'", "'c'", "'NULL'"),
    *(r"'\u0061'", r"'q\'q'", r"'\\'", r"'a\nb'", "'é'", "'e\u0301'", "'\U0001f600'"),
    *("'%'", r"'\%'", "'--'", "'/*'", "'`'", "'x, y)'", '"b"', "'null'", r"'\0'", "'ß'", "'SS'"),
)
INTEGERS: tuple[str, ...] = (
    "0",
    "1",
    "2",
    "3",
    "-1",
    "7",
    "127",
    "128",
    "2147483647",
    "2147483648",
    "1L",
    "2S",
)
INTEGERS += ("3Y", "-0", "007", "9223372036854775807", "-9223372036854775808")
DECIMALS = ("1.5", "1.50", "-0.00", "2.0", "0.005", "99999999.99", ".5", "1.5BD")
FLOATS = ("1e3", "1.5D", "-0.0D", "1.5F", "0.1F", "0.1D", "1e300", "1E-5")
DATES = ("DATE'2020-01-31'", "DATE '1582-10-10'", "date'0001-01-01'", "DATE'9999-12-31'")
ZONED = ("TIMESTAMP'2020-01-31 10:00:00.5+05:30'", "TIMESTAMP '2020-07-01 00:00:00-01:00'")
MOMENTS = ("TIMESTAMP'2020-01-31 10:00:00'", "TIMESTAMP'2020-01-31 10:00:00.123456'")
BYTES = ("X'00FF'", "X''")
BOOLEANS = ("TRUE", "false")
LITERALS = {
    "string": STRINGS,
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), INTEGERS),
    **dict.fromkeys(("decimal(10,2)", "decimal(38,3)"), DECIMALS),
    **dict.fromkeys(("float", "double"), FLOATS),
    "date": DATES,
    "timestamp": (*MOMENTS, *ZONED),
    "binary": BYTES,
    "boolean": BOOLEANS,
}
WIDER = {
    "string": (*INTEGERS, *DECIMALS, *DATES, *BOOLEANS, *FLOATS),
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), (*DECIMALS, *INTEGERS)),
    **dict.fromkeys(("decimal(10,2)", "decimal(38,3)"), (*INTEGERS, *DECIMALS)),
    **dict.fromkeys(("float", "double"), (*INTEGERS, *DECIMALS)),
}
"""Literals that are cast when they are stored, or refused."""
NUMBERS = frozenset({"tinyint", "smallint", "int", "bigint", "float", "double", "decimal(10,2)"})


def operation(sql: str, table: str) -> Operation:
    """Return a statement as an operation on a table, as the service would make it."""
    kind = KINDS[sql.split(maxsplit=1)[0].upper()]
    found = plain_insert(sql, Context()) if kind is Kind.INSERT else None
    shape = found.shape if found is not None else None
    writes = frozenset({table})
    asynchronous = OperationClass.ASYNCHRONOUS
    return Operation(sql, asynchronous, kind, "a", sql, SqlText(sql), writes=writes, insert=shape)


def combined(
    sqls: Sequence[str], table: str, columns: Sequence[Column]
) -> list[tuple[str, Sequence[str]]]:
    """Return statements with the same effect, each with the statements that it replaces."""
    statements: list[tuple[str, Sequence[str]]] = []
    window, members = ComposedWindow(columns), list[str]()

    def flush() -> None:
        nonlocal window, members
        text = statement(table, window) if len(members) > 1 else None
        parts = [(each, [each]) for each in members]
        statements.extend([(text, members)] if text else parts)
        window, members = ComposedWindow(columns), []

    for sql in sqls:
        change = change_of(operation(sql, table))
        if change is None or not window.take(change):
            flush()
            if change is None or not window.take(change):
                statements.append((sql, [sql]))
                continue
        members.append(sql)
    flush()
    return statements


@dataclass
class Writer:
    """Writes random statements on a table of these columns, the first of which are keys."""

    rng: random.Random
    table: str
    columns: Sequence[Column]
    keys: int = 1

    def window(self, length: int) -> list[str]:
        """Return some statements."""
        choices = [*[self.insert, self.update, self.upsert] * 2, self.delete]
        return [self.rng.choice(choices)() for _ in range(length)]

    def literal(self, column: Column) -> str:
        """Return a literal, mostly of the column's type."""
        if self.rng.random() < 0.1:
            return "NULL"
        wider = self.rng.random() < 0.15
        found = WIDER.get(column.type_text) if wider else None
        return self.rng.choice(found or LITERALS[column.type_text])

    def key(self, column: Column) -> str:
        """Return one of few values, so that statements conflict."""
        if self.rng.random() < 0.05:
            return self.literal(column)
        return self.rng.choice(LITERALS[column.type_text][:4])

    def value(self, at: int) -> str:
        column = self.columns[at]
        return self.key(column) if at < self.keys else self.literal(column)

    def insert(self) -> str:
        """Return an INSERT, with or without a list of columns, of one or more rows."""
        order = list(range(len(self.columns)))
        names = ""
        if self.rng.random() < 0.5:
            self.rng.shuffle(order)
            order = order[: self.rng.randint(1, len(order))]
            names = f" ({', '.join(self.columns[at].name for at in order)})"
        rows = self.rng.choice((1, 1, 2, 3))
        values = [f"({', '.join(map(self.value, order))})" for _ in range(rows)]
        return f"INSERT INTO {self.table}{names} VALUES {', '.join(values)}"

    def where(self) -> str:
        parts = []
        for column in self.columns[: self.keys]:
            if self.rng.random() < 0.3:
                several = ", ".join(self.key(column) for _ in range(self.rng.randint(1, 3)))
                parts.append(f"{column.name} IN ({several})")
            else:
                parts.append(f"{column.name} = {self.key(column)}")
        if self.rng.random() < 0.05:
            parts.append(f"{self.columns[-1].name} IS NULL")
        self.rng.shuffle(parts)
        return " AND ".join(parts)

    def delete(self) -> str:
        return f"DELETE FROM {self.table} WHERE {self.where()}"

    def update(self) -> str:
        others = list(self.columns[self.keys :])
        chosen = self.rng.sample(others, self.rng.choice((1, 1, 2)))
        sets = ", ".join(f"{column.name} = {self.new(column)}" for column in chosen)
        return f"UPDATE {self.table} SET {sets} WHERE {self.where()}"

    def upsert(self) -> str:
        """Return a MERGE from literals, in any of its forms."""
        others = range(self.keys, len(self.columns))
        chosen = sorted(self.rng.sample(others, self.rng.randint(0, len(others))))
        if self.rng.random() < 0.4:
            chosen = list(others)
        at = [*range(self.keys), *chosen]
        names = [self.columns[n].name for n in at]
        rows = self.rng.choice((1, 1, 1, 2, 3))
        columns = [self.alike(n, rows) for n in at]
        source = self.source(names, [list(row) for row in zip(*columns, strict=True)])
        on = " AND ".join(f"tt.{name} = ss.{name}" for name in names[: self.keys])
        whole = len(at) == len(self.columns)
        matched, comes = self.matched(chosen, whole), self.comes(chosen, whole)
        clauses = "\n".join(filter(None, (matched, comes))) or "WHEN MATCHED THEN DELETE"
        return f"MERGE INTO {self.table} AS tt USING ({source}) AS ss ON {on}\n{clauses}"

    def alike(self, at: int, rows: int) -> list[str]:
        """Return literals for a column of a source, mostly of one type."""
        texts = [self.given(at)]
        while len(texts) < rows:
            tried = [self.given(at) for _ in range(4)]
            fit = [text for text in tried if literal_type(text) == literal_type(texts[0])]
            texts.append((fit or tried)[0])
        return texts

    def given(self, at: int) -> str:
        if at < self.keys and self.rng.random() < 0.05:
            return "NULL"
        return self.value(at)

    def source(self, names: list[str], rows: list[list[str]]) -> str:
        """Return rows of literals in one of the ways to write them."""
        if self.rng.random() < 0.3:
            first = ", ".join(f"{value} AS {n}" for value, n in zip(rows[0], names, strict=True))
            return " UNION ALL ".join(
                f"SELECT {text}" for text in (first, *(", ".join(row) for row in rows[1:]))
            )
        values = ", ".join(f"({', '.join(row)})" for row in rows)
        begins = self.rng.choice(("VALUES", "SELECT * FROM VALUES"))
        return f"{begins} {values} AS x({', '.join(names)})"

    def matched(self, chosen: list[int], whole: bool) -> str:
        """Return the clause for rows that exist."""
        kind = self.rng.choice(("update", "update", "update", "delete", ""))
        condition = f" AND ss.{self.columns[0].name} = 1" if self.rng.random() < 0.03 else ""
        if kind == "delete":
            return f"WHEN MATCHED{condition} THEN DELETE"
        if not kind:
            return ""
        if whole and self.rng.random() < 0.4:
            return f"WHEN MATCHED{condition} THEN UPDATE SET *"
        at = self.rng.sample(range(self.keys, len(self.columns)), self.rng.choice((1, 1, 2)))
        sets = [f"{self.columns[n].name} = {self.blend(n, n in chosen)}" for n in at]
        if self.rng.random() < 0.3:
            key = self.columns[0].name
            sets.insert(0, f"tt.{key} = ss.{key}")
        return f"WHEN MATCHED{condition} THEN UPDATE SET {', '.join(sets)}"

    def blend(self, at: int, given: bool) -> str:
        """Return a value for a column, from the source's row and the table's."""
        column = self.columns[at]
        if not given:
            return self.new(column, "tt.")
        own, other = f"tt.{column.name}", f"ss.{column.name}"
        if self.rng.random() < 0.5:
            return other
        if column.type_text == "string":
            return self.rng.choice((f"{own} || {other}", f"coalesce({other}, {own})"))
        if column.type_text not in NUMBERS:
            return f"coalesce({other}, {own})"
        return self.rng.choice((f"{own} + {other}", f"{other} - {own}", f"{other} + 1"))

    def comes(self, chosen: list[int], whole: bool) -> str:
        """Return the clause for rows that do not exist."""
        if self.rng.random() < 0.25:
            return ""
        begins = f"WHEN NOT MATCHED{self.rng.choice(('', ' BY TARGET'))} THEN INSERT"
        if whole and self.rng.random() < 0.5:
            return f"{begins} *"
        others = [n for n in range(self.keys, len(self.columns)) if self.rng.random() < 0.7]
        at = [*range(self.keys), *others]
        self.rng.shuffle(at)
        values = []
        for n in at:
            given = n < self.keys or (n in chosen and self.rng.random() < 0.8)
            values.append(f"ss.{self.columns[n].name}" if given else self.literal(self.columns[n]))
        names = ", ".join(self.columns[n].name for n in at)
        return f"{begins} ({names}) VALUES ({', '.join(values)})"

    def new(self, column: Column, of: str = "") -> str:
        """Return a literal, or an expression over the row's columns; ``of`` is their prefix."""
        if self.rng.random() < 0.5:
            return self.literal(column)
        others = [c for c in self.columns if c.type_text == column.type_text]
        other = f"{of}{self.rng.choice(others).name}"
        if column.type_text == "string":
            text = self.rng.choice(STRINGS)
            return self.rng.choice((f"{other} || {text}", f"upper({other})", other))
        if column.type_text not in NUMBERS:
            return other
        number = self.rng.choice(("1", "2", "1.5", "-3"))
        sign = self.rng.choice("+-*")
        return self.rng.choice((f"{other} {sign} {number}", f"coalesce({other}, 0)", other))
