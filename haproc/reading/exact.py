"""The check that a part of a statement gives the same on every cluster.

Theory of operation. Spark has analyzed the statement: each operator and expression has a class,
each expression a type, and columns are resolved. A closed list names the classes that give the same
everywhere (`known`). Sums, limits and windows do so under a condition on types and orders
(`order`). Texts that Spark reads by the clock are traced to the place where they are written
(`moving`). Everything else is a finding. A finding that is one value for the whole statement
becomes a literal at its place. For any other, rows that are computed once replace its query.

Spark computes some things while it reads: rows in the text, typed literals, a MERGE's clock. Those
are found in the parsed tree and in the plans that the plugin has analyzed separately
(`examine_words`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from haproc.classify.tokens import SPECIAL_DATETIME, TokenKind, decoded, is_time_of_day
from haproc.pin.literals import Moment, string_literal
from haproc.reading import known
from haproc.reading.findings import (
    BY_VALUE,
    DEFINED,
    LIMITS,
    RELATIONS,
    SHOWN_MAX,
    Statement,
    name_of,
    text_of,
)
from haproc.reading.moving import (
    TYPED,
    Text,
    computes_rows,
    inputs,
    is_moment_type,
    moving_in,
    names_clock,
    outputs,
    tokens_of,
    typed,
)
from haproc.reading.order import (
    at,
    columns_in,
    function_of,
    is_settled,
    limit_is_total,
)
from haproc.reading.tree import Facts, Finding, Node, Reading, Remedy, TextRange

COMPLETED: Final = (
    "becomes a TIMESTAMP, and a text that is a time of day is completed by today's date: give "
    "to_timestamp() a format, or write the TIMESTAMP itself"
)
_CONVERTING: Final = frozenset({"Cast", "UpCast", "ParseToDate", "ParseToTimestamp"})
_HOLDING: Final = frozenset({"DeltaTableV2", "HadoopFsRelation"})
_ROWS_IN_TEXT: Final = frozenset({"LocalRelation", "Range", "ResolvedInlineTable"})


def examine(reading: Reading, part: Node, facts: Facts, moment: Moment) -> list[Finding]:
    """Return what in an analyzed part may differ from cluster to cluster.

    ``part``: a query's plan, a condition, an assigned value, or any other expression.
    """
    return Examination(reading, moment, facts).part(part)


@dataclass(slots=True)
class Examination(Statement):
    """Looks for what may differ between clusters in the parts of one statement."""

    _settled: set[int] = field(default_factory=set)
    """The ids of expressions whose result depends on an order that does not matter where they
    stand."""
    _framed: set[int] = field(default_factory=set)
    """The ids of window expressions that an operator computes which is known."""

    def part(self, part: Node) -> list[Finding]:
        """Return what in a part may differ between clusters, each finding once."""
        self.index(part)
        found = [finding for node in self.nodes(part) for finding in self._look(node)]
        return list(dict.fromkeys(found))

    def _look(self, node: Node) -> Iterator[Finding]:
        rule = _RULES.get(node.cls)
        if rule is not None:
            yield from rule(self, node)
        elif node.cls in known.FOREIGN:
            yield self.finding(node, "runs code that HAProc cannot look into", Remedy.NONE)
        elif node.cls in known.NATURE:
            if id(node) not in self._settled:
                yield self.finding(node, known.NATURE[node.cls])
        elif node.cls not in _KNOWN and not self.facts.vouched:
            yield self.finding(node, f"({node.cls}) is not known to give the same everywhere")
        elif not node.deterministic and all(each.deterministic for each in self.below(node)):
            yield self.finding(node, "is not deterministic")
        if node.cls in known.PARSING and self.facts.legacy:
            yield self.finding(
                node,
                "reads two digits of a year by the clock: the session has "
                "spark.sql.legacy.timeParserPolicy = LEGACY",
            )

    def _relation(self, node: Node) -> Iterator[Finding]:
        """Yield a finding if a relation is an older version of a table, or no table at all."""
        held = node.node("table") or node.node("relation")
        files = held if node.cls == "DataSourceV2Relation" else at(held, "location")
        if node.cls == "HiveTableRelation":
            return
        if files is not None and files.attributes.get("timeTravel"):
            reason = "is read VERSION AS OF or TIMESTAMP AS OF: each cluster numbers and dates its"
            yield self.finding(node, f"{reason} versions itself")
        elif held is None or held.cls not in _HOLDING or node["options"]:
            what = "what is read" if held is None else held.cls
            yield self.finding(node, f"({what}) is not known to hold the same rows everywhere")
        elif node.cls == "LogicalRelation" and node.node("catalogTable") is None:
            yield self.finding(node, "is read from files that belong to no table of the ring")

    def _variable(self, node: Node) -> Iterator[Finding]:
        current = at(node, "varDef", "currentValue")
        literal = None if current is None else self.moving.constant(current)
        name = str((node["originalNameParts"] or [""])[-1]).lower()
        if literal is None or node.place is None or not self.moving.is_call(node, {name}):
            yield self.finding(node, "is a variable of the session, whose value cannot be written")
            return
        if node.type == "INT" and self.is_below(node, "SortOrder", "Aggregate"):
            literal = f"CAST({literal} AS INT)"  # so that it is not the position of a column
        yield from self.value(node, literal, "is a variable of the session", node.place)

    def _clock(self, node: Node) -> Iterator[Finding]:
        reason = "reads the clock" if node.cls in known.CLOCK else "depends on the session"
        literal = self.moving.value(node)
        if literal is not None and node.place is not None:
            yield from self.value(node, literal, reason, node.place)
        elif node.cls == "CurrentTimeZone" or self.is_below(node, "UnixTimestamp"):
            return  # implied: the session's time zone goes with its statements
        else:
            shown, name = self.shown(node), known.called(node.cls)
            shown = shown if name in shown.lower() else f"{shown} ({name}())"
            yield Finding(f"{shown} {reason}", node.place)

    def _unix(self, node: Node) -> Iterator[Finding]:
        """Yield findings about unix_timestamp(): without arguments it reads the clock.

        In a MERGE the analyzer has made a literal of the clock in it.
        """
        first = node.node("timeExp")
        implied = first is not None and first.cls in ("CurrentTimestamp", "Literal")
        if not implied or first is None or self.moving.value(first) is not None:
            return
        if node.place is not None and self.moving.is_call(node, {"unix_timestamp"}):
            literal = self.moving.clock("unix_timestamp", "")
            yield from self.value(node, literal, "reads the clock", node.place)
        elif first.cls == "CurrentTimestamp":
            yield self.finding(node, "reads the clock")

    def literal(self, node: Node) -> Iterator[Finding]:
        """Yield findings about a typed literal, or one that a MERGE's analysis made of now()."""
        word_text = typed(tokens_of(self.moving.cut(node.place)))
        if word_text is not None and node.type in TYPED:
            literal = self.moving.written(*word_text, node)
            if literal is not None and node.place is not None:
                yield from self.read_by_clock(node, literal, node.place)
        elif is_moment_type(node) and self._is_merge:
            yield from self._of_merge(node)

    @property
    def _is_merge(self) -> bool:
        return self.reading.analyzed is not None and self.reading.analyzed.cls == "MergeIntoCommand"

    def _of_merge(self, node: Node) -> Iterator[Finding]:
        above = self.parents.get(id(node), [])
        texts = [text_of(each) for each in map(self.definition, above) if each is not None]
        if any(map(names_clock, texts)):
            yield self.finding(node, "rests on the clock")
        if node.place is None:
            if not texts:
                yield self.finding(node, "may be the clock of a DataFrame")
        elif self.reading.analyzed is None or node.place == self.reading.analyzed.place:
            return  # one for all calls: the parsed tree shows the calls
        elif literal := self.moving.folded(node):
            yield from self.value(node, literal, "reads the clock", node.place)
        elif names_clock(self.moving.cut(node.place)) and not self.is_below(node, "UnixTimestamp"):
            yield self.finding(node, "rests on the clock")

    def _sum(self, node: Node) -> Iterator[Finding]:
        child, context = node.node("child"), node.node("evalContext")
        kind = None if child is None else child.type
        is_decimal = known.is_decimal(kind)
        is_exact = is_decimal or (known.is_integer(kind) and node.cls == "Sum")
        mode = node["evalMode"] if context is None else context["evalMode"]
        if not is_exact:
            yield self.finding(
                node,
                f"of {kind} is computed in floating point values, where the order of rows "
                "shows: sum or average CAST(… AS DECIMAL(p,s))",
            )
        elif mode != "ANSI" and (is_decimal or mode != "LEGACY"):
            yield self.finding(node, "may overflow to NULL, depending on the order of rows")

    def _extreme(self, node: Node) -> Iterator[Finding]:
        if not known.is_firm(node.type):
            yield self.finding(node, f"{self._any_of(node.type)}, as it comes first")

    def _any_of(self, kind: str | None) -> str:
        if known.is_collated(kind):
            return "shows any one of texts that are equal by their collation"
        return f"of {kind} shows any one of values that are equal, such as 0.0 and -0.0"

    def _sorted(self, node: Node) -> Iterator[Finding]:
        """Accept sort_array(collect_list(x)): it sorts, so the collected order doesn't matter."""
        base, inner = node.node("base"), at(node, "base", "aggregateFunction")
        is_collected = inner is not None and inner.cls in known.COLLECTING
        is_only = all(each.cls == "SortArray" for each in self.parents.get(id(base), ()))
        if is_collected and is_only and known.is_firm(node.type):
            self._settled.add(id(inner))
        return iter(())

    def _list(self, node: Node) -> Iterator[Finding]:
        """Yield a finding about listagg(x), unless it is ordered by x: then ties are equal."""
        child, orders = node.node("child"), node.nodes("orderExpressions")
        first = orders[0].node("child") if orders else None
        is_same = child is not None and first is not None and _same(child, first)
        if not is_same or not known.is_firm(None if child is None else child.type):
            yield self.finding(node, f"({known.called(node.cls)}()) {known.NATURE[node.cls]}")

    def _grouped(self, node: Node) -> Iterator[Finding]:
        for each in node.nodes("groupingExpressions"):
            if known.is_collated(each.type):
                yield self.finding(each, self._any_of(each.type))

    def _by_value(self, node: Node) -> Iterator[Finding]:
        shown = [node]
        while shown and not (kinds := _kinds(shown[0])):
            below = shown[0].node("left") or next(iter(inputs(shown[0])), None)
            shown = [] if below is None else [below]
        if not shown or any(known.is_collated(each) for each in kinds):
            yield self.finding(node, self._any_of("STRING COLLATE"))

    def _deduplicated(self, node: Node) -> Iterator[Finding]:
        keys, shown = {each.id for each in node.nodes("keys")}, outputs(node)
        if shown and keys >= set(shown):
            yield from self._by_value(node)
        else:
            reason = "keeps any one of the rows that are equal in some of the columns"
            yield Finding(f"dropDuplicates() {reason}", node.place)

    def _limit(self, node: Node) -> Iterator[Finding]:
        if not limit_is_total(node):
            text = self.moving.cut(node.place)
            shown = text if 0 < len(text) <= SHOWN_MAX else "LIMIT"
            reason = "takes any rows, as a LIMIT does, unless their order is total: order by every"
            yield Finding(f"{shown} {reason} column of the select list", node.place)

    def _window(self, node: Node) -> Iterator[Finding]:
        for each in node.nodes("windowExpressions"):
            inner = each.node("child") if each.cls == "Alias" else each
            if inner is None or inner.cls != "WindowExpression":
                continue
            self._framed.add(id(inner))
            function = function_of(inner)
            if function is not None and is_settled(inner, node):
                if function.cls in known.NUMBERING:
                    self._settled.add(id(function))
            else:
                yield self.finding(inner, "depends on how ties in its order fall")
                if function is not None:
                    self._settled.add(id(function))

    def _framing(self, node: Node) -> Iterator[Finding]:
        if id(node) not in self._framed:
            yield self.finding(node, "is a window that belongs to no operator that is known")

    def _metadata(self, node: Node) -> Iterator[Finding]:
        if node["name"] == "_metadata" and "file_path" in (node.type or ""):
            yield self.finding(node, "shows how each cluster has laid out its files")

    def _invoked(self, node: Node) -> Iterator[Finding]:
        if (node["staticObject"], node["functionName"]) not in known.INVOKED:
            yield self.finding(
                node,
                f"invokes {node['staticObject']}.{node['functionName']}, "
                "which is not known to give the same everywhere",
            )

    def _defined(self, node: Node) -> Iterator[Finding]:
        """Yield a finding if a view's or function's text has a typed literal read by the clock."""
        if moves := moving_in(text_of(node)):
            yield Finding(
                f"{name_of(node)} reads the clock: {moves} stands in its text", node.place
            )

    def _rows(self, node: Node) -> Iterator[Finding]:
        """Yield a finding if Spark computes rows in a view's or function's text while it reads."""
        inside = self.inside.get(id(node))
        if node.cls == "Range" and not inside and not self._is_range(node):
            yield self.finding(
                node, "range() has to be called by its name, so that what it is given can be seen"
            )
        if not inside or node.cls == "ResolvedInlineTable":
            return
        definition = self.definition(node)
        if definition is None or computes_rows(text_of(definition)):
            yield Finding(f"{inside} computes rows in its own text", node.place)

    def _is_range(self, node: Node) -> bool:
        parsed = self.reading.parsed
        return parsed is None or any(
            each.cls == "UnresolvedTableValuedFunction" and each.place == node.place
            for each in parsed.walk()
        )

    def _reads(self, node: Node) -> Iterator[Finding]:
        """Yield a finding if from_json() or the like makes TIMESTAMPs of texts without a format."""
        if not known.holds_timestamp(node.type):
            return
        options = {str(key).lower() for key in node["options"] or ()}
        if "timestampformat" in options and "enabledatetimeparsingfallback" not in options:
            return
        yield self.finding(
            node, f"{COMPLETED.replace('becomes', 'may hold a time of day that becomes')}"
        )

    def _compares(self, node: Node) -> Iterator[Finding]:
        """Yield a finding about PIVOT … FOR x IN ('12:00') if x may be a TIMESTAMP."""
        column = node.node("pivotColumn")
        if column is None or known.holds_timestamp(column.type):
            reason = "compares TIMESTAMPs with values that may be times of day, of today's date"
            yield Finding(f"PIVOT {reason}", node.place)

    def _converts(self, node: Node) -> Iterator[Finding]:
        if node["format"] is not None:
            return  # with a format nothing is completed
        child = node.node("child") or node.node("left")
        kind = node.type or ""
        if child is None or not known.holds_text(child.type):
            return
        if known.holds_timestamp(kind):
            is_plain = kind == "TIMESTAMP" and (child.type or "").startswith("STRING")
            texts = list(self._texts(child)) if is_plain else [Text(None)]
            if not is_plain and child.cls == "Literal" and child.value == "NULL":
                return
            for text in texts:
                yield from self._converted(node, text, kind)
        elif kind in ("DATE", "TIMESTAMP_NTZ"):
            for text in self._texts(child):
                yield from self._constant(node, child, text, kind)

    def _texts(self, node: Node) -> Iterator[Text]:
        return self.moving.texts(node, self.owners.get(id(node)))

    def _converted(self, node: Node, text: Text, kind: str) -> Iterator[Finding]:
        if text.text is None:
            if not columns_in(node):
                yield self.finding(node, f"may be read as a moment: {self.shown(node)} {COMPLETED}")
            else:
                child = node.node("child") or node.node("left") or node
                shown = self.shown(child)
                yield Finding(f"{shown}, which may be a time of day, {COMPLETED}", node.place)
        elif text.literal is not None:
            yield from self._moves(node, text.literal, text.text, kind)
        elif is_time_of_day(text.text):
            literal = string_literal(text.text)
            yield Finding(f"{literal} is a time of day: as a moment {COMPLETED}", node.place)

    def _constant(self, node: Node, child: Node, text: Text, kind: str) -> Iterator[Finding]:
        """Yield a finding if a constant text becomes a DATE or TIMESTAMP_NTZ by a special word."""
        if text.literal is not None:
            yield from self._moves(node, text.literal, text.text or "", kind)
        elif child.cls != "CommonExpressionRef" and not columns_in(child):
            is_special = text.text is None or SPECIAL_DATETIME.fullmatch(text.text)
            reason = "may be read as a moment, such as 'today', by the clock"
            yield from [self.finding(node, reason)] if is_special else []

    def _moves(self, node: Node, literal: Node, text: str, kind: str) -> Iterator[Finding]:
        """Yield findings about a literal that is cast, if Spark reads its text by the clock."""
        special = SPECIAL_DATETIME.fullmatch(text) is not None
        if not special and not (kind == "TIMESTAMP" and is_time_of_day(text)):
            return
        whole = self.moving.completed(text, kind)
        place = self._string_at(literal, text)
        shown = string_literal(text)
        if whole is None or place is None:
            yield Finding(f"{shown} is read as a moment by the clock", literal.place)
            return
        reason = f"{shown} is read as a moment by the clock"
        if is_time_of_day(text):
            reason += ": a time of day is completed by today's date"
        yield Finding(reason, place, Remedy.VALUE, string_literal(whole))
        yield from self.names(node, place)

    def _string_at(self, literal: Node, text: str) -> TextRange | None:
        """Return where a literal's text is written in the statement, as a quoted string.

        None if not exactly one string at the literal's place has this text, or if that place is
        not known.
        """
        if literal.place is None or self.inside.get(id(literal)):
            return None
        start = literal.place.start
        found = [
            TextRange(start + each.start, start + each.end)
            for each in tokens_of(self.moving.cut(literal.place))
            if each.kind is TokenKind.STRING and decoded(each.text) == text
        ]
        return found[0] if len(found) == 1 else None


