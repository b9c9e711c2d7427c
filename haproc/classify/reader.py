"""A statement's tokens with a position: what the recognisers of statements read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from haproc.classify.model import InsertShape, Kind, RefusedError
from haproc.classify.names import Context, may_be_temporary, parts_of, plain, target
from haproc.classify.strings import adjacent
from haproc.classify.tokens import Token, TokenKind
from haproc.failure import ErrorClass

_NAMES = (TokenKind.WORD, TokenKind.QUOTED_NAME)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a statement is not run by default. A rule for ``kind: unknown`` may allow it."""

    error_class: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Recognised:
    """What a statement's words say of it, before rules decide its class: see `Classified`."""

    kind: Kind
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    tables_known: bool = True
    insert: InsertShape | None = None
    refusal: Refusal | None = None
    bare: frozenset[str] = frozenset()


_UNCLASSIFIED_HINT = "correct the SQL, or have a rule with kind: unknown allow it if Spark takes it"


def unknown(message: str, hint: str = _UNCLASSIFIED_HINT) -> Recognised:
    """Return the recognition of a statement that is refused unless a rule allows it."""
    refusal = Refusal(ErrorClass.UNCLASSIFIED, message, hint)
    return Recognised(Kind.UNKNOWN, tables_known=False, refusal=refusal)


class Reader:
    """Reads one statement's tokens from left to right; keeps the names of what is written."""

    def __init__(self, sql: str, tokens: list[Token], context: Context) -> None:
        self.sql = sql
        self.tokens = tokens
        self.context = context
        self.closing = _closing(tokens)
        self.at = 0
        self.writes: set[str] = set()
        self._bare: set[str] = set()

    @property
    def end(self) -> int:
        """The number of tokens."""
        return len(self.tokens)

    def word(self, ahead: int = 0) -> str:
        """The keyword at the position (plus ``ahead``); empty where there is none."""
        index = self.at + ahead
        return self.tokens[index].upper if index < len(self.tokens) else ""

    def is_symbol(self, text: str, ahead: int = 0) -> bool:
        """Whether this symbol is at the position (plus ``ahead``)."""
        index = self.at + ahead
        return index < len(self.tokens) and self.tokens[index].is_symbol(text)

    def is_name(self, ahead: int = 0) -> bool:
        """Whether a word or a quoted name is at the position (plus ``ahead``)."""
        index = self.at + ahead
        if index >= len(self.tokens):
            return False
        return self.tokens[index].kind in _NAMES

    def is_string(self) -> bool:
        """Whether a string is at the position."""
        return self.at < self.end and self.tokens[self.at].kind is TokenKind.STRING

    def take(self, *words: str) -> bool:
        """Step over these keywords if they are next; say whether they were."""
        if any(self.word(ahead) != word for ahead, word in enumerate(words)):
            return False
        self.at += len(words)
        return True

    def take_one(self, *words: str) -> str:
        """Step over one of these keywords and return it; empty if none is next."""
        word = self.word()
        if word not in words:
            return ""
        self.at += 1
        return word

    def skip_parentheses(self) -> bool:
        """Step over the parentheses that open here, if they do."""
        if not self.is_symbol("("):
            return False
        self.at = self.closing[self.at] + 1
        return True

    def parts(self) -> tuple[str, ...]:
        """Read a name (also ``IDENTIFIER('…')``); empty where there is none."""
        if self.word() == "IDENTIFIER" and self.is_symbol("(", 1):
            name = identifier_clause(self.tokens, self.closing, self.at)
            self.at = self.closing[self.at + 1] + 1
            return name
        parts, self.at = name_at(self.tokens, self.at)
        return parts

    def own_name(self) -> tuple[str, ...]:
        """Read the name of what only the session has; RefusedError if the text doesn't tell it."""
        if self.word() == "IDENTIFIER" and self.is_symbol("(", 1):
            raise RefusedError(
                ErrorClass.TABLE_NAME,
                "a temporary view, function or variable is named by IDENTIFIER(…), and the "
                "session's journal keeps it by its name",
                "write the name itself",
            )
        return self.parts()

    def write_table(self, *, new: bool = False) -> None:
        """Read the name of a table that is written; RefusedError if the text doesn't tell it.

        ``new``: the statement makes the table, so that no temporary view can be meant.
        """
        parts = self.parts()
        table = target(parts, self.context)
        self.writes.add(table)
        if not new and may_be_temporary(parts):
            self._bare.add(table)

    def common_tables(self) -> None:
        """Step over a WITH clause, ``WITH a AS (…), b (columns) AS (…)``, if there is one."""
        if not self.take("WITH"):
            return
        if self.word() == "RECURSIVE" and self.is_name(1):
            self.at += self.word(1) != "AS"  # else it is a name
        while self.is_name():
            self.at += 1
            if self.is_symbol("("):
                behind = self.closing[self.at] + 1 - self.at
                is_columns = self.is_symbol("(", behind) or self.word(behind) in ("AS", "MAX")
                self.at += behind if is_columns else 0
            if self.word() == "MAX":
                self.at += 4  # MAX RECURSION LEVEL n
            self.take("AS")
            if not (self.skip_parentheses() and self.is_symbol(",")):
                return
            self.at += 1

    def depth_zero(self) -> list[int]:
        """Return the indexes from the position on that lie in no parentheses."""
        indexes, index = [], self.at
        while index < self.end:
            indexes.append(index)
            index = self.closing.get(index, index) + 1
        return indexes

    def recognised(self, kind: Kind, *, known: bool = True) -> Recognised:
        """Return what was read as a statement of this kind; ``known``: with all that it writes."""
        return Recognised(
            kind,
            writes=frozenset(self.writes),
            tables_known=known,
            bare=frozenset(self._bare),
        )


