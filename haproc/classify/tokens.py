"""Spark SQL's lexical rules: where strings, comments and quoted names begin and end.

Source: SqlBaseLexer.g4 of Spark 4.2. Everything that looks into a statement looks at these tokens,
so that nothing inside a string, a comment or a quoted name is ever taken for SQL. Hints
(``/*+ … */``) are tokens of their own, not comments. ``tokenize`` is lazy: the first tokens of a
huge INSERT cost the same as those of a small one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


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
    """A string, a quoted name or a bracketed comment does not end."""

    def __init__(self, what: str, position: int) -> None:
        super().__init__(f"{what} that begins at character {position} is not closed")
        self.position = position


@dataclass(frozen=True, slots=True)
class Token:
    """A token: ``sql[start:end] == text``."""

    kind: TokenKind
    text: str
    start: int
    end: int

    @property
    def upper(self) -> str:
        """The keyword this is, in capitals; empty for anything that cannot be one."""
        return self.text.upper() if self.kind is TokenKind.WORD else ""

    def is_symbol(self, text: str) -> bool:
        """Whether this is the given symbol."""
        return self.kind is TokenKind.SYMBOL and self.text == text


_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<comment>--(?:\\\n|[^\r\n])*)
  | (?P<bracket>/\*)
  | (?P<raw>[rR](?:'[^']*'|"[^"]*"))
  | (?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
  | (?P<quoted>`(?:[^`]|``)*`)
  | (?P<dollar>\$[A-Za-z]*\$)
  | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:BD|[LSYFD])?(?![A-Za-z0-9_])
      |(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?(?:BD|[LSYFD])?)
  | (?P<word>[\w]+)
  | (?P<parameter>\?|(?<![:\w)\]`'"]):[A-Za-z_]\w*)
  | (?P<symbol><=>|<>|!=|<=|>=|==|=>|->|::|\|\||\|>|<<|>>>|>>|.)
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


def _bracket_end(sql: str, start: int) -> int:
    """Return the end of the bracketed comment at ``start``; such comments nest."""
    depth, position = 1, start + 2
    while depth:
        opening, closing = sql.find("/*", position), sql.find("*/", position)
        if closing < 0:
            raise UnclosedError("the comment", start)
        if 0 <= opening < closing:
            depth, position = depth + 1, opening + 2
        else:
            depth, position = depth - 1, closing + 2
    return position


def tokenize(sql: str, start: int = 0) -> Iterator[Token]:
    """Yield the tokens of ``sql`` from ``start``; raises UnclosedError where one does not end."""
    position = start
    while position < len(sql):
        match = _TOKEN.match(sql, position)
        assert match is not None  # the last alternative takes any character
        group = str(match.lastgroup)
        begin, position = position, match.end()
        if group in ("space", "comment"):
            continue
        if group == "bracket":
            position = _bracket_end(sql, begin)
            if sql.startswith("/*+", begin):
                yield Token(TokenKind.HINT, sql[begin:position], begin, position)
            continue
        if group == "dollar":
            closing = sql.find(match.group(), position)
            if closing < 0:
                raise UnclosedError("the string", begin)
            position = closing + len(match.group())
            yield Token(TokenKind.STRING, sql[begin:position], begin, position)
            continue
        if group == "symbol" and match.group() in _UNCLOSED:
            raise UnclosedError(_UNCLOSED[match.group()], begin)
        yield Token(_KINDS[group], match.group(), begin, position)
