"""What in an analyzed plan could differ from cluster to cluster, each as a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final

from haproc.classify.moments import is_time_of_day
from haproc.pin.functions import Nature
from haproc.pin.inline import Rows, doubtful
from haproc.pin.reasons import REASONS
from haproc.witness.columns import INLINE, Columns, Type, table_read
from haproc.witness.completed import REASON, is_completed, may_convert
from haproc.witness.exact import Numbers, exact_type, sums_reason
from haproc.witness.known import BY_VALUE, CONDITIONAL, OPERATORS, is_query_root, nature_of
from haproc.witness.lists import closing, is_balanced, leading, split
from haproc.witness.plan import Node, Plan, UnreadableError
from haproc.witness.targets import frame_in
from haproc.witness.total import is_plain, limit_is_total, window_reason
from haproc.witness.unified import is_unified, may_unify, without_moments

_METADATA = re.compile(r"(?<![\w.])_metadata#\d+")
_COLLATED = re.compile(r"\bcollate\b", re.IGNORECASE)
_TO_DATETIME = re.compile(
    r"(?<![\w.$])(?:(?:try_)?cast|(?:try_)?to_date|(?:try_)?to_timestamp(?:_ltz|_ntz)?"
    r"|try_to_\w+)\(",
    re.IGNORECASE,
)
_DATETIME = re.compile(r" as (?:date|timestamp(?:_ltz|_ntz)?)\Z")
_STRINGLESS = frozenset({"cast", "try_cast", "date_add", "date_sub", "add_months", "date_trunc"})
_SUBQUERY = re.compile(r"(?<![\w$.`])(?:(?:scalar|lateral)-subquery|exists|list|in)#(\d+) \[")
_OF_TARGET = frozenset({"UpdateCommand", "DeleteCommand", "MergeIntoCommand"})
"""What stands below these is their target, or their source."""
_CAST_END = re.compile(r" as [a-z_0-9<>:, ()]+\Z", re.IGNORECASE)
_CALLED = re.compile(r"([\w$.]+)\(")
SPECIAL_WORDS = re.compile(r"(?i)epoch|now|today|tomorrow|yesterday")
_ORDERED = re.compile(r"(?<![\w.$])sort_array\((?=(?:collect_list|collect_set|array_agg)\()")
"""Not array_sort, whose comparator may take different values for equal."""
_LISTED = re.compile(r"(.+?), .*, \1 (?:ASC|DESC) NULLS .*", re.DOTALL)
"""What is in the parentheses of a list in the order of its own values."""
MISLEADING_MAX: Final = 100
"""More texts are not looked for. Chosen."""
_CALLED_BY_NAME = re.compile(r"([A-Za-z_][\w$.\-]*)\(")
_WITHOUT_EXPRESSIONS = frozenset(
    {"InsertIntoHadoopFsRelationCommand", "CreateTableAsSelect", "ReplaceTableAsSelect"}
    | {"CreateDataSourceTableAsSelectCommand", "CreateViewCommand", "AlterViewAsCommand"}
    | {"CacheTableAsSelect"}
)
"""Roots whose own text holds names, options and paths, and no expression."""
_COLLECTING = frozenset({"collect_list", "collect_set", "array_agg"})
_LISTING = frozenset({"listagg", "string_agg"})
PARSER: Final = "spark.sql.legacy.timeParserPolicy"
_PARSING = frozenset(
    {"to_date", "try_to_date", "to_timestamp", "to_timestamp_ltz", "to_timestamp_ntz"}
    | {"try_to_timestamp", "gettimestamp", "unix_timestamp", "to_unix_timestamp"}
    | {"from_json", "from_csv", "from_xml"}
)
_WINDOWED = frozenset(
    {"row_number", "ntile", "lag", "lead", "nth_value", "first", "first_value", "last"}
    | {"last_value", "any_value"}
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known beside the plan.

    ``schemas``: the types of the columns of the tables read, by the table's printed name and the
    column's in lower case. ``functions``: SQL functions whose bodies give the same everywhere, by
    the name that is printed; ``bodies``: what those and others are. ``decimals``: the statement
    writes no floating point numbers. ``rows``: what rows that it brings may hold; None: anything.
    ``misleading``: texts in it that look like parts of a plan: what is around them is not read.
    ``subqueries``: so many of the statement are in a plan beside its own.
    ``frames``: the DataFrames that came with the statement, which Spark shows as views; what they
    hold stands below them. ``merged``: the types of columns of a MERGE's two sides, by name.
    ``ansi``: what overflows is an error, ``legacy``: the clock has a say in what is parsed by a
    format; both say the session's settings.
    """

    schemas: Mapping[str, Mapping[str, str]]
    functions: frozenset[str] = frozenset()
    bodies: tuple[Plan, ...] = ()
    decimals: bool = False
    rows: Sequence[Rows] | None = None
    misleading: frozenset[str] = frozenset()
    subqueries: int = 0
    frames: frozenset[str] = frozenset()
    merged: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ansi: bool = True
    legacy: bool = False


