"""Reads which rows a statement changes, and how, where its text says so plainly.

``INSERT INTO t [(columns)] VALUES (literals), …``, rows that came as Arrow, UPDATEs and DELETEs
whose condition is nothing but ``column = literal`` or ``column IN (literals)``, joined by AND, and
MERGEs of literals (see `haproc.replicate.compose.upserts`). What else there is has no *change*: it
runs as it stands.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import Final

from haproc.classify.insert import column_list, literal_rows
from haproc.classify.model import Kind, OperationClass
from haproc.classify.tokens import LexicalError, tokenize
from haproc.engine.statement import ArrowRows, SqlText
from haproc.replicate.compose.arrow_rows import literal_cells
from haproc.replicate.compose.changes import Change, Changed, Inserted
from haproc.replicate.compose.expressions import Expressions, Otherwise
from haproc.replicate.compose.terms import Cell
from haproc.replicate.compose.upserts import Upsert
from haproc.replicate.records.operation import Operation

KEYS_MAX: Final = 1_000
"""Of one statement, with all combinations of its lists. Chosen."""
TEXT_MAX: Final = 64 << 10
"""Of an UPDATE, a DELETE or a MERGE. Chosen."""


def change_of(op: Operation) -> Change | None:
    """Return what an operation does to the rows of its table; None if it is not told plainly."""
    if op.operation_class is not OperationClass.ASYNCHRONOUS or op.exclusive:
        return None
    if len(op.writes) != 1 or not isinstance(op.write, SqlText | ArrowRows):
        return None
    if op.reads or op.settings.confs or not op.settings.ansi:
        return None  # what is stored, and how, could depend on them
    try:
        if isinstance(op.write, ArrowRows):
            columns, rows = literal_cells(op.write.rows)
            return Inserted(tuple(name.lower() for name in columns), tuple(rows))
        sql = op.write.sql
        if op.kind is Kind.INSERT and op.insert is not None:
            return _inserted(sql, op.insert.values_at, op.insert.signature)
        if op.kind in (Kind.UPDATE, Kind.DELETE) and len(sql) <= TEXT_MAX:
            return _ByKey(list(tokenize(sql)), sql).change()
        if op.kind is Kind.MERGE and len(sql) <= TEXT_MAX:
            return Upsert(list(tokenize(sql)), sql).change()
    except (Otherwise, LexicalError, ValueError, StopIteration):
        pass
    return None


def _inserted(sql: str, values_at: int, signature: str) -> Inserted:
    columns = _columns(sql[:values_at])
    if columns is None:
        raise Otherwise
    types = signature.split(",")
    rows = []
    for row in literal_rows(sql, values_at):
        # A literal among wider ones is one of theirs: 1 beside 2.5 is 1.0.
        if any(letter not in ("n", wide) for (letter, _), wide in zip(row, types, strict=True)):
            raise Otherwise
        rows.append(tuple(Cell(letter, text) for letter, text in row))
    if columns and len(columns) != len(types):
        raise Otherwise
    return Inserted(columns, tuple(rows))


@lru_cache(maxsize=1024)
def _columns(head: str) -> tuple[str, ...] | None:
    found = column_list(head)
    return None if found is None else tuple(name.lower() for name in found)


class _ByKey(Expressions):
    """Reads one UPDATE or DELETE."""

    def change(self) -> Changed:
        """Return what it does."""
        if self._take("UPDATE"):
            self._table("SET")
            self._expect("SET")
            sets = self._sets()
        else:
            self._expect("DELETE", "FROM")
            self._table("WHERE")
            sets = ()
        columns, keys = self._condition()
        if not self._ended():
            raise Otherwise
        return Changed(columns, keys, sets)

    def _condition(self) -> tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]]:
        """Read which columns are fixed, and by which combinations of values."""
        self._expect("WHERE")
        fixed: dict[str, list[Cell]] = {}
        combinations = 1
        while True:
            column = self._column()
            if column in fixed:
                raise Otherwise
            fixed[column] = self._values()
            combinations *= len(fixed[column])
            if combinations > KEYS_MAX:
                raise Otherwise
            if not self._take("AND"):
                break
        columns = tuple(sorted(fixed))
        return columns, tuple(product(*(fixed[column] for column in columns)))

    def _values(self) -> list[Cell]:
        if self._symbol("=", "=="):
            return [self._literal()]
        self._expect("IN")
        self._needed("(")
        cells = [self._literal()]
        while self._symbol(","):
            cells.append(self._literal())
        self._needed(")")
        return cells
