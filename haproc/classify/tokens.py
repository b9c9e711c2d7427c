"""Spark SQL's lexical rules: the places of tokens, and the values of string literals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

# Spark SQL's lexical rules: the beginnings and ends of strings, comments and quoted names.
#
# Source: SqlBaseLexer.g4 of Spark 4.2. All code that reads a statement reads these tokens, so that
# nothing inside a string, a comment or a quoted name is ever taken for SQL. Hints (``/*+ … */``)
# are tokens of their own, not comments. ``tokenize`` is lazy: the first tokens of a huge INSERT
# cost the same as those of a small one.
#
# Two things that Spark leaves to its parser are decided here: a hint is one token; and ``:name`` is
# a parameter or a path into a variant (``payload:name``), by the token before it.


class TokenKind(StrEnum):
    """The kind of a token."""

    WORD = "word"
    """A keyword or an unquoted name."""
    QUOTED_NAME = "quoted_name"
    STRING = "string"
    """A string literal: in single or double quotes, raw (``r'…'``) or dollar-quoted."""
    NUMBER = "number"
    PARAMETER = "parameter"
    """A parameter: ``?``, ``:name`` or ``:`name```."""
    HINT = "hint"
    SYMBOL = "symbol"


class LexicalError(ValueError):
    """A text cannot be read as tokens; ``position``: the index of the first wrong character."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


class UnclosedError(LexicalError):
    """A string, a quoted name, a hint or a bracketed comment has no end."""

    def __init__(self, what: str, position: int) -> None:
        super().__init__(f"{what} that begins at character {position} is not closed", position)


