"""The HTTP interface of a HAProc as values: requests, what answers mean, failed exchanges."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from haclient.exceptions import Failure, FailureKind, InterfaceError, Outcome
from haclient.failover import AttemptEnd
from haclient.settings import NOTHING_SEEN, SeenOffsets, whole
from haclient.statements import quoted

# Shared by both transports: the failures of an exchange with one server.


Body: TypeAlias = bytes | Iterator[bytes]
"""A request's body: whole, or in pieces that are made while it is sent."""


class WireError(Exception):
    """A server gave no answer to the request; ``end``: what that means for failover."""

    end = AttemptEnd.IN_DOUBT
    retry_after_s = 0.0
    """The pause that the server asks for before the next attempt."""


class NotReached(WireError):
    """There was no connection to the server."""

    end = AttemptEnd.NOT_REACHED


class NotTaken(WireError):
    """The server reports that it cannot run the request now, and has done nothing."""

    end = AttemptEnd.NOT_TAKEN


class Busy(WireError):
    """The server reports that it is at its limit, and has done nothing."""

    end = AttemptEnd.BUSY

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class InDoubt(WireError):
    """The server reports that the outcome of the request is unknown."""


class Leaving(WireError):
    """The server reports that it is leaving service (it drains or stops), and has done nothing."""

    end = AttemptEnd.LEAVING


class Broken(WireError):
    """The connection broke before the answer was complete."""


class Hung(WireError):
    """The server neither answers nor shows a sign of life."""


class DeadlinePassed(WireError):
    """The request's time limit passed while the server was alive and silent."""

    end = AttemptEnd.TIMED_OUT


# A job and its files as the body of one request.


@dataclass(frozen=True, slots=True)
class JobFile:
    """A file of a job to upload; ``part``: its purpose, ``file``, ``pyFiles`` or ``files``."""

    part: str
    name: str
    data: bytes


def form(request: Mapping[str, Any], files: Sequence[JobFile]) -> tuple[str, bytes]:
    """Return the media type and the body of a request: JSON, or with files a multipart form."""
    content = json.dumps(dict(request)).encode()
    if not files:
        return "application/json", content
    digest = hashlib.sha256(content)
    for each in files:
        digest.update(each.data)
    boundary = f"haclient-{digest.hexdigest()[:40]}"  # no file contains it by chance
    parts = [_part(boundary, 'name="request"', content)]
    for each in files:
        name = each.name.replace("\\", "_").replace('"', "_")
        parts.append(_part(boundary, f'name="{each.part}"; filename="{name}"', each.data))
    body = b"".join(parts) + f"--{boundary}--\r\n".encode()
    return f"multipart/form-data; boundary={boundary}", body


def _part(boundary: str, disposition: str, data: bytes) -> bytes:
    head = f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n"
    return f"{head}Content-Type: application/octet-stream\r\n\r\n".encode() + data + b"\r\n"


# The HTTP interface as values: requests, and the meaning of answers.
#
# The interface itself is documented in docs/reference/http.md.


ARROW_STREAM = "application/vnd.apache.arrow.stream"
STATEMENTS = "/api/2.0/sql/statements"
REPORT_HEADER = "haproc-report"
STATE_HEADER = "haproc-state"
"""An answer has this header only if its server has left service, or is about to."""
SESSION_REQUIRED = "HAPROC_SESSION_REQUIRED"
ROWS_UNFIT = frozenset({"HAPROC_ROWS_MISFIT", "HAPROC_REQUEST_ID_REUSED"})
"""Error classes after which rows must be sent as a statement, or were sent as one before."""
_LEAVING = frozenset({"HAPROC_DRAINING", "HAPROC_STOPPED"})
_AT_WORK = frozenset({"HAPROC_BUSY", "HAPROC_NOT_FRESH"})
"""Error classes of a server that works, but is at its limit."""

_OPTIONS = frozenset(
    {
        *("consistency", "acceptable_offset_lag", "operation_class", "fanout", "write_concern"),
        *("apply_budget_s", "cache"),
    }
)
# The server's deadline is a little earlier, so that the client receives the reason.
_GRACE_SHARE, _GRACE_MAX_S = 0.1, 0.25


