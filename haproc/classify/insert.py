"""The recognition of ``INSERT INTO t … VALUES (literals), …`` in one pass, without a token list.

These are the most frequent and the largest statements. The result is the `InsertShape`, which shows
if two of them can be combined. All rows of one VALUES list share a type for each column, so rows
must not be combined if that would change a type: 1.5 and 2.25 would become 1.50 and 2.25, which a
STRING column keeps. The signature names each column's type over all rows of the statement:

====== ================= ====== =================================================
``n``  only NULL         ``f``  FLOAT (``1.5F``)
``b``  BOOLEAN           ``e``  DOUBLE (``1e3``, ``1.5D``)
``y``  TINYINT (``1Y``)  ``d3`` DECIMAL of scale 3; of any precision, as a wider
``h``  SMALLINT (``1S``)        one of the same scale keeps every value and its text
``i``  INT               ``s``  STRING
``l``  BIGINT            ``t``  DATE'2020-01-31', ``T`` TIMESTAMP'2020-01-31 10:00:00'
``z``  ``T`` with its    ``x``  BINARY (``X'00FF'``)
..     offset from
..     UTC: ``'… +01:00'``
====== ================= ====== =================================================

Equal signatures mean that the types of the combined list are those of each statement alone. Within
a statement NULL takes its column's type, and INT, BIGINT and DECIMAL widen as in Spark; any other
mixture, and anything that is not a literal, has no shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from haproc.classify.model import InsertShape
from haproc.classify.names import Context, may_be_temporary, plain, target
from haproc.classify.tokens import (
    SPACE,
    LexicalError,
    Token,
    TokenKind,
    decoded,
    is_moment,
    may_write_time_of_day,
    tokenize,
)

_TEXT = rf"""(?:
      (?P<s>'[^'\\]*+(?>(?:(?:\\.|'')[^'\\]*+)*)')
    | (?P<i>-?[0-9]+)
    | (?P<d>-?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:BD)?)
    | (?P<n>NULL)
    | (?P<b>TRUE|FALSE)
    | (?P<t>DATE{SPACE}*'[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}')
    | (?P<T>TIMESTAMP{SPACE}*'[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}
        (?:[ ][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(?:\.[0-9]{{1,6}})?)?')
    | (?P<z>TIMESTAMP{SPACE}*'[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}
        [ ][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(?:\.[0-9]{{1,6}})?[+-][0-9]{{2}}:[0-9]{{2}}')
    | (?P<e>-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:E[+-]?[0-9]+D?|D))
    | (?P<l>-?[0-9]+L)
    | (?P<f>-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)F)
    | (?P<h>-?[0-9]+S)
    | (?P<y>-?[0-9]+Y)
    | (?P<x>X{SPACE}*'[0-9A-F]*')
    | (?P<q>"[^"\\]*+(?>(?:(?:\\.|"")[^"\\]*+)*)")
    )"""
_FLAGS = re.VERBOSE | re.DOTALL | re.IGNORECASE | re.ASCII
_ALONE = re.compile(_TEXT, _FLAGS)
_LITERAL = re.compile(rf"{SPACE}*{_TEXT}{SPACE}*[,)]", _FLAGS)
_NEXT_ROW = re.compile(rf"{SPACE}*,{SPACE}*\(")
_END = re.compile(rf"(?>(?:{SPACE}|;|--[^\r\n\\]*+(?>(?:\\\n?[^\r\n\\]*+)*))*)\Z")

_INT_MAX, _INT_MIN = 2**31 - 1, -(2**31)
_BIGINT_MAX, _BIGINT_MIN = 2**63 - 1, -(2**63)
_PRECISION_MAX = 38
_NAMES = (TokenKind.WORD, TokenKind.QUOTED_NAME)


@dataclass(frozen=True, slots=True)
class PlainInsert:
    """An INSERT of literals: its text without closing semicolon, its table, its shape.

    ``bare``: True if a temporary view of the session may hide the table.
    """

    sql: str
    table: str
    bare: bool
    shape: InsertShape


def plain_insert(sql: str, context: Context) -> PlainInsert | None:
    """Return the parts of an INSERT whose values are all literals; None for any other text.

    A text that Spark may read by the clock (``'now'``) counts as no literal. Raises RefusedError if
    the target is no table of the ring.
    """
    head = _head(sql)
    if head is None:
        return None
    start, parts, values_at = head
    rows, end, signature = _rows(sql, values_at)
    if not rows or _END.match(sql, end) is None or may_write_time_of_day(sql, values_at, end):
        return None
    shape = InsertShape(values_at=values_at - start, rows=rows, signature=signature)
    table = target(parts, context)
    return PlainInsert(sql[start:end], table, may_be_temporary(parts), shape)


def combined_signature(left: str, right: str) -> str | None:
    """Return the signature of two INSERTs combined into one; None if they can't be combined.

    The signatures may differ in one way: a column that is NULL in all rows of one statement takes
    its type from the other one, which changes no value.
    """
    if left == right:
        return left
    lefts, rights = left.split(","), right.split(",")
    if len(lefts) != len(rights):
        return None
    columns = []
    for one, other in zip(lefts, rights, strict=True):
        if one != other and "n" not in (one, other):
            return None
        columns.append(other if one == "n" else one)
    return ",".join(columns)


def literal_type(text: str) -> str | None:
    """Return the letter of one literal's type (see this module); None if the text is no literal."""
    match = _ALONE.fullmatch(text)
    return None if match is None else _type(match)[0]


def literal_rows(sql: str, values_at: int) -> Iterator[list[tuple[str, str]]]:
    """Yield the rows of an INSERT with a shape: of each literal its type's letter, and its text.

    ``values_at``: as in the `InsertShape`. Raises ValueError if the statement has no shape.
    """
    position = values_at + 1
    while True:
        row: list[tuple[str, str]] = []
        while not row or sql[position - 1] != ")":
            match = _LITERAL.match(sql, position)
            if match is None or match.lastgroup is None:
                raise ValueError("the statement has no shape")
            row.append((_type(match)[0], match.group(match.lastgroup)))
            position = match.end()
        yield row
        next_row = _NEXT_ROW.match(sql, position)
        if next_row is None:
            return
        position = next_row.end()


def column_list(head: str) -> tuple[str, ...] | None:
    """Return the columns listed in the text before the rows; empty if it lists none.

    None if the text has something else besides the table and the columns, such as PARTITION.
    """
    tokens = list(tokenize(head))
    names = iter(tokens[3 if tokens[2].upper == "TABLE" else 2 :])
    _, token = _name(names, next(names))
    if token.upper == "VALUES":
        return ()
    if not token.is_symbol("("):
        return None
    columns: list[str] = []
    while not token.is_symbol(")"):
        columns.append(plain(next(names)))
        token = next(names)
    return tuple(columns) if next(names).upper == "VALUES" else None


def _head(sql: str) -> tuple[int, tuple[str, ...], int] | None:
    """Return an INSERT's start, the parts of its table's name, and the start of its first row.

    None if the text does not begin like an INSERT INTO … VALUES with one row.
    """
    try:
        tokens = tokenize(sql)
        first = next(tokens, None)
        if first is None or first.upper != "INSERT" or next(tokens).upper != "INTO":
            return None
        token = next(tokens)
        if token.upper == "TABLE":
            token = next(tokens)
        parts, token = _name(tokens, token)
        if not parts:
            return None
        if token.upper == "PARTITION" and not _skip_partition(tokens):
            return None
        if token.upper == "PARTITION":
            token = next(tokens)
        if token.is_symbol("(") and not _skip_columns(tokens):
            return None
        if token.is_symbol("("):
            token = next(tokens)
        if token.upper != "VALUES":
            return None
        row = next(tokens)
    except (StopIteration, LexicalError):
        return None
    if not row.is_symbol("("):
        return None
    return first.start, parts, row.start


def _name(tokens: Iterator[Token], token: Token) -> tuple[tuple[str, ...], Token]:
    """Read a name that begins with ``token``; return its parts and the token after it."""
    parts: list[str] = []
    while token.kind in _NAMES:
        parts.append(plain(token))
        token = next(tokens)
        if not token.is_symbol("."):
            if len(parts) == 1 and parts[0].upper() == "IDENTIFIER" and token.is_symbol("("):
                return (), token
            return tuple(parts), token
        token = next(tokens)
    return (), token


def _skip_columns(tokens: Iterator[Token]) -> bool:
    """Skip a list of column names; return False if the tokens are anything else."""
    while True:
        if next(tokens).kind not in _NAMES:
            return False
        token = next(tokens)
        if token.is_symbol(")"):
            return True
        if not token.is_symbol(","):
            return False


def _skip_partition(tokens: Iterator[Token]) -> bool:
    """Skip ``(name = literal, …)``; return False if the tokens are anything else."""
    if not next(tokens).is_symbol("("):
        return False
    while True:
        if next(tokens).kind not in _NAMES or next(tokens).text not in ("=", "=="):
            return False
        value = next(tokens)
        if value.kind not in (TokenKind.STRING, TokenKind.NUMBER):
            return False
        if value.kind is TokenKind.STRING and is_moment(decoded(value.text)):
            return False
        token = next(tokens)
        if token.is_symbol(")"):
            return True
        if not token.is_symbol(","):
            return False


def _rows(sql: str, position: int) -> tuple[int, int, str]:
    """Read the rows that begin at ``position``; return their number, their end and their signature.

    The number is 0 if a value is no literal, or if rows do not fit each other.
    """
    types: list[str] = []
    whole: list[int] = []
    rows, position, literal_at = 0, position + 1, _LITERAL.match
    while True:
        column = 0
        while True:
            match = literal_at(sql, position)
            if match is None:
                return 0, position, ""
            position = match.end()
            letter, digits = _type(match)
            if rows == 0:
                types.append(letter)
                whole.append(digits)
            else:
                if column >= len(types):
                    return 0, position, ""
                if types[column] != letter:
                    wider = _wider(types[column], letter)
                    if wider is None:
                        return 0, position, ""
                    types[column] = wider
                if digits > whole[column]:
                    whole[column] = digits
            column += 1
            if sql[position - 1] == ")":
                break
        if column != len(types):
            return 0, position, ""
        rows += 1
        next_row = _NEXT_ROW.match(sql, position)
        if next_row is None:
            break
        position = next_row.end()
    if any(_too_precise(kind, digits) for kind, digits in zip(types, whole, strict=True)):
        return 0, position, ""
    return rows, position, ",".join(types)


def _type(match: re.Match[str]) -> tuple[str, int]:
    """Return the letter of a literal's type, and a number's digits before the point (else 0)."""
    letter = match.lastgroup
    assert letter is not None
    if letter == "i" or letter == "d":
        return _number(match.group(letter))
    return ("s" if letter == "q" else letter), 0


def _number(text: str) -> tuple[str, int]:
    """Return the letter of an integer's or decimal's type, and its digits before the point."""
    point = text.find(".")
    if point >= 0:
        text = text[:-2] if text[-1] in "dD" else text
        return f"d{len(text) - point - 1}", point
    if len(text) <= 9:
        return "i", 10
    value = int(text) if len(text) <= _PRECISION_MAX + 1 else None
    if value is None:
        return "d0", len(text)
    if _INT_MIN <= value <= _INT_MAX:
        return "i", 10
    if _BIGINT_MIN <= value <= _BIGINT_MAX:
        return "l", 20
    return "d0", len(text.lstrip("-"))


def _wider(one: str, other: str) -> str | None:
    """Return the type of a column that has literals of both types; None if only Spark knows it."""
    if one == "n" or other == "n":
        return other if one == "n" else one
    if {one, other} == {"i", "l"}:
        return "l"
    exact = [kind for kind in (one, other) if kind[0] in "ild"]
    if len(exact) < 2:
        return None
    return f"d{max(int(kind[1:] or 0) for kind in exact if kind[0] == 'd')}"


def _too_precise(kind: str, digits: int) -> bool:
    """True if a column's decimals have too many digits for one type that keeps all of them."""
    return kind[0] == "d" and digits + int(kind[1:]) > _PRECISION_MAX
