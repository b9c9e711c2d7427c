"""Reads the text of Spark's SQL types.

Parameters name their type in text, and so do a query's columns. `parse_type` makes a `SqlType` of
either. Type text comes from clients and gets into SQL, so only what is understood here is ever
written back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

DECIMAL_DIGITS_MAX = 38
TYPE_DEPTH_MAX = 32
"""The most types inside each other; chosen, not measured (Spark's own limit is its stack)."""
FIELD_NAME_WORDS_MAX = 64
TYPE_CHARS_MAX = 100_000
"""The most characters of a type's text; chosen, not measured."""

DAY_TIME_UNITS = ("DAY", "HOUR", "MINUTE", "SECOND")
YEAR_MONTH_UNITS = ("YEAR", "MONTH")

_SYNONYMS = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL",
    "NULL": "VOID",
}
_SIMPLE = frozenset(
    {"STRING", "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DATE"}
    | {"TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "BINARY", "VOID", "VARIANT"}
)
_PIECE = re.compile(r"\s*(`(?:[^`]|``)*`|[^<>(),:`\s]+|[<>(),:])")


class TypeTextError(ValueError):
    """The text names no type that this module knows."""


@dataclass(frozen=True, slots=True)
class SqlType:
    """A type of Spark's SQL; ``name``: Spark's name of it in capitals, without arguments.

    - ``precision``: of a DECIMAL or a TIME (None: not given); ``scale``: of a DECIMAL;
    - ``units``: the first and the last unit of an INTERVAL;
    - ``arguments``: the types of an ARRAY's elements, a MAP's key and value, a STRUCT's fields;
    - ``fields``: the names of a STRUCT's fields;
    - ``collation``: of a STRING.
    """

    name: str
    precision: int | None = None
    scale: int = 0
    units: tuple[str, str] | None = None
    arguments: tuple[SqlType, ...] = ()
    fields: tuple[str, ...] = ()
    collation: str = ""

    @property
    def text(self) -> str:
        """The type as text for SQL."""
        if self.name == "DECIMAL" and self.precision is not None:
            return f"DECIMAL({self.precision},{self.scale})"
        if self.name == "TIME" and self.precision is not None:
            return f"TIME({self.precision})"
        if self.name == "INTERVAL" and self.units is not None:
            first, last = self.units
            return f"INTERVAL {first}" if first == last else f"INTERVAL {first} TO {last}"
        if self.name == "STRUCT":
            pairs = zip(self.fields, self.arguments, strict=True)
            return f"STRUCT<{', '.join(f'{quote_name(n)}: {t.text}' for n, t in pairs)}>"
        if self.arguments:
            return f"{self.name}<{', '.join(a.text for a in self.arguments)}>"
        return f"{self.name} COLLATE {self.collation}" if self.collation else self.name


def quote_name(name: str) -> str:
    """Return the name in backquotes, as SQL needs it."""
    return f"`{name.replace('`', '``')}`"


@lru_cache(maxsize=1024)
def parse_type(text: str) -> SqlType:
    """Return the type that ``text`` names; raises TypeTextError."""
    if len(text) > TYPE_CHARS_MAX:
        raise TypeTextError(f"the text of a type may have {TYPE_CHARS_MAX} characters")
    pieces = list(_pieces(text))
    parser = _Parser(text, pieces)
    result = parser.type(0)
    parser.end()
    return result


def _pieces(text: str) -> Iterator[str]:
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _PIECE.match(text, position)
        if match is None:
            raise TypeTextError(f"{text!r} is not a type")
        yield match.group(1)
        position = match.end()


class _Parser:
    """Reads a type from the pieces of its text; a nested type is read by a nested call."""

    def __init__(self, text: str, pieces: list[str]) -> None:
        self._text = text
        self._pieces = pieces
        self._at = 0

    def _peek(self) -> str:
        return self._pieces[self._at] if self._at < len(self._pieces) else ""

    def _next(self) -> str:
        piece = self._peek()
        self._at += 1
        return piece

    def _wrong(self) -> TypeTextError:
        return TypeTextError(f"{self._text!r} is not a type that HAProc knows")

    def _expect(self, piece: str) -> None:
        if self._next() != piece:
            raise self._wrong()

    def end(self) -> None:
        """Raise TypeTextError if there is a piece behind the type."""
        if self._at < len(self._pieces):
            raise self._wrong()

    def type(self, depth: int) -> SqlType:
        """Read the type that begins at the next piece; raises TypeTextError.

        ``depth``: the number of types around it.
        """
        if depth > TYPE_DEPTH_MAX:
            raise TypeTextError(f"types may be nested {TYPE_DEPTH_MAX} deep")
        word = self._next().upper()
        name = _SYNONYMS.get(word, word)
        if name == "STRING":
            return SqlType("STRING", collation=self._collation())
        if name in _SIMPLE:
            return SqlType(name)
        if name in ("CHAR", "CHARACTER", "VARCHAR"):
            self._numbers(1)
            return SqlType("STRING")
        if name == "DECIMAL":
            return self._decimal()
        if name == "TIME":
            return SqlType("TIME", precision=self._time_precision())
        if name == "INTERVAL":
            return SqlType("INTERVAL", units=self._units())
        if name in ("ARRAY", "MAP"):
            return self._container(name, depth)
        if name == "STRUCT":
            return self._struct(depth)
        raise self._wrong()

    def _collation(self) -> str:
        if self._peek().upper() != "COLLATE":
            return ""
        self._next()
        name = self._next()
        if not re.fullmatch(r"\w+", name):
            raise self._wrong()
        return name

    def _numbers(self, at_most: int) -> list[int]:
        if self._peek() != "(":
            return []
        self._next()
        numbers: list[int] = []
        while True:
            piece = self._next()
            if not re.fullmatch(r"[0-9]{1,9}", piece):
                raise self._wrong()
            numbers.append(int(piece))
            separator = self._next()
            if separator == ")":
                break
            if separator != "," or len(numbers) == at_most:
                raise self._wrong()
        return numbers

    def _decimal(self) -> SqlType:
        numbers = self._numbers(2)
        if not numbers:
            return SqlType("DECIMAL")
        precision, scale = numbers[0], numbers[1] if len(numbers) > 1 else 0
        if not 1 <= precision <= DECIMAL_DIGITS_MAX or scale > precision:
            raise TypeTextError(
                f"{self._text!r}: a DECIMAL has 1 to {DECIMAL_DIGITS_MAX} digits, "
                "at most as many of them behind the point"
            )
        return SqlType("DECIMAL", precision=precision, scale=scale)

    def _time_precision(self) -> int | None:
        numbers = self._numbers(1)
        if numbers and numbers[0] > 6:
            raise TypeTextError(f"{self._text!r}: a TIME has at most 6 digits behind the second")
        return numbers[0] if numbers else None

    def _units(self) -> tuple[str, str] | None:
        first = self._peek().upper()
        family = next((f for f in (DAY_TIME_UNITS, YEAR_MONTH_UNITS) if first in f), None)
        if family is None:
            return None
        self._next()
        if self._peek().upper() != "TO":
            return first, first
        self._next()
        last = self._next().upper()
        if last not in family or family.index(last) <= family.index(first):
            raise self._wrong()
        return first, last

    def _container(self, name: str, depth: int) -> SqlType:
        self._expect("<")
        arguments = [self.type(depth + 1)]
        if name == "MAP":
            self._expect(",")
            arguments.append(self.type(depth + 1))
        self._expect(">")
        return SqlType(name, arguments=tuple(arguments))

    def _struct(self, depth: int) -> SqlType:
        self._expect("<")
        fields: list[str] = []
        arguments: list[SqlType] = []
        while True:
            fields.append(self._field_name())
            if self._peek() == ":":
                self._next()
            arguments.append(self.type(depth + 1))
            separator = self._next()
            if separator == ">":
                return SqlType("STRUCT", arguments=tuple(arguments), fields=tuple(fields))
            if separator != ",":
                raise self._wrong()

    def _field_name(self) -> str:
        """Read the name of a STRUCT's field, which may have spaces even if it is not quoted.

        So Spark writes it in its own text of a type.
        """
        piece = self._next()
        if not piece or piece in "<>(),:":
            raise self._wrong()
        if piece.startswith("`"):
            return piece[1:-1].replace("``", "`")
        ahead = self._pieces[self._at : self._at + FIELD_NAME_WORDS_MAX]
        colon = ahead.index(":") if ":" in ahead else 0
        if any(word in "<>()," or word.startswith("`") for word in ahead[:colon]):
            return piece
        self._at += colon
        return " ".join([piece, *ahead[:colon]])
