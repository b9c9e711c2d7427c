"""A statement's tokens with a position: what the recognisers of statements read from."""

from __future__ import annotations

from dataclasses import dataclass

from haproc.classify.model import InsertShape, Kind, RefusedError
from haproc.classify.names import Context, may_be_temporary, target
from haproc.classify.relations import Relations, Scope, identifier_clause, name_at
from haproc.classify.strings import adjacent
from haproc.classify.tokens import Token, TokenKind
from haproc.failure import ErrorClass


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a statement is not run by default. A rule for ``kind: unknown`` may allow it."""

    error_class: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Recognised:
    """What the tokens say of a statement, before rules decide its class."""

    kind: Kind
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    tables_known: bool = True
    insert: InsertShape | None = None
    refusal: Refusal | None = None
    bare: frozenset[str] = frozenset()
    """Those of the tables whose names a session's temporary view would take."""
    paths: frozenset[str] = frozenset()
    """The files that the statement names, as it writes them."""


_UNCLASSIFIED_HINT = "correct the SQL, or have a rule with kind: unknown allow it if Spark takes it"


def unknown(message: str, hint: str = _UNCLASSIFIED_HINT) -> Recognised:
    """Return the recognition of a statement that is refused unless a rule allows it."""
    refusal = Refusal(ErrorClass.UNCLASSIFIED, message, hint)
    return Recognised(Kind.UNKNOWN, tables_known=False, refusal=refusal)


class Reader:
    """Reads one statement's tokens from left to right.

    Names that can't be told for certain make ``known`` False; what was read stays in ``reads``
    and ``writes``.
    """

    def __init__(self, sql: str, tokens: list[Token], context: Context) -> None:
        self.sql = sql
        self.tokens = tokens
        self.context = context
        self.closing = _closing(tokens)
        self.at = 0
        self.writes: set[str] = set()
        self.paths: set[str] = set()
        self._known = True
        self._bare: set[str] = set()
        self._relations = Relations(tokens, self.closing, context)

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
        return self.tokens[index].kind in (TokenKind.WORD, TokenKind.QUOTED_NAME)

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

    def read_table(self) -> None:
        """Read the name of a table that is read, or of files."""
        parts = self.parts()
        if parts:
            self._relations.add(parts)
        else:
            self._known = False

    def read_files(self) -> None:
        """Take the path in the string at the position."""
        path, self.at = adjacent(self.tokens, self.at)
        self.paths.add(path)
        self._known = False

    def common_tables(self) -> Scope:
        """Step over a WITH clause, if there is one; return the names it defines."""
        if self.word() != "WITH":
            return frozenset()
        self.at, scope = self._relations.common_tables(self.at, self.end, frozenset())
        return scope

    def query(self, scope: Scope = frozenset(), end: int | None = None) -> None:
        """Scan from the position to ``end`` (the statement's) for tables that are read."""
        end = self.end if end is None else end
        self._relations.query(self.at, end, scope)
        self.at = end

    def relation(self, scope: Scope = frozenset()) -> None:
        """Scan from the position, where a relation stands, to the statement's end."""
        self._relations.query(self.at, self.end, scope, relation=True)
        self.at = self.end

    def depth_zero(self) -> list[int]:
        """Return the indexes from the position on that lie in no parentheses."""
        indexes, index = [], self.at
        while index < self.end:
            indexes.append(index)
            index = self.closing.get(index, index) + 1
        return indexes

    def recognised(self, kind: Kind, *, known: bool = True) -> Recognised:
        """Return what was read as a statement of this kind."""
        return Recognised(
            kind,
            reads=frozenset(self._relations.found),
            writes=frozenset(self.writes),
            tables_known=known and self._known and self._relations.known,
            bare=frozenset(self._bare | self._relations.bare),
            paths=frozenset(self.paths | self._relations.paths),
        )


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