class Rejected(Exception):
    """A server answered the request with an error; ``failure`` has its facts."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement to send; each attempt sends the same bytes, except the session and the age."""

    request_id: str
    text: str
    timeout_s: float
    parameters: list[dict[str, Any]] | None = None
    parameter_rows: list[list[dict[str, Any]]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    age_s: float = 0.0
    """The time since the request was first sent, if that was before this call."""
    seen: SeenOffsets = NOTHING_SEEN
    """The log offsets that the answer must show at least, if its read level requires it."""

    def body(
        self, session_id: str | None, catalog: str | None, schema: str | None, age_s: float = 0.0
    ) -> bytes:
        """Return the request's JSON; without a session it also has the catalog and schema.

        ``age_s``: the time since the request was first sent; 0 for a first attempt.
        """
        fields: dict[str, Any] = {
            "statement": self.text,
            "request_id": self.request_id,
            "timeout_s": server_timeout_s(self.timeout_s),
            **self.options,
            **self.seen.fields(self.options.get("consistency")),
        }
        if age_s:
            fields["age_s"] = round(age_s, 3)
        if self.parameters is not None:
            fields["parameters"] = self.parameters
        if self.parameter_rows is not None:
            fields["parameter_rows"] = self.parameter_rows
        if session_id is not None:
            fields["session_id"] = session_id
        else:
            fields.update({k: v for k, v in (("catalog", catalog), ("schema", schema)) if v})
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of ``execute`` that are not None. Raises InterfaceError for wrong ones."""
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        raise InterfaceError(f"execute() has no option {', '.join(unknown)}")
    lag = whole("acceptable_offset_lag", options.get("acceptable_offset_lag"))
    cache = options.get("cache")
    if cache is not None and not isinstance(cache, bool):
        raise InterfaceError(f"cache must be True or False, not {cache!r}")
    budget_s = options.get("apply_budget_s")
    if budget_s is not None and (
        isinstance(budget_s, bool) or not isinstance(budget_s, int | float)
    ):
        raise InterfaceError(f"apply_budget_s must be a number of seconds, not {budget_s!r}")
    given = {name: str(value) for name, value in options.items() if value is not None}
    exact = {"acceptable_offset_lag": lag, "apply_budget_s": budget_s, "cache": cache}
    return given | {name: value for name, value in exact.items() if value is not None}


def age_text(age_s: float) -> str | None:
    """Return the request's age for the query of a URL; None for a first attempt, which has none."""
    return f"{age_s:.3f}" if age_s else None


def server_timeout_s(timeout_s: float) -> float:
    """Return the time limit to send to the server: a little shorter than the client's own."""
    return round(timeout_s - min(_GRACE_MAX_S, timeout_s * _GRACE_SHARE), 6)


def headers(token: str | None, user: str | None) -> dict[str, str]:
    """Return the headers that every request has."""
    agent = f"haclient ({user})" if user else "haclient"
    fixed = {"User-Agent": agent, "Accept-Encoding": "identity"}
    return {**fixed, "Authorization": f"Bearer {token}"} if token else fixed


def session_path(session_id: str) -> str:
    """Return the URL path of a session."""
    return f"/api/ha/sessions/{session_id}"


def statement_path(request_id: str) -> str:
    """Return the URL path at which the outcome of a request is found."""
    return f"{STATEMENTS}/{urllib.parse.quote(request_id, safe='')}"


def written_path(request_id: str, write_concern: str | None) -> str:
    """Return the URL path for a write's outcome, and if it has met ``write_concern``."""
    return f"{statement_path(request_id)}?concern={write_concern or 'default'}"


def cancel_path(request_id: str) -> str:
    """Return the URL path that cancels a statement."""
    return f"{statement_path(request_id)}/cancel"


def cancelled_as(status: int, body: bytes) -> str | None:
    """Return what became of a cancelled statement, from the server's answer.

    None if the server does not know the statement; empty if its answer does not say it.
    """
    if status == 404:
        return None
    if status != 200:
        return ""
    fields = json.loads(body or b"{}")
    found = fields.get("became", "") if isinstance(fields, dict) else ""
    return found if isinstance(found, str) else ""


def rows_path(table: str, query: Mapping[str, str | None]) -> str:
    """Return the URL path and query that append rows to a table."""
    given = {name: value for name, value in query.items() if value is not None}
    quoted = urllib.parse.quote(table, safe="")
    return f"/api/ha/tables/{quoted}/rows?{urllib.parse.urlencode(given)}"


def columns_text(names: Sequence[str]) -> str:
    """Return column names as a line of CSV; without names ``*``, which means the table's own."""
    if not names:
        return "*"
    if list(names) == ["*"]:
        return '"*"'
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def session_start(catalog: str | None, schema: str | None) -> list[str]:
    """Return the statements that set a new session to the connection's catalog and schema."""
    if schema:
        return [f"USE {'.'.join(quoted(part) for part in (catalog, schema) if part)}"]
    return [f"SET CATALOG {quoted(catalog)}"] if catalog else []


def report(text: str | None) -> dict[str, Any]:
    """Return the ``ha`` block (HAProc's facts in an answer) in a text; empty if there is none."""
    try:
        block = json.loads(text) if text else {}
    except ValueError:
        return {}
    return block if isinstance(block, dict) else {}


def failure(status: int, body: bytes, retry_after: str | None = None) -> Failure:
    """Return the failure in an error answer; ``retry_after``: its header Retry-After."""
    return replace(_failure_of(status, body), retry_after_s=_seconds(retry_after))


def _seconds(text: str | None) -> float:
    """Return the header Retry-After in seconds; 0 if it is missing or a date.

    No HAProc sends a date.
    """
    return float(text) if text is not None and text.isascii() and text.isdigit() else 0.0


def _failure_of(status: int, body: bytes) -> Failure:
    try:
        fields = json.loads(body)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or "kind" not in fields:
        return _unexplained(status, body)
    return Failure(
        kind=_member(FailureKind, fields.get("kind"), FailureKind.APPLICATION),
        message=str(fields.get("message") or f"HTTP status {status}"),
        outcome=outcome_of(fields.get("outcome")),
        error_class=str(fields.get("error_class") or ""),
        sqlstate=str(fields.get("sqlstate") or ""),
        hint=str(fields.get("hint") or ""),
        cluster=str(fields.get("cluster") or ""),
        log_offset=fields.get("log_offset"),
        status=status,
    )


def outcome_of(value: Any) -> Outcome:
    """Return the outcome that a server stated; UNKNOWN if it stated none that is known."""
    return cast(Outcome, _member(Outcome, value, Outcome.UNKNOWN))


def _member(enum: Any, value: Any, default: Any) -> Any:
    try:
        return enum(value)
    except ValueError:
        return default


def _unexplained(status: int, body: bytes) -> Failure:
    """Return the failure for an answer that no HAProc wrote, but a proxy or a broken server."""
    text = body[:200].decode("utf-8", "replace").strip()
    message = f"HTTP status {status}" + (f": {text}" if text else "")
    if status in (429, 503):
        return Failure(FailureKind.AVAILABILITY, message, Outcome.NOT_SENT, status=status)
    if status in (502, 504):
        return Failure(FailureKind.AVAILABILITY, message, Outcome.UNKNOWN, status=status)
    if status >= 500:
        return Failure(FailureKind.APPLICATION, message, Outcome.UNKNOWN, status=status)
    hint = "check the server's URL and the token"
    return Failure(FailureKind.REFUSED, message, Outcome.NOT_SENT, hint=hint, status=status)


def became(status: int, body: bytes) -> dict[str, Any] | Failure | None:
    """Return what became of a write, from a server's answer; None if the server knows no end of it.

    That is the ``ha`` block of a write that succeeded, or the failure of one that is in the log and
    was rejected on that cluster; if it is `Failure.final`, on every cluster. Raises Rejected for an
    error that is not the write's own.
    """
    if status == 200:
        fields = json.loads(body)
        if fields["status"]["state"] == "SUCCEEDED":
            return dict(fields["ha"])
        failed = _failure_of(status, json.dumps(fields["status"].get("error")).encode())
        final = fields.get("ha", {}).get("final") is True
        return replace(failed, final=final) if failed.log_offset is not None else None
    failed = failure(status, body)
    if status == 404 or failed.kind is FailureKind.APPLICATION:
        return None
    raise Rejected(failed)


def end_of(failed: Failure) -> AttemptEnd:
    """Return what an error answer means for failover."""
    if failed.kind is not FailureKind.AVAILABILITY:
        return AttemptEnd.ANSWERED
    if failed.outcome is Outcome.UNKNOWN:
        return AttemptEnd.IN_DOUBT
    if failed.error_class == "HAPROC_UNKNOWN_ERROR":
        return AttemptEnd.UNEXPLAINED
    if failed.status == 429 or failed.error_class in _AT_WORK:
        return AttemptEnd.BUSY
    return AttemptEnd.LEAVING if failed.error_class in _LEAVING else AttemptEnd.NOT_TAKEN


def opening_body(begin_with: Sequence[str]) -> bytes:
    """Return the JSON that opens a session; a new session first runs ``begin_with``."""
    return json.dumps({"begin_with": list(begin_with)}, ensure_ascii=False).encode()
