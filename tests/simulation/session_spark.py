"""The content of a simulated Spark session: temporary views and variables over changing tables.

Only the part of Spark that determines what a session shows. A view by SQL resolves names at each
use: as temporary views if they were such when it was made, otherwise as tables. A view of a
DataFrame is resolved once. Both have the columns that they were made with, and none if one of them
is lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import pyarrow as pa

from haproc import protos, wire
from haproc.engine.arrow import stream_of
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Settings
from haproc.engine.statement import SparkPlan, SqlText, Statement

ERROR: Final = "an error"
"""The content of a view whose rows cannot be computed."""
DEPTH_MAX: Final = 30
"""The limit of views over views; more are a cycle."""
Columns: TypeAlias = tuple[str, ...]
Shown: TypeAlias = tuple[Columns, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """A table: its columns, and the sum of its rows."""

    columns: Columns
    rows: int


Tables: TypeAlias = Mapping[str, Table]


@dataclass(frozen=True, slots=True)
class Change:
    """A write in the log."""

    kind: str
    table: str
    number: int


def tables_at(names: str, log: Sequence[Change]) -> Tables:
    """Return the tables after these changes; all of them exist at the beginning."""
    tables = {name: Table(("id",), 0) for name in names}
    for each in log:
        table = tables.get(each.table)
        if each.kind == "create":
            tables.setdefault(each.table, Table(("id",), each.number))
        elif table is not None and each.kind == "drop":
            del tables[each.table]
        elif table is not None and each.kind == "column":
            tables[each.table] = replace(table, columns=(*table.columns, f"c{each.number}"))
        elif table is not None:
            tables[each.table] = replace(table, rows=each.number)
    return tables


@dataclass(frozen=True, slots=True)
class Sql:
    """A view by SQL. ``temporary``: its base was a temporary view when it was made.

    Its number may be a variable, whose value is read at each use.
    """

    number: int | str
    base: str
    temporary: bool
    columns: Columns


@dataclass(frozen=True, slots=True)
class Frame:
    """A resolved view: over another one, a table (its name), or nothing."""

    number: int | None
    base: Frame | Broken | str
    columns: Columns


@dataclass(frozen=True, slots=True)
class Broken:
    """A view whose rows are an error."""

    columns: Columns


@dataclass(slots=True)
class Held:
    """The content of a session."""

    settings: Settings
    ran: list[str] = field(default_factory=list)
    views: dict[str, Sql | Frame | Broken] = field(default_factory=dict)
    variables: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The value, and the expression of the default."""

    def copy(self) -> Held:
        """Return a copy with the same content."""
        return Held(self.settings, [*self.ran], dict(self.views), dict(self.variables))

    def resolved(self, name: str, temporary: bool = True, deep: int = 0) -> Frame | Broken | str:
        """Return the object that a name stands for."""
        view = self.views.get(name) if temporary else None
        if not isinstance(view, Sql):
            return view or name
        if deep > DEPTH_MAX:
            return Broken(view.columns)
        base = self.resolved(view.base, view.temporary, deep + 1) if view.base else ""
        number = self.number(view.number)
        return Broken(view.columns) if number is None else Frame(number, base, view.columns)

    def number(self, reference: int | str) -> int | None:
        """Return a number, or the value of the named variable."""
        if isinstance(reference, int):
            return reference
        value, _ = self.variables.get(reference, (None, ""))
        return value

    def analysed(self, name: str, tables: Tables) -> Shown | None:
        """Return columns and rows behind a name; None if Spark refuses it."""
        return _shown(self.resolved(name), tables) if name else (("id",), 0)

    def shown(self, name: str, tables: Tables) -> Shown | str:
        """Return the result of a query of a name."""
        found = self.analysed(name, tables)
        return ERROR if found is None or ERROR in found else found

    def goes_round(self, name: str, base: str) -> bool:
        """Return whether a view of this name over this base would rest on itself."""
        while base != name:
            view = self.views.get(base)
            if not isinstance(view, Sql) or not view.temporary:
                return False
            base = view.base
        return True


