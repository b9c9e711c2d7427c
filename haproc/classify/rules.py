"""The rules that give each kind of statement its class.

The defaults are a table. An operator's file (``conf/rules.yaml``) puts rules before them: the first
rule that matches decides. A rule can't make a writing statement a query, nor let a session
statement change more than its session: such a rule is refused when the file is read, with the key's
full path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

import yaml

from haproc.classify.allowed import NO_PATHS, Paths
from haproc.classify.model import BUDGET_MAX_S, Kind, OperationClass, Touched, WriteConcern
from haproc.classify.rights import UNBOUNDED, Rights, runs_code

QUERY_KINDS = frozenset({Kind.SELECT, Kind.VALUES, Kind.SHOW, Kind.DESCRIBE, Kind.EXPLAIN})
SESSION_KINDS = frozenset({Kind.SET, Kind.RESET, Kind.USE, Kind.TEMPORARY_VIEW, Kind.CACHE})
ASYNCHRONOUS_KINDS = frozenset(
    {
        Kind.INSERT,
        Kind.INSERT_OVERWRITE,
        Kind.UPDATE,
        Kind.DELETE,
        Kind.MERGE,
        Kind.TRUNCATE,
        Kind.OPTIMIZE,
        Kind.VACUUM,
        Kind.ANALYZE,
        Kind.ROWS,
    }
)
SYNCHRONOUS_KINDS = (
    frozenset(Kind) - QUERY_KINDS - SESSION_KINDS - ASYNCHRONOUS_KINDS - {Kind.UNKNOWN}
)
WRITING_KINDS = ASYNCHRONOUS_KINDS | SYNCHRONOUS_KINDS

_NAMING_KINDS = frozenset(
    {Kind.CREATE_NAMESPACE, Kind.ALTER_NAMESPACE, Kind.COMMENT, Kind.DROP_FUNCTION}
)
"""Kinds that make, remove or describe a name, and touch no table except one that they name. DROP
SCHEMA is not among them, because it drops the schema's tables, too."""
_TOUCHING_KINDS = (WRITING_KINDS - _NAMING_KINDS) | {
    Kind.SELECT,
    Kind.VALUES,
    Kind.EXPLAIN,
    Kind.TEMPORARY_VIEW,
    Kind.CACHE,
    Kind.UNKNOWN,
}
"""Kinds that read or write rows of tables, perhaps of tables that are not known."""

DEFAULT_CLASSES: dict[Kind, OperationClass] = {
    **dict.fromkeys(QUERY_KINDS, OperationClass.QUERY),
    **dict.fromkeys(SESSION_KINDS, OperationClass.SESSION),
    **dict.fromkeys(ASYNCHRONOUS_KINDS, OperationClass.ASYNCHRONOUS),
    **dict.fromkeys(SYNCHRONOUS_KINDS, OperationClass.SYNCHRONOUS),
}

CACHEABLE_KINDS = frozenset({Kind.SELECT, Kind.VALUES})
"""The kinds of queries whose answers may be cached."""

E = TypeVar("E", bound=StrEnum)

_WILD = re.compile(r"[*\[]")
"""Parts of a pattern that match any number of characters (``*``), or one of several (``[…]``)."""
_OF_WRITES = frozenset({"write_concern", "apply_budget_s"})
_OUTCOMES = frozenset({"class", "refuse", "cache"}) | _OF_WRITES
_KEYS = _OUTCOMES | {"name", "kind", "table", "expression", "matches", "user"}


class RulesError(ValueError):
    """A rules file is wrong; ``path``: the full path of the wrong key, like ``rules[2].class``."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: refuses matching statements, or sets their class, write concern, budget or caching.

    - ``kinds``, ``table``, ``expression``, ``matches``, ``user``: what it matches; None: anything.
      Without ``kinds``, a rule that refuses matches all statements, a rule on caching matches
      queries, and any other rule matches writing statements;
    - ``operation_class``: a rule with ``kind: unknown`` allows such statements only if it has a
      class;
    - ``write_concern``: the weakest that a request gets; ``apply_budget_s``: the longest.
    """

    name: str
    operation_class: OperationClass | None = None
    refuse: str = ""
    kinds: frozenset[Kind] | None = None
    table: str | None = None
    expression: str | None = None
    matches: re.Pattern[str] | None = None
    user: str | None = None
    write_concern: WriteConcern | None = None
    apply_budget_s: float | None = None
    cache: bool | None = None
    rights: Rights | None = None
    """A user's rights: the rule then refuses statements outside them, and does nothing else."""

    def is_about(self, kind: Kind, sql: str, user: str) -> bool:
        """True if the kind, the text and the user match this rule; the tables are not looked at."""
        of_kind = kind in WRITING_KINDS or bool(self.refuse)
        return (
            (of_kind if self.kinds is None else kind in self.kinds)
            and (self.user is None or fnmatchcase(user, self.user))
            and (self.matches is None or self.matches.search(sql) is not None)
        )

    @property
    def by_reading(self) -> bool:
        """True if it depends on Spark's reading of a statement whether this rule matches."""
        return (self.table, self.expression, self.rights) != (None, None, None)

    def fits(self, kind: Kind, touched: Touched) -> bool:
        """True if the rule matches the names that a statement touches, or its rights forbid these.

        If names are not known, a rule matches in doubt, unless it sets a class or allows caching.
        """
        if self.rights is not None:
            return self.rights.outside(kind, touched) is not None
        # In doubt a refusal, a write concern, a budget and "do not cache" hold, too.
        in_doubt = self.operation_class is None and self.cache is not True
        fits = True
        if (table := self.table) is not None:
            unclear = (not touched.known and kind in _TOUCHING_KINDS) or runs_code(touched)
            unclear |= any(_may_match_in(table, each) for each in touched.schemas)
            fits = any(fnmatchcase(each, table) for each in touched.tables) or unclear & in_doubt
        if (pattern := self.expression) is not None:
            found = touched.expressions
            named = any(fnmatchcase(each, pattern) for each in found or ())
            fits = fits and (named or (found is None and in_doubt))
        return fits


