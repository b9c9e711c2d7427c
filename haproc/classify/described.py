"""What a classified statement is, as plain values for people and machines."""

from __future__ import annotations

from typing import Any

from haproc.classify.model import Classified


def described(statement: Classified) -> dict[str, Any]:
    """Return what is known of a statement before Spark has read it, for JSON."""
    insert, concern = statement.insert, statement.write_concern
    names = [each.name for each in statement.rules]
    return {
        "statement": statement.sql,
        "class": statement.operation_class.value,
        "kind": statement.kind.value,
        "rule": statement.rule if not names else f"Spark's reading tells: {' or '.join(names)}",
        "writes": sorted(statement.writes),
        "write_concern": concern.value if concern else None,
        "apply_budget_s": statement.apply_budget_s,
        "cache": statement.cache,
        "combinable": None
        if insert is None
        else {"rows": insert.rows, "types": insert.signature.split(",")},
    }
