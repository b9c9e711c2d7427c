"""The schemas of what would become of a statement, for `haproc.doors.openapi`."""

from __future__ import annotations

from typing import Any, Final

from haproc.classify.model import Kind, OperationClass, WriteConcern
from haproc.doors.openapi_schemas import (
    COUNT,
    IDENTIFIER,
    TEXT,
    WORD,
    choice,
    described,
    listed,
    record,
)
from haproc.pin.model import Treatment

_FLAG: Final = {"type": "boolean"}


def _or_none(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


CLASSIFY_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "ClassifyRequest": record(
        "statement",
        statement=WORD,
        catalog=TEXT,
        schema=TEXT,
        session_id=IDENTIFIER,
        tree=described(_FLAG, "Whether the answer has the tree, too."),
    ),
    "Classified": {
        **record(
            "",
            statement=TEXT,
            kind=choice(*Kind),
            rule=_or_none(TEXT),
            reads=listed(TEXT),
            writes=listed(TEXT),
            tables_known=_FLAG,
            write_concern=_or_none(choice(*WriteConcern)),
            apply_budget_s=_or_none({"type": "number"}),
            cache=_or_none(_FLAG),
            combinable=_or_none(record("*", rows=COUNT, types=listed(TEXT))),
            same_everywhere=described(_FLAG, "Of a query: it gives the same on each cluster."),
            travels=described(
                choice(*Treatment),
                "Of a write: as a statement, as the rows that it computes, or not at all.",
            ),
            becomes=described(TEXT, "The text that the clusters run."),
            replaced=listed(record("*", start=COUNT, end=COUNT, text=TEXT, literal=TEXT)),
            rests_on=listed(TEXT),
            reasons=listed(TEXT),
            hint=TEXT,
            tree=described(listed(TEXT), "Operators and expressions, two spaces for each level."),
            refused=record("*", error_class=TEXT, reason=TEXT, hint=TEXT),
        ),
    },
}
CLASSIFY_SCHEMAS["Classified"]["properties"]["class"] = choice(*OperationClass)