def _may_match_in(pattern: str, schema: str) -> bool:
    """True if a pattern matches some table's name in a schema, or if that is in doubt."""
    begins, within = _WILD.split(pattern, maxsplit=1)[0], schema and f"{schema}."
    length = min(len(begins), len(within))
    return fnmatchcase(within[:length], begins[:length])


@dataclass(frozen=True, slots=True)
class Rules:
    """An operator's rules, in order, which come before the defaults; and the files they allow."""

    rules: tuple[Rule, ...] = ()
    paths: Paths = NO_PATHS

    @staticmethod
    def builtin() -> Rules:
        """Return rules without any of an operator's: only the defaults apply."""
        return Rules()

    @property
    def ask_for_concern(self) -> bool:
        """True if any of the rules sets a write concern."""
        return any(rule.write_concern is not None for rule in self.rules)


def about(
    rules: Rules, kind: Kind, sql: str, user: str, rights: Rights = UNBOUNDED
) -> tuple[Rule, ...]:
    """Return the rules that may decide about a statement; the first that matches its tables does.

    The sender's rights come before all rules of the operator.
    """
    found = [Rule("rights", rights=rights)] if rights.bounded else []
    for rule in rules.rules:
        if rule.is_about(kind, sql, user):
            found.append(rule)
            if not rule.by_reading:
                break
    return tuple(found)


def first(rules: Iterable[Rule], kind: Kind, touched: Touched) -> Rule | None:
    """Return the first of the rules that matches; None if none does, so the defaults apply."""
    return next((rule for rule in rules if rule.fits(kind, touched)), None)


def load_rules(path: str | Path) -> Rules:
    """Return the rules in a file; raises RulesError, or OSError if it can't be read."""
    return parse_rules(Path(path).read_text(encoding="utf-8"))