def _shown(node: Frame | Broken | str, tables: Tables) -> Shown | None:
    match node:
        case "":
            return ("id",), 0
        case str():
            table = tables.get(node)
            return (table.columns, table.rows) if table is not None else None
        case Broken(columns):
            return columns, ERROR
        case Frame(number, base, columns):
            under = _shown(base, tables)
            if under is None or not set(columns) <= set(under[0]):
                return None
            rows = under[1] if number is None or under[1] == ERROR else (number, under[1])
            return columns, rows


def differences(made: Held, before: Held, seen: Sequence[Tables]) -> list[str]:
    """Return the differences between a rebuilt session and its earlier content.

    ``seen``: the tables during the rebuild, the last ones now. If they changed meanwhile, a view
    may have failed, and stays an error.
    """
    found = []
    for what in ("settings", "variables"):
        was, now = getattr(before, what), getattr(made, what)
        if was != now:
            found.append(f"{what}: {was}, now {now}")
    if made.views.keys() != before.views.keys():
        found.append(f"names: {sorted(before.views)}, now {sorted(made.views)}")
    for name in sorted(made.views.keys() & before.views.keys()):
        was, now = before.shown(name, seen[-1]), made.shown(name, seen[-1])
        if was != now and not (now == ERROR and len(seen) > 1):
            found.append(f"{name}: {was}, now {now}")
    return found


def went_apart(made: Held, truth: Held, tables: Tables) -> list[str]:
    """Return the names that show other rows than in a session that was never rebuilt.

    A name that shows an error is left out: a view that could not be rebuilt stays broken.
    """
    shown = {name: (truth.shown(name, tables), made.shown(name, tables)) for name in made.views}
    return [
        f"{name}: not made anew {was}, now {now}"
        for name, (was, now) in shown.items()
        if now not in (was, ERROR)
    ]


# -- statements ------------------------------------------------------------------------------

_VIEW: Final = re.compile(
    r"CREATE OR REPLACE TEMPORARY VIEW (\w+) AS SELECT (?:\*|(\d+) AS id)"
    r"(?: FROM (\w+) WHERE id > (\w+))?$"
)
_QUERY: Final = re.compile(r"SELECT \* FROM (\w+) WHERE id > (\w+)$")
_CHOSEN: Final = re.compile(r"SELECT (.*) FROM `(\w+)`$")
_OF_COLUMNS: Final = re.compile(
    r"CREATE TEMPORARY VIEW `(\w+)` AS SELECT ([^*()]*) FROM \((SELECT .*)\)$"
)
_DROP: Final = re.compile(r"DROP VIEW `?(\w+)`?$")
_DECLARE: Final = re.compile(
    r"DECLARE OR REPLACE VARIABLE `?(\w+)`? bigint(?: DEFAULT (.*))?$", re.I
)
_SET: Final = re.compile(r"SET VAR(?:IABLE)? `?(\w+)`? = (.*)$")
_FORGET: Final = re.compile(r"DROP TEMPORARY VARIABLE (?:IF EXISTS )?`?(\w+)`?$")
_MAX: Final = re.compile(r"\(SELECT max\(id\) FROM (\w+)\)$")
_VARIABLES: Final = re.compile(r"session\.`(\w+)`")


