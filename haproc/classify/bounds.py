"""Checks that a statement is not too long, too wide, or nested too deeply.

Spark reads and analyses a statement by recursion: too deep a nesting overflows a stack, and Spark's
error then does not show the cause. In the log such a statement would stop every cluster at the same
place. So it is measured here in one pass over its tokens, before any other code analyses it, and
refused.

The depth is an estimate of the depth of Spark's tree. On the way from the statement to a token, it
is one for each bracket, CASE, operator or prefix in a row (``1 + 1 + …`` leans to the left), and
more for parts that become several levels of the plan (queries inside queries, joins). After AND,
OR, a comma or a clause, operators are counted from 0 again, because Spark reads these as lists.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from haproc.classify.model import InsertShape, RefusedError
from haproc.classify.tokens import HINT_CLOSING, HINT_OPENING, Token, TokenKind, tokenize
from haproc.failure import ErrorClass


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of a statement; `haproc.config.model.Limits` gives reasons for these defaults."""

    chars_max: int = 16 << 20
    tokens_max: int = 400_000
    depth_max: int = 200


COLUMNS_MAX: Final = 10_000
"""The most columns of one SELECT or plan. A Spark with 1 GiB of heap accepted 20,000 string
literals in a row, and died of more than 40,000, because it reserves thousands of values for each.
In a plan it accepted 5,000, and ran out of memory at 50,000."""
# The spaces, and the first ``}``, are as in Spark's own pattern. A match ends before that brace, so
# that no part of the text is searched twice.
_VARIABLE: Final = re.compile(r"\$\{\S[^\s}]*+", re.ASCII)
QUERY_BEGINS: Final = frozenset({"SELECT", "WITH", "VALUES", "FROM", "TABLE", "MAP", "REDUCE"})
_OPERATOR_TEXT = "+ - * / % | & ^ ~ ! || = == <> != < <= > >= <=> << >> >>> :: : ."
_OPERATORS = frozenset(_OPERATOR_TEXT.split())
_OPERATOR_WORDS = frozenset({"NOT", "DIV", "COLLATE"})
_RESTARTING = """AND OR WHEN THEN ELSE SELECT FROM WHERE GROUP HAVING ORDER BY LIMIT ON USING SET
    VALUES AS QUALIFY WINDOW CLUSTER DISTRIBUTE SORT"""
