"""Readings of queries in the form of the Spark plugin, made by hand."""

from __future__ import annotations

import json
from typing import Any


def node(cls: str, **fields: Any) -> dict[str, Any]:
    """Return an operator or expression."""
    return {"c": cls, "n": True, "f": fields}


def table(name: str, provider: str = "delta", kind: str = "MANAGED") -> dict[str, Any]:
    """Return the relation that reads a table of this full name."""
    catalog_table = {
        "c": "CatalogTable",
        "name": name.split("."),
        "kind": kind,
        "provider": provider,
    }
    index = {"c": "TahoeLogFileIndex", "paths": ["file:/x"], "timeTravel": False}
    column = {**node("AttributeReference", name="a", dataType="INT"), "t": "INT", "i": 0}
    files = {"c": "HadoopFsRelation", "f": {"location": index}}
    return node("LogicalRelation", relation=files, output=[column], catalogTable=catalog_table)


def files() -> dict[str, Any]:
    """Return the relation that reads files."""
    found = table("x.y.z")
    del found["f"]["catalogTable"]
    return found


def view(name: str, child: dict[str, Any]) -> dict[str, Any]:
    """Return a view."""
    catalog_table = {"c": "CatalogTable", "name": name.split("."), "kind": "VIEW", "provider": ""}
    return node("View", desc=catalog_table, child=child)


def alias(cls: str, kind: str, **fields: Any) -> dict[str, Any]:
    """Return a column with the result of an expression of this class."""
    return {**node("Alias", child={**node(cls, **fields), "t": kind}, name="n"), "t": kind, "i": 7}


def reading_json(*relations: dict[str, Any], items: tuple[dict[str, Any], ...] = ()) -> str:
    """Return the reading of a query over relations, with these columns."""
    under = relations[0]
    for each in relations[1:]:
        under = node("Join", left=under, right=each, joinType="Cross")
    plan = node("Project", projectList=[*items], child=under)
    return json.dumps({"parsed": plan, "analyzed": plan})
