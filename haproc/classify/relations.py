"""Which tables a query reads, found on its tokens.

A query names its relations in few places: behind FROM and JOIN, behind a comma between FROM and the
next clause, behind TABLE, and wherever a parenthesis opens another query. The scanner walks the
tokens once, frame by frame (a frame is what one pair of parentheses encloses), with the names of
the common table expressions that are visible there. Where it meets something that it can't read
for certain, it says so (``known`` becomes False) instead of guessing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from haproc.classify.model import RefusedError
from haproc.classify.names import (
    Context,
    may_be_temporary,
    parts_of,
    path_of,
    plain,
    qualified,
    refuse_own,
)
from haproc.classify.strings import adjacent
from haproc.classify.tokens import Token, TokenKind
from haproc.failure import ErrorClass

# Deeper nesting than people write; keeps recursion bounded. Chosen, not measured.
DEPTH_MAX = 100

# `EXTRACT(YEAR FROM x)` and its like: FROM inside them names no table.
_FROM_INSIDE = frozenset(["EXTRACT", "OVERLAY", "POSITION", "SUBSTR", "SUBSTRING", "TRIM"])
_SET_OPERATORS = frozenset(["EXCEPT", "INTERSECT", "MINUS", "UNION"])
# Words that end the list of relations, with what must follow for them not to be a name.
_BY = frozenset({"BY"})
_ENDS_RELATIONS: dict[str, frozenset[str] | None] = {
    "CLUSTER": _BY,
    "DISTRIBUTE": _BY,
    "GROUP": _BY,
    "ORDER": _BY,
    "SORT": _BY,
    "LATERAL": frozenset({"VIEW"}),
    **dict.fromkeys(
        [
            "EXCEPT",
            "HAVING",
            "INTERSECT",
            "LIMIT",
            "MINUS",
            "OFFSET",
            "QUALIFY",
            "SELECT",
            "UNION",
            "WHERE",
            "WINDOW",
        ]
    ),
}
# No relation is called by one of these without backquotes, or the text can't be read for certain.
_CLAUSE_WORDS = """AS CROSS EXCEPT FROM FULL GROUP HAVING INNER INTERSECT JOIN LEFT LIMIT MINUS
    NATURAL ON ORDER RIGHT SELECT SET STREAM UNION USING WHERE WITH"""
_NO_NAMES = frozenset(_CLAUSE_WORDS.split())
_NAMES = (TokenKind.WORD, TokenKind.QUOTED_NAME)
_LITERALS = (TokenKind.NUMBER, TokenKind.STRING)
# Table functions whose first argument is a table's name, or a path.
READING_FUNCTIONS = frozenset(
    ["cloud_files", "read_files", "read_statestore", "table_changes", "table_changes_by_path"]
)

Scope = frozenset[str]
"""The common table expressions visible at a place, in lower case."""


class Relations:
    """Collects the tables that the queries in ``tokens`` read.

    ``closing`` gives for each opening parenthesis the index of its closing one.
    """

    def __init__(self, tokens: Sequence[Token], closing: dict[int, int], context: Context) -> None:
        self._tokens = tokens
        self._closing = closing
        self._context = context
        self._depth = 0
        self.found: set[str] = set()
        self.bare: set[str] = set()
        self.paths: set[str] = set()
        self.known = True

    def query(
        self,
        start: int,
        end: int,
        scope: Scope = frozenset(),
        *,
        relation: bool = False,
        arguments: bool = False,
        from_allowed: bool = True,
    ) -> None:
        """Scan the frame ``tokens[start:end]``.

        ``relation``: it begins where a relation may stand; ``arguments``: it holds arguments of a
        table function; ``from_allowed``: FROM in it introduces tables.
        """
        if self._depth >= DEPTH_MAX:
            self.known = False
            return
        self._depth += 1
        self._frame(start, end, scope, relation, arguments, from_allowed)
        self._depth -= 1

    def _frame(
        self,
        start: int,
        end: int,
        scope: Scope,
        relation: bool,
        arguments: bool,
        from_allowed: bool,
    ) -> None:
        tokens, index = self._tokens, start
        in_from = relation
        while index < end:
            token = tokens[index]
            word = token.upper
            if relation:
                begins_query = index == start and self._begins_query(index, end)
                relation = False
                if begins_query:
                    in_from = False
                    continue
                if word == "LATERAL":
                    relation = self._is_lateral(index, end)
                    self.known = self.known and relation
                    index += 1
                    continue
                index = self._relation(index, end, scope)
                continue
            if token.kind is TokenKind.SYMBOL:
                if token.text == "(":
                    index = self._group(index, scope)
                    continue
                if token.text == ",":
                    relation = in_from
                elif token.text == "|>":
                    in_from = False
            elif word and not (index > start and tokens[index - 1].is_symbol(".")):
                if word == "WITH" and index == start:
                    index, scope = self.common_tables(index, end, scope)
                    start = index
                    continue
                if word == "JOIN" or (
                    word == "FROM" and from_allowed and not self._is_distinct_from(index)
                ):
                    relation = in_from = True
                elif word == "TABLE" and self._names_table(index, start, end, arguments):
                    relation = True
                elif word in _ENDS_RELATIONS and self._is_clause(index, end):
                    in_from = False
                elif word == "SELECT" and in_from:  # a list, or an alias called select?
                    self.known = in_from = False
            index += 1
        if relation:
            self.known = False

    def _is_lateral(self, index: int, end: int) -> bool:
        """Whether a subquery or a function's call follows LATERAL (else it may be a table)."""
        _, behind = name_at(self._tokens, index + 1)
        is_sample = self._tokens[behind - 1].upper == "TABLESAMPLE"
        return behind < end and self._tokens[behind].is_symbol("(") and not is_sample

    def _begins_query(self, index: int, end: int) -> bool:
        word = self._tokens[index].upper
        if index + 1 >= end or self._tokens[index + 1].text in (",", "."):
            return False
        if word in ("SELECT", "FROM", "WITH", "MAP", "REDUCE"):
            return True
        if word == "TABLE":
            return index + 1 < end and self._tokens[index + 1].kind in _NAMES
        return False

    def _names_table(self, index: int, start: int, end: int, arguments: bool) -> bool:
        """Whether the word TABLE at ``index`` stands in front of a table's name."""
        if index + 1 >= end:
            return False
        following = self._tokens[index + 1]
        if following.kind not in _NAMES and not (arguments and following.is_symbol("(")):
            return False
        if index == start:
            return True
        before = self._tokens[index - 1]
        if arguments and before.text in (",", "=>"):
            return True
        return before.upper in _SET_OPERATORS | {"ALL", "DISTINCT"}

    def _is_distinct_from(self, index: int) -> bool:
        """Whether the FROM at ``index`` is that of ``a IS [NOT] DISTINCT FROM b``."""
        tokens = self._tokens
        return (
            index >= 2
            and tokens[index - 1].upper == "DISTINCT"
            and tokens[index - 2].upper in ("IS", "NOT")
        )

    def _is_clause(self, index: int, end: int) -> bool:
        """Whether the word at ``index`` begins a clause, rather than being somebody's alias."""
        if index + 1 >= end:
            return False
        following = self._tokens[index + 1]
        wanted = _ENDS_RELATIONS[self._tokens[index].upper]
        if wanted is not None:
            return following.upper in wanted
        if following.is_symbol("("):  # `FROM a offset (x, y), b` has an alias called offset
            behind = self._closing[index + 1] + 1
            return not (behind < end and self._tokens[behind].is_symbol(","))
        return not (following.kind is TokenKind.SYMBOL and following.text in (",", ".", ")"))

    def _group(self, index: int, scope: Scope, *, arguments: bool = False) -> int:
        """Scan the parentheses that open at ``index`` and return the index behind them."""
        close = self._closing[index]
        function = self._tokens[index - 1].upper if index else ""
        inside = self._tokens[index + 1].upper
        from_allowed = function not in _FROM_INSIDE or inside in ("SELECT", "WITH")
        self.query(index + 1, close, scope, arguments=arguments, from_allowed=from_allowed)
        return close + 1

    def _relation(self, index: int, end: int, scope: Scope) -> int:
        """Take the relation at ``index`` and return the index behind it."""
        tokens = self._tokens
        token = tokens[index]
        word = token.upper
        if token.is_symbol("("):
            close = self._closing[index]
            self.query(index + 1, close, scope, relation=True)
            return close + 1
        following = tokens[index + 1] if index + 1 < end else None
        opens = following is not None and following.is_symbol("(")
        if word == "VALUES":
            return self._inline_rows(index + 1, end, scope)
        if word == "TABLE" and opens:
            return self._group(index + 1, scope, arguments=True)
        if word == "IDENTIFIER" and opens:
            name = identifier_clause(tokens, self._closing, index)
            behind = self._closing[index + 1] + 1
            if behind < end and tokens[behind].is_symbol("("):
                self._table_function(name[-1].lower(), behind)
                return self._group(behind, scope, arguments=True)
            self.add(name, scope)
            return behind
        if token.kind not in _NAMES or (word in _NO_NAMES):
            self.known = False
            return index if token.kind is not TokenKind.SYMBOL else index + 1
        parts, index = name_at(tokens, index)
        if index < end and tokens[index].is_symbol("("):
            self._table_function(parts[-1].lower(), index)
            return self._group(index, scope, arguments=True)
        self.add(parts, scope)
        return index

    def add(self, parts: tuple[str, ...], scope: Scope = frozenset()) -> None:
        """Take the relation of this name, unless it is a common table expression of the scope."""
        if len(parts) == 1 and parts[0].lower() in scope:
            return
        refuse_own(parts, self._context)
        table = qualified(parts, self._context)
        self.found.add(table)
        if may_be_temporary(parts):
            self.bare.add(table)
        path = path_of(parts)
        if path:
            self.paths.add(path)
            self.known = False

    def _table_function(self, name: str, opening: int) -> None:
        """Take what a function that reads by name or path is given in parentheses."""
        if name not in READING_FUNCTIONS:
            return
        text, behind = adjacent(self._tokens, opening + 1)
        told = self._tokens[behind].is_symbol(",") or behind == self._closing[opening]
        parts = parts_of(text) if told and name == "table_changes" else None
        if parts is not None:
            self.add(parts)
            return
        self.known = False
        self.paths.add(text if told and name != "table_changes" else f"{name}(…)")

    def _inline_rows(self, index: int, end: int, scope: Scope) -> int:
        """Skip ``(…), (…)`` behind VALUES, where a comma is between rows, not relations."""
        if index >= end:
            self.known = False
        while index < end:
            token = self._tokens[index]
            if token.is_symbol("("):
                self.known = self.known and self._is_row(index)
                index = self._group(index, scope)
            elif token.kind in _LITERALS:
                index += 1
            else:
                self.known = False
                return index
            if not (index < end and self._tokens[index].is_symbol(",")):
                return index
            index += 1
        return index

    def _is_row(self, index: int) -> bool:
        """Whether the parentheses at ``index`` hold values for certain, not relations."""
        first, second = self._tokens[index + 1], self._tokens[index + 2 : index + 3]
        if first.kind is TokenKind.WORD and first.upper not in ("NULL", "TRUE", "FALSE", "SELECT"):
            return any(t.kind is TokenKind.STRING or t.is_symbol("(") for t in second)
        return first.kind is not TokenKind.QUOTED_NAME and not first.is_symbol("(")

    def common_tables(self, index: int, end: int, scope: Scope) -> tuple[int, Scope]:
        """Scan ``WITH a AS (…), b AS (…)``; return the index behind it and the scope there."""
        tokens, closing = self._tokens, self._closing
        index += 1
        recursive = index + 1 < end and tokens[index].upper == "RECURSIVE"
        if recursive and tokens[index + 1].kind in _NAMES:
            index += tokens[index + 1].upper != "AS"
        while index < end and tokens[index].kind in _NAMES:
            name = plain(tokens[index]).lower()
            index += 1
            if index < end and tokens[index].is_symbol("("):
                behind = closing[index] + 1
                if behind < end and (tokens[behind].is_symbol("(") or tokens[behind].upper):
                    follows = tokens[behind].upper
                    if tokens[behind].is_symbol("(") or follows in ("AS", "MAX"):
                        index = behind
            if index + 3 < end and tokens[index].upper == "MAX":
                index += 4  # MAX RECURSION LEVEL n
            if index < end and tokens[index].upper == "AS":
                index += 1
            if not (index < end and tokens[index].is_symbol("(")):
                break
            visible = scope | {name} if recursive else scope
            self.query(index + 1, closing[index], visible)
            scope |= {name}
            index = closing[index] + 1
            if not (index < end and tokens[index].is_symbol(",")):
                return index, scope
            index += 1
        self.known = False
        return index, scope


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
