"""The moving parts of a statement (texts that Spark reads by the clock), and their values.

A constant text ``'now'``, ``'today'``, ``'tomorrow'`` or ``'yesterday'`` becomes a moment if it is
cast to a date or a timestamp. Any text that is a time of day becomes a TIMESTAMP of the day on
which it is read. Such a text is traced from the cast through columns to the literals.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from typing import Final

from haproc.classify.model import RefusedError
from haproc.classify.tokens import (
    SPECIAL_DATETIME,
    LexicalError,
    Token,
    TokenKind,
    adjacent,
    is_moment,
    tokenize,
)
from haproc.pin.literals import (
    Moment,
    clock_literal,
    identity_literal,
    instant_text,
    local_time,
    special_datetime_literal,
    string_literal,
)
from haproc.reading.known import CLOCK, IDENTITY, KEEPING, holds_text, is_text
from haproc.reading.order import at, child_of, items_of
from haproc.reading.tree import Node, Reading, TextRange

TYPED: Final = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"})
MOMENTS: Final = TYPED | {"TIME"}
_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_COMPLETE = re.compile(
    rf"{_DAY}(?:[ T][0-9]{{2}}:[0-9]{{2}}(?::[0-9]{{2}}(?:\.[0-9]{{1,9}})?)?"
    r"(?: ?(?:Z|UTC|GMT|[+-][0-9]{2}:[0-9]{2}|[A-Za-z]+(?:/[A-Za-z_]+)+))?)?"
)
"""The form of a date's or timestamp's text that has its whole day, so the clock does not matter."""
_TIME = re.compile(
    r"[\s\x00-\x20\x7f]*T?([0-9]{1,2}(?::[0-9]{1,2}(?::[0-9]{1,2}(?:\.[0-9]{1,9})?)?)?)[\s\x7f]*"
)
_CALL = re.compile(r"(?:[\w`]+\s*\.\s*)*`?(\w+)`?\s*(?:\(\s*\d?\s*\))?")
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_FIRM_SOURCE: Final = re.compile(
    r"TINYINT|SMALLINT|INT|BIGINT|DECIMAL.*|FLOAT|DOUBLE|BOOLEAN|DATE|TIMESTAMP|TIMESTAMP_NTZ|VOID"
)
"""Types whose values, as texts, are never a time of day, nor a word such as 'today'."""
_CLOCKS: Final = frozenset(name for names in CLOCK.values() for name in names)
CLOCK_WORDS: Final = frozenset(name.upper() for name in _CLOCKS) | {"UNIX_TIMESTAMP"}
ROWS_MAX: Final = 50
"""The most VALUES and ranges of one text that are checked: for each, the rest of the text is read.
Chosen."""
_STEPS_MAX: Final = 200
"""The most operators and expressions through which a text is traced back. Chosen."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text that may be the value of an expression; ``text`` is None if it is not known.

    ``literal``: the node of the literal, if the expression is that literal; None if the text comes
    through a column or the like.
    """

    text: str | None
    literal: Node | None = None


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a text; empty if it cannot be read as tokens."""
    try:
        return list(tokenize(text))
    except LexicalError:
        return []


def text_of(literal: Node) -> str | None:
    """Return the text of a STRING literal; None if it is NULL, or of another type."""
    match = _QUOTED.match(literal.value or "")
    return None if match is None else re.sub(r"\\(.)", r"\1", match[1], flags=re.DOTALL)


def typed(tokens: list[Token]) -> tuple[str, str] | None:
    """Return the word and the text of a typed literal, such as ``DATE '…'``.

    None if the tokens are not one typed literal.
    """
    if len(tokens) < 2 or tokens[0].upper not in TYPED or tokens[1].kind is not TokenKind.STRING:
        return None
    text, behind = adjacent(tokens, 1)
    return (tokens[0].upper, text) if behind == len(tokens) else None


def is_moment_type(node: Node) -> bool:
    """True if a literal is a date, a time or a timestamp, and not NULL."""
    return (node.type or "").partition("(")[0] in MOMENTS and "'" in (node.value or "")


def names_clock(text: str) -> bool:
    """True if a text has the name of a function that reads the clock, such as now()."""
    return any(token.upper in CLOCK_WORDS for token in tokens_of(text))


def moving_in(text: str) -> str:
    """Return the first typed literal in a text that is read by the clock; empty if there is none.

    ``text``: of a view, a function or a part of a plan.
    """
    tokens = tokens_of(text)
    for nth, token in enumerate(tokens[:-1]):
        if token.upper in TYPED and tokens[nth + 1].kind is TokenKind.STRING:
            value, behind = adjacent(tokens, nth + 1)
            if is_moment(value):
                return text[token.start : tokens[behind - 1].end]
    return ""