def subqueries_shown(plan: Plan) -> int:
    """Return how many subqueries a query has itself, not in those or in its relations."""
    found, node = set[str](), plan.root
    while True:
        found |= {match[1] for match in _SUBQUERY.finditer(node.text)}
        if not node.inputs:
            return len(found)
        node = node.inputs[-1]


def needs_types(plan: Plan) -> bool:
    """Whether the types of the tables' columns have a say in what differs."""
    return any(node.name in BY_VALUE or _may_complete(node.text) for node in plan.nodes)


def tables_read(plan: Plan) -> frozenset[str]:
    """Return the names of all tables that are read, views seen through, as printed."""
    return frozenset(name for node in plan.nodes if (name := table_read(node)))


def harmless_functions(bodies: Mapping[str, Plan], known: Facts) -> frozenset[str]:
    """Return those SQL functions, by name, whose bodies give the same everywhere.

    ``known``: what is known beside the bodies.
    """
    harmless: frozenset[str] = frozenset()
    while True:
        facts = replace(known, functions=harmless)
        more = frozenset(name for name, body in bodies.items() if not findings(body, facts))
        if more <= harmless:
            return harmless
        harmless |= more


NOTHING_KNOWN: Final = Facts({})


def functions_called(plan: Plan) -> frozenset[str]:
    """Return the names of all functions in the plan's expressions, as printed."""
    return _read(plan, NOTHING_KNOWN).functions


def findings(plan: Plan, facts: Facts) -> list[str]:
    """Return what could differ; empty if the statement means the same everywhere."""
    reading = _read(plan, facts)
    found: list[str] = []
    for node in plan.nodes[0 if is_query_root(plan.root.name) else 1 :]:
        if frame_in(node) not in facts.frames:
            found += _operator(node)
    if any(_hides_subqueries(node, facts) for node in plan.nodes):
        found.append("a subquery of it is not in its plan")
    try:
        found += [reason for node in plan.nodes for reason in _texts(node, reading.unsure)]
        found += _functions(reading, facts)
    except UnreadableError as error:
        found.append(f"its plan cannot be read for certain: {error}")
    if any(_completed(reading, facts)):
        found.append(REASON)
    if _needs_order(reading):
        found += _ordered(reading, facts)
    return list(dict.fromkeys(found))


