"""Reads a MERGE whose source is literals: an upsert.

::

    MERGE INTO t [[AS] a] USING (source) [[AS] s] ON a.k = s.k [AND …]
    [WHEN MATCHED THEN UPDATE SET c = …, … | UPDATE SET * | DELETE]
    [WHEN NOT MATCHED [BY TARGET] THEN INSERT (c, …) VALUES (s.c | literal, …) | INSERT *]

The source is ``VALUES (literals), … [[AS] s [(c, …)]]``, or ``SELECT`` of literals and of the
columns of such rows, or of ``*``; or several of them with UNION ALL between them. What is selected
gets a name by AS alone: else ``ALL k`` could be a column of the name ``all``. (Spark's MERGE takes
no names of columns behind the source's alias.) Clauses have no conditions, and there is one
of a kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from haproc.classify.tokens import Token
from haproc.replicate.compose.changes import Merged, Sets
from haproc.replicate.compose.expressions import NO_COLUMNS, Expressions, Otherwise
from haproc.replicate.compose.terms import Cell, Given, Own, Piece, Said, column_type

ROWS_MAX: Final = 1_000
"""Of one source. Chosen."""

_Row: TypeAlias = tuple[Cell, ...]
_CLAUSES: Final = """ANTI CLUSTER CROSS DISTRIBUTE EXCEPT FOR FROM FULL GROUP HAVING INNER INTERSECT
    JOIN LATERAL LEFT LIMIT MINUS NATURAL OFFSET ON ORDER PIVOT QUALIFY RIGHT SEMI SETMINUS SORT
    SYSTEM_TIME SYSTEM_VERSION TABLESAMPLE TIMESTAMP UNION UNPIVOT USING VERSION WATERMARK WHERE
    WINDOW"""
_NO_ALIASES: Final = frozenset(_CLAUSES.split())
"""Words that begin something else where an alias may stand without AS."""
_NO_ITEMS: Final = NO_COLUMNS | {"ALL", "DISTINCT"}
"""Words behind SELECT that may say something else than a column's name."""


class Upsert(Expressions):
    """See the module."""

    def __init__(self, tokens: Sequence[Token], sql: str) -> None:
        super().__init__(tokens, sql)
        self._source_name = ""
        self._source: dict[str, str] = {}
        self._inserting = self._whole = False

    def change(self) -> Merged:
        """Return what it does."""
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
        """Return whose column it is. A name that both might have is none to rely on."""
        given = name in self._source
        if given and qualifier and qualifier == self._source_name:
            return Given(name)
        if given and not qualifier:
            if self._inserting:  # there is no row of the table
                return Given(name)
            raise Otherwise
        if self._inserting:
            raise Otherwise
        return super()._whose(qualifier, name)

    # -- the source ------------------------------------------------------------------------

    def _rows(self) -> list[_Row]:
        """Read the source; note its columns, and their types."""
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
            # A literal among wider ones is one of theirs: 1 beside 2.5 is 1.0.
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
        items = [self._item()]
        while self._symbol(","):
            items.append(self._item())
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
        """Read a literal with its name, or a column of the rows, which may get another name."""
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
        """Return the name behind AS, or the one that there is without."""
        return self._name() if self._take("AS") else name

    def _relation(self) -> tuple[list[str], list[_Row]]:
        """Read rows behind FROM, with or without parentheses."""
        if not self._symbol("("):
            self._expect("VALUES")
            return self._values()
        self._expect("VALUES")
        names, rows = self._values()
        self._needed(")")
        return self._with_alias(names), rows

    def _values(self) -> tuple[list[str], list[_Row]]:
        rows = [self._row()]
        while self._symbol(","):
            rows.append(self._row())
        if len({len(row) for row in rows}) > 1:
            raise Otherwise
        return self._with_alias([f"col{n}" for n, _ in enumerate(rows[0], 1)]), rows

    def _row(self) -> _Row:
        self._needed("(")
        cells = [self._literal()]
        while self._symbol(","):
            cells.append(self._literal())
        self._needed(")")
        return tuple(cells)

    def _with_alias(self, names: list[str]) -> list[str]:
        """Return the columns' names behind an alias, which may name them anew."""
        alias = self._alias()
        self._source_name = alias or self._source_name
        if not alias or not self._symbol("("):
            return names
        anew = [self._name()]
        while self._symbol(","):
            anew.append(self._name())
        self._needed(")")
        if len(anew) != len(names):
            raise Otherwise
        return anew

    def _alias(self) -> str:
        """Read an alias, if there is one."""
        if self._take("AS"):
            return self._name()
        free = self._ended() or self._is_symbol(",", ")", "(") or self._word() in _NO_ALIASES
        return "" if free else self._name()

    # -- the clauses -----------------------------------------------------------------------

    def _condition(self) -> dict[str, str]:
        """Read which columns of the table are held against which of the source."""
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
        """Read what becomes of rows that are there."""
        if self._take("DELETE"):
            return None
        self._expect("UPDATE", "SET")
        return self._everything() if self._symbol("*") else self._sets()

    def _inserted(self) -> Sets:
        """Read what a row is that comes."""
        if self._symbol("*"):
            return self._everything()
        self._needed("(")
        columns = [self._column()]
        while self._symbol(","):
            columns.append(self._column())
        self._needed(")")
        self._expect("VALUES")
        self._needed("(")
        self._inserting = True
        values = [self._plain()]
        while self._symbol(","):
            values.append(self._plain())
        self._needed(")")
        if len(values) != len(columns) or len(set(columns)) < len(columns):
            raise Otherwise
        return tuple(zip(columns, values, strict=True))

    def _plain(self) -> Said:
        """Read a literal or a column of the source."""
        value = self._value()
        piece: Piece | Given = value[0]
        if len(value) > 1 or not isinstance(piece, Cell | Given):
            raise Otherwise
        return value

    def _everything(self) -> Sets:
        self._whole = True
        return tuple((name, (Given(name),)) for name in self._source)
