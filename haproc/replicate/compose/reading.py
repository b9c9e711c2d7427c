"""Reads which change a statement makes to a table's rows, from its text or its Arrow rows."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, Final, TypeAlias

import pyarrow as pa

from haproc.classify.insert import column_list, literal_rows
from haproc.classify.model import Kind, OperationClass
from haproc.classify.tokens import LexicalError, Token, tokenize
from haproc.engine.statement import ArrowRows, RowsInLog, SqlText
from haproc.pin.literals import string_literal
from haproc.replicate.compose.expressions import NO_COLUMNS, Expressions, Otherwise
from haproc.replicate.compose.terms import (
    NULL,
    Cell,
    Change,
    Changed,
    Expression,
    Given,
    Inserted,
    Merged,
    Own,
    Piece,
    Sets,
    cell_of,
    column_type,
)
from haproc.replicate.records.operation import Operation

# Arrow rows as literals: each value exactly, in the type of its column.


ROWS_MAX: Final = 1_000
"""The most rows of one change; a statement with more rows is not composed. Chosen."""
BYTES_MAX: Final = 256 << 10


def _floating(suffix: str) -> Callable[[float], str]:
    def text(value: float) -> str:
        if not math.isfinite(value):
            raise ValueError(f"{value} has no literal")
        return f"{value!r}{suffix}"

    return text


_TEXTS: Final[Mapping[pa.DataType, Callable[[Any], str]]] = {
    pa.bool_(): lambda value: "TRUE" if value else "FALSE",
    pa.int8(): lambda value: f"{value}Y",
    pa.int16(): lambda value: f"{value}S",
    pa.int32(): str,
    pa.int64(): lambda value: f"{value}L",
    pa.float32(): _floating("F"),
    pa.float64(): _floating("D"),
    pa.string(): string_literal,
    pa.binary(): lambda value: f"X'{value.hex()}'",
    pa.date32(): lambda value: f"DATE'{value.isoformat()}'",
}


def literal_cells(stream: bytes) -> tuple[tuple[str, ...], list[tuple[Cell, ...]]]:
    """Return the names of an Arrow IPC stream's columns, and its rows as literals.

    Raises ValueError for too many rows, and for values that no literal can state.
    """
    with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
        table = reader.read_all()
    if table.num_rows > ROWS_MAX or table.nbytes > BYTES_MAX:
        raise ValueError("too many rows")
    columns = [_cells(column) for column in table.columns]
    return tuple(table.column_names), list(zip(*columns, strict=True))


def _cells(column: pa.ChunkedArray) -> list[Cell]:
    text = _decimal if pa.types.is_decimal128(column.type) else _TEXTS.get(column.type)
    if text is None:
        raise ValueError(f"{column.type} has no literals here")
    return [NULL if value is None else _cell(text(value)) for value in _values(column)]


def _values(column: pa.ChunkedArray) -> list[Any]:
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError) as error:
        raise ValueError("a value that Python does not know") from error


def _cell(text: str) -> Cell:
    cell = cell_of(text)
    if cell is None:
        raise ValueError(f"{text} is no literal")
    return cell


def _decimal(value: decimal.Decimal) -> str:
    return f"{value:f}BD"


_Row: TypeAlias = tuple[Cell, ...]
_CLAUSES: Final = """ANTI CLUSTER CROSS DISTRIBUTE EXCEPT FOR FROM FULL GROUP HAVING INNER INTERSECT
    JOIN LATERAL LEFT LIMIT MINUS NATURAL OFFSET ON ORDER PIVOT QUALIFY RIGHT SEMI SETMINUS SORT
    SYSTEM_TIME SYSTEM_VERSION TABLESAMPLE TIMESTAMP UNION UNPIVOT USING VERSION WATERMARK WHERE
    WINDOW"""
_NO_ALIASES: Final = frozenset(_CLAUSES.split())
"""Words that are no alias in a place where an alias without AS is possible."""
_NO_ITEMS: Final = NO_COLUMNS | {"ALL", "DISTINCT"}
"""Words after SELECT that may mean something else than a column's name."""


