"""Cuts the query that gives the rows out of a statement's text.

The parsed tree gives the places of the parts, in characters: the place of an INSERT ends before its
query, and begins behind a WITH or FROM clause that comes first. The places of queries are not
enough: they leave out parentheses, FROM in front, ORDER BY. So tokens give the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from haproc.classify.model import Kind
from haproc.classify.tokens import Token, TokenKind, tokenize
from haproc.reading.anatomy import proper
from haproc.reading.names import parts
from haproc.reading.tree import Node, Reading, TextRange

_BEGINS: Final = frozenset({"SELECT", "FROM", "VALUES", "TABLE", "WITH", "MAP", "REDUCE"})
_CREATE_WORDS: Final = 4
"""In CREATE OR REPLACE TABLE, the word TABLE is among this many first words; later it begins a
query."""
_NAMES: Final = (TokenKind.WORD, TokenKind.QUOTED_NAME)


@dataclass(frozen=True, slots=True)
class Cut:
    """A statement cut in three: ``head`` + a source of rows + ``tail`` is a statement again.

    ``query`` is a complete query that gives that source. ``start`` and ``end``: the place of the
    removed text. If a WITH or FROM clause comes before the statement, ``query`` begins with a copy
    of it, and ``head`` has none. ``alias``: the name by which a MERGE calls its source, as SQL, if
    that is only the name of the removed table; else empty.
    """

    head: str
    query: str
    tail: str
    start: int
    end: int
    alias: str = ""


def _order(literal: tuple[TextRange, str]) -> tuple[int, bool, int]:
    """Return a replacement's sort key: at one place insertions come first, then the longest."""
    place, _ = literal
    return place.start, place.end > place.start, -place.end


class Spliced:
    """A text in which literals replace parts (or stand between them).

    Places and indexes are those of the original text.
    """

    def __init__(self, text: str, literals: Sequence[tuple[TextRange, str]] = ()) -> None:
        self._text = text
        self._literals = sorted(literals, key=_order)

    def __getitem__(self, piece: slice) -> str:
        """Return a piece of the text, with those literals whose whole place is in this piece."""
        at, end = piece.start or 0, len(self._text) if piece.stop is None else piece.stop
        found = []
        for place, literal in self._literals:
            if at <= place.start and place.end <= end:
                found += [self._text[at : place.start], literal]
                at = place.end
        return "".join([*found, self._text[at:end]])


def cut(reading: Reading, kind: Kind, literals: Sequence[tuple[TextRange, str]] = ()) -> Cut | None:
    """Return the parts of an INSERT, CREATE TABLE AS or MERGE; None if its query can't be found.

    In the parts, the ``literals`` replace the text at their places; ``start`` and ``end`` are
    places in the original text.
    """
    if reading.parsed is None:
        return None
    root = proper(reading.parsed)
    tokens = [token for token in tokenize(reading.text) if token.kind is not TokenKind.HINT]
    while tokens and tokens[-1].is_symbol(";"):
        tokens.pop()
    text = Spliced(reading.text, literals)
    if root.place is None:  # Delta's parser gives none if it reads CLUSTER BY
        return _create_by_words(text, tokens) if kind is Kind.CREATE_TABLE_AS else None
    if kind in (Kind.INSERT, Kind.INSERT_OVERWRITE):
        if any(_is_default(node) for node in root.walk()):
            return None
        return _insert(text, root, tokens)
    if kind is Kind.CREATE_TABLE_AS:
        return _create(text, root, tokens)
    return _merge(text, root, tokens) if kind is Kind.MERGE else None


def _is_default(node: Node) -> bool:
    """True if the node may be the word DEFAULT, which means a value only inside an INSERT."""
    name = node["nameParts"] if node.cls == "UnresolvedAttribute" else None
    return name is not None and len(name) == 1 and str(name[0]).upper() == "DEFAULT"


def _insert(text: Spliced, root: Node, tokens: Sequence[Token]) -> Cut | None:
    assert root.place is not None
    behind = [token for token in tokens if token.start >= root.place.end]
    if root.node("query") is None or not behind:
        return None
    start, end = behind[0].start, tokens[-1].end
    before, query = text[: root.place.start], text[start:end]
    if before.strip():
        # The line break ends a comment that may come last.
        own = f"({query}\n)" if behind[0].upper == "WITH" else query
        query = f"{before.rstrip()}\n{own}"
    return Cut(text[root.place.start : start], query, text[end:], start, end)