def findings_of_root(plan: Plan, facts: Facts) -> list[str]:
    """Return what could differ in a write's own node, for whose input rows can stand."""
    root = plan.root
    if is_query_root(root.name):  # it is that input itself
        return []
    return findings(Plan(Node(root.name, root.text, root.indent), plan.types), facts)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A plan with its columns told from its functions, where that is possible."""

    plan: Plan
    columns: Columns | None
    unclear: str
    """Why the columns cannot be told; empty if they can."""
    texts: tuple[tuple[Node, str], ...]
    """The expressions of each node."""

    unsure: frozenset[int]
    """The ids of nodes in which a text may pass for a part of the plan."""

    @property
    def functions(self) -> frozenset[str]:
        """The names of all functions called; of all that look like it where columns are unclear."""
        return frozenset(name for _, text in self.texts for name in _CALLED_BY_NAME.findall(text))


def _read(plan: Plan, facts: Facts) -> _Reading:
    skipped = plan.root.name in _WITHOUT_EXPRESSIONS
    nodes = plan.nodes[1:] if skipped else plan.nodes
    unsure = frozenset(id(node) for node in nodes if _misleads(node.text, facts.misleading))
    try:
        columns = Columns(plan, facts.schemas, facts.merged)
        texts = tuple((node, columns.rewritten(node.text)) for node in nodes)
        return _Reading(plan, columns, "", texts, unsure)
    except UnreadableError as error:
        texts = tuple((node, node.text) for node in nodes)
        return _Reading(plan, None, str(error), texts, unsure)


def _misleads(text: str, misleading: Set[str]) -> bool:
    """Whether a text in a node may pass for a part of it."""
    if len(misleading) > MISLEADING_MAX or not is_balanced(text):
        return True
    return any(each in text for each in misleading)


def _operator(node: Node) -> list[str]:
    if node.name in ("ResolvedIdentifier", "ResolvedTable") or node.name in CONDITIONAL:
        return []
    if node.name == "View":
        name = node.text.removeprefix("(").partition(", [")[0].rstrip(",").replace("`", "")
        return [f"{name} is a view, so what it holds may differ"]
    if node.name == "Sample":
        return ["TABLESAMPLE depends on how each cluster has laid out its files"]
    if node.name == "ScriptTransformation":
        return ["a script runs code that HAProc cannot look into"]
    if node.name not in OPERATORS:
        return [f"{node.name} is not known to give the same rows everywhere"]
    if table_read(node) == "":
        return ["files are read that belong to no table of the ring"]
    return []


def _hides_subqueries(node: Node, facts: Facts) -> bool:
    """Whether it has subqueries whose plans neither stand below it nor are asked about."""
    printed = len({match[1] for match in _SUBQUERY.finditer(node.text)})
    of_target = node.name in _OF_TARGET
    if of_target:
        return printed != facts.subqueries
    return printed > len(node.subplans)


def _texts(node: Node, unsure: Set[int]) -> list[str]:
    found = []
    if _METADATA.search(node.text):
        found.append("_metadata tells how each cluster has laid out its files")
    for match in _TO_DATETIME.finditer(node.text):
        inner = node.text[match.end() : closing(node.text, match.end() - 1)]
        if match.group().lower().endswith("cast("):
            behind = _DATETIME.search(inner)
            if behind is None and (id(node) in unsure or _CAST_END.search(inner) is None):
                found.append("a text in it hides what is made a DATE or a TIMESTAMP")
                continue
            if behind is None:
                continue
            inner = inner[: behind.start()]
        elif split(inner)[1:2] != ["None"]:
            continue  # with a format, no text is special
        else:
            inner = split(inner)[0]
        if "#" not in inner and _may_be_special(inner):
            found.append(f"Spark may read {inner[:60]!r} as a moment, which differs everywhere")
    return found


def assigns_completed(plan: Plan, facts: Facts) -> bool:
    """Whether that happens where rows are fitted to the table's columns, behind the query."""
    reading = _read(plan, facts)
    fitting = [id(node) for node in plan.root.inputs]
    done = zip(reading.texts, _completed(reading, facts), strict=True)
    return any(completed and id(node) in fitting for (node, _), completed in done)


def _completed(reading: _Reading, facts: Facts) -> list[bool]:
    """Say for each node whether it makes a TIMESTAMP of what may be a time of day."""
    texts = [text for _, text in reading.texts]
    if not any(map(_may_complete, texts)):
        return [False] * len(texts)
    try:
        types = _types(reading, facts)
        without = frozenset[str]()
        if reading.columns is not None:
            without = without_moments(reading.columns, facts.rows, reading.unsure)
        return [
            _may_complete(text)
            if id(node) in reading.unsure
            else (may_convert(text) and is_completed(text, types))
            or is_unified(text, types, without)
            for node, text in reading.texts
        ]
    except UnreadableError:
        return [_may_complete(text) for text in texts]


def _may_complete(text: str) -> bool:
    return may_convert(text) or may_unify(text)


def _types(reading: _Reading, facts: Facts) -> Mapping[str, Type]:
    columns = reading.columns
    if columns is None:
        return {}
    for node in columns.plan.nodes:
        if node.name in INLINE:
            numbers = columns.in_leaf(node)
            texts = doubtful(facts.rows, len(numbers)).texts
            for at, number in enumerate(numbers):
                if at not in texts:
                    columns.types.setdefault(number, Type.PLAIN)
    _learn_types(columns, reading.unsure, decimals=facts.decimals)
    return columns.types


def _may_be_special(constant: str) -> bool:
    """Whether a constant may be a text such as 'today', written or made of others."""
    if is_time_of_day(constant):
        return True
    made = any(name not in _STRINGLESS for name in _CALLED.findall(constant))
    return made or " as string" in constant or SPECIAL_WORDS.search(constant) is not None


