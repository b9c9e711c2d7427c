"""The changes that statements by key make; and the values of columns after them, as SQL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from haproc.classify.insert import literal_type
from haproc.classify.tokens import decoded

# The value of a column after some statements, as SQL over literals and the earlier row.
#
# A *term* is a sequence of pieces: text, literals (`Cell`), and columns of the row before the
# statements (`Own`). The expressions of a statement may also contain columns of its source
# (`Given`). HAProc computes no values: only Spark evaluates literals and expressions. A term can
# replace a column in another term. It needs no parentheses, because it is a CAST to its column's
# type, as storing makes it.


@dataclass(frozen=True, slots=True)
class Cell:
    """A literal. ``letter``: its type, as in `haproc.classify.insert`; ``text``: its SQL text."""

    letter: str
    text: str


@dataclass(frozen=True, slots=True)
class Own:
    """A column of the table's row as it is before the statements; ``name`` in lower case."""

    name: str


@dataclass(frozen=True, slots=True)
class Given:
    """A column of the source of the MERGE; ``name`` in lower case."""

    name: str


Piece: TypeAlias = str | Cell | Own
Term: TypeAlias = tuple[Piece, ...]
Expression: TypeAlias = tuple[Piece | Given, ...]
Key: TypeAlias = tuple[int | str, ...]

NULL: Final = Cell("n", "NULL")
PIECES_MAX: Final = 120
"""The most pieces of a term: about thirty statements, each based on the one before. Chosen."""

_INTEGERS: Final = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
_WHOLE: Final = frozenset("yhil")
_EXACT: Final = frozenset({*_INTEGERS, "float", "double", "string"})
_DECIMAL: Final = re.compile(r"decimal\(\d+,\d+\)")
_STORED_AS: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys("yhil", _EXACT | {"decimal"}),
    "d": _EXACT | {"decimal"},
    "f": frozenset({"float", "double", "string"}),
    "e": frozenset({"float", "double", "string"}),
    "s": frozenset({"string"}),
    "b": frozenset({"boolean", "string"}),
    "t": frozenset({"date", "string"}),
    **dict.fromkeys("Tz", frozenset({"timestamp", "string"})),
    "x": frozenset({"binary"}),
}
"""By type of literal: the types of columns for which storing the literal is only a cast."""
_SQL_TYPES: Final = {
    "y": "TINYINT",
    "h": "SMALLINT",
    "i": "INT",
    "l": "BIGINT",
    "f": "FLOAT",
    "e": "DOUBLE",
    "s": "STRING",
    "b": "BOOLEAN",
    "t": "DATE",
    "T": "TIMESTAMP",
    "z": "TIMESTAMP",
    "x": "BINARY",
}
_DIGITS: Final = re.compile(r"-?[0-9]+")
_DAY: Final = re.compile(r"'(.*)'", re.DOTALL)
_FIRST_DAY: Final = "1582-10-15"
"""The first day of the Gregorian calendar. Spark and the files' statistics may count earlier days
differently: so Delta may skip a file that has them."""


def cell_of(text: str) -> Cell | None:
    """Return the literal that a SQL text is; None if it is not a literal."""
    letter = literal_type(text)
    return None if letter is None else Cell(letter, text)


def is_plain(type_text: str) -> bool:
    """True if a column of this SQL type stores values unchanged, and they are read unchanged."""
    return (
        type_text in _EXACT
        or type_text in ("boolean", "date", "timestamp", "binary")
        or _DECIMAL.fullmatch(type_text) is not None
    )


def storable(cell: Cell, type_text: str) -> bool:
    """True if storing the literal in a column of this type is only a cast."""
    plain = type_text.partition("(")[0]
    return cell.letter == "n" or plain in _STORED_AS[cell.letter[0]]


def column_type(cells: Iterable[Cell]) -> str | None:
    """Return the SQL type of a column with these literals; None if their types differ.

    Empty if they are all NULL. Decimals of one scale count as one type: the widest.
    """
    present = [cell for cell in cells if cell.letter != "n"]
    letters = {cell.letter for cell in present}
    if len(letters) > 1:
        return None
    letter = min(letters, default="")
    if letter[:1] != "d":
        return _SQL_TYPES[letter].lower() if letter else ""
    scale = int(letter[1:])
    return f"decimal({max(_precision(cell.text, scale) for cell in present)},{scale})"


def _precision(text: str, scale: int) -> int:
    """Return the precision (number of digits) that Spark gives to a decimal literal."""
    digits = "".join(filter(str.isdecimal, text)).lstrip("0")
    return max(len(digits), scale, 1)


def literal_type_text(letter: str) -> str:
    """Return the SQL type of literals whose `Cell.letter` is this.

    For a decimal it is the widest type of its scale.
    """
    return f"DECIMAL(38,{letter[1:]})" if letter[0] == "d" else _SQL_TYPES[letter]


