"""Random tables whose columns have the names of functions, and random statements over them.

All comes from a seed. Most statements are accepted by Spark; a few break a rule of its own, and
have to be answered alike by whoever is compared.

    python -m tests.readings.generate SEED [STATEMENTS]
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

NAMES: Final = (
    *("current_date", "now", "user", "rand", "values", "current_timestamp", "current_user"),
    *("session_user", "localtimestamp", "uuid", "current_time", "current_catalog", "random"),
    *("current_schema", "current_database", "current_timezone", "today", "date", "timestamp"),
    *("insert", "update", "delete", "merge", "source", "set", "table", "first", "count", "sum"),
    *("year", "input_file_name", "monotonically_increasing_id", "unix_timestamp", "curdate"),
    *("session", "system", "builtin", "if", "version", "getdate", "row_number", "shuffle"),
)
QUOTED: Final = (
    "now()",
    "current_date()",
    "rand",
    "a b",
    ":x",
    "?",
    "uuid()",
    "it's",
    "user)",
    "ä",
)
"""These need backticks, and a table that maps names."""
TYPES: Final = ("INT", "BIGINT", "STRING", "DATE", "TIMESTAMP", "DECIMAL(10,2)")
_LITERALS: Final = {
    "INT": ("1", "7", "-3", "42"),
    "BIGINT": ("1L", "9000000000", "-5L"),
    "STRING": ("'x'", "'now()'", "'current_date'", "'today'", "'it''s'", '"rand()"', "''"),
    "DATE": ("DATE'2026-01-01'", "DATE '2024-02-29'"),
    "TIMESTAMP": ("TIMESTAMP'2026-01-01 10:00:00'", "TIMESTAMP '2025-06-30 23:59:59.5'"),
    "DECIMAL(10,2)": ("1.50", "0.01BD", "-2.25"),
    "BOOLEAN": ("true", "false"),
}
_CLOCKS: Final = {
    "DATE": ("current_date()", "curdate()", "current_date"),
    "TIMESTAMP": ("now()", "current_timestamp()", "current_timestamp"),
    "STRING": ("current_user()", "user()", "current_schema()", "current_timezone()", "user"),
    "BIGINT": ("unix_timestamp()",),
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column; ``name`` as it is."""

    name: str
    type: str

    @property
    def quoted(self) -> str:
        """The name in backticks."""
        return "`" + self.name.replace("`", "``") + "`"


@dataclass(frozen=True, slots=True)
class Table:
    """A Delta table; its last column is what it is partitioned by, if it is."""

    name: str
    columns: tuple[Column, ...]
    partitioned: bool
    extra: str = ""

    def of(self, type_text: str) -> list[Column]:
        """Return the columns of a type."""
        return [each for each in self.columns if each.type == type_text]


@dataclass(frozen=True, slots=True)
class Program:
    """What makes the tables, and what is done with them afterwards."""

    tables: tuple[str, ...]
    statements: tuple[str, ...]


Scope = list[tuple[str, Column]]
"""The columns in sight, each with its table's alias (empty: it has none)."""


def generate(seed: int, statements: int = 20, *, clocks: bool = True) -> Program:
    """Return a program. ``clocks``: whether clocks and users are called, too."""
    return _Generator(random.Random(seed), clocks).program(statements)