def computes_rows(text: str) -> bool:
    """True if a text may have rows (VALUES, range) that are computed from more than literals.

    ``text``: of a view, a function or a part of a plan.
    """
    tokens = tokens_of(text)
    ranges, values = [], []
    for token, behind in pairwise(tokens):
        place, is_open = TextRange(token.start, len(text)), behind.is_symbol("(")
        if token.text.strip("`").upper() == "RANGE" and is_open:
            ranges.append(place)
        elif token.upper == "VALUES" and (  # otherwise it is a column
            behind.kind is not TokenKind.SYMBOL or is_open or behind.text in ("-", "+")
        ):
            values.append(place)
    if not tokens or len(ranges) + len(values) > ROWS_MAX:
        return True
    rows = [row for place in ranges for row in rows_of(text, place)[:1]]
    rows += [row for place in values for row in rows_of(text, place)]
    return not all(is_constant(item) for row in rows for item in row)


def rows_of(text: str, place: TextRange) -> list[list[list[Token]]]:
    """Return the rows of the VALUES at ``place``: for each row its items, for each item its tokens.

    The tokens have their places in ``text``. A row without parentheses has one item.
    """
    tokens = [
        each._replace(start=each.start + place.start, end=each.end + place.start)
        for each in tokens_of(text[place.start : place.end])[1:]
    ]
    end = next((nth for nth, depth in enumerate(_depths(tokens)) if depth < 0), len(tokens))
    found = []
    for row in _split(tokens[:end]):
        end = next((nth for nth, each in enumerate(_depths(row)) if nth and not each), len(row) - 1)
        is_named = end + 1 < len(row) and row[end + 1].upper not in _OPERATORS
        is_named = is_named and row[end + 1].kind in (TokenKind.WORD, TokenKind.QUOTED_NAME)
        if row and row[0].is_symbol("(") and (end + 1 == len(row) or is_named):
            found.append(_split(row[1:end]))
        else:
            found.append([row])
        if is_named:
            break  # the rows' name is behind the last of them
    return found


_OPERATORS: Final = frozenset(
    {"IS", "AND", "OR", "NOT", "IN", "LIKE", "ILIKE", "RLIKE", "REGEXP", "BETWEEN", "DIV"}
    | {"COLLATE"}
)


def _depths(tokens: list[Token]) -> Iterator[int]:
    """Yield, for each token, how many parentheses are open after it."""
    depth = 0
    for token in tokens:
        depth += token.is_symbol("(") - token.is_symbol(")")
        yield depth


def _split(tokens: list[Token]) -> list[list[Token]]:
    """Return the items between those commas that are outside parentheses."""
    parts: list[list[Token]] = [[]]
    for token, depth in zip(tokens, _depths(tokens), strict=True):
        if token.is_symbol(",") and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def is_constant(item: list[Token]) -> bool:
    """True if an item of a row is one plain literal, so nothing in it is computed."""
    plain = item[1:] if item and item[0].text in ("-", "+") else item
    if typed(plain) is not None or all(each.kind is TokenKind.STRING for each in plain):
        return True
    return len(plain) == 1 and (
        plain[0].kind is TokenKind.NUMBER or plain[0].upper in ("NULL", "TRUE", "FALSE")
    )