class Upsert(Expressions):
    """Reads a MERGE whose source is literals: an upsert.

    ::

        MERGE INTO t [[AS] a] USING (source) [[AS] s] ON a.k = s.k [AND …]
        [WHEN MATCHED THEN UPDATE SET c = …, … | UPDATE SET * | DELETE]
        [WHEN NOT MATCHED [BY TARGET] THEN INSERT (c, …) VALUES (s.c | literal, …) | INSERT *]

    The source is ``VALUES (literals), … [[AS] s [(c, …)]]``, or ``SELECT`` of literals and of
    the columns of such rows, or of ``*``; or several of them with UNION ALL between them. A
    selected value gets a name only by AS: else ``ALL k`` could be a column of the name ``all``.
    (Spark's MERGE allows no names of columns after the source's alias.) Clauses have no
    conditions, and each kind occurs at most once.
    """

    def __init__(self, tokens: Sequence[Token], sql: str) -> None:
        super().__init__(tokens, sql)
        self._source_name = ""
        self._source: dict[str, str] = {}
        self._inserting = self._whole = False

    def change(self) -> Merged:
        """Read the MERGE; return it as a `Merged`. Raises Otherwise if it cannot be composed."""
        self._expect("MERGE", "INTO")
        self._table("USING")
        self._expect("USING")
        rows = self._rows()
        self._expect("ON")
        on = self._condition()
        columns = tuple(sorted(on))
        sets: Sets | None = ()
        row: Sets = ()
        matched = self._take("WHEN", "MATCHED", "THEN")
        if matched:
            sets = self._changes()
        if self._take("WHEN", "NOT", "MATCHED"):
            self._take("BY", "TARGET")
            self._expect("THEN", "INSERT")
            row = self._inserted()
        if not self._ended() or not (matched or row):
            raise Otherwise
        return Merged(
            columns,
            tuple(on[name] for name in columns),
            tuple(self._source.items()),
            tuple(rows),
            sets,
            row,
            self._whole,
        )

    def _whose(self, qualifier: str, name: str) -> Own | Given:
        """Return the column of the table or the source that a name means.

        Raises Otherwise if it may mean both, or none.
        """
        given = name in self._source
        if given and qualifier and qualifier == self._source_name:
            return Given(name)
        if given and not qualifier:
            if self._inserting:  # no row of the table: only the source has columns
                return Given(name)
            raise Otherwise
        if self._inserting:
            raise Otherwise
        return super()._whose(qualifier, name)

    # -- the source ------------------------------------------------------------------------

    def _rows(self) -> list[_Row]:
        """Read the source and return its rows; remember its columns and their types."""
        self._needed("(")
        names, rows = self._query()
        while self._take("UNION", "ALL"):
            rows += self._query()[1]
        self._needed(")")
        self._source_name = self._alias() or self._source_name
        types = [column_type(cells) for cells in zip(*rows, strict=True)]
        if self._source_name == self._table_name or len(rows) > ROWS_MAX:
            raise Otherwise
        for name, kind in zip(names, types, strict=True):
            # Beside literals of a wider type a literal gets that type: 1 beside 2.5 is 1.0.
            if kind is None or name in self._source:
                raise Otherwise
            self._source[name] = kind
        return rows

    def _query(self) -> tuple[list[str], list[_Row]]:
        if self._take("VALUES"):
            return self._values()
        self._expect("SELECT")
        if self._symbol("*"):
            self._expect("FROM")
            return self._relation()
        items = self._listed(self._item)
        names: list[str] = []
        rows: list[_Row] = [()]
        if self._take("FROM"):
            names, rows = self._relation()
        chosen = [
            tuple(item if isinstance(item, Cell) else row[names.index(item)] for item, _ in items)
            for row in rows
        ]
        return [name for _, name in items], chosen

    def _item(self) -> tuple[Cell | str, str]:
        """Read an item after SELECT: a literal or a column of the rows. Return it and its name."""
        start = self._at
        try:
            cell = self._literal()
        except Otherwise:
            self._at = start
        else:
            return cell, self._named_as("?")
        if self._word() in _NO_ITEMS:
            raise Otherwise
        _, name = self._qualified()
        return name, self._named_as(name)

    def _named_as(self, name: str) -> str:
        """Read AS and a name, and return the name; return ``name`` if there is no AS."""
        return self._name() if self._take("AS") else name

    def _relation(self) -> tuple[list[str], list[_Row]]:
        """Read the rows after FROM, with or without parentheses; return column names and rows."""
        if not self._symbol("("):
            self._expect("VALUES")
            return self._values()
        self._expect("VALUES")
        names, rows = self._values()
        self._needed(")")
        return self._with_alias(names), rows

    def _values(self) -> tuple[list[str], list[_Row]]:
        rows = self._listed(self._row)
        if len({len(row) for row in rows}) > 1:
            raise Otherwise
        return self._with_alias([f"col{n}" for n, _ in enumerate(rows[0], 1)]), rows

    def _row(self) -> _Row:
        return tuple(self._enclosed(self._literal))

    def _with_alias(self, names: list[str]) -> list[str]:
        """Read an alias; return the columns' new names if it states any, else ``names``."""
        alias = self._alias()
        self._source_name = alias or self._source_name
        if not alias or not self._is_symbol("("):
            return names
        anew = self._enclosed(self._name)
        if len(anew) != len(names):
            raise Otherwise
        return anew

    def _alias(self) -> str:
        """Read an alias and return it; empty if there is none."""
        if self._take("AS"):
            return self._name()
        free = self._ended() or self._is_symbol(",", ")", "(") or self._word() in _NO_ALIASES
        return "" if free else self._name()

    # -- the clauses -----------------------------------------------------------------------

    def _condition(self) -> dict[str, str]:
        """Read the condition after ON; return the source's column for each compared column."""
        if self._symbol("("):
            pairs = self._condition()
            self._needed(")")
        else:
            pairs = self._pair()
        while self._take("AND"):
            more = self._condition()
            if not pairs.keys().isdisjoint(more):
                raise Otherwise
            pairs |= more
        return pairs

    def _pair(self) -> dict[str, str]:
        one = self._named()
        self._needed("=", "==")
        other = self._named()
        match one, other:
            case (Own(column), Given(name)) | (Given(name), Own(column)):
                return {column: name}
        raise Otherwise

    def _changes(self) -> Sets | None:
        """Read the clause for matching rows; return their new values, None if it deletes them."""
        if self._take("DELETE"):
            return None
        self._expect("UPDATE", "SET")
        return self._everything() if self._symbol("*") else self._sets()

    def _inserted(self) -> Sets:
        """Read the clause that inserts a row; return the row's columns with their values."""
        if self._symbol("*"):
            return self._everything()
        columns = self._enclosed(self._column)
        self._expect("VALUES")
        self._inserting = True
        values = self._enclosed(self._plain)
        if len(values) != len(columns) or len(set(columns)) < len(columns):
            raise Otherwise
        return tuple(zip(columns, values, strict=True))

    def _plain(self) -> Expression:
        """Read a literal or a column of the source."""
        value = self._value()
        piece: Piece | Given = value[0]
        if len(value) > 1 or not isinstance(piece, Cell | Given):
            raise Otherwise
        return value

    def _everything(self) -> Sets:
        self._whole = True
        return tuple((name, (Given(name),)) for name in self._source)


