"""What a string literal says: the one reading of literals, as Spark's parser reads them.

Everything that looks into a string asks here, so that no spelling of a word passes by a check that
another spelling fails. Source: Spark 4.2's `unescapeSQLString`; held against Spark itself in
`tests/integration/test_string_literals.py`. Strings side by side are one (`adjacent`), raw ones
(``r'…'``) have no escapes, a doubled quote is a quote.

Settings of Spark's could change the reading (escapedStringLiterals, doubleQuotedIdentifiers,
consecutiveStringLiterals): no client may set them (`session_settings`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from haproc.classify.tokens import Token, TokenKind

_ESCAPE = re.compile(
    r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([01][0-7][0-7])|(.))", re.DOTALL | re.ASCII
)
# What a letter behind a backslash stands for; any other one stands for itself.
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
    """Return what the text of one string token says."""
    return _paired(_units(text))


def _units(text: str) -> str:
    """Return a string's UTF-16 units as Java has them: halves of characters are not joined yet."""
    if text[0] in "rR":
        return text[2:-1]
    if text[0] == "$":
        tag = text.index("$", 1) + 1
        return text[tag:-tag]
    quote, inner = text[0], text[1:-1]
    if "\\" in inner:
        return "".join(_unescaped(part, quote) for part in _parts(inner))
    return inner.replace(quote * 2, quote)


def adjacent(tokens: Sequence[Token], index: int) -> tuple[str, int]:
    """Return what the strings that stand side by side from ``index`` on say, and what follows."""
    parts: list[str] = []
    while index < len(tokens) and tokens[index].kind is TokenKind.STRING:
        parts.append(_units(tokens[index].text))
        index += 1
    return _paired("".join(parts)), index


def _parts(inner: str) -> list[str]:
    """Cut the text into escapes and what lies between them."""
    parts, position = [], 0
    for match in _ESCAPE.finditer(inner):
        parts += [inner[position : match.start()], match.group()]
        position = match.end()
    return [*parts, inner[position:]]


def _unescaped(part: str, quote: str) -> str:
    match = _ESCAPE.fullmatch(part)
    if match is None:
        return part.replace(quote * 2, quote)
    short, long, octal, letter = match.groups()
    if letter is not None:
        return _LETTERS.get(letter, letter)
    if octal is not None:
        return chr(int(octal, 8))
    code = int(short or long, 16)
    if code < 0x10000:
        return chr(code)
    # As Java's chars: what is beyond Unicode becomes halves that belong to nothing.
    high, low = divmod(code - 0x10000, 0x400)
    return chr((high + 0xD800) & 0xFFFF) + chr((low + 0xDC00) & 0xFFFF)


def _paired(text: str) -> str:
    """Return the text with halves of characters put together; ``?`` for those left alone."""
    if not _SURROGATE.search(text):
        return text
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return _SURROGATE.sub("?", whole)
