"""What a statement may not hold, whatever it is: told by its parsed and its analyzed tree.

Options and properties that could cost a table HAProc's marks, sources and classes that nobody
knows, and settings that no session may change. Files are refused in Spark, by the plugin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from haproc.classify.model import Kind, RefusedError
from haproc.classify.moments import is_moment
from haproc.classify.names import FILE_SOURCES, plain, refuse_own_schema
from haproc.classify.options import check_property, check_write_option
from haproc.classify.session_settings import refusal
from haproc.classify.strings import decoded
from haproc.classify.tokens import TokenKind, tokenize
from haproc.failure import ErrorClass
from haproc.reading.kinds import QUERIES
from haproc.reading.names import UNRESOLVED
from haproc.reading.tree import Node

_DEFINING: Final = frozenset(
    {Kind.CREATE_TABLE, Kind.CREATE_TABLE_AS, Kind.ALTER_TABLE, Kind.OTHER_DDL, Kind.UNKNOWN}
)
_NAMESPACES: Final = frozenset({Kind.CREATE_NAMESPACE, Kind.ALTER_NAMESPACE, Kind.DROP_NAMESPACE})
_PROPERTIES: Final = ("properties", "tablePropertyOverrides")
_SPARKS_OWN: Final = "__required_write_privileges__"
_HIVES_OWN: Final = ("org.apache.hadoop.hive.", "org.apache.hadoop.mapred.")
_NAMING: Final = frozenset(
    {"CreateViewCommand", "CreateTempViewUsing", "CreateSQLFunctionCommand", "CacheTableAsSelect"}
    | {"DropFunctionCommand", "CreateVariable", "DropVariable"}
)
_BEHIND_NAMES: Final = frozenset({"AS", "DEFAULT", "RETURN", "RETURNS", "USING"})
_FUNCTIONS: Final = frozenset({"CreateSQLFunctionCommand", "CreateUserDefinedFunction"})
_HIDING_FUNCTIONS: Final = frozenset({"java_method", "reflect", "try_reflect"})


def check_session_name(text: str, parsed: Node, analyzed: Node) -> None:
    """Refuse a definition of the session's, or any whole statement, with a computed name."""
    if parsed.cls == "PlanWithUnresolvedIdentifier" and analyzed.cls not in QUERIES:
        pass
    elif parsed.cls in _NAMING:
        words = [(token.upper, token.text) for token in tokenize(text)]
        stop = next((i for i, (word, _) in enumerate(words) if word in _BEHIND_NAMES), len(words))
        if ("IDENTIFIER", "(") not in [(a[0], b[1]) for a, b in pairwise(words[: stop + 1])]:
            return
    else:
        return
    raise RefusedError(
        ErrorClass.TABLE_NAME,
        "what the statement is about is named by IDENTIFIER(…): the session's journal keeps what "
        "is the session's by its name, and of other statements nothing else is read",
        "write the name itself",
    )


def hiding_call(nodes: Iterable[Node]) -> str:
    """Return the function that runs arbitrary code, called in a tree that is only parsed."""
    for node in nodes:
        name = [str(each).lower() for each in node["nameParts"] or ()]
        if node.cls == "UnresolvedFunction" and name and name[-1] in _HIDING_FUNCTIONS:
            return name[-1]
    return ""


def foreign_code(root: Node) -> str:
    """Say which code or source of unknown effect a definition names; empty if none."""
    for node in root.walk():
        provider = node["provider"]
        if isinstance(provider, str) and provider.lower() not in FILE_SOURCES:
            what = "view" if node.cls == "CreateTempViewUsing" else "table"
            return f"HAProc doesn't know what a {what} of {provider} reads or writes"
        if node.cls == "CreateUserDefinedFunction" and node["language"] != "LanguageSQL":
            return "the function runs code that HAProc cannot look into"
        if node.cls in _FUNCTIONS and (called := _hidden_in(node)):
            return f"{called} in the function's body could run arbitrary code"
        classes = [node["serde"], node["serdeClassName"]]
        if node.cls == "FormatClasses":
            classes += node.fields.values()
        for name in classes:
            if isinstance(name, str) and not name.startswith(_HIVES_OWN):
                return f"{name} may be any class, whose code would run"
    return ""


def _hidden_in(function: Node) -> str:
    """Return what in the text of a function's body may run code, which EXPLAIN would not show."""
    text = f"{function['exprText'] or ''} {function['queryText'] or ''}"
    for token, following in pairwise(tokenize(text)):
        name = plain(token).lower()
        if following.is_symbol("(") and name in _HIDING_FUNCTIONS | {"identifier"}:
            return f"{name}()"
    return ""


def check_options(root: Node, kind: Kind) -> None:
    """Refuse a write whose options or properties are not known as harmless."""
    for node in root.walk():
        if node.cls in UNRESOLVED:
            for key in node["options"] or ():
                if key != _SPARKS_OWN:
                    check_write_option(key.lower())
        if kind in _DEFINING:
            for key in _defined(node):
                check_property(key.lower())
    if kind in _NAMESPACES:
        for node in root.walk():
            if node.cls == "UnresolvedNamespace":
                refuse_own_schema((node["multipartIdentifier"] or [""])[-1:])


def _defined(node: Node) -> Iterator[str]:
    for name in _PROPERTIES:
        if isinstance(node[name], dict):
            yield from node[name]
    yield from node["propertyKeys"] or ()
    if node.cls == "OptionList":
        for key, _ in node["options"] or ():
            yield key


def check_partition(text: str, parsed: Node) -> None:
    """Refuse PARTITION (…) with a literal that is read by the clock: the trees have its value."""
    if not parsed["partitionSpec"] and not any(
        node.cls == "UnresolvedPartitionSpec" for node in parsed.walk()
    ):
        return
    before = None
    for token in tokenize(text):
        is_literal = token.kind is TokenKind.STRING and before in ("DATE", "TIMESTAMP")
        if is_literal and is_moment(decoded(token.text)):
            raise RefusedError(
                ErrorClass.NONDETERMINISTIC,
                f"{before} {token.text[:40]} is another value on every cluster",
                "write the value itself as the partition's",
            )
        before = token.upper


def check_setting(root: Node) -> None:
    """Refuse a SET or RESET of what no session may change."""
    key = root["config"]
    if root.cls == "SetCommand":
        name, value = root["kv"] or ("", None)
        key = name if value is not None else None
    if key is not None and (error := refusal(key)) is not None:
        raise error


def is_placed(root: Node) -> bool:
    """Whether a definition says where its data lies."""
    return any(isinstance(node["location"], str) for node in root.walk())