def name_at(tokens: Sequence[Token], index: int) -> tuple[tuple[str, ...], int]:
    """Read the name ``a.b.c`` at ``index``; return its parts (none if no name) and what follows."""
    parts: list[str] = []
    while index < len(tokens) and tokens[index].kind in _NAMES:
        parts.append(plain(tokens[index]))
        index += 1
        if not (
            index + 1 < len(tokens)
            and tokens[index].is_symbol(".")
            and tokens[index + 1].kind in _NAMES
        ):
            break
        index += 1
    return tuple(parts), index


def identifier_clause(
    tokens: Sequence[Token], closing: Mapping[int, int], index: int
) -> tuple[str, ...]:
    """Return the name in ``IDENTIFIER('…')`` at ``index``, also ``'…' || '…'``.

    RefusedError where it has to be computed: it may be any table, any function, or a path.
    """
    text, at = adjacent(tokens, index + 2)
    while tokens[at].is_symbol("||") and tokens[at + 1].kind is TokenKind.STRING:
        more, at = adjacent(tokens, at + 1)
        text += more
    continues = at + 1 < len(tokens) and tokens[at + 1].is_symbol(".")
    parts = parts_of(text) if at == closing[index + 1] and not continues else None
    if parts is None:
        raise RefusedError(
            ErrorClass.TABLE_NAME,
            "a name in IDENTIFIER(…) has to be computed, so that it may be any, also a path",
            "write the name, or bind it as a parameter: IDENTIFIER(:name)",
        )
    return parts


def _closing(tokens: list[Token]) -> dict[int, int]:
    """Return the index of the closing parenthesis for each opening one."""
    opened: list[int] = []
    closing: dict[int, int] = {}
    for index, token in enumerate(tokens):
        if token.kind is not TokenKind.SYMBOL:
            continue
        if token.text == "(":
            opened.append(index)
        elif token.text == ")":
            if not opened:
                raise _unbalanced(token, "closes nothing")
            closing[opened.pop()] = index
    if opened:
        raise _unbalanced(tokens[opened[-1]], "is not closed")
    return closing


def _unbalanced(token: Token, what: str) -> RefusedError:
    return RefusedError(
        ErrorClass.SYNTAX, f"the parenthesis at character {token.start} {what}", "correct the SQL"
    )
