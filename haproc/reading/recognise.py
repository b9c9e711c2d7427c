"""What a statement is and writes, by what Spark's parser makes of its text: see `Recognised`.

No catalog is asked: names are completed from where the session is, and may mean a temporary view.
What it reads, the analyzer tells later; that it writes what the analyzer says, too, is confirmed.
"""

from __future__ import annotations

from typing import Final

from haproc.classify.model import Kind, Recognised, RefusedError
from haproc.classify.names import Context, completed, may_be_temporary, parts_of, target
from haproc.classify.rules import QUERY_KINDS, SESSION_KINDS
from haproc.classify.strings import decoded
from haproc.failure import ErrorClass
from haproc.reading import limits
from haproc.reading.anatomy import (
    MANY,
    UNBOUND,
    check_hidden,
    check_of_session,
    kind_of,
    named_by,
    proper,
    refusal_of,
    written_names,
)
from haproc.reading.names import computed, parts
from haproc.reading.tree import Node, Reading

_NEW: Final = frozenset({Kind.CREATE_TABLE, Kind.CREATE_TABLE_AS, Kind.CREATE_VIEW})
"""Kinds that make what they name, so that no temporary view can be meant."""
_NOTHING: Final = UNBOUND | QUERY_KINDS | SESSION_KINDS
"""Kinds that write no table, or any."""


def recognise(reading: Reading, context: Context) -> Recognised:
    """Return what a statement is, by its parsed tree; raises RefusedError."""
    assert reading.parsed is not None, "a DataFrame has no kind"
    root = proper(reading.parsed)
    kind = kind_of(root)
    check_hidden(reading)
    limits.check_session_name(reading.text, root, root)
    if root.cls == "PlanWithUnresolvedIdentifier":
        raise RefusedError(
            ErrorClass.TABLE_NAME,
            "what the statement is about is named by IDENTIFIER(…), and nothing else is read of it",
            "write the name itself",
        )
    refusal = refusal_of(kind, root, reading.parsed, root)
    if refusal is not None:
        limits.check_options(reading.parsed, Kind.UNKNOWN)  # a rule may let it pass
        return Recognised(Kind.UNKNOWN, tables_known=False, refusal=refusal)
    if kind in (Kind.SET, Kind.RESET):
        limits.check_setting(root)
    elif kind is Kind.TEMPORARY_VIEW:
        check_of_session(root)
    if kind in _NOTHING or root.cls in MANY:
        return Recognised(kind, tables_known=kind in QUERY_KINDS | SESSION_KINDS)
    name = _name(root)
    writes = written_names(root, tuple(completed(name, context)) if name else (), context)
    is_bare = may_be_temporary(name) and kind not in _NEW
    bare = frozenset({target(name, context)}) if is_bare else frozenset[str]()
    return Recognised(kind, writes=writes, bare=bare)


def _name(root: Node) -> tuple[str, ...]:
    """Return the parts of the name of what is written; none if it has to be computed."""
    held, _ = named_by(root)
    path = next((each["path"] for each in root.walk() if each["path"]), None)
    if held is None and isinstance(path, str):
        return path, "/"  # OPTIMIZE '/x'
    if held is None or held.cls != "PlanWithUnresolvedIdentifier":
        return parts(held) if held is not None else ()
    computed([held])  # of constant texts alone
    expression = held.node("identifierExpr")
    texts = [] if expression is None else [each for each in expression.walk() if each.value]
    return parts_of("".join(decoded(str(each.value)) for each in texts)) or ()