_RESTARTS = frozenset(_RESTARTING.split())
_ENDS_FROM = frozenset({"WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "SELECT", "WINDOW", "SET"})
_ENDS_COLUMNS = _ENDS_FROM | {"FROM"}
_TYPES = frozenset({"ARRAY", "MAP", "STRUCT"})
_QUERY_LEVELS = 8
_ARROW_LEVELS = 4
_TYPE_LEVELS = 5
_LEVELS = {
    "JOIN": 2,
    "PIVOT": 2,
    "UNPIVOT": 2,
    "VIEW": 3,  # LATERAL VIEW
    **dict.fromkeys(("UNION", "INTERSECT", "EXCEPT", "MINUS", "EXPLAIN"), 1),
}
"""How many levels of the plan each of these words adds, if several of them follow each other."""
_COMMA_LEVELS = 2
"""How many levels of the plan a comma between relations adds, since it joins them. With all these
numbers, a Spark 4.2.1 that had just started, with default stacks, could read and analyse every form
at a depth of 200; most forms at twice that depth, none at four times."""


def check_text(sql: str, bounds: Bounds) -> None:
    """Raise RefusedError if a text is too long, or contains something that is forbidden."""
    if len(sql) > bounds.chars_max:
        raise RefusedError(
            ErrorClass.STATEMENT_TOO_COMPLEX,
            f"the statement has {len(sql)} characters (limits.statement_bytes_max is "
            f"{bounds.chars_max})",
            "send large values as rows, in Arrow",
        )
    if (at := sql.find("\0")) >= 0:
        raise RefusedError(
            ErrorClass.SYNTAX,
            f"character {at} of the statement is NUL, which SQL does not know",
            r"leave it out; in a string write \0, or bind a parameter",
        )
    refuse_variables(sql)


def refuse_variables(sql: str) -> None:
    """Raise RefusedError if a text contains a variable (``${…}``) that Spark would replace."""
    if "${" in sql and any(sql.startswith("}", match.end()) for match in _VARIABLE.finditer(sql)):
        raise RefusedError(
            ErrorClass.VARIABLE,
            "Spark would replace ${…} before it reads the statement, on each cluster by its own",
            "inside a string write $\\{…}; elsewhere bind a parameter",
        )


def bounded_tokens(sql: str, bounds: Bounds) -> list[Token]:
    """Return the tokens of a statement within the limits; raises RefusedError, or LexicalError."""
    tokens = list(islice(tokenize(sql), bounds.tokens_max + 1))
    if len(tokens) > bounds.tokens_max:
        raise _too_many(bounds.tokens_max)
    _Depth(bounds.depth_max).measure(tokens)
    for token in tokens:
        if token.kind is TokenKind.HINT:
            inside = token.text[len(HINT_OPENING) : -len(HINT_CLOSING)]
            _Depth(bounds.depth_max).measure(list(tokenize(inside)))
    return tokens


def check_shape(shape: InsertShape, bounds: Bounds) -> None:
    """Raise RefusedError if an INSERT of literals is too large; it is not read as tokens."""
    columns = shape.signature.count(",") + 1
    if tokens_of(shape.rows, shape.rows * columns) > bounds.tokens_max:
        raise _too_many(bounds.tokens_max)


def tokens_of(rows: int, cells: int) -> int:
    """Return about how many tokens rows of literals have; ``cells``: the number of all literals."""
    return 2 * cells + 2 * rows


class _Frame:
    """What was counted so far inside one bracket or CASE."""

    __slots__ = (
        "arrows",
        "base",
        "closing",
        "columns",
        "empty",
        "in_from",
        "in_rows",
        "operators",
        "relations",
    )

    def __init__(self, closing: str, base: int) -> None:
        self.closing = closing
        self.base = base
        self.operators = self.arrows = self.relations = 0
        self.in_from = self.in_rows = False
        self.columns = -1  # -1: this is no list of a select's columns
        self.empty = True

    @property
    def depth(self) -> int:
        return self.base + self.operators + self.arrows + self.relations


class _Depth:
    def __init__(self, depth_max: int) -> None:
        self._depth_max = depth_max
        self._frames = [_Frame("", 0)]

    def measure(self, tokens: Sequence[Token]) -> None:
        """Measure the depth at each token; raises RefusedError where it is above the limit."""
        before = ""
        for token in tokens:
            kind = token.kind
            if kind is TokenKind.SYMBOL:
                self._symbol(token.text, before)
                before = token.text
            elif kind is TokenKind.WORD:
                word = token.upper
                if before != ".":
                    self._after_rows(before)
                    self._word(word, before)
                before = word
            else:
                if kind is TokenKind.QUOTED_NAME:
                    self._after_rows(before)
                before = ""
                self._frames[-1].empty = False
                continue
            if self._frames[-1].depth > self._depth_max:
                raise _too_deep(self._depth_max, token)

    def _symbol(self, text: str, before: str) -> None:
        frame = self._frames[-1]
        if text == "(":
            frame.relations += before == "AS"  # a common table expression: it may be used below
            self._frames.append(_Frame(")", frame.depth + 1))
            return
        if text == "[":
            frame.operators += 1
            self._frames.append(_Frame("]", frame.depth + 1))
        elif text == "<" and before in _TYPES:
            self._frames.append(_Frame(">", frame.depth + _TYPE_LEVELS))
        elif text in (")", "]"):
            self._close(text)
        elif frame.closing == ">" and not text.strip(">"):
            for _ in text:
                self._close_type()
        elif text == ",":
            frame.operators = frame.arrows = 0
            frame.columns += frame.columns >= 0
            if frame.columns >= COLUMNS_MAX:
                raise _too_wide()
            frame.relations += _COMMA_LEVELS * (frame.in_from and not frame.in_rows)
        elif text == "->":
            frame.arrows += _ARROW_LEVELS
        elif text == "|>":
            frame.relations += 1
        elif text in _OPERATORS:
            frame.operators += 1
        frame.empty = False

    def _word(self, word: str, before: str) -> None:
        frame = self._frames[-1]
        if frame.empty and frame.closing == ")" and word in QUERY_BEGINS:
            frame.base += _QUERY_LEVELS
        frame.empty = False
        if word == "CASE":
            self._frames.append(_Frame("END", frame.depth + 1))
        elif word == "END" and frame.closing == "END":
            self._frames.pop()
        elif word in _OPERATOR_WORDS:
            frame.operators += 1
        elif word in _LEVELS:
            if word != "VIEW" or before == "LATERAL":
                frame.operators = 0
                frame.relations += _LEVELS[word]
        elif word in _RESTARTS:
            frame.operators = 0
            frame.in_rows = word == "VALUES"
            if word in _ENDS_COLUMNS:
                frame.columns = 0 if word == "SELECT" else -1
            if word == "FROM":
                frame.in_from = True
            elif word in _ENDS_FROM:
                frame.in_from = False

    def _after_rows(self, before: str) -> None:
        """Count a relation that is joined to rows in FROM: a name after VALUES (…) and a comma."""
        frame = self._frames[-1]
        if before == "," and frame.in_rows and frame.in_from:
            frame.relations += _COMMA_LEVELS

    def _close(self, text: str) -> None:
        """Close the innermost open bracket that ``text`` closes, and all open ones inside it."""
        for at in range(len(self._frames) - 1, 0, -1):
            if self._frames[at].closing == text:
                del self._frames[at:]
                return
            if self._frames[at].closing in (")", "]"):
                return  # they don't match: Spark will report it

    def _close_type(self) -> None:
        if self._frames[-1].closing == ">":
            self._frames.pop()


def _too_many(tokens_max: int) -> RefusedError:
    return RefusedError(
        ErrorClass.STATEMENT_TOO_COMPLEX,
        f"the statement has more than {tokens_max} words, literals and symbols "
        "(limits.statement_tokens_max)",
        "send the values as rows, or in several statements",
    )


def _too_wide() -> RefusedError:
    return RefusedError(
        ErrorClass.STATEMENT_TOO_COMPLEX,
        f"a SELECT has more than {COLUMNS_MAX} columns",
        "keep them in an array, a map or in rows, or ask for them in several statements",
    )


def _too_deep(depth_max: int, token: Token) -> RefusedError:
    return RefusedError(
        ErrorClass.STATEMENT_TOO_COMPLEX,
        f"at character {token.start} the statement is nested more than {depth_max} deep "
        "(limits.statement_depth_max): brackets, CASE, operators in a row, joins and subqueries",
        "write it flatter: VALUES instead of many UNIONs, a view for a part of the query",
    )
