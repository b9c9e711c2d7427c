"""Spark SQL's lexical rules: where strings, comments and quoted names begin and end.

Source: SqlBaseLexer.g4 of Spark 4.2. Everything that looks into a statement looks at these tokens,
so that nothing inside a string, a comment or a quoted name is ever taken for SQL. Hints
(``/*+ … */``) are tokens of their own, not comments. ``tokenize`` is lazy: the first tokens of a
huge INSERT cost the same as those of a small one.

Two things Spark leaves to its parser are decided here: a hint is one token, and whether ``:name``
is a parameter or a path into a variant (``payload:name``), by the token in front of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple


class TokenKind(StrEnum):
    """What a token is."""

    WORD = "word"
    """A keyword or an unquoted name."""
    QUOTED_NAME = "quoted_name"
    STRING = "string"
    """Single- or double-quoted, raw (``r'…'``) or dollar-quoted."""
    NUMBER = "number"
    PARAMETER = "parameter"
    """``?`` or ``:name``."""
    HINT = "hint"
    SYMBOL = "symbol"


class UnclosedError(ValueError):
    """A string, a quoted name, a hint or a bracketed comment does not end."""

    def __init__(self, what: str, position: int) -> None:
        super().__init__(f"{what} that begins at character {position} is not closed")
        self.position = position


class Token(NamedTuple):
    """A token: ``sql[start:end] == text``. (A tuple, because a statement can have 100,000.)"""

    kind: TokenKind
    text: str
    start: int
    end: int

    @property
    def upper(self) -> str:
        """The keyword this is, in capitals; empty for anything that cannot be one."""
        return capitals(self.text) if self.kind is TokenKind.WORD else ""

    def is_symbol(self, text: str) -> bool:
        """Whether this is the given symbol."""
        return self.text == text and self.kind is TokenKind.SYMBOL


def capitals(text: str) -> str:
    """Return ``text`` in capitals as Spark's lexer makes them: character by character.

    ``ß`` stays ``ß`` (Python's own ``upper`` would make it ``SS``), ``ı`` becomes ``I``.
    """
    if text.isascii():
        return text.upper()
    return "".join(upper if len(upper := char.upper()) == 1 else char for char in text)


# The spaces of the grammar; Python's \s knows a few more, which Spark refuses.
SPACE = "[ \\t\\n\\f\\r\\u000B\\u00A0\\u1680\\u2000-\\u200A\\u2028\\u202F\\u205F\\u3000]"
_TOKEN = re.compile(
    rf"""
    (?P<space>{SPACE}+)
  | (?P<comment>--(?:\\\n|[^\r\n])*)
  | (?P<bracket>/\*)
  | (?P<raw>[rR](?:'[^']*'|"[^"]*"))
  | (?P<string>'[^'\\]*(?:(?:\\.|'')[^'\\]*)*'|"[^"\\]*(?:(?:\\.|"")[^"\\]*)*")
  | (?P<quoted>`(?:[^`]|``)*`)
  | (?P<dollar>\$[A-Za-z]*\$)
  | (?P<number>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:E[+-]?[0-9]+)?(?:BD|[FD])?(?![A-Za-z0-9_])
      |[0-9]+E[+-][0-9]+(?:BD|[FD])?
      |[0-9]+(?:[LSY]|(?:E[0-9]+)?(?:BD|[FD])?)(?!\w))
  | (?P<word>[^\W\d_]+://[\w/\-.?=&\#%]+|\w+)
  | (?P<parameter>\?|:[A-Za-z_]\w*)
  | (?P<symbol><=>|<>|!=|<=|>=|==|=>|->|::|\|\||\|>|<<|>>>|>>|\*/|.)
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_KINDS = {
    "raw": TokenKind.STRING,
    "string": TokenKind.STRING,
    "quoted": TokenKind.QUOTED_NAME,
    "number": TokenKind.NUMBER,
    "word": TokenKind.WORD,
    "parameter": TokenKind.PARAMETER,
    "symbol": TokenKind.SYMBOL,
}
_UNCLOSED = {"'": "the string", '"': "the string", "`": "the quoted name"}
# After these words no value can have ended, so that a colon begins a parameter.
_VALUE_FOLLOWS = """ALL AND ANTI AS BETWEEN BY CASE CONTAINS DATE DEFAULT DISTINCT DIV ELSE ESCAPE
    EXCEPT EXISTS FROM HAVING ILIKE IN INTERVAL IS LIKE LIMIT MATCHED NOT OF OFFSET ON OR PERCENT
    QUALIFY REGEXP REPEATABLE RETURN RLIKE SELECT SET SOME TABLE THEN TIMESTAMP USING VALUES WHEN
    WHERE ZONE"""
_BEFORE_A_VALUE = frozenset(_VALUE_FOLLOWS.split())


def _bracket_end(sql: str, start: int) -> int:
    """Return the end of the bracketed comment at ``start``; such comments nest (hints don't)."""
    depth, position = 1, start + 2
    while depth:
        opening, closing = sql.find("/*", position), sql.find("*/", position)
        if closing < 0:
            raise UnclosedError("the comment", start)
        if 0 <= opening < closing:
            depth, position = depth + (not sql.startswith("+", opening + 2)), opening + 2
        else:
            depth, position = depth - 1, closing + 2
    return position


def _hint_end(sql: str, start: int) -> int:
    """Return the end of the hint at ``start``: what it holds is made of tokens, strings too."""
    position = start + 3
    try:
        for token in tokenize(sql, position):
            if token.is_symbol("*/"):
                return token.end
    except UnclosedError:
        pass
    raise UnclosedError("the hint", start)


def _ends_a_value(token: Token | None) -> bool:
    """Whether a value can end with this token, so that a colon behind it is a path into it."""
    if token is None or token.kind is TokenKind.HINT:
        return False
    if token.kind is TokenKind.SYMBOL:
        return token.text in (")", "]", ":")
    return token.kind is not TokenKind.WORD or token.upper not in _BEFORE_A_VALUE


def tokenize(sql: str, start: int = 0) -> Iterator[Token]:
    """Yield the tokens of ``sql`` from ``start``; raises UnclosedError where one does not end."""
    position, length, before = start, len(sql), None
    match_at, kinds = _TOKEN.match, _KINDS
    while position < length:
        match = match_at(sql, position)
        assert match is not None  # the last alternative takes any character
        group = match.lastgroup
        assert group is not None
        begin, position = position, match.end()
        if group == "space" or group == "comment":
            continue
        if group == "bracket":
            if not sql.startswith("/*+", begin):
                position = _bracket_end(sql, begin)
                continue
            position = _hint_end(sql, begin)
            before = Token(TokenKind.HINT, sql[begin:position], begin, position)
            yield before
            continue
        if group == "dollar":
            closing = sql.find(match.group(), position)
            if closing < 0:
                raise UnclosedError("the string", begin)
            position = closing + len(match.group())
            before = Token(TokenKind.STRING, sql[begin:position], begin, position)
            yield before
            continue
        text = match.group()
        if group == "symbol" and text in _UNCLOSED:
            raise UnclosedError(_UNCLOSED[text], begin)
        if group == "parameter" and text != "?" and _ends_a_value(before):
            text, position = ":", begin + 1
            group = "symbol"
        before = Token(kinds[group], text, begin, position)
        yield before