def _kinds(node: Node) -> list[str | None]:
    """Return the types of an operator's columns; empty if it does not list them itself."""
    names = ("projectList", "aggregateExpressions", "output")
    return next(([e.type for e in node.nodes(each)] for each in names if node.nodes(each)), [])


def _same(left: Node, right: Node) -> bool:
    """True if two expressions have equal trees."""
    if left is right:
        return True
    if (left.cls, left.type, left.value) != (right.cls, right.type, right.value):
        return False
    if left.cls == "AttributeReference":
        return left.id == right.id
    pairs = list(zip(left.children, right.children, strict=False))
    plain = [
        {key: value for key, value in each.fields.items() if isinstance(value, str | int | float)}
        for each in (left, right)
    ]
    return (
        len(left.children) == len(right.children)
        and plain[0] == plain[1]
        and all(_same(*pair) for pair in pairs)
    )


_NAMES: Final = known.CLOCK | known.IDENTITY
_KNOWN: Final = known.OPERATORS | known.WRITING | known.OBJECTS | known.EXPRESSIONS | known.RANKING
_Rule = Callable[[Examination, Node], Iterator[Finding]]
_E = Examination
_RULES: Final[dict[str, _Rule]] = {
    **dict.fromkeys(RELATIONS, _E._relation),
    **dict.fromkeys(LIMITS, _E._limit),
    **dict.fromkeys(BY_VALUE, _E._by_value),
    **dict.fromkeys(_CONVERTING, _E._converts),
    **dict.fromkeys(DEFINED, _E._defined),
    **dict.fromkeys(known.READING, _E._reads),
    **dict.fromkeys(known.COMPARING, _E._compares),
    **dict.fromkeys(known.MERGING, _E._extreme),
    **dict.fromkeys(known.SUMS, _E._sum),
    **dict.fromkeys(_NAMES, _E._clock),
    **dict.fromkeys(_ROWS_IN_TEXT, _E._rows),
    "Aggregate": _E._grouped,
    "Deduplicate": _E._deduplicated,
    "AttributeReference": _E._metadata,
    "ListAgg": _E._list,
    "Literal": _E.literal,
    "SortArray": _E._sorted,
    "StaticInvoke": _E._invoked,
    "UnixTimestamp": _E._unix,
    "VariableReference": _E._variable,
    "Window": _E._window,
    "WindowExpression": _E._framing,
}
"""The checks of those classes that give the same only under a condition. All other classes are in a
list of `known`, or they are a finding."""