def parse_rules(text: str) -> Rules:
    """Return the rules in a YAML text; raises RulesError if it is wrong."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise RulesError("(file)", f"is not YAML: {error}") from error
    document = {} if node is None else _plain(node, "")
    if not isinstance(document, dict):
        raise RulesError("(file)", "has to be a mapping with the key rules")
    for key in document:
        if key != "rules":
            raise RulesError(str(key), "unknown key; the file has the key rules alone")
    entries = document.get("rules") or []
    if not isinstance(entries, list):
        raise RulesError("rules", "has to be a list")
    rules: list[Rule] = []
    for index, entry in enumerate(entries):
        rule = _rule(entry, f"rules[{index}]", index)
        if any(rule.name == earlier.name for earlier in rules):
            raise RulesError(f"rules[{index}].name", f"{rule.name!r} is the name of another rule")
        rules.append(rule)
    return Rules(tuple(rules))


def _plain(node: yaml.Node, path: str) -> object:
    """Return a YAML node as lists, dictionaries and text; RulesError if a key is given twice."""
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, object] = {}
        for key_node, value in node.value:
            key = str(key_node.value)
            place = f"{path}.{key}" if path else key
            if key in mapping:
                raise RulesError(place, "given twice")
            mapping[key] = _plain(value, place)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, f"{path}[{index}]") for index, item in enumerate(node.value)]
    if node.tag == "tag:yaml.org,2002:null":
        return None
    return str(node.value)


def _rule(entry: object, path: str, index: int) -> Rule:
    if not isinstance(entry, dict):
        raise RulesError(path, "has to be a mapping such as {kind: insert, class: synchronous}")
    for key in entry:
        if key not in _KEYS:
            raise RulesError(f"{path}.{key}", f"unknown key; known are {', '.join(sorted(_KEYS))}")
    outcomes = _OUTCOMES & entry.keys()
    if not outcomes or (len(outcomes) > 1 and not outcomes <= {"class"} | _OF_WRITES):
        raise RulesError(
            path,
            "has to have either refuse, or cache, or one or more of class, write_concern, "
            "apply_budget_s",
        )
    kinds = CACHEABLE_KINDS if "cache" in entry else None
    if "kind" in entry:
        kinds = _kinds(entry["kind"], f"{path}.kind")
    table, expression = _text(entry, "table", path), _text(entry, "expression", path)
    rule = Rule(
        name=_text(entry, "name", path) or f"rule {index + 1}",
        operation_class=_member(entry, "class", path, OperationClass, "class; classes are"),
        refuse=_text(entry, "refuse", path) or "",
        kinds=kinds,
        table=None if table is None else table.lower(),
        expression=None if expression is None else expression.lower(),
        matches=_pattern(_text(entry, "matches", path), f"{path}.matches"),
        user=_text(entry, "user", path),
        write_concern=_member(
            entry, "write_concern", path, WriteConcern, "write concern; they are"
        ),
        apply_budget_s=_budget(entry, path),
        cache=_cache(entry, path),
    )
    _check_class(rule, path)
    _check_writes(rule, path)
    _check_cache(rule, path)
    return rule


def _text(entry: dict[str, object], key: str, path: str) -> str | None:
    if key not in entry:
        return None
    value = entry[key]
    if not isinstance(value, str) or not value.strip():
        raise RulesError(f"{path}.{key}", "has to be a text that is not empty")
    return value


def _kinds(value: object, path: str) -> frozenset[Kind]:
    values = value if isinstance(value, list) else [value]
    kinds = []
    for index, text in enumerate(values):
        place = f"{path}[{index}]" if isinstance(value, list) else path
        try:
            kind = Kind(str(text))
        except ValueError:
            known = ", ".join(kind.value for kind in Kind)
            raise RulesError(place, f"{text!r} is no kind; kinds are {known}") from None
        if kind in kinds:
            raise RulesError(place, f"{kind.value} is given twice")
        kinds.append(kind)
    if not kinds:
        raise RulesError(path, "has to name at least one kind")
    return frozenset(kinds)


def _member(entry: dict[str, object], key: str, path: str, kind: type[E], what: str) -> E | None:
    """Return a key's value as a member of the enum ``kind``; None if the key is absent.

    ``what``: what the error calls such a value.
    """
    if key not in entry:
        return None
    try:
        return kind(str(entry[key]))
    except ValueError:
        text = f"{entry[key]!r} is no {what} {', '.join(kind)}"
        raise RulesError(f"{path}.{key}", text) from None


def _budget(entry: dict[str, object], path: str) -> float | None:
    if "apply_budget_s" not in entry:
        return None
    value = entry["apply_budget_s"]
    try:
        found = float(str(value))
    except ValueError:
        found = 0.0
    if not 0 < found <= BUDGET_MAX_S:
        text = f"{value!r} is no number of seconds above 0 and at most {BUDGET_MAX_S:g}"
        raise RulesError(f"{path}.apply_budget_s", text)
    return found


def _cache(entry: dict[str, object], path: str) -> bool | None:
    if "cache" not in entry:
        return None
    if entry["cache"] not in ("true", "false"):
        raise RulesError(f"{path}.cache", f"has to be true or false, not {entry['cache']!r}")
    return entry["cache"] == "true"


def _pattern(text: str | None, path: str) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text, re.IGNORECASE)
    except re.error as error:
        raise RulesError(path, f"is no regular expression: {error}") from error


def _check_class(rule: Rule, path: str) -> None:
    """Raise RulesError if a rule sets a class that its kinds of statements can't have."""
    chosen, kinds = rule.operation_class, rule.kinds
    if chosen is None:
        return
    harmless = {
        OperationClass.QUERY: QUERY_KINDS,
        OperationClass.SESSION: SESSION_KINDS,
    }.get(chosen, frozenset(Kind) - SESSION_KINDS)
    allowed = harmless | {Kind.UNKNOWN}
    if kinds is None and chosen in (OperationClass.QUERY, OperationClass.SESSION):
        raise RulesError(f"{path}.class", f"{chosen.value} needs a kind that it is right for")
    wrong = sorted(kind.value for kind in (kinds or frozenset()) - allowed)
    if wrong:
        raise RulesError(f"{path}.class", f"{', '.join(wrong)} can't be of class {chosen.value}")


def _check_cache(rule: Rule, path: str) -> None:
    """Raise RulesError if a rule decides on caching for kinds whose answers are never cached."""
    wrong = sorted(kind.value for kind in (rule.kinds or frozenset()) - CACHEABLE_KINDS)
    if rule.cache is not None and wrong:
        raise RulesError(f"{path}.cache", f"answers to {', '.join(wrong)} are never kept")


def _check_writes(rule: Rule, path: str) -> None:
    """Raise RulesError if a rule sets a write concern or budget for statements that don't write."""
    what = "write_concern" if rule.write_concern is not None else "apply_budget_s"
    if rule.write_concern is None and rule.apply_budget_s is None:
        return
    wrong: list[str] = []
    if rule.operation_class in (OperationClass.QUERY, OperationClass.SESSION):
        wrong = [rule.operation_class.value]
    elif rule.operation_class is None:
        wrong = sorted(kind.value for kind in (rule.kinds or frozenset()) - WRITING_KINDS)
    if wrong:
        names = ", ".join(wrong)
        a = "a write concern" if rule.write_concern is not None else "a time budget"
        raise RulesError(f"{path}.{what}", f"{names}: only writes have {a}")
