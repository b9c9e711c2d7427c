"""Names that are functions or keywords, columns with such names, and expressions of these."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

TYPES: Final = ("INT", "STRING", "DATE", "TIMESTAMP", "DOUBLE")
LITERALS: Final = {
    "INT": ("0", "1", "2", "3", "NULL"),
    "STRING": ("'a'", "'b'", "'c'", "NULL"),
    "DATE": ("DATE'2020-01-01'", "DATE'2020-06-05'", "NULL"),
    "TIMESTAMP": ("TIMESTAMP'2020-01-01 00:00:00'", "TIMESTAMP'2020-06-05 07:08:09'", "NULL"),
    "DOUBLE": ("1.5D", "2.5D", "-1.0D", "NULL"),
}
CALLS: Final = {
    "INT": ("length(uuid())", "year(DATE'2020-01-01')", "hash(1)"),
    "STRING": ("current_user()", "user()", "uuid()", "session_user()", "current_schema()"),
    "DATE": ("current_date()", "curdate()", "to_date('2020-02-02')"),
    "TIMESTAMP": ("current_timestamp()", "now()", "localtimestamp()"),
    "DOUBLE": ("rand()", "random()", "pi()"),
}
BARE: Final = {
    "DATE": ("current_date",),
    "TIMESTAMP": ("current_timestamp", "localtimestamp"),
    "STRING": ("current_user", "user", "session_user", "current_schema", "current_catalog"),
    "DOUBLE": ("rand", "random", "e"),
    "INT": ("value", "key", "count"),
}
"""Functions without parentheses, by their type."""
OTHERS: Final = (
    "now",
    "uuid",
    "date",
    "timestamp",
    "order",
    "select",
    "table",
    "interval",
    "exists",
)
UNUSUAL: Final = ("now()", "a.b", "tick`ed", "Mixed Case", "zahl=ü", "current_date()")
"""Names that Delta accepts only in tables with column mapping."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, or an argument of a lambda."""

    name: str
    kind: str


class Names:
    """The columns of one table, and expressions over them, generated from a seed."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.columns = self._columns()

    def _columns(self) -> list[Column]:
        """Return four or five columns, most of which have names of functions."""
        rng, made = self.rng, [Column("id", "INT")]
        unusual = rng.random() < 0.4
        while len(made) < rng.choice((4, 5)):
            kind = rng.choice(TYPES)
            pool = [*BARE[kind], *OTHERS] + list(UNUSUAL) * unusual
            # Now and then what the name would be as a function is of another type.
            name = rng.choice(rng.choice(list(BARE.values())) if rng.random() < 0.15 else pool)
            if name.lower() not in {column.name.lower() for column in made}:
                made.append(Column(name, kind))
        return made

    def quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def name(self, column: Column, of: str = "") -> str:
        """Return a written form of a column: plain, in capitals, quoted, with its table."""
        text = self.quoted(column.name)
        plain = column.name.isidentifier() and column.name.isascii()
        if plain and column.name not in ("order", "select", "table") and self.rng.random() < 0.6:
            text = column.name if self.rng.random() < 0.7 else column.name.upper()
        return f"{of}.{text}" if of and self.rng.random() < 0.5 else text

    def value(self, kind: str, columns: Sequence[Column], of: str = "", deep: int = 1) -> str:
        """Return an expression of a type: a column, a literal, or a name that is no column here."""
        fitting = [column for column in columns if column.kind == kind]
        roll = self.rng.random()
        if fitting and roll < 0.5:
            return self.name(self.rng.choice(fitting), of)
        if roll < 0.62:
            # Not often one that is nothing where it is no column.
            sure = kind in ("DATE", "TIMESTAMP", "STRING") or self.rng.random() < 0.15
            return self.rng.choice(BARE[kind] if sure else LITERALS[kind])
        if roll < 0.72:
            return self.rng.choice(CALLS[kind])
        if deep and roll < 0.86:
            inner = [self.value(kind, columns, of, deep - 1) for _ in range(2)]
            return f"{self.rng.choice(('coalesce', 'ifnull', 'nullif'))}({', '.join(inner)})"
        return self.rng.choice(LITERALS[kind])

    def predicate(self, columns: Sequence[Column], of: str = "", deep: int = 1) -> str:
        """Return a condition whose result does not depend on the moment, the user or chance."""
        if deep and self.rng.random() < 0.3:
            inner = [self.predicate(columns, of, 0) for _ in range(2)]
            return f"({self.rng.choice((' AND ', ' OR ')).join(inner)})"
        column = self.rng.choice(list(columns))
        name = self.name(column, of)
        literal = self.rng.choice([each for each in LITERALS[column.kind] if each != "NULL"])
        if column.kind in ("INT", "DATE", "TIMESTAMP") and self.rng.random() < 0.5:
            return f"{name} {self.rng.choice(('<', '>', '<=', '>='))} {literal}"
        if self.rng.random() < 0.3:
            return f"{name} IS {self.rng.choice(('', 'NOT '))}NULL"
        if self.rng.random() < 0.3:
            # A function, as a rule, if it is no column.
            other = self.rng.choice(BARE[column.kind])
            return f"{other} {self.rng.choice(('=', '<>', '<=>'))} {literal}"
        return f"{name} {self.rng.choice(('=', '<>', '<=>'))} {literal}"

    def values(self, columns: Sequence[Column], of: str = "") -> list[str]:
        return [self.value(column.kind, columns, of) for column in self.columns]

    def names(self) -> str:
        return ", ".join(self.quoted(column.name) for column in self.columns)

    def aliased(self, columns: Sequence[Column], of: str = "") -> str:
        return ", ".join(
            f"{value} AS {self.quoted(column.name)}"
            for value, column in zip(self.values(columns, of), self.columns, strict=True)
        )