@dataclass(slots=True)
class Moving:
    """Finds the values of what depends on the clock or the session in one statement."""

    reading: Reading
    moment: Moment
    defined: dict[int, Node] = field(default_factory=dict)
    """What each CommonExpressionRef refers to, by its number."""

    def cut(self, place: TextRange | None) -> str:
        """Return the statement's text at ``place``; empty if that is None."""
        return "" if place is None else self.reading.text[place.start : place.end]

    def is_call(self, node: Node, names: Collection[str]) -> bool:
        """True if the text at the node's place is only a call of a function in ``names``."""
        match = _CALL.fullmatch(self.cut(node.place))
        return match is not None and match[1].lower() in names

    def value(self, node: Node) -> str | None:
        """Return the literal for a function of the clock or session; None for any other node."""
        if node.cls in IDENTITY and self.is_call(node, IDENTITY[node.cls]):
            return identity_literal(called_as(node.cls, IDENTITY), self.moment)
        if node.cls in CLOCK and self.is_call(node, CLOCK[node.cls]):
            return self.clock(called_as(node.cls, CLOCK), node.type or "")
        return None

    def clock(self, name: str, kind: str) -> str:
        """Return, as SQL, the value of the function ``name`` of the clock; ``kind``: its type."""
        literal = clock_literal(name, self.moment)
        is_short = kind.startswith("TIME(") and kind != "TIME(6)"
        return f"CAST({literal} AS {kind})" if is_short else literal

    def folded(self, node: Node) -> str | None:
        """Return the value of a call of the clock of which the analyzer has made a literal.

        None if the text at the node's place is no such call.
        """
        match = _CALL.fullmatch(self.cut(node.place))
        name = "" if match is None else match[1].lower()
        return self.clock(name, node.type or "") if name in _CLOCKS else None

    def name_of_call(self, place: TextRange) -> str:
        """Return the column name that Spark gives to a call of the clock; empty for other text."""
        match = _CALL.fullmatch(self.cut(place))
        name = "" if match is None else match[1].lower()
        return f"{name}()" if name in ("current_timestamp", "now") else ""

    def completed(self, text: str, kind: str) -> str | None:
        """Return the whole moment, as text, of a text that is read by the clock; None: not known.

        ``kind``: the type to which the text is cast.
        """
        special = SPECIAL_DATETIME.fullmatch(text)
        try:
            if special is not None:
                zone = special[2].strip()
                moment = replace(self.moment, time_zone=zone) if zone else self.moment
                literal = special_datetime_literal(special[1], kind, moment)
                match = None if literal is None else _QUOTED.search(literal)
                return None if match is None else match[1]
            time = _TIME.fullmatch(text)
            return time and f"{local_time(self.moment).date().isoformat()} {time[1]}"
        except RefusedError:  # a time zone in a spelling that only Spark reads
            return None

    def written(self, word: str, text: str, literal: Node | None) -> str | None:
        """Return what replaces the typed literal ``word`` ``'text'``; None if it can stay.

        Empty if it is read by the clock, and its value is not known.
        """
        if _COMPLETE.fullmatch(text):
            return None
        kind = (literal.type if literal is not None else None) or word
        whole = self.completed(text, "TIMESTAMP" if kind == "TIMESTAMP_LTZ" else kind)
        if whole is not None:
            return f"{word} '{whole}'"
        if literal is None or literal.value is None:
            return "" if is_moment(text) else None
        return self.constant(literal) or ""

    def constant(self, literal: Node) -> str | None:
        """Return SQL that means everywhere what a literal means here; None if that is not clear."""
        value = literal.value or ""
        if literal.type == "TIMESTAMP" and (match := _QUOTED.search(value)):
            wall = _wall(match[1])
            zoned = None if wall is None else wall.replace(tzinfo=local_time(self.moment).tzinfo)
            if zoned is None or zoned.utcoffset() != zoned.replace(fold=1).utcoffset():
                return None
            return instant_text(zoned)
        if literal.type == "STRING" and (text := text_of(literal)) is not None:
            return string_literal(text)
        return None if "${" in value else value

    # The origins of texts

    def texts(self, expression: Node, owner: Node | None) -> Iterator[Text]:
        """Yield every text that an expression may have as its value, as far as its type is a text.

        ``owner``: the operator that the expression is a part of.
        """
        yield from self._texts(expression, owner, _STEPS_MAX, through=False)

    def _texts(
        self, node: Node | None, owner: Node | None, steps: int, *, through: bool
    ) -> Iterator[Text]:
        """Yield the texts. ``through``: they came through a column, or are one of several."""
        if node is None or steps <= 0:
            yield Text(None)
            return
        if node.cls == "Literal":
            if (text := text_of(node)) is not None:
                yield Text(text, None if through else node)
        elif node.cls == "Cast":
            inner = node.node("child")
            if inner is not None and is_text(inner.type):
                yield from self._texts(inner, owner, steps - 1, through=True)
            elif inner is None or not _FIRM_SOURCE.fullmatch(inner.type or ""):
                yield Text(None)
        elif node.cls == "AttributeReference":
            yield from self._of_column(node.id, owner, steps - 1)
        elif node.cls == "CommonExpressionRef":
            number = node.node("id")
            found = None if number is None else self.defined.get(number["id"])
            yield from self._texts(found, owner, steps - 1, through=True)
        elif node.cls == "VariableReference":
            yield from self._texts(
                at(node, "varDef", "currentValue"), owner, steps - 1, through=True
            )
        elif node.cls == "ScalarSubquery":
            plan = node.node("plan")
            shown = outputs(plan)
            yield from self._of_column(shown[0] if shown else None, plan, steps - 1, inside=True)
        elif node.cls in KEEPING:
            for each in node.children:
                if each.type is not None and holds_text(each.type):
                    yield from self._texts(each, owner, steps - 1, through=True)
        else:
            yield Text(None)

    def _of_column(
        self, column: int | None, owner: Node | None, steps: int, *, inside: bool = False
    ) -> Iterator[Text]:
        """Yield the texts in a column of an operator's input; with ``inside``, of its output."""
        plans = [owner] if inside else inputs(owner)
        found = False
        for plan in plans:
            shown = outputs(plan)
            if plan is not None and column in shown:
                found = True
                yield from self._from_plan(column, plan, steps)
        if not found:
            yield Text(None)

    def _from_plan(self, column: int | None, plan: Node, steps: int) -> Iterator[Text]:
        if plan.cls in ("Project", "Aggregate"):
            for each in items_of(plan):
                if each.id == column:
                    yield from self._texts(each, plan, steps - 1, through=True)
        elif plan.cls in ("LocalRelation", "ResolvedInlineTable"):
            yield from self._inline(outputs(plan).index(column), plan, steps)
        elif plan.cls == "Union":
            nth = outputs(plan).index(column)
            for side in inputs(plan):
                shown = outputs(side)
                if side is None or nth >= len(shown):
                    yield Text(None)
                else:
                    yield from self._from_plan(shown[nth], side, steps - 1)
        elif plan.cls in _HANDING_ON:
            yield from self._of_column(column, plan, steps - 1)
        else:
            yield Text(None)

    def _inline(self, nth: int, plan: Node, steps: int) -> Iterator[Text]:
        """Yield the texts in a column of rows that stand in the statement's text."""
        written = inline_table(self.reading, plan)
        if written is None:
            yield Text(None)
        elif written.cls == "LocalRelation":
            assert written.place is not None
            for items in rows_of(self.reading.text, written.place):
                item = items[nth] if nth < len(items) else None
                if item is None or not is_constant(item):
                    yield Text(None)
                elif item[0].kind is TokenKind.STRING:
                    yield Text(adjacent(item, 0)[0])
        else:
            for row in (plan if plan.cls == "ResolvedInlineTable" else written)["rows"] or ():
                each = row[nth] if nth < len(row) else None
                if each is not None and each.cls != "Literal":
                    each = computed_at(self.reading, each.place)
                yield from self._texts(each, None, steps - 1, through=True)


