"""What a statement by key does to the rows of its table, as its text says it.

Names of columns are in lower case. A *said* term may name columns of the statement's own source
(`Given`), beside those of the table's row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from haproc.replicate.compose.terms import Cell, Said

Sets: TypeAlias = tuple[tuple[str, Said], ...]
"""Columns of the table, and what they get."""


@dataclass(frozen=True, slots=True)
class Inserted:
    """Rows of literals; ``columns`` empty: the table's own."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """Rows with one of these keys get new values, or go if there are none (``sets`` is empty).

    ``columns``: those that the condition fixes, in order of their names; ``keys``: by which values.
    """

    columns: tuple[str, ...]
    keys: tuple[tuple[Cell, ...], ...]
    sets: Sets = ()


@dataclass(frozen=True, slots=True)
class Merged:
    """Each row of a source changes the table's rows of its key, or comes where there are none.

    ``columns``: the table's that make up the key, in order of their names; ``on``: the source's
    that they are held against. ``source``: its columns, each with its type as SQL has it, which is
    empty where all is NULL; ``rows``: their literals. ``sets``: what the rows there get, None: they
    go, empty: they stay as they are. ``row``: what the row that comes has, empty: none comes.
    ``whole``: the statement says ``*``, and means all columns of the table.
    """

    columns: tuple[str, ...]
    on: tuple[str, ...]
    source: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]
    sets: Sets | None = ()
    row: Sets = ()
    whole: bool = False


Change: TypeAlias = Inserted | Changed | Merged
