"""The body of ``POST /api/2.0/sql/statements`` as a value.

Pure: bytes in, `StatementRequest` or RequestError out. Parameters pass through as they came; they
are bound behind the door.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from haproc.classify.model import BUDGET_MAX_S, OperationClass, WriteConcern
from haproc.config.model import Reads
from haproc.doors.clients.freshness import FIELDS as FRESHNESS_FIELDS
from haproc.doors.clients.freshness import HEADERS as FRESHNESS_HEADERS
from haproc.doors.clients.freshness import read_freshness
from haproc.doors.http import fields
from haproc.failure import ErrorClass, refused
from haproc.pin.parameters import Given
from haproc.route.model import Fanout, Request, SentSql
from haproc.statements.request import (
    TIMEOUT_MAX_S,
    Delivery,
    Disposition,
    Format,
    OnWaitTimeout,
    StatementRequest,
    fingerprint_of,
)

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
"""Headers that may say a field, too; what the body says counts more."""
CACHE_HEADER: Final = "HAProc-Cache"
READ_HEADERS: Final = (*HEADERS, *FRESHNESS_HEADERS.values(), CACHE_HEADER)
"""All headers that are looked at."""
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
    """Check a body; raises RequestError."""
    given = fields.parse_object(body)
    fields.no_unknown(given, FIELDS)
    given = with_headers(given, headers)
    statement = _statement(given)
    fields.text(given, "warehouse_id")
    wait_s, on_wait_timeout = _waiting(given)
    fingerprint = fingerprint_of(user, {name: given.get(name) for name in _FINGERPRINTED})
    request = Request(
        id=fields.identifier(given, "request_id") or _tagged_id(given) or made_id,
        statement=statement,
        fingerprint=fingerprint,
        user=user,
        catalog=_name(given, "catalog"),
        schema=_name(given, "schema"),
        session_id=fields.identifier(given, "session_id"),
        freshness=read_freshness(given, headers, reads),
        operation_class=fields.choice(given, "operation_class", OperationClass, _CLASSES),
        fanout=fields.choice(given, "fanout", Fanout),
        write_concern=fields.choice(given, "write_concern", WriteConcern),
        apply_budget_s=fields.seconds(given.get("apply_budget_s"), "apply_budget_s", BUDGET_MAX_S),
        timeout_s=fields.seconds(given.get("timeout_s"), "timeout_s", TIMEOUT_MAX_S)
        or timeout_default_s,
        age_s=fields.age(given.get("age_s")),
        arrived_s=arrived_s,
        cache=_cache(given, headers),
    )
    own_id = request.id != made_id
    return StatementRequest(request, _delivery(given), wait_s, on_wait_timeout, own_id)


def with_headers(given: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a body, and those that only headers say."""
    # An Idempotency-Key is a string in quotes, which not everybody writes.
    said = {field: headers[name].strip('"') for name, field in HEADERS.items() if name in headers}
    return {**said, **{name: value for name, value in given.items() if value is not None}}


def _cache(given: Mapping[str, Any], headers: Mapping[str, str]) -> bool | None:
    """Return what the request says of the cache; the field counts before the header."""
    value = given.get("cache")
    if value is None and CACHE_HEADER in headers:
        said = headers[CACHE_HEADER].strip().lower()
        value = {"true": True, "false": False}.get(said, said)
    if value is None or isinstance(value, bool):
        return value
    raise fields.wrong("cache", "true or false", value)


def _tagged_id(given: Mapping[str, Any]) -> str | None:
    """Return the request's id where it is one of Databricks' ``query_tags``; others are ignored."""
    tags = given.get("query_tags")
    if tags is None:
        return None
    if not isinstance(tags, list) or not all(isinstance(tag, dict) for tag in tags):
        raise fields.wrong("query_tags", "a list of objects", tags)
    values = [tag.get("value") for tag in tags if tag.get("key") == _ID_TAG]
    if len(values) > 1:
        raise refused(ErrorClass.BAD_REQUEST, f"query_tags has several {_ID_TAG}", "send one")
    return fields.identifier({_ID_TAG: values[0]}, _ID_TAG) if values else None


def _delivery(given: Mapping[str, Any]) -> Delivery:
    return Delivery(
        fields.choice(given, "format", Format) or Format.JSON_ARRAY,
        fields.choice(given, "disposition", Disposition) or Disposition.INLINE,
        fields.count(given, "row_limit"),
        fields.count(given, "byte_limit"),
    )


def _name(given: Mapping[str, Any], name: str) -> str | None:
    value = fields.text(given, name)
    if value is not None and not value.strip():
        raise refused(ErrorClass.BAD_REQUEST, f"{name} must not be empty")
    return value


def _waiting(given: Mapping[str, Any]) -> tuple[float, OnWaitTimeout]:
    asked = fields.text(given, "wait_timeout", "10s") or ""
    found = _WAIT.fullmatch(asked)
    wait_s = int(found[1]) if found else -1
    if wait_s != 0 and not 5 <= wait_s <= 50:
        raise refused(ErrorClass.BAD_REQUEST, 'wait_timeout must be "0s", or "5s" to "50s"')
    on_timeout = fields.choice(given, "on_wait_timeout", OnWaitTimeout)
    if wait_s == 0 and on_timeout is OnWaitTimeout.CANCEL:
        raise refused(
            ErrorClass.BAD_REQUEST, 'on_wait_timeout CANCEL contradicts wait_timeout "0s"'
        )
    return float(wait_s), on_timeout or OnWaitTimeout.CONTINUE


def _statement(given: Mapping[str, Any]) -> SentSql:
    """Return the statement with its parameters as they came."""
    text = fields.needed_text(given, "statement")
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