# The changes of operations, as far as their texts show them plainly.
#
# ``INSERT INTO t [(columns)] VALUES (literals), …``, Arrow rows, UPDATEs and DELETEs with no other
# condition than ``column = literal`` or ``column IN (literals)``, joined by AND, and MERGEs of
# literals (`Upsert`). Other statements have no *change*: they run uncombined.


KEYS_MAX: Final = 1_000
"""The most keys that an UPDATE or DELETE may name: the combinations of its lists. Chosen."""
TEXT_MAX: Final = 64 << 10
"""The longest text of an UPDATE, a DELETE or a MERGE. Chosen."""


def change_of(op: Operation) -> Change | None:
    """Return the change of rows that an operation makes.

    None if its text does not show the change plainly: then it is not composed.
    """
    if op.operation_class is not OperationClass.ASYNCHRONOUS or op.exclusive:
        return None
    if len(op.writes) != 1 or not isinstance(op.write, SqlText | ArrowRows):
        return None
    if isinstance(op.write, RowsInLog):
        return None  # far too many rows for a text
    if op.reads or op.settings.confs or not op.settings.ansi:
        return None  # the stored values could depend on them
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
        # Beside literals of a wider type a literal gets that type: 1 beside 2.5 is 1.0.
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
    """Reads one UPDATE or DELETE whose condition names the keys of its rows."""

    def change(self) -> Changed:
        """Read the statement as a `Changed`; raises Otherwise if it cannot be composed."""
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
        """Read the condition; return the columns that it fixes, and their combined values."""
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
        return self._enclosed(self._literal)
