"""How fresh a query must be, from a request's fields and headers; what neither says is configured.

A field counts before the header of its name. Values in, `Freshness` or RequestError out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from haproc.config.model import Consistency, Reads
from haproc.doors.http import fields
from haproc.failure import ErrorClass, refused
from haproc.route.model import Freshness

FIELDS: Final = ("consistency", "acceptable_offset_lag", "after_offset", "seen")
HEADERS: Final = {
    "consistency": "HAProc-Consistency",
    "acceptable_offset_lag": "HAProc-Acceptable-Offset-Lag",
    "after_offset": "HAProc-After-Offset",
}
_SEEN_MAX: Final = 64
"""As many clusters as a ring may have."""


def read_freshness(
    given: Mapping[str, Any], headers: Mapping[str, str], defaults: Reads
) -> Freshness:
    """Check and combine them; raises RequestError."""
    told: dict[str, Any] = {
        name: headers[header].strip() for name, header in HEADERS.items() if header in headers
    }
    for name in ("acceptable_offset_lag", "after_offset"):
        if name in told:
            told[name] = fields.whole_number(told[name], HEADERS[name], 19)
    asked = {**told, **{name: given[name] for name in FIELDS if given.get(name) is not None}}
    level = fields.choice(asked, "consistency", Consistency)
    lag_max = fields.offset(asked, "acceptable_offset_lag")
    return Freshness(
        level or defaults.consistency,
        defaults.acceptable_offset_lag if lag_max is None else lag_max,
        fields.offset(asked, "after_offset") or 0,
        _seen(asked),
    )


def _seen(asked: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    value = asked.get("seen")
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise fields.wrong("seen", "an object", value)
    if len(value) > _SEEN_MAX:
        raise refused(ErrorClass.BAD_REQUEST, f"seen must name at most {_SEEN_MAX} clusters")
    return tuple((name, fields.offset(value, name) or 0) for name in sorted(value))