_HANDING_ON: Final = frozenset(
    {"CTERelationDef", "CollectMetrics", "Deduplicate", "Distinct", "Filter", "GlobalLimit", "Join"}
    | {"LateralJoin", "LocalLimit", "Offset", "PipeOperator", "Repartition"}
    | {"RepartitionByExpression", "ResolvedHint", "Sort", "SubqueryAlias", "View", "Window"}
    | {"WithCTE"}
)
"""Operators whose output has the columns of their input, with the same values."""


def inputs(node: Node | None) -> list[Node | None]:
    """Return the plans below an operator that give it its columns; None for a missing one."""
    if node is None:
        return []
    if node.cls in ("Join", "LateralJoin"):
        return [node.node("left"), node.node("right")]
    if node.cls == "Union":
        return list(node.nodes("children"))
    if node.cls == "MergeIntoCommand":
        return [node.node("source"), node.node("target")]
    if node.cls == "UpdateCommand":
        return [node.node("target")]
    return [child_of(node)]


def outputs(node: Node | None) -> list[int | None]:
    """Return the numbers of an operator's output columns, in order; empty if they are not known."""
    if node is None:
        return []
    if node["output"]:
        return [each.id for each in node.nodes("output")]
    if node.cls in ("Project", "Aggregate"):
        return [each.id for each in items_of(node)]
    if node.cls == "Union":
        return outputs(inputs(node)[0])
    more = [each.id for each in node.nodes("windowExpressions")]
    below = inputs(node) if node.cls in _HANDING_ON else []
    return [column for each in below for column in outputs(each)] + more


def inline_table(reading: Reading, plan: Node) -> Node | None:
    """Return the node in the parsed tree for an analyzed plan's rows; None if there is none."""
    if plan.place is None or reading.parsed is None:
        return None
    for node in reading.parsed.walk():
        if node.place == plan.place and node.cls in ("LocalRelation", "UnresolvedInlineTable"):
            return node
    return None


def computed_at(reading: Reading, place: TextRange | None) -> Node | None:
    """Return the analyzed form of the item at ``place`` in VALUES; None if it was not computed."""
    items = (each for plan in reading.computed for each in computed_items(plan))
    return next((each for each in items if place is not None and each.place == place), None)


def computed_items(plan: Node) -> list[Node]:
    """Return the expressions in one of the plans in `Reading.computed`."""
    names = ("projectList", "aggregateExpressions")
    items = [each for name in names for each in plan.nodes(name)]
    return [(each.node("child") or each) if each.cls == "Alias" else each for each in items]


def called_as(cls: str, names: dict[str, frozenset[str]]) -> str:
    """Return a name by which SQL calls the function of this class."""
    return min(names[cls])


def _wall(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