class Interpreter:
    """Runs statements in a session, and in its twin, which is never rebuilt from a journal."""

    def __init__(self, made: Held, truth: Held, tables: Tables, rand: Callable[[], int]) -> None:
        self._made, self._truth, self._tables, self._rand = made, truth, tables, rand

    def run(self, statement: Statement) -> None:
        """Run a statement; raise EngineError if Spark refuses it."""
        if isinstance(statement, SparkPlan):
            self._plan(statement.plan)
            return
        assert isinstance(statement, SqlText)
        sql = statement.sql
        if found := _VIEW.match(sql):
            name, number, base = found[1], self._reference(found[2] or found[4]), found[3] or ""
            if base and self._made.goes_round(name, base):
                raise _refused("RECURSIVE_VIEW")
            view = Sql(number, base, base in self._made.views, self._columns(base))
            self._give(name, view, view)
        elif found := _OF_COLUMNS.match(sql):
            self.run(SqlText(f"CREATE OR REPLACE TEMPORARY VIEW {found[1]} AS {found[3]}"))
            whole, columns = self._made.views[found[1]], tuple(re.findall(r"`(\w+)`", found[2]))
            assert isinstance(whole, Sql) and set(columns) <= set(whole.columns)
            self._give(found[1], *[replace(whole, columns=columns)] * 2)
        elif found := _DROP.match(sql):
            if found[1] not in self._made.views:
                raise _refused("TABLE_OR_VIEW_NOT_FOUND")
            del self._made.views[found[1]]
            self._truth.views.pop(found[1], None)
        elif found := _DECLARE.match(sql):
            default = found[2] or ""
            self._set(found[1], self._value(default), default)
        elif found := _SET.match(sql):
            _, default = self._variable(found[1])
            chosen = default if found[2] == "DEFAULT" else found[2]
            self._set(found[1], self._value(chosen), default)
        elif found := _FORGET.match(sql):
            self._made.variables.pop(found[1], None)
            self._truth.variables.pop(found[1], None)
        else:
            self._made.ran.append(sql)
            self._truth.ran.append(sql)

    def values_of(self, sql: str) -> bytes:
        """Return the values of the requested variables; raise EngineError."""
        values = [self._variable(name)[0] for name in _VARIABLES.findall(sql)]
        return stream_of(pa.table({f"_{at}": [value] for at, value in enumerate(values)}))

    def _plan(self, plan: bytes) -> None:
        command = wire.parsed(protos.base.Plan, plan).command
        if command.HasField("sql_command"):
            held = command.sql_command.input.with_relations
            found = _SET.match(held.root.sql.query)
            assert found is not None
            data = held.references[0].subquery_alias.input.local_relation.data
            value = pa.ipc.open_stream(data).read_all().column(0)[0].as_py()
            self._set(found[1], value, self._variable(found[1])[1])
            return
        view = command.create_dataframe_view
        if "raise_error" in view.input.sql.query:
            columns = tuple(re.findall(r"\) AS `(\w+)`", view.input.sql.query))
            self._give(view.name, Broken(columns), Broken(columns))
            return
        if found := _CHOSEN.match(view.input.sql.query):
            number, base, columns = None, found[2], tuple(re.findall(r"`(\w+)`", found[1]))
        else:
            found = _QUERY.match(view.input.sql.query)
            assert found is not None
            number = self._made.number(self._reference(found[2]))
            base, columns = found[1], self._columns(found[1])
        made = Frame(number, self._made.resolved(base), columns)
        truth = Frame(number, self._truth.resolved(base), columns)
        self._give(view.name, made, truth)

    def _reference(self, word: str) -> int | str:
        if not word.isdigit():
            self._variable(word)
        return int(word) if word.isdigit() else word

    def _give(self, name: str, made: Sql | Frame | Broken, truth: Sql | Frame | Broken) -> None:
        self._made.views[name], self._truth.views[name] = made, truth

    def _columns(self, base: str) -> Columns:
        found = self._made.analysed(base, self._tables)
        if found is None:
            raise _refused("TABLE_OR_VIEW_NOT_FOUND")
        return found[0]

    def _variable(self, name: str) -> tuple[int, str]:
        if name not in self._made.variables:
            raise _refused("UNRESOLVED_VARIABLE")
        return self._made.variables[name]

    def _set(self, name: str, value: int, default: str) -> None:
        self._made.variables[name] = self._truth.variables[name] = value, default

    def _value(self, expression: str) -> int:
        if expression == "rand()":
            return self._rand()
        if found := _MAX.match(expression):
            rows = self._made.shown(found[1], self._tables)
            if rows == ERROR:
                raise _refused("TABLE_OR_VIEW_NOT_FOUND")
            return _sum(rows[1])
        return int(expression or 0)


def frame(name: str, sql: str) -> bytes:
    """Return the plan that ``df.createOrReplaceTempView`` sends."""
    plan = protos.base.Plan()
    made = plan.command.create_dataframe_view
    made.input.sql.query, made.name, made.replace = sql, name, True
    return bytes(plan.SerializeToString())


def _sum(rows: Any) -> int:
    return sum(map(_sum, rows)) if isinstance(rows, tuple) else int(rows)


def _refused(what: str) -> EngineError:
    return EngineError(ErrorKind.APPLICATION, what, error_class=what)