def _functions(reading: _Reading, facts: Facts) -> list[str]:
    found = []
    for name in sorted(reading.functions - facts.functions):
        nature = nature_of(name)
        lower = name.lower()
        if facts.legacy and lower in _PARSING:
            found.append(
                f"with {PARSER} = LEGACY, {name}() reads two digits of a year by the clock"
            )
        if nature is Nature.DETERMINISTIC or nature is Nature.EXACT_OR_FLOAT:
            continue
        if lower in _WINDOWED:
            continue  # looked for beside windows
        if lower in _COLLECTING and _sorted_everywhere(reading, name):
            continue
        if lower in _LISTING and _listed_everywhere(reading, name):
            continue
        found.append(REASONS[nature].format(f"{name}()"))
    return found


def _sorted_everywhere(reading: _Reading, name: str) -> bool:
    """Whether what a function collects is sorted at once, wherever it is called."""
    for node, text in reading.texts:
        sorted_at = {match.end() for match in _ORDERED.finditer(text)}
        at = {match.start() for match in _calls_of(name, text)}
        if not at <= sorted_at or (at and id(node) in reading.unsure):
            return False
    return True


def _listed_everywhere(reading: _Reading, name: str) -> bool:
    """Whether a function lists values in their own order, wherever it is called."""
    for node, text in reading.texts:
        for match in _calls_of(name, text):
            inner = text[match.end() : closing(text, match.end() - 1)]
            if id(node) in reading.unsure or _LISTED.fullmatch(inner) is None:
                return False
    return True


def _calls_of(name: str, text: str) -> Iterator[re.Match[str]]:
    return re.finditer(rf"(?<![\w.$]){re.escape(name)}\(", text)


def _needs_order(reading: _Reading) -> bool:
    named = any(
        nature_of(name) is Nature.EXACT_OR_FLOAT or name.lower() in _WINDOWED
        for name in reading.functions
    )
    return named or any(node.name in BY_VALUE | CONDITIONAL for node in reading.plan.nodes)


def _ordered(reading: _Reading, facts: Facts) -> list[str]:
    """Return what depends on the order of rows: sums of floats, limits, windows, collations."""
    plan, columns = reading.plan, reading.columns
    if columns is None:
        return [f"its plan cannot be read for certain: {reading.unclear}"]
    found = []
    try:
        _learn_types(columns, reading.unsure, decimals=facts.decimals)
        for node, text in reading.texts:
            if id(node) in reading.unsure and node.name in ("Aggregate", "Window"):
                raise UnreadableError("a text in it looks like a part of it")
            found += _by_order(node, text, columns, facts)
    except UnreadableError as error:
        found.append(f"its plan cannot be read for certain: {error}")
    by_value = any(node.name in BY_VALUE for node in plan.nodes)
    collated = any(_COLLATED.search(node.text) for node in plan.nodes) or any(
        _COLLATED.search(kind) for schema in facts.schemas.values() for kind in schema.values()
    )
    if by_value and (collated or _COLLATED.search(plan.types)):
        found.append("of texts that are equal by their collation, any one may be shown")
    return found


def _learn_types(columns: Columns, unsure: Set[int], *, decimals: bool) -> None:
    """Give the columns that are computed the types of their expressions, from the leaves up."""
    for node in reversed(columns.plan.nodes):
        if node.name not in ("Project", "Aggregate") or id(node) in unsure:
            continue
        rest = node.text
        while rest.startswith("["):
            texts, rest = leading(rest)
            for text in texts:
                if "#" not in text or " AS " not in text:
                    continue
                for item in columns.items([text]):
                    kind = exact_type(item.expression, columns.types, decimals=decimals)
                    if item.expression.startswith("§"):
                        kind = columns.types.get(item.expression[1:])
                    if kind is None and is_plain(item.expression, columns.types):
                        kind = Type.PLAIN
                    if kind is not None and item.id not in columns.types:
                        columns.types[item.id] = kind


def _by_order(node: Node, text: str, columns: Columns, facts: Facts) -> list[str]:
    if node.name == "Window":
        numbers = Numbers(columns.types, decimals=facts.decimals, ansi=facts.ansi)
        reason = window_reason(node, columns, numbers)
        return [reason] if reason else []
    for name in sorted(_WINDOWED):
        if re.search(rf"(?<![\w.$]){name}\(", text):
            return [REASONS[Nature.ORDER].format(f"{name}()")]
    if node.name == "GlobalLimit" or node.name == "Offset":
        total = limit_is_total(node, columns)
        return [] if total else ["LIMIT takes any rows unless their order is total"]
    if node.name != "Aggregate":
        return []
    numbers = Numbers(columns.types, decimals=facts.decimals, ansi=facts.ansi)
    reason = sums_reason(text, numbers)
    return [f"sum() or avg() of {reason}"] * bool(reason)
