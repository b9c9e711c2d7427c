"""Random statements over tables whose columns have the names of functions or keywords.

A *life* is one table from its creation to its last check, as lines of Python for PySpark: SQL, or
DataFrames. Whether a name means a column or a function is Spark's decision: the generator does not
know it. So each life runs on Spark alone as well, and both must have the same result. Values are
chosen such that a comparison has the same result for any moment, user or chance of a function.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from tests.integration.named_expressions import BARE, LITERALS, UNUSUAL, Column, Names


class Position(Enum):
    """The position in a statement of a name that may be a function or a column."""

    SELECT_LIST = "select list"
    PREDICATE = "predicate"
    PARTITION = "partition"
    USING = "using"
    EXCEPT = "except"
    LAMBDA = "lambda argument"
    ALIAS = "alias"
    MERGE = "merge clause"
    GENERATED = "generated column"
    CHECK = "check"
    COLUMN_LIST = "column list"
    REPLACE_WHERE = "replace where"
    ASSIGNMENT = "assignment"
    COMMON_TABLE = "common table expression"
    SUBQUERY = "subquery"
    VALUES = "values"
    DATAFRAME = "dataframe"
    VIEW = "view"


LOOK_AFTER: Final = 3


@dataclass(frozen=True, slots=True)
class Line:
    """A line for PySpark; ``sql`` if it is a statement. ``looks``: its rows are compared."""

    text: str
    positions: tuple[Position, ...] = ()
    sql: str = ""
    looks: bool = False


class Life(Names):
    """One table, ``t``, its source ``s`` and further tables made of them, from one seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(random.Random(f"names {seed}"))
        self.lines: list[Line] = []

    def sql(self, text: str, *positions: Position, looks: bool = False) -> None:
        """Add a statement."""
        line = f"spark.sql({text!r})" + (".collect()" if looks else "")
        if looks:
            line = f"sorted(map(str, {line}))"
        self.lines.append(Line(line, positions, text, looks))

    def python(self, text: str, *positions: Position) -> None:
        """Add a line of DataFrames."""
        self.lines.append(Line(text, (*positions, Position.DATAFRAME)))

    def look(self, table: str) -> None:
        self.sql(f"SELECT * FROM {table}", looks=True)

    def make(self) -> None:
        """Make ``t``, maybe partitioned, generated or checked, and its source ``s``."""
        rng, positions = self.rng, []
        declared = [f"{self.quoted(c.name)} {c.kind}" for c in self.columns]
        clauses = "USING delta"
        if rng.random() < 0.3:
            last = rng.choice(self.columns[1:])
            clauses += f" PARTITIONED BY ({self.quoted(last.name)})"
            positions.append(Position.PARTITION)
        if any(c.name in UNUSUAL for c in self.columns):
            clauses += " TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
        for table in "ts":
            self.sql(
                f"CREATE OR REPLACE TABLE {table} ({', '.join(declared)}) {clauses}", *positions
            )
            rows = []
            for n in range(4 if table == "t" else 6):
                values = [rng.choice(LITERALS[c.kind]) for c in self.columns[1:]]
                rows.append(f"({', '.join([str(n), *values])})")
            self.sql(f"INSERT INTO {table} VALUES {', '.join(rows)}")

    def insert_values(self) -> None:
        rows = [f"({', '.join(self.values(()))})" for _ in range(2)]
        self.sql(
            f"INSERT INTO t ({self.names()}) VALUES {', '.join(rows)}",
            Position.VALUES,
            Position.COLUMN_LIST,
        )

    def insert_select(self) -> None:
        chosen = self.rng.sample(self.columns, len(self.columns) - 1)
        values = ", ".join(self.value(c.kind, self.columns, "x") for c in chosen)
        self.sql(
            f"INSERT INTO t ({', '.join(self.quoted(c.name) for c in chosen)}) "
            f"SELECT {values} FROM s x WHERE {self.predicate(self.columns, 'x')}",
            Position.COLUMN_LIST,
            Position.SELECT_LIST,
            Position.PREDICATE,
        )

    def insert_by_name(self) -> None:
        self.sql(
            f"INSERT INTO t BY NAME SELECT {self.aliased(self.columns)} FROM s",
            Position.ALIAS,
            Position.SELECT_LIST,
        )

    def replace_where(self) -> None:
        column = self.rng.choice(self.columns)
        condition = f"{self.name(column)} = {self.rng.choice(LITERALS[column.kind][:2])}"
        self.sql(
            f"INSERT INTO t REPLACE WHERE {condition} SELECT * FROM s WHERE {condition}",
            Position.REPLACE_WHERE,
            Position.PREDICATE,
        )

    def insert_partition(self) -> None:
        """Insert into a partition of ``p``, which has the partition column last."""
        first, last = self.columns[0], self.rng.choice(self.columns[1:])
        literal = self.rng.choice(LITERALS[last.kind][:2])
        mapped = " TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
        self.sql(
            f"CREATE OR REPLACE TABLE p ({first.name} INT, {self.quoted(last.name)} {last.kind}) "
            f"USING delta PARTITIONED BY ({self.name(last)}){mapped * (last.name in UNUSUAL)}",
            Position.PARTITION,
        )
        how = self.rng.choice(("INTO", "OVERWRITE"))
        for _ in range(2):
            self.sql(
                f"INSERT {how} p PARTITION ({self.name(last)} = {literal}) "
                f"SELECT {self.value('INT', self.columns)} FROM s",
                Position.PARTITION,
                Position.SELECT_LIST,
            )
        self.look("p")

    def update(self) -> None:
        chosen = self.rng.sample(self.columns[1:], self.rng.choice((1, 2)))
        alias = self.rng.choice(("x", ""))
        assigned = ", ".join(
            f"{self.name(c, alias)} = {self.value(c.kind, self.columns, alias)}" for c in chosen
        )
        self.sql(
            f"UPDATE t {alias} SET {assigned} WHERE {self.predicate(self.columns, alias)}",
            Position.ASSIGNMENT,
            Position.PREDICATE,
        )

    def delete(self) -> None:
        self.sql(f"DELETE FROM t WHERE {self.predicate(self.columns)}", Position.PREDICATE)

    def merge(self) -> None:
        pick = self.rng.choice
        some = pick(self.columns[1:])
        both = self.predicate(self.columns, pick("xy"))
        source = pick(("s", f"(SELECT {self.aliased(self.columns)} FROM s WHERE id < 5)"))
        text = f"MERGE INTO t x USING {source} y ON x.id = y.id"
        if self.rng.random() < 0.3:
            text += f" AND {self.qualified('x')} IS NOT NULL"
        clauses = []
        if self.rng.random() < 0.5:
            clauses.append(f"WHEN MATCHED AND {both} THEN DELETE")
        value = self.value(some.kind, self.columns, "y")
        update = f"UPDATE SET x.{self.quoted(some.name)} = {value}"
        clauses.append(f"WHEN MATCHED THEN {pick((update, 'UPDATE SET *'))}")
        insert = f"INSERT (id, {self.quoted(some.name)}) VALUES (y.id, {value})"
        fresh = f" AND {self.predicate(self.columns, 'y')}" * (self.rng.random() < 0.5)
        clauses.append(f"WHEN NOT MATCHED{fresh} THEN {pick((insert, 'INSERT *'))}")
        if self.rng.random() < 0.5:
            gone = self.predicate(self.columns, "x")
            other = f"UPDATE SET {self.name(some)} = {pick(LITERALS[some.kind])}"
            clauses.append(f"WHEN NOT MATCHED BY SOURCE AND {gone} THEN {pick(('DELETE', other))}")
        self.sql(" ".join([text, *clauses]), Position.MERGE, Position.ASSIGNMENT)

    def qualified(self, of: str) -> str:
        return f"{of}.{self.quoted(self.rng.choice(self.columns[1:]).name)}"

    def table_as_select(self) -> None:
        mapped = any(c.name in UNUSUAL for c in self.columns)
        clause = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name') " * mapped
        self.sql(
            f"CREATE OR REPLACE TABLE u USING delta {clause}AS "
            f"SELECT {self.aliased(self.columns)} FROM s WHERE {self.predicate(self.columns)}",
            Position.ALIAS,
            Position.SELECT_LIST,
            Position.PREDICATE,
        )
        self.look("u")

    def lambda_argument(self) -> None:
        column = self.rng.choice(self.columns[1:])
        argument = self.rng.choice(
            [column, Column(self.rng.choice(BARE[column.kind]), column.kind)]
        )
        array = ", ".join(self.value(column.kind, self.columns) for _ in range(2))
        body = self.value(column.kind, [argument, argument, *self.columns])
        picked = f"element_at(transform(array({array}), {self.quoted(argument.name)} -> {body}), 1)"
        statement = self.rng.choice(
            (
                f"INSERT INTO t (id, {self.quoted(column.name)}) SELECT id, {picked} FROM s",
                f"UPDATE t SET {self.quoted(column.name)} = {picked} WHERE id = 1",
            )
        )
        self.sql(statement, Position.LAMBDA, Position.SELECT_LIST)

    def joined_using(self) -> None:
        column = self.rng.choice(self.columns[1:])
        self.sql(
            f"INSERT INTO t ({self.quoted(column.name)}) SELECT {self.name(column)} "
            f"FROM s JOIN (SELECT DISTINCT {self.name(column)} FROM t) z "
            f"USING ({self.name(column)}) WHERE {self.predicate([column])}",
            Position.USING,
            Position.SELECT_LIST,
        )

    def star_except(self) -> None:
        column = self.rng.choice(self.columns[1:])
        rest = ", ".join(self.quoted(c.name) for c in self.columns if c != column)
        self.sql(
            f"INSERT INTO t ({rest}) SELECT * EXCEPT ({self.name(column)}) FROM s",
            Position.EXCEPT,
            Position.COLUMN_LIST,
        )

    def common_table(self) -> None:
        called = self.quoted(self.rng.choice(("current_date", "user", "now", "s")))
        self.sql(
            f"INSERT INTO t WITH {called} ({self.names()}) AS "
            f"(SELECT {', '.join(self.values(self.columns))} FROM s) "
            f"SELECT {', '.join(self.values(self.columns))} FROM {called}",
            Position.COMMON_TABLE,
            Position.SELECT_LIST,
        )

    def subquery(self) -> None:
        column = self.rng.choice(self.columns[1:])
        quoted = self.quoted(column.name)
        self.sql(
            f"INSERT INTO t SELECT * FROM s x WHERE x.id > 3 AND ({self.name(column)} IN "
            f"(SELECT {self.name(column)} FROM t) OR EXISTS (SELECT 1 FROM t y "
            f"WHERE y.{quoted} = x.{quoted} AND {self.predicate(self.columns, 'y')}))",
            Position.SUBQUERY,
            Position.PREDICATE,
        )

    def generated(self) -> None:
        column = self.rng.choice(self.columns)
        named = self.rng.choice(("current_date", "user", "g"))
        mapped = column.name in UNUSUAL
        clause = " TBLPROPERTIES ('delta.columnMapping.mode' = 'name')" * mapped
        value = f"({self.name(column)} = {self.rng.choice(LITERALS[column.kind][:2])})"
        self.sql(
            f"CREATE OR REPLACE TABLE g (id_ INT, {self.quoted(column.name)} {column.kind}, "
            f"`{named}_` BOOLEAN GENERATED ALWAYS AS {value}) USING delta{clause}",
            Position.GENERATED,
        )
        self.sql(
            f"INSERT INTO g (id_, {self.quoted(column.name)}) "
            f"SELECT id, {self.value(column.kind, self.columns)} FROM s",
            Position.GENERATED,
            Position.SELECT_LIST,
        )
        self.look("g")

    def check(self) -> None:
        column = self.rng.choice(self.columns)
        literal = self.rng.choice(LITERALS[column.kind][:2])
        self.sql(
            f"ALTER TABLE t ADD CONSTRAINT c{len(self.lines)} "
            f"CHECK ({self.name(column)} IS NULL OR {self.name(column)} <> {literal} "
            f"OR id < 5)",
            Position.CHECK,
        )
        self.insert_select()

    def view(self) -> None:
        kind = self.rng.choice(("TEMPORARY VIEW", "VIEW"))
        name = f"v{len(self.lines)}"
        self.sql(
            f"CREATE OR REPLACE {kind} {name} ({self.names()}) AS "
            f"SELECT {', '.join(self.values(self.columns))} FROM s",
            Position.VIEW,
            Position.ALIAS,
        )
        self.sql(
            f"INSERT INTO t SELECT * FROM {name} WHERE {self.predicate(self.columns)}",
            Position.VIEW,
            Position.PREDICATE,
        )

    def query(self) -> None:
        column = self.rng.choice(self.columns[1:])
        group = self.name(column)
        self.sql(
            f"SELECT {group}, count(*), max(id) AS {self.quoted(column.name)} FROM t "
            f"WHERE {self.predicate(self.columns)} GROUP BY {group} "
            f"HAVING {self.predicate([column])}",
            Position.SELECT_LIST,
            Position.PREDICATE,
            looks=True,
        )

    def frame_append(self) -> None:
        columns = ", ".join(
            f"F.expr({self.value(c.kind, self.columns)!r}).alias({c.name!r})" for c in self.columns
        )
        condition = self.predicate(self.columns)
        self.python(
            f"spark.table('s').where({condition!r}).select({columns}).writeTo('t').append()",
            Position.SELECT_LIST,
            Position.PREDICATE,
            Position.ALIAS,
        )

    def frame_overwrite(self) -> None:
        column = self.rng.choice(self.columns)
        condition = f"{self.quoted(column.name)} = {self.rng.choice(LITERALS[column.kind][:2])}"
        self.python(
            f"spark.table('s').where({condition!r}).writeTo('t').overwrite(F.expr({condition!r}))",
            Position.REPLACE_WHERE,
        )

    def frame_merge(self) -> None:
        some = self.rng.choice(self.columns[1:])
        condition = self.predicate([some], "y").replace("y.", "t.")
        key = self.quoted(some.name)
        source = f"y.{key}"
        self.python(
            f"spark.table('s').alias('y').mergeInto('t', F.expr('t.id = y.id'))"
            f".whenMatched(F.expr({'t.' + key + ' IS NULL'!r})).delete()"
            f".whenMatched().update({{{key!r}: F.expr({source!r})}})"
            f".whenNotMatched().insertAll()"
            f".whenNotMatchedBySource(F.expr({condition!r})).delete().merge()",
            Position.MERGE,
            Position.ASSIGNMENT,
        )

    def frame_joined(self) -> None:
        column = self.rng.choice([c for c in self.columns if c.name not in UNUSUAL])
        names = [self.quoted(c.name) for c in self.columns]
        self.python(
            f"spark.table('s').join(spark.table('t').select({self.quoted(column.name)!r})"
            f".distinct(), {column.name!r}).select({', '.join(map(repr, names))})"
            f".write.mode('append').saveAsTable('t')",
            Position.USING,
            Position.SELECT_LIST,
        )

    def steps(self) -> tuple[Callable[[], None], ...]:
        return (
            self.insert_values,
            self.insert_select,
            self.insert_by_name,
            self.replace_where,
            self.insert_partition,
            self.update,
            self.update,
            self.delete,
            self.merge,
            self.merge,
            self.table_as_select,
            self.lambda_argument,
            self.joined_using,
            self.star_except,
            self.common_table,
            self.subquery,
            self.generated,
            self.check,
            self.view,
            self.query,
            self.frame_append,
            self.frame_overwrite,
            self.frame_merge,
            self.frame_joined,
        )


def life(seed: int, count: int) -> Life:
    """Return the life of one table with this many steps; consecutive lives take different ones."""
    made = Life(seed)
    made.make()
    steps = made.steps()
    for number in range(count):
        steps[(seed * count + number) % len(steps)]()
        if number % LOOK_AFTER == LOOK_AFTER - 1 or number == count - 1:
            made.look("t")
    return made
