"""Reads the body of ``POST /api/2.0/sql/statements``, and how fresh the answer must be."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from haproc.classify.model import BUDGET_MAX_S, OperationClass, WriteConcern
from haproc.config.model import Consistency, Reads
from haproc.doors.http import reading
from haproc.failure import ErrorClass, refused
from haproc.pin.parameters import Given
from haproc.route.model import Fanout, Freshness, Request, SentSql
from haproc.statements.request import (
    TIMEOUT_MAX_S,
    Delivery,
    Disposition,
    Format,
    OnWaitTimeout,
    StatementRequest,
    fingerprint_of,
)

# The freshness of a query, from a request's fields and headers; the configuration has the defaults.
#
# A field counts before the header of the same name. Values in, `Freshness` or RequestError out.


FRESHNESS_FIELDS: Final = ("consistency", "acceptable_offset_lag", "after_offset", "seen")
FRESHNESS_HEADERS: Final = {
    "consistency": "HAProc-Consistency",
    "acceptable_offset_lag": "HAProc-Acceptable-Offset-Lag",
    "after_offset": "HAProc-After-Offset",
}
_SEEN_MAX: Final = 64
"""The most clusters that ``seen`` may name: a ring has no more."""


def read_freshness(
    given: Mapping[str, Any], headers: Mapping[str, str], defaults: Reads
) -> Freshness:
    """Return how fresh the answer must be. Raises RequestError.

    If both a field of the body and a header say it, the field counts.
    """
    from_headers: dict[str, Any] = {
        name: headers[header].strip()
        for name, header in FRESHNESS_HEADERS.items()
        if header in headers
    }
    for name in ("acceptable_offset_lag", "after_offset"):
        if name in from_headers:
            from_headers[name] = reading.whole_number(
                from_headers[name], FRESHNESS_HEADERS[name], 19
            )
    fields = {
        **from_headers,
        **{name: given[name] for name in FRESHNESS_FIELDS if given.get(name) is not None},
    }
    level = reading.choice(fields, "consistency", Consistency)
    lag_max = reading.offset(fields, "acceptable_offset_lag")
    return Freshness(
        level or defaults.consistency,
        defaults.acceptable_offset_lag if lag_max is None else lag_max,
        reading.offset(fields, "after_offset") or 0,
        _seen(fields),
    )


def _seen(fields: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    value = fields.get("seen")
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise reading.wrong("seen", "an object", value)
    if len(value) > _SEEN_MAX:
        raise refused(ErrorClass.BAD_REQUEST, f"seen must name at most {_SEEN_MAX} clusters")
    return tuple((name, reading.offset(value, name) or 0) for name in sorted(value))


# The body of ``POST /api/2.0/sql/statements`` as a value.
#
# Pure: bytes in, `StatementRequest` or RequestError out. Parameters pass through unchanged; the
# service binds them.


_DEFAULTS: Final = Reads()
_WAIT: Final = re.compile(r"([0-9]{1,2})s")
_FINGERPRINTED: Final = (
    "statement",
    "parameters",
    "parameter_rows",
    "catalog",
    "schema",
    "session_id",
    "operation_class",
)
_CLASSES: Final = tuple(c for c in OperationClass if c is not OperationClass.SESSION)
FIELDS: Final = (
    *_FINGERPRINTED,
    "wait_timeout",
    "on_wait_timeout",
    "row_limit",
    "byte_limit",
    "format",
    "disposition",
    "warehouse_id",
    "query_tags",
    "request_id",
    *FRESHNESS_FIELDS,
    "fanout",
    "write_concern",
    "apply_budget_s",
    "cache",
    "timeout_s",
    "age_s",
)
HEADERS: Final = {"HAProc-Write-Concern": "write_concern", "Idempotency-Key": "request_id"}
"""Headers that may replace a field of the body; if both are there, the field counts."""
CACHE_HEADER: Final = "HAProc-Cache"
READ_HEADERS: Final = (*HEADERS, *FRESHNESS_HEADERS.values(), CACHE_HEADER)
"""All headers of a request that HAProc reads."""
_ID_TAG: Final = "request_id"


def read_statement(
    body: bytes,
    *,
    user: str,
    made_id: str,
    timeout_default_s: float,
    arrived_s: float | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
    reads: Reads = _DEFAULTS,
) -> StatementRequest:
    """Read a body as the request of a statement; raises RequestError.

    ``made_id``: the request id if the client sent none.
    """
    given = reading.parse_object(body)
    reading.no_unknown(given, FIELDS)
    given = with_headers(given, headers)
    statement = _statement(given)
    reading.text(given, "warehouse_id")
    wait_s, on_wait_timeout = _waiting(given)
    fingerprint = fingerprint_of(user, {name: given.get(name) for name in _FINGERPRINTED})
    request = Request(
        id=reading.identifier(given, "request_id") or _tagged_id(given) or made_id,
        statement=statement,
        fingerprint=fingerprint,
        user=user,
        catalog=_name(given, "catalog"),
        schema=_name(given, "schema"),
        session_id=reading.identifier(given, "session_id"),
        freshness=read_freshness(given, headers, reads),
        operation_class=reading.choice(given, "operation_class", OperationClass, _CLASSES),
        fanout=reading.choice(given, "fanout", Fanout),
        write_concern=reading.choice(given, "write_concern", WriteConcern),
        apply_budget_s=reading.seconds(given.get("apply_budget_s"), "apply_budget_s", BUDGET_MAX_S),
        timeout_s=reading.seconds(given.get("timeout_s"), "timeout_s", TIMEOUT_MAX_S)
        or timeout_default_s,
        age_s=reading.age(given.get("age_s")),
        arrived_s=arrived_s,
        cache=_cache(given, headers),
    )
    own_id = request.id != made_id
    return StatementRequest(request, _delivery(given), wait_s, on_wait_timeout, own_id)


def with_headers(given: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a body, and the fields that only the headers have."""
    # An Idempotency-Key is a string in quotes, but some clients leave them out.
    from_headers = {
        field: headers[name].strip('"') for name, field in HEADERS.items() if name in headers
    }
    return {**from_headers, **{name: value for name, value in given.items() if value is not None}}


