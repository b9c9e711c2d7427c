"""A statement's tokens with what pinning asks of them: brackets, calls, names.

Everything is decided on tokens, so nothing inside a string, a comment or a quoted name is taken
for a function. A call is a name followed by ``(``, quoted and qualified names included, for Spark
calls those too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from haproc.classify.strings import adjacent
from haproc.classify.tokens import Token, TokenKind, tokenize
from haproc.pin.functions import BARE, KEYWORDS, SYNTAX, Nature, nature

_NAME_KINDS = frozenset({TokenKind.WORD, TokenKind.QUOTED_NAME})
_QUERY_WORDS = frozenset({"SELECT", "VALUES", "FROM", "WITH", "TABLE"})
_NAMED_BEFORE = frozenset({"AS", "INTO", "TABLE", "VIEW", "OVERWRITE", "RECURSIVE"})
BUILTIN = (["builtin"], ["system", "builtin"])


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function: tokens ``first`` to ``close``, its ``(`` at ``open``."""

    name: str
    nature: Nature
    first: int
    open: int
    close: int

    @property
    def has_arguments(self) -> bool:
        """Whether anything stands between the parentheses."""
        return self.close > self.open + 1


@dataclass(slots=True)
class Scan:
    """The tokens of one statement, and for each of them where it stands.

    ``depth`` counts the parentheses around a token, ``opening`` is the place of the innermost one
    (-1: none), ``closing`` leads from each ``(`` to its ``)``. All is found in one pass, so that no
    question about a token goes over the statement again.
    """

    sql: str
    tokens: list[Token] = field(init=False)
    words: list[str] = field(init=False)
    closing: dict[int, int] = field(init=False)
    opening: list[int] = field(init=False)
    depth: list[int] = field(init=False)
    places: dict[str, list[int]] = field(init=False)
    """Where each of the names stands that may be functions without parentheses."""

    def __post_init__(self) -> None:
        self.tokens = [t for t in tokenize(self.sql) if t.kind is not TokenKind.HINT]
        self.words = [token.upper for token in self.tokens]
        self.closing, self.opening, self.depth, self.places = {}, [], [], {}
        stack: list[int] = []
        for at, token in enumerate(self.tokens):
            if token.is_symbol(")") and stack:
                self.closing[stack.pop()] = at
            self.opening.append(stack[-1] if stack else -1)
            self.depth.append(len(stack))
            if token.is_symbol("("):
                stack.append(at)
            elif token.kind in _NAME_KINDS and self.name(at) in BARE:
                self.places.setdefault(self.name(at), []).append(at)
        for at in stack:
            self.closing[at] = len(self.tokens) - 1

    def word(self, at: int) -> str:
        """Return the keyword at a place, in capitals; empty for anything else or outside."""
        return self.words[at] if 0 <= at < len(self.words) else ""

    def symbol(self, at: int) -> str:
        """Return the symbol at a place; empty for anything else or outside."""
        if 0 <= at < len(self.tokens) and self.tokens[at].kind is TokenKind.SYMBOL:
            return self.tokens[at].text
        return ""

    def kind(self, at: int) -> TokenKind | None:
        """Return the kind of token at a place; None outside."""
        return self.tokens[at].kind if 0 <= at < len(self.tokens) else None

    def is_name(self, at: int) -> bool:
        """Whether a word or a quoted name stands there."""
        return self.kind(at) in _NAME_KINDS

    def name(self, at: int) -> str:
        """Return the name at a place in lower case, without backquotes."""
        token = self.tokens[at]
        if token.kind is TokenKind.QUOTED_NAME:
            return token.text[1:-1].replace("``", "`").lower()
        return self.words[at].lower()  # by way of Spark's capitals

    def chain_start(self, at: int) -> int:
        """Return where the qualified name that ends at ``at`` begins."""
        while self.symbol(at - 1) == "." and self.is_name(at - 2):
            at -= 2
        return at

    def ends_operand(self, at: int) -> bool:
        """Whether a value or a table may end there, so that a name behind it is its alias."""
        kind = self.kind(at)
        if kind is TokenKind.WORD:
            return self.tokens[at].text.lower() not in KEYWORDS
        if kind in (TokenKind.QUOTED_NAME, TokenKind.STRING, TokenKind.NUMBER):
            return True
        return self.symbol(at) in (")", "]")

    def is_alias(self, at: int) -> bool:
        """Whether the name there is the alias of what stands before it."""
        return self.word(at - 1) == "AS" or self.ends_operand(at - 1)

    def starts_query(self, at: int) -> bool:
        """Whether a query begins there: SELECT, VALUES …, or such behind opening parentheses."""
        inner = at
        while self.symbol(inner) == "(":
            inner += 1
        word = self.word(inner)
        if word not in _QUERY_WORDS:
            return False
        if inner > at and self.symbol(inner + 1) in (",", ")"):
            return False  # a column list that holds a column of that name
        return not (word == "WITH" and self.symbol(inner + 1) == "(")

    def calls(self, start: int, end: int) -> Iterator[Call]:
        """Yield the calls among the tokens from ``start`` to before ``end``."""
        for at in range(start, min(end, len(self.tokens)) - 1):
            if self.tokens[at + 1].text == "(" and self.is_name(at):
                call = self._call(at)
                if call is not None:
                    yield call

    def _call(self, at: int) -> Call | None:
        first = self.chain_start(at)
        name = self.name(at)
        quoted = self.kind(at) is TokenKind.QUOTED_NAME
        if first == at and not quoted and name in SYNTAX:
            return None
        close = self.closing[at + 1]
        of = nature(name)
        space = [self.name(part) for part in range(first, at, 2)]
        if space and space not in BUILTIN:
            of, name = Nature.UNKNOWN, ".".join([*space, name])
        if self._is_declared_name(first, close):
            return None
        return Call(name, of, first, at + 1, close)

    def _is_declared_name(self, first: int, close: int) -> bool:
        """Whether this is a table or alias with its columns: ``AS t (a, b)``, ``WITH t (a) AS``."""
        before = self.word(first - 1)
        if before in _NAMED_BEFORE:
            return True
        if self.ends_operand(first - 1):
            return True
        if before == "WITH" or self.symbol(first - 1) == ",":
            return (
                self.word(close + 1) == "AS"
                and self.symbol(close + 2) == "("
                and self.starts_query(close + 2)
            )
        return False

    def enclosing_call(self, at: int) -> str:
        """Return the name in front of the parenthesis that directly encloses a token."""
        before = self.opening[at] - 1
        return self.name(before) if before >= 0 and self.is_name(before) else ""

    def string_value(self, at: int) -> str:
        """Return what the string at a place says (strings side by side are one)."""
        return adjacent(self.tokens, at)[0]

    def text(self, first: int, last: int) -> str:
        """Return the statement's text from one token to another."""
        return self.sql[self.tokens[first].start : self.tokens[last].end]