def _create(text: Spliced, root: Node, tokens: Sequence[Token]) -> Cut | None:
    query, name = root.node("query"), root.node("name")
    if query is None or name is None or name.place is None:
        return None
    first, closing = _first(query), _closing(tokens)
    at = next((i for i, token in enumerate(tokens) if token.start >= name.place.end), len(tokens))
    while at < len(tokens) and first is not None and tokens[at].start <= first:
        token, close = tokens[at], closing.get(at, at)
        follows = tokens[at + 1].text if at + 1 < len(tokens) else ""
        begins = token.upper in _BEGINS and not (token.upper == "WITH" and follows == "(")
        if begins or (close > at and tokens[close].start > first):
            start, end = token.start, tokens[-1].end
            return Cut(text[:start], text[start:end], text[end:], start, end)
        at = close + 1
    return None


def _create_by_words(text: Spliced, tokens: Sequence[Token]) -> Cut | None:
    """Cut before the word that begins a query, the first such word behind the table's clauses.

    If it is the wrong word, Spark cannot read ``head``.
    """
    closing, at = _closing(tokens), 0
    while at < len(tokens):
        token = tokens[at]
        follows = tokens[at + 1].text if at + 1 < len(tokens) else ""
        opened = token.is_symbol("(") and at and tokens[at - 1].upper == "AS"
        is_with = token.upper == "WITH" and follows == "("
        is_table = token.upper == "TABLE" and at < _CREATE_WORDS
        if opened or (token.upper in _BEGINS and not is_with and not is_table):
            start, end = token.start, tokens[-1].end
            return Cut(text[:start], text[start:end], text[end:], start, end)
        at = closing.get(at, at) + 1
    return None


def _merge(text: Spliced, root: Node, tokens: Sequence[Token]) -> Cut | None:
    target, source = root.node("targetTable"), root.node("sourceTable")
    if target is None or source is None or root.place is None:
        return None
    named = _place_of_name(target)
    first, closing = _first(source, root), _closing(tokens)
    at = next(
        (
            i + 1
            for i, token in enumerate(tokens)
            if named is not None and token.start >= named and token.upper == "USING"
        ),
        len(tokens),
    )
    if at >= len(tokens):
        return None
    last = _relation_end(tokens, closing, at)
    start, end = tokens[at].start, tokens[last].end
    if first is None or not start <= first < end:
        return None
    own = text[start:end]
    query = own if tokens[at].is_symbol("(") else f"SELECT * FROM {own}"
    before = text[: root.place.start]
    if before.strip():
        query = f"{before.rstrip()}\n{query}"
    is_bare = not tokens[at].is_symbol("(") and tokens[last + 1].upper == "ON"
    alias = text[tokens[last].start : end] if is_bare else ""
    if is_bare and tokens[at].upper == "IDENTIFIER" and last in closing.values():
        alias = f"`{parts(source)[-1].replace('`', '``')}`" if parts(source) else ""
    return Cut(text[root.place.start : start], query, text[end:], start, end, alias)


def _relation_end(tokens: Sequence[Token], closing: dict[int, int], at: int) -> int:
    """Return the index of the last token of the query in parentheses, or of the name, at ``at``."""
    if at in closing:
        return closing[at]
    if tokens[at].upper == "IDENTIFIER" and at + 1 in closing:
        return closing[at + 1]
    while at + 2 < len(tokens) and tokens[at + 1].is_symbol(".") and tokens[at + 2].kind in _NAMES:
        at += 2
    return at


def _place_of_name(node: Node) -> int | None:
    """Return where a relation's name ends in the text, without an alias; None if unknown."""
    while node.cls == "SubqueryAlias" and (child := node.node("child")) is not None:
        node = child
    return node.place.end if node.place is not None else None


def _first(query: Node, outer: Node | None = None) -> int | None:
    """Return where the first part of a query starts in the text; None if unknown.

    Nodes with the place of ``outer`` are left out.
    """
    own = outer.place if outer is not None else None
    places = [node.place for node in query.walk() if node.place not in (None, own)]
    return min((place.start for place in places if place is not None), default=None)


def _closing(tokens: Sequence[Token]) -> dict[int, int]:
    """Return the index of the closing parenthesis for the index of each opening one."""
    opened: list[int] = []
    closing: dict[int, int] = {}
    for index, token in enumerate(tokens):
        if token.is_symbol("("):
            opened.append(index)
        elif token.is_symbol(")") and opened:
            closing[opened.pop()] = index
    return closing
