"""Reads literals, names and plain expressions from a statement's tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from haproc.classify.names import plain
from haproc.classify.tokens import Token, TokenKind
from haproc.replicate.compose.terms import Cell, Expression, Given, Own, Piece, Sets, cell_of

T = TypeVar("T")
_NAMES: Final = (TokenKind.WORD, TokenKind.QUOTED_NAME)
_BETWEEN: Final = ("+", "-", "*", "/", "%", "||")
_FUNCTIONS: Final = frozenset(
    {"ABS", "COALESCE", "CONCAT", "GREATEST", "LEAST", "LENGTH", "LOWER", "TRIM", "UPPER"}
)
"""Functions with the same result for a column as for a literal of the same value and type."""
_WORDS: Final = """CASE CAST CURRENT_CATALOG CURRENT_DATABASE CURRENT_DATE CURRENT_SCHEMA
    CURRENT_TIME CURRENT_TIMESTAMP CURRENT_USER DEFAULT EXISTS FALSE IDENTIFIER LOCALTIME
    LOCALTIMESTAMP NOT SESSION_USER TRUE USER"""
NO_COLUMNS: Final = frozenset(_WORDS.split())
"""Words that may mean something else than a column of this name."""
OPERANDS_MAX: Final = 64
"""The most operands in the expressions of one statement. Chosen."""


class Otherwise(Exception):
    """The statement has a form that is not read here: it cannot be composed with others."""


class Expressions:
    """Reads one SQL statement, token by token. Its methods raise Otherwise and LexicalError."""

    def __init__(self, tokens: Sequence[Token], sql: str) -> None:
        self._tokens = tokens
        self._words = [token.upper for token in tokens]
        self._sql = sql
        self._at = 0
        self._table_name = ""
        self._operands = 0

    # -- tokens ----------------------------------------------------------------------------

    def _token(self) -> Token:
        if self._ended():
            raise Otherwise
        self._at += 1
        return self._tokens[self._at - 1]

    def _ended(self) -> bool:
        return self._at == len(self._tokens)

    def _word(self) -> str:
        return "" if self._ended() else self._words[self._at]

    def _take(self, *words: str) -> bool:
        """Step over these words and return True, if they are the next tokens; else False."""
        found = tuple(self._words[self._at : self._at + len(words)]) == words
        self._at += len(words) if found else 0
        return found

    def _expect(self, *words: str) -> None:
        if not self._take(*words):
            raise Otherwise

    def _is_symbol(self, *texts: str) -> bool:
        if self._ended():
            return False
        token = self._tokens[self._at]
        return token.kind is TokenKind.SYMBOL and token.text in texts

    def _symbol(self, *texts: str) -> bool:
        """Step over the next token and return True, if it is one of these symbols; else False."""
        found = self._is_symbol(*texts)
        self._at += found
        return found

    def _needed(self, *texts: str) -> str:
        if not self._symbol(*texts):
            raise Otherwise
        return self._tokens[self._at - 1].text

    def _name(self) -> str:
        """Read a name, and return it in lower case."""
        token = self._token()
        if token.kind not in _NAMES:
            raise Otherwise
        return plain(token).lower()

    def _listed(self, read: Callable[[], T]) -> list[T]:
        """Read one or more items with commas between them; ``read`` reads one."""
        found = [read()]
        while self._symbol(","):
            found.append(read())
        return found

    def _enclosed(self, read: Callable[[], T]) -> list[T]:
        """Read one or more items in parentheses; ``read`` reads one."""
        self._needed("(")
        found = self._listed(read)
        self._needed(")")
        return found

    # -- tables and columns ----------------------------------------------------------------

    def _table(self, until: str) -> None:
        """Read the table's name and alias, up to the word ``until``; remember the alias or name."""
        self._table_name = self._name()
        while self._symbol("."):
            self._table_name = self._name()
        if self._is_symbol("("):
            raise Otherwise  # IDENTIFIER(…)
        if self._take("AS") or not (self._word() == until or self._ended()):
            self._table_name = self._name()
        if self._word() != until:
            raise Otherwise

    def _qualified(self) -> tuple[str, str]:
        """Return the next column's qualifier (empty if it has none) and its name."""
        qualifier, name = "", self._name()
        if self._symbol("."):
            qualifier, name = name, self._name()
        if self._is_symbol(".", "[", "(", ":", "::"):
            raise Otherwise
        return qualifier, name

    def _column(self) -> str:
        """Read the name of a column of the statement's table; raises Otherwise for any other."""
        qualifier, name = self._qualified()
        if qualifier not in ("", self._table_name):
            raise Otherwise
        return name

    def _named(self) -> Own | Given:
        """Read a name in an expression, and return the column that it means."""
        if self._word() in NO_COLUMNS:
            raise Otherwise
        return self._whose(*self._qualified())

    def _whose(self, qualifier: str, name: str) -> Own | Given:
        """Return the column that a name in an expression means; Otherwise if that is unclear."""
        if qualifier not in ("", self._table_name):
            raise Otherwise
        return Own(name)

    # -- values ----------------------------------------------------------------------------

    def _sets(self) -> Sets:
        """Read assignments (``column = value, …``), each to another column."""
        sets = self._listed(self._assignment)
        if len({name for name, _ in sets}) < len(sets):
            raise Otherwise
        return tuple(sets)

    def _assignment(self) -> tuple[str, Expression]:
        column = self._column()
        self._needed("=", "==")
        return column, self._value()

    def _value(self) -> Expression:
        """Read a literal, or an expression."""
        start = self._at
        try:
            cell = self._literal()
            if not self._is_symbol(*_BETWEEN):
                return (cell,)
        except Otherwise:
            pass
        self._at = start
        return tuple(self._expression())

    def _literal(self) -> Cell:
        token = self._token()
        start = token.start
        if token.is_symbol("-") or token.upper in ("DATE", "TIMESTAMP", "X"):
            token = self._token()
        cell = cell_of(self._sql[start : token.end])
        follows = None if self._ended() else self._tokens[self._at].kind
        side_by_side = follows is TokenKind.STRING and token.kind is TokenKind.STRING
        if cell is None or side_by_side:
            raise Otherwise
        return cell

    def _expression(self) -> list[Piece | Given]:
        """Read operands with operators between them."""
        pieces = self._operand()
        while self._symbol(*_BETWEEN):
            pieces += [self._tokens[self._at - 1].text, *self._operand()]
        return pieces

    def _operand(self) -> list[Piece | Given]:
        """Read a literal, a column, a function's call or something in parentheses."""
        self._operands += 1
        if self._operands > OPERANDS_MAX or self._ended():
            raise Otherwise
        if self._symbol("-", "+"):
            return [self._tokens[self._at - 1].text, *self._operand()]
        if self._symbol("("):
            return ["(", *self._expression(), self._needed(")")]
        token, behind = self._tokens[self._at], self._tokens[self._at + 1 : self._at + 2]
        if token.kind is TokenKind.NUMBER or token.kind is TokenKind.STRING:
            return [self._literal()]
        if self._take("NULL"):
            return ["NULL"]
        if self._word() in _FUNCTIONS and behind and behind[0].is_symbol("("):
            self._at += 2
            pieces: list[Piece | Given] = [token.upper, "(", *self._expression()]
            while self._symbol(","):
                pieces += [",", *self._expression()]
            return [*pieces, self._needed(")")]
        return [self._named()]