class Token(NamedTuple):
    """A token: ``sql[start:end] == text``. (A tuple, as a statement can have 100,000 tokens.)"""

    kind: TokenKind
    text: str
    start: int
    end: int

    @property
    def upper(self) -> str:
        """Return a keyword in capitals; empty if the token cannot be a keyword."""
        return capitals(self.text) if self.kind is TokenKind.WORD else ""

    def is_symbol(self, text: str) -> bool:
        """True if the token is the symbol ``text``."""
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
  | (?P<comment>--[^\r\n\\]*+(?>(?:\\\n?[^\r\n\\]*+)*))
  | (?P<bracket>/\*)
  | (?P<raw>[rR](?:'[^']*'|"[^"]*"))
  | (?P<string>'[^'\\]*+(?>(?:(?:\\.|'')[^'\\]*+)*)'|"[^"\\]*+(?>(?:(?:\\.|"")[^"\\]*+)*)")
  | (?P<quoted>`[^`]*+(?>(?:``[^`]*+)*)`)
  | (?P<dollar>\$[A-Za-z]*\$)
  | (?P<number>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:E[+-]?[0-9]+)?(?:BD|[FD])?(?![A-Za-z0-9_])
      |[0-9]+E[+-][0-9]+(?:BD|[FD])?
      |[0-9]+(?:[LSY]|(?:E[0-9]+)?(?:BD|[FD])?)(?!\w))
  | (?P<word>[^\W\d_]+://[\w/\-.?=&\#%]+|\w+)
  | (?P<parameter>\?|:(?![rR]['"])[A-Za-z_]\w*|:`[^`]*+(?>(?:``[^`]*+)*)`)
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
# No value can end with these words, so a colon behind one begins a parameter.
_VALUE_FOLLOWS = """ALL AND ANTI AS BETWEEN BY CASE CONTAINS DATE DEFAULT DISTINCT DIV ELSE ESCAPE
    EXCEPT EXISTS FROM HAVING ILIKE IN INTERVAL IS LIKE LIMIT MATCHED NOT OF OFFSET ON OR PERCENT
    QUALIFY REGEXP REPEATABLE RETURN RLIKE SELECT SET SOME TABLE THEN TIMESTAMP USING VALUES WHEN
    WHERE ZONE"""
_BEFORE_A_VALUE = frozenset(_VALUE_FOLLOWS.split())


HINT_OPENING = "/*+"
HINT_CLOSING = "*/"
COMMENT_DEPTH_MAX = 32
"""The most levels of nested comments: Spark's lexer takes 0.2 s for 100 levels, 50 s for 800."""


def _bracket_end(sql: str, start: int) -> int:
    """Return the end of the bracketed comment (or hint) that begins at ``start``.

    Comments may be nested in it; hints may not.
    """
    depth, position = 1, start + 2
    opening, closing = sql.find("/*", position), sql.find("*/", position)
    while depth:
        if closing < 0:
            raise UnclosedError("the comment", start)
        if 0 <= opening < closing:
            depth, position = depth + (not sql.startswith("+", opening + 2)), opening + 2
        else:
            depth, position = depth - 1, closing + 2
        if depth > COMMENT_DEPTH_MAX:
            what = f"holds comments in comments, more than {COMMENT_DEPTH_MAX} deep"
            raise LexicalError(f"the comment at character {start} {what}", start)
        # The next ones are not searched again: a comment may be as long as the text.
        if 0 <= opening < position:
            opening = sql.find("/*", position)
        if closing < position:
            closing = sql.find("*/", position)
    return position


def _unclosed(what: str, position: int, hint_at: int) -> UnclosedError:
    """Return the error for a part that has no end, or for the hint around that part."""
    return UnclosedError(what, position) if hint_at < 0 else UnclosedError("the hint", hint_at)


def _ends_a_value(token: Token | None) -> bool:
    """True if a value can end with this token; then a colon after it leads into that value."""
    if token is None or token.kind is TokenKind.HINT:
        return False
    if token.kind is TokenKind.SYMBOL:
        return token.text in (")", "]", ":")
    return token.kind is not TokenKind.WORD or token.upper not in _BEFORE_A_VALUE


def tokenize(sql: str) -> Iterator[Token]:
    """Yield the tokens of ``sql``; LexicalError at the first place that cannot be read."""
    position, length, before = 0, len(sql), None
    match_at, kinds = _TOKEN.match, _KINDS
    hint_at, hints = 0, 0
    while position < length:
        match = match_at(sql, position)
        assert match is not None  # the last alternative takes any character
        group = match.lastgroup
        assert group is not None
        begin, position = position, match.end()
        if group == "space" or group == "comment":
            continue
        text = match.group()
        if group == "bracket":
            if not sql.startswith(HINT_OPENING, begin):
                position = _bracket_end(sql, begin)
                continue
            hint_at, hints = (hint_at if hints else begin), hints + 1
            position = begin + len(HINT_OPENING)
            continue
        if group == "dollar":
            closing = sql.find(text, position)
            if closing < 0:
                raise _unclosed("the string", begin, hint_at if hints else -1)
            group, position = "string", closing + len(text)
            text = sql[begin:position]
        elif group == "symbol" and text in _UNCLOSED:
            raise _unclosed(_UNCLOSED[text], begin, hint_at if hints else -1)
        elif group == "parameter" and text != "?" and _ends_a_value(before):
            group, text, position = "symbol", ":", begin + 1
        kind = kinds[group]
        if hints:  # a hint consists of tokens: strings, comments, even hints
            hints -= text == HINT_CLOSING and group == "symbol"
            if hints:
                continue
            begin, kind, text = hint_at, TokenKind.HINT, sql[hint_at:position]
        before = Token(kind, text, begin, position)
        yield before
    if hints:
        raise UnclosedError("the hint", hint_at)


_RUN: Final = rf"(?P<run>(?>(?:[^\W\d]\w*+(?!['\"])|{SPACE}|[(),=<>+*/;!|&^~%@-]|\.(?!\d))+))"
"""Words, spaces and symbols in which no literal begins, as one match: most of a statement."""
_RUNS: Final = re.compile(f"{_RUN}|{_TOKEN.pattern}", _TOKEN.flags)
_PLAIN_LITERALS: Final = frozenset(_RUNS.groupindex[name] for name in ("raw", "string", "number"))
_SYMBOL: Final = _RUNS.groupindex["symbol"]


def literals(sql: str) -> Iterator[tuple[int, int]]:
    """Yield where each string and number of ``sql`` starts and ends, as `tokenize` would find them.

    Faster than `tokenize`: if the text has no comments, hints, dollar quotes and URLs, it takes a
    sixth of the time. Raises LexicalError where it has come to a wrong place.
    """
    if "--" in sql or "/*" in sql or "$" in sql or "://" in sql:
        for token in tokenize(sql):
            if token.kind is TokenKind.STRING or token.kind is TokenKind.NUMBER:
                yield token.start, token.end
        return
    plain, symbol = _PLAIN_LITERALS, _SYMBOL
    for match in _RUNS.finditer(sql):
        group = match.lastindex
        if group in plain:
            yield match.span()
        elif group == symbol and (what := _UNCLOSED.get(match.group())):
            raise UnclosedError(what, match.start())


# The value of a string literal, as Spark's parser reads it: the only such code.
#
# All code that needs a string's value calls it, so that no spelling of a word passes a check that
# another spelling fails. Source: Spark 4.2's `unescapeSQLString`; compared with Spark itself in
# `tests/integration/test_string_literals.py`. Adjacent strings are one (`adjacent`), raw ones
# (``r'…'``) have no escapes, a doubled quote is a quote.
#
# Settings of Spark could change this (escapedStringLiterals, doubleQuotedIdentifiers,
# consecutiveStringLiterals): no client may set them (`session_settings`).


_ESCAPE = re.compile(
    r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([01][0-7][0-7])|(.))|''|\"\"",
    re.DOTALL | re.ASCII,
)
"""An escape sequence in a string, or a doubled quote of either kind."""
# The meaning of a letter behind a backslash; any other letter stands for itself.
_LETTERS = {
    "0": "\0",
    "b": "\b",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "Z": "\x1a",
    "%": "\\%",
    "_": "\\_",
}
_SURROGATE = re.compile("[\ud800-\udfff]")


def decoded(text: str) -> str:
    """Return the value of a string token: without its quotes, and with its escapes replaced."""
    return _paired(_units(text))


def _units(text: str) -> str:
    """Return a string's value as UTF-16 units, as Java has them: surrogates are not joined yet."""
    if text[0] in "rR":
        return text[2:-1]
    if text[0] == "$":
        tag = text.index("$", 1) + 1
        return text[tag:-tag]
    quote, inner = text[0], text[1:-1]
    if "\\" in inner:
        return _ESCAPE.sub(lambda match: _unescaped(match, quote), inner)
    return inner.replace(quote * 2, quote)


def adjacent(tokens: Sequence[Token], index: int) -> tuple[str, int]:
    """Return the value of the strings in a row from ``index`` on, and the index after them."""
    parts: list[str] = []
    while index < len(tokens) and tokens[index].kind is TokenKind.STRING:
        parts.append(_units(tokens[index].text))
        index += 1
    return _paired("".join(parts)), index


def _unescaped(match: re.Match[str], quote: str) -> str:
    short, long, octal, letter = match.groups()
    if match[0][0] != "\\":
        return quote if match[0] == quote * 2 else match[0]
    if letter is not None:
        return _LETTERS.get(letter, letter)
    if octal is not None:
        return chr(int(octal, 8))
    code = int(short or long, 16)
    if code < 0x10000:
        return chr(code)
    # As Java's chars: a code beyond Unicode becomes unpaired surrogates.
    high, low = divmod(code - 0x10000, 0x400)
    return chr((high + 0xD800) & 0xFFFF) + chr((low + 0xDC00) & 0xFFFF)


def _paired(text: str) -> str:
    """Return the text with pairs of surrogates joined, and ``?`` for a surrogate without a pair."""
    if not _SURROGATE.search(text):
        return text
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return _SURROGATE.sub("?", whole)


# Texts that Spark reads by the clock when it makes a date or a timestamp of them.
#
# Of constants these are ``'now'``, ``'today'`` and similar words; of any text a time of day, which
# becomes a TIMESTAMP of the day on which it is read: ``CAST('12:30' AS TIMESTAMP)``. Measured on
# Spark 4.2.1; DATE and TIMESTAMP_NTZ take no time of day.


_LEADING = r"[\s\x00-\x20\x7f]*"
SPECIAL_DATETIME = re.compile(
    rf"{_LEADING}((?i:now|today|tomorrow|yesterday))(?![A-Za-z])(.*)", re.DOTALL
)
"""A text that Spark may read by the clock when it casts a constant to a date or a timestamp. After
the word Spark accepts the name of a time zone, in many spellings."""
_TIME_OF_DAY = re.compile(rf"{_LEADING}(?:[0-9]{{1,2}}:[0-9]|T[0-9]{{1,2}}(?![0-9]))")
_WRITTEN = re.compile(
    rf"[(,]{SPACE}*['\"][\x00-\x20\x7f]*"
    r"(?:[0-9]{1,2}:[0-9]|T[0-9]{1,2}(?![0-9])|[0-9T]{0,3}\\(?![\\'\"%_$]))"
)
"""An item of a row that may be a text which Spark reads by the clock. An escape may stand for any
character, so most texts with one match."""


def is_time_of_day(text: str) -> bool:
    """True if Spark may read the text as a time of day, and add the current day."""
    return _TIME_OF_DAY.match(text) is not None


def is_moment(text: str) -> bool:
    """True if Spark may read the text by the clock, as a special word or a time of day."""
    return is_time_of_day(text) or SPECIAL_DATETIME.fullmatch(text) is not None


def may_write_time_of_day(sql: str, start: int, end: int) -> bool:
    """True if a string in ``sql[start:end]``, which are rows, may be a text read by the clock."""
    return _WRITTEN.search(sql, start, end) is not None
