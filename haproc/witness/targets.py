"""Which tables an analyzed plan writes and reads, by names as classified statements have them."""

from __future__ import annotations

import re

from haproc.classify.names import joined, parts_of
from haproc.witness.columns import table_read
from haproc.witness.lists import leading
from haproc.witness.plan import Node, Plan, UnreadableError

_QUOTED = re.compile(r"`(?:[^`]|``)+`(?:\.`(?:[^`]|``)+`)+")
_IDENTIFIED = re.compile(r"[\w.$@]+, (?P<name>[^\[]+?)(?:, \[.*)?\Z", re.DOTALL)
_V2 = frozenset({"AppendData", "OverwriteByExpression", "OverwritePartitionsDynamic"})
_NAMED = frozenset(
    {"UpdateCommand", "DeleteCommand", "MergeIntoCommand", "InsertIntoHadoopFsRelationCommand"}
    | {"CreateDataSourceTableAsSelectCommand", "InsertIntoHiveTable"}
)


def normalised(name: str) -> str | None:
    """Return a printed table name as ``catalog.schema.table``; None if it is no such name."""
    parts = parts_of(name)
    return joined(parts) if parts is not None and len(parts) > 1 else None


def written(plan: Plan) -> str | None:
    """Return the table that a statement changing rows writes; None if that cannot be told.

    Where the catalog is not printed the name has only schema and table.
    """
    root = plan.root
    try:
        if root.name in _V2:
            text = root.text.removeprefix("RelationV2")
            _, behind = leading(text)
            return normalised(behind.strip().partition(", ")[0])
    except UnreadableError:
        return None
    if root.name in _NAMED:
        match = _QUOTED.search(root.text)
        return normalised(match.group()) if match else None
    if root.name == "DeleteFromTable":
        leaves = [table_read(node) for node in plan.nodes if table_read(node) is not None]
        return normalised(leaves[0] or "") if len(leaves) == 1 else None
    for child in root.children:
        if child.name == "ResolvedIdentifier":
            match = _IDENTIFIED.match(child.text)
            return normalised(match["name"]) if match else None
    return None


def is_same_table(spark: str | None, ours: str) -> bool:
    """Whether the name that Spark prints is the one that we read."""
    return spark is not None and (spark == ours or ours.partition(".")[2] == spark)


def tables_named(plan: Plan, frames: frozenset[str] = frozenset()) -> tuple[frozenset[str], bool]:
    """Return all tables and views that are read, and whether each of them has a full name.

    ``frames`` are views that came with the statement.
    """
    found: set[str] = set()
    complete = True
    for node in plan.nodes:
        name = table_read(node)
        if name is None:
            name = _view(node)
        if name is None or frame_in(node) in frames:
            continue
        full = normalised(name)
        if full is None or full.count(".") < 2:
            complete = False
        else:
            found.add(full)
    return frozenset(found), complete


def _view(node: Node) -> str | None:
    if node.name != "View":
        return None
    match = _QUOTED.search(node.text)
    return match.group() if match else ""


def frame_in(node: Node) -> str | None:
    """Return the name of a view that has one part, as those of DataFrames have."""
    if node.name != "View":
        return None
    name = node.text.removeprefix("(").partition(", [")[0]
    return name.strip("`") if name.count("`") == 2 else None