def stored(term: Term, type_text: str) -> Term:
    """Return ``term``, cast to the type of the column in which its value is stored."""
    return ("CAST(", *term, f" AS {type_text.upper()})")


def put_into(term: Term, state: Mapping[str, Term]) -> Term:
    """Return the term with the row's columns replaced by their values in ``state``."""
    pieces: list[Piece] = []
    for piece in term:
        pieces += state.get(piece.name, (piece,)) if isinstance(piece, Own) else (piece,)
    return tuple(pieces)


def bound(expression: Expression, given: Mapping[str, Cell], types: Mapping[str, str]) -> Term:
    """Return the expression with the source's columns replaced by the literals of one row.

    Each literal is cast to its column's type: for Spark it is then only a value of that type.
    Raises ValueError for a column without a type.
    """
    pieces: list[Piece] = []
    for piece in expression:
        if not isinstance(piece, Given):
            pieces.append(piece)
        elif not types[piece.name]:
            raise ValueError("a column of NULLs has the type that an expression gives it")
        else:
            pieces += stored((given[piece.name],), types[piece.name])
    return tuple(pieces)


def settled(
    expression: Expression, types: Mapping[str, str], given: Mapping[str, str]
) -> Expression:
    """Return an expression in which each literal that is still a `Cell` may become a column.

    Some literals are more than a value of their type: beside a decimal, Spark gives a number the
    precision of its text. Such literals become text pieces. ``types``: the table's columns with
    their types; ``given``: the source's.
    """
    columns = {types[piece.name] for piece in expression if isinstance(piece, Own)}
    columns |= {given[piece.name] for piece in expression if isinstance(piece, Given)}
    cells = [piece for piece in expression if isinstance(piece, Cell)]
    whole = columns <= _INTEGERS.keys()
    whole = whole and all(c.letter == "i" and len(c.text) <= 9 for c in cells)
    text = columns <= {"string"} and all(c.letter == "s" for c in cells)
    text = text and not any(piece in ("+", "-", "*", "/", "%") for piece in expression)
    if whole or text:
        return expression
    return tuple(piece.text if isinstance(piece, Cell) else piece for piece in expression)


def has_keys(type_text: str) -> bool:
    """True if a column of this type can be a key: its literals show if values are equal."""
    return type_text in _INTEGERS or type_text in ("string", "date")


def key_value(cell: Cell, type_text: str) -> int | str | None:
    """Return a value that is the same for equal literals of a key column; None: no key is equal.

    No key is equal to NULL, or to an integer outside the column's range. Raises ValueError for a
    literal that Spark would not compare by its value, or that is not of the column's type.
    """
    if cell.letter == "n":
        return None
    if cell.letter in _WHOLE and type_text in _INTEGERS:
        found = _DIGITS.match(cell.text)
        assert found is not None
        value, bits = int(found.group()), _INTEGERS[type_text]
        return value if -(1 << bits) <= value < 1 << bits else None
    if cell.letter == "s" and type_text == "string":
        return decoded(cell.text)
    if cell.letter == "t" and type_text == "date":
        day = _DAY.search(cell.text)
        assert day is not None
        if day.group(1) < _FIRST_DAY:
            raise ValueError("files' statistics may have it as another day")
        return day.group(1)
    raise ValueError(f"a {type_text} is not what {cell.text} stands for")


# The change that a statement by key makes, as its text states it.
#
# Names of columns are in lower case. An `Expression` may contain columns of the statement's own
# source (`Given`), beside those of the table's row.


Sets: TypeAlias = tuple[tuple[str, Expression], ...]
"""Columns of the table, each with its new value."""


@dataclass(frozen=True, slots=True)
class Inserted:
    """An INSERT of rows of literals; ``columns`` empty: all columns of the table."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """An UPDATE or DELETE of the rows with one of these keys; DELETE: ``sets`` is empty.

    ``columns``: the ones that the condition compares, in order of their names; ``keys``: the values
    that it compares them with, for each key.
    """

    columns: tuple[str, ...]
    keys: tuple[tuple[Cell, ...], ...]
    sets: Sets = ()


@dataclass(frozen=True, slots=True)
class Merged:
    """A MERGE by key: a source row changes the table's rows of its key, or is inserted.

    ``columns``: the table's key columns, in order of their names. ``on``: the source columns that
    they are compared with. ``source``: the source's columns, each with its SQL type; the type is
    empty if all values are NULL. ``rows``: the source's rows, as literals. ``sets``: the new values
    of matching rows; None deletes these rows, empty leaves them as they are. ``row``: the values of
    an inserted row; empty: nothing is inserted. ``whole``: the statement says ``*``, which means
    all columns of the table.
    """

    columns: tuple[str, ...]
    on: tuple[str, ...]
    source: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]
    sets: Sets | None = ()
    row: Sets = ()
    whole: bool = False


Change: TypeAlias = Inserted | Changed | Merged
