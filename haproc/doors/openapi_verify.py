"""The schemas of verifications, for `haproc.doors.openapi`."""

from __future__ import annotations

from typing import Any, Final

from haproc.doors.openapi_schemas import COUNT, TEXT, choice, described, record
from haproc.replicate.agree.findings import Finding

_FINDING: Final = choice(*Finding)


def _of_each(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": schema}


VERIFY_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "VerifyRequest": record(
        "", trusted=described(TEXT, "The cluster whose tables are right; others leave service.")
    ),
    "VerifyMarker": record("*", marker=COUNT),
    "Verification": record(
        "*",
        marker=COUNT,
        by=TEXT,
        trusted=described(TEXT, "Whose tables are right, by an operator's word; or empty."),
        complete={"type": "boolean"},
        clusters=_of_each(record("*", finding=_FINDING, reason=TEXT)),
        tables=_of_each(_of_each(_FINDING)),
        differing=described(
            _of_each(_of_each(TEXT)), "What each cluster has of tables that are not the same."
        ),
    ),
}