class _Generator:
    def __init__(self, chance: random.Random, clocks: bool) -> None:
        self._chance = chance
        self._clocks = clocks
        self._tables: list[Table] = []
        self._made = 0

    def program(self, statements: int) -> Program:
        made: list[str] = []
        for name in ("t", "s", "u"):
            table = self._table(name)
            self._tables.append(table)
            made.append(self._create(table))
            made.append(f"INSERT INTO {name} VALUES {self._rows(table, 4)}")
        return Program(tuple(made), tuple(self._statement() for _ in range(statements)))

    def _table(self, name: str) -> Table:
        names = [*self._chance.sample(NAMES, 5), *self._chance.sample(QUOTED, 1)]
        self._chance.shuffle(names)
        columns = [Column("k", "INT")]
        columns += [Column(each, self._chance.choice(TYPES)) for each in names]
        columns.append(Column(self._other(names), self._chance.choice(("DATE", "INT", "STRING"))))
        return Table(name, tuple(columns), self._one_of(3))

    def _other(self, names: list[str]) -> str:
        return self._chance.choice([each for each in NAMES if each not in names])

    def _create(self, table: Table) -> str:
        columns = [f"{each.quoted} {each.type}" for each in table.columns]
        parts = f" PARTITIONED BY ({table.columns[-1].quoted})" if table.partitioned else ""
        mapped = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
        return f"CREATE TABLE {table.name} ({', '.join(columns)}) USING delta{parts} {mapped}"

    def _statement(self) -> str:
        kinds: list[Callable[[], str]] = [
            *(self._select, self._select, self._insert, self._insert_select, self._update),
            *(self._update, self._delete, self._delete, self._merge, self._merge),
            *(self._replace_where, self._partition, self._create_as, self._view, self._check),
            *(self._generated, self._function),
        ]
        return self._chance.choice(kinds)()

    # Parts of statements

    def _one_of(self, many: int) -> bool:
        return self._chance.randrange(many) == 0

    def _name(self, column: Column, alias: str = "") -> str:
        """Return a reference to a column: bare where its name allows it."""
        bare = column.name.isidentifier() and column.name.isascii()
        shown = column.name if bare and self._chance.random() < 0.7 else column.quoted
        if bare and self._one_of(8):
            shown = shown.upper()
        return f"{alias}.{shown}" if alias else shown

    def _literal(self, type_text: str) -> str:
        return self._chance.choice(_LITERALS[type_text])

    def _value(self, type_text: str, scope: Scope, deep: int = 2) -> str:
        """Return an expression of a type over the columns in sight."""
        columns = [(alias, each) for alias, each in scope if each.type == type_text]
        roll = self._chance.random()
        if columns and roll < 0.5:
            alias, column = self._chance.choice(columns)
            return self._name(column, alias)
        if self._clocks and roll < 0.62 and type_text in _CLOCKS:
            return self._chance.choice(_CLOCKS[type_text])
        if deep > 0 and roll < 0.85:
            return self._call(type_text, scope, deep - 1)
        return self._literal(type_text)

    def _call(self, type_text: str, scope: Scope, deep: int) -> str:
        def value(of: str) -> str:
            return self._value(of, scope, deep)

        made: dict[str, list[Callable[[], str]]] = {
            "INT": [
                lambda: f"abs({value('INT')})",
                lambda: f"year({value('DATE')})",
                lambda: f"length({value('STRING')})",
                lambda: f"CASE WHEN {value('BOOLEAN')} THEN {value('INT')} ELSE 0 END",
                lambda: self._lambda(scope, deep),
            ],
            "BIGINT": [lambda: f"CAST({value('INT')} AS BIGINT)"],
            "STRING": [
                lambda: f"upper({value('STRING')})",
                lambda: f"concat({value('STRING')}, {value('STRING')})",
                lambda: f"CAST({value('DATE')} AS STRING)",
                lambda: f"nvl({value('STRING')}, 'none')",
            ],
            "DATE": [
                lambda: f"date_add({value('DATE')}, {self._literal('INT')})",
                lambda: f"CAST({value('TIMESTAMP')} AS DATE)",
            ],
            "TIMESTAMP": [
                lambda: f"{value('TIMESTAMP')} - INTERVAL 1 DAY",
                lambda: f"coalesce({value('TIMESTAMP')}, {self._literal('TIMESTAMP')})",
            ],
            "DECIMAL(10,2)": [lambda: f"CAST({value('INT')} AS DECIMAL(10,2))"],
            "BOOLEAN": [lambda: self._predicate(scope, deep)],
        }
        return self._chance.choice(made[type_text])()

    def _lambda(self, scope: Scope, deep: int) -> str:
        """Return a call with a lambda, whose argument hides whatever has its name."""
        argument = self._chance.choice(NAMES)
        inner = [(alias, each) for alias, each in scope if each.name != argument]
        body = f"{argument} + {self._value('INT', inner, 0)}"
        return f"transform(array(1, 2), {argument} -> {body})[0]"

    def _predicate(self, scope: Scope, deep: int = 1) -> str:
        type_text = self._chance.choice(TYPES)
        sides = self._value(type_text, scope, deep), self._value(type_text, scope, deep)
        made = f"{sides[0]} {self._chance.choice(('=', '<', '>=', '<>', '<=>'))} {sides[1]}"
        if self._one_of(4):
            made = f"{sides[0]} BETWEEN {sides[1]} AND {self._literal(type_text)}"
        if deep > 0 and self._one_of(3):
            return f"({made}) {self._chance.choice(('AND', 'OR'))} {self._predicate(scope, 0)}"
        return made

    def _rows(self, table: Table, many: int) -> str:
        rows = [[self._literal(each.type) for each in table.columns] for _ in range(many)]
        return ", ".join(f"({', '.join(row)})" for row in rows)

    def _scope(self, table: Table, alias: str = "") -> Scope:
        return [(alias, each) for each in table.columns]

    def _any(self) -> Table:
        return self._chance.choice(self._tables)

    def _fresh(self) -> str:
        self._made += 1
        return f"n{self._made}"

    def _order(self, table: Table) -> str:
        return ", ".join(each.quoted for each in table.columns)

    # Statements

    def _select(self) -> str:
        table, (one, two) = self._any(), self._chance.sample(NAMES, 2)
        scope = self._scope(table)
        shapes = [
            lambda: (
                f"SELECT {self._value('INT', scope)} AS {one}, {self._value('STRING', scope)} "
                f"`{two}` FROM {table.name} WHERE {self._predicate(scope)} ORDER BY 1, `{two}`"
            ),
            lambda: (
                f"SELECT * EXCEPT ({self._name(self._chance.choice(table.columns[1:]))}) "
                f"FROM {table.name} WHERE {self._predicate(scope)}"
            ),
            lambda: (
                f"SELECT a.k, {self._value('DATE', [*self._scope(table, 'a')])} AS {one} "
                f"FROM {table.name} a JOIN {table.name} b USING (k, "
                f"{self._name(self._chance.choice(table.columns[1:]))})"
            ),
            lambda: (
                f"SELECT {one}.k FROM {table.name} AS {one} WHERE "
                f"{self._predicate(self._scope(table, one))}"
            ),
            lambda: (
                f"WITH {one} AS (SELECT k, {self._value('DATE', scope)} AS {two} "
                f"FROM {table.name}) SELECT {two}, count(*) FROM {one} GROUP BY {two}"
            ),
        ]
        return self._chance.choice(shapes)()

    def _insert(self) -> str:
        table = self._any()
        columns = self._chance.sample(table.columns, 3)
        names = ", ".join(map(self._name, columns))
        values = [self._value(each.type, [], 1) for each in columns]
        return f"INSERT INTO {table.name} ({names}) VALUES ({', '.join(values)})"

    def _insert_select(self) -> str:
        target, source = self._any(), self._any()
        scope = self._scope(source)
        values = ", ".join(self._value(each.type, scope) for each in target.columns)
        verb = self._chance.choice(("INSERT INTO", "INSERT INTO", "INSERT OVERWRITE"))
        where = self._predicate(scope)
        return f"{verb} {target.name} SELECT {values} FROM {source.name} WHERE {where}"

    def _update(self) -> str:
        table = self._any()
        scope = self._scope(table)
        sets = ", ".join(
            f"{self._name(each)} = {self._value(each.type, scope)}"
            for each in self._chance.sample(table.columns[1:], 2)
        )
        return f"UPDATE {table.name} SET {sets} WHERE {self._predicate(scope)}"

    def _delete(self) -> str:
        table = self._any()
        alias = self._chance.choice(("", "", self._chance.choice(NAMES)))
        named = f"{table.name} AS {alias}" if alias else table.name
        return f"DELETE FROM {named} WHERE {self._predicate(self._scope(table, alias))}"

    def _merge(self) -> str:
        target, source = self._chance.sample(self._tables, 2)
        mine, theirs = self._scope(target, "x"), self._scope(source, "y")
        both = [*mine, *theirs]
        column = self._chance.choice(target.columns[1:])
        clauses = [
            f"WHEN MATCHED AND {self._predicate(both)} THEN UPDATE SET "
            f"{self._name(column, 'x')} = {self._value(column.type, both)}",
            f"WHEN MATCHED AND {self._predicate(both)} THEN DELETE",
            f"WHEN NOT MATCHED AND {self._predicate(theirs)} THEN INSERT (k, "
            f"{self._name(column)}) VALUES (y.k, {self._value(column.type, theirs)})",
            f"WHEN NOT MATCHED BY SOURCE AND {self._predicate(mine)} THEN UPDATE SET "
            f"{self._name(column, 'x')} = {self._value(column.type, mine)}",
        ]
        kept = [each for each in clauses if self._one_of(2)] or clauses[:1]
        # Of several rows for one, Spark makes an error.
        query = f"(SELECT * FROM {source.name} QUALIFY row_number() OVER (PARTITION BY k ORDER BY "
        query += f"{self._order(source)}) = 1)"
        return f"MERGE INTO {target.name} x USING {query} y ON x.k = y.k {' '.join(kept)}"

    def _replace_where(self) -> str:
        table = self._any()
        condition = self._predicate(self._scope(table), 0)
        query = f"SELECT * FROM {table.name} WHERE {condition}"
        return f"INSERT INTO {table.name} REPLACE WHERE {condition} {query}"

    def _partition(self) -> str:
        parted = [each for each in self._tables if each.partitioned]
        if not parted:
            return self._insert_select()
        table = self._chance.choice(parted)
        last = table.columns[-1]
        scope = self._scope(table)
        values = ", ".join(self._value(each.type, scope) for each in table.columns[:-1])
        verb = self._chance.choice(("INTO", "OVERWRITE"))
        if self._one_of(2):
            given = f"{self._name(last)} = {self._literal(last.type)}"
            return (
                f"INSERT {verb} {table.name} PARTITION ({given}) SELECT {values} FROM {table.name}"
            )
        values += f", {self._value(last.type, scope)}"
        named = self._name(last)
        return f"INSERT {verb} {table.name} PARTITION ({named}) SELECT {values} FROM {table.name}"

    def _create_as(self) -> str:
        table = self._any()
        one = self._chance.choice(NAMES)
        scope = self._scope(table)
        query = f"SELECT k, {self._value('DATE', scope)} AS {one} FROM {table.name}"
        return f"CREATE TABLE {self._fresh()} USING delta AS {query}"

    def _view(self) -> str:
        table = self._any()
        column = self._chance.choice(table.columns[1:])
        query = f"SELECT k, {self._name(column)} AS c FROM {table.name}"
        return f"CREATE VIEW {self._fresh()} AS {query}"

    def _check(self) -> str:
        table = self._any()
        column = self._chance.choice(table.columns[1:])
        held = f"{self._name(column)} IS NOT NULL OR k IS NULL OR k <= 100"
        return f"ALTER TABLE {table.name} ADD CONSTRAINT {self._fresh()} CHECK ({held})"

    def _generated(self) -> str:
        one, two = self._chance.sample(NAMES, 2)
        made = f"`{two}` INT GENERATED ALWAYS AS (year({one}))"
        return f"CREATE TABLE {self._fresh()} (`{one}` DATE, {made}) USING delta"

    def _function(self) -> str:
        one = self._chance.choice(NAMES)
        body = self._value("INT", [("", Column(one, "INT"))], 1)
        return f"CREATE FUNCTION {self._fresh()}(`{one}` INT) RETURNS INT RETURN {body}"


def main() -> None:
    """Print a program."""
    program = generate(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20)
    for statement in (*program.tables, *program.statements):
        print(statement + ";")


if __name__ == "__main__":
    main()
