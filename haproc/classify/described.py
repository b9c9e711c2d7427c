"""What a classified statement is, as plain values for people and machines."""

from __future__ import annotations

from typing import Any

from haproc.classify.model import Classified


def described(statement: Classified) -> dict[str, Any]:
    """Return what is known of a statement, for JSON."""
    insert, concern = statement.insert, statement.write_concern
    return {
        "statement": statement.sql,
        "class": statement.operation_class.value,
        "kind": statement.kind.value,
        "rule": statement.rule,
        "reads": sorted(statement.reads),
        "writes": sorted(statement.writes),
        "tables_known": statement.tables_known,
        "write_concern": concern.value if concern else None,
        "apply_budget_s": statement.apply_budget_s,
        "cache": statement.cache,
        "combinable": None
        if insert is None
        else {"rows": insert.rows, "types": insert.signature.split(",")},
    }