def _cache(given: Mapping[str, Any], headers: Mapping[str, str]) -> bool | None:
    """Return whether the request allows a cached answer; None: not said. The field counts first."""
    value = given.get("cache")
    if value is None and CACHE_HEADER in headers:
        header = headers[CACHE_HEADER].strip().lower()
        value = {"true": True, "false": False}.get(header, header)
    if value is None or isinstance(value, bool):
        return value
    raise reading.wrong("cache", "true or false", value)


def _tagged_id(given: Mapping[str, Any]) -> str | None:
    """Return the request id in Databricks' ``query_tags``, if one of the tags has it; else None."""
    tags = given.get("query_tags")
    if tags is None:
        return None
    if not isinstance(tags, list) or not all(isinstance(tag, dict) for tag in tags):
        raise reading.wrong("query_tags", "a list of objects", tags)
    values = [tag.get("value") for tag in tags if tag.get("key") == _ID_TAG]
    if len(values) > 1:
        raise refused(ErrorClass.BAD_REQUEST, f"query_tags has several {_ID_TAG}", "send one")
    return reading.identifier({_ID_TAG: values[0]}, _ID_TAG) if values else None


def _delivery(given: Mapping[str, Any]) -> Delivery:
    return Delivery(
        reading.choice(given, "format", Format) or Format.JSON_ARRAY,
        reading.choice(given, "disposition", Disposition) or Disposition.INLINE,
        reading.count(given, "row_limit"),
        reading.count(given, "byte_limit"),
    )


def _name(given: Mapping[str, Any], name: str) -> str | None:
    value = reading.text(given, name)
    if value is not None and not value.strip():
        raise refused(ErrorClass.BAD_REQUEST, f"{name} must not be empty")
    return value


def _waiting(given: Mapping[str, Any]) -> tuple[float, OnWaitTimeout]:
    wanted = reading.text(given, "wait_timeout")
    found = _WAIT.fullmatch("10s" if wanted is None else wanted)
    wait_s = int(found[1]) if found else -1
    if wait_s != 0 and not 5 <= wait_s <= 50:
        raise refused(ErrorClass.BAD_REQUEST, 'wait_timeout must be "0s", or "5s" to "50s"')
    on_timeout = reading.choice(given, "on_wait_timeout", OnWaitTimeout)
    if wait_s == 0 and on_timeout is OnWaitTimeout.CANCEL:
        raise refused(
            ErrorClass.BAD_REQUEST, 'on_wait_timeout CANCEL contradicts wait_timeout "0s"'
        )
    return float(wait_s), on_timeout or OnWaitTimeout.CONTINUE


def _statement(given: Mapping[str, Any]) -> SentSql:
    """Return the statement with its parameters, which are not bound yet."""
    text = reading.needed_text(given, "statement")
    parameters, rows = given.get("parameters"), given.get("parameter_rows")
    if not parameters and rows is None:
        return SentSql(text)
    if parameters and rows is not None:
        raise refused(ErrorClass.BAD_REQUEST, "parameters and parameter_rows exclude each other")
    if rows is None:
        return SentSql(text, Given(json.dumps(parameters).encode()))
    if not isinstance(rows, list) or not rows:
        raise refused(ErrorClass.BAD_REQUEST, "parameter_rows must be a list of at least one list")
    return SentSql(text, Given(json.dumps(rows).encode(), rows=True))
