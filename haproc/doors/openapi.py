"""The OpenAPI document of both listeners, written by hand; the tests compare it with the routes.

`OPERATIONS` has one line for each route; the rest is the same for all.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any, Final

from haproc import __version__
from haproc.doors.clients.freshness import HEADERS as FRESHNESS_HEADERS
from haproc.doors.clients.rows_door import PARAMETERS as ROWS_PARAMETERS
from haproc.doors.clients.statement_request import HEADERS
from haproc.doors.http.bodies import ARROW_STREAM
from haproc.doors.openapi_about import ABOUT, ABOUT_SCHEMAS
from haproc.doors.openapi_classify import CLASSIFY_SCHEMAS
from haproc.doors.openapi_jobs import JOB_SCHEMAS
from haproc.doors.openapi_operation import CLIENT, OPERATOR, Operation
from haproc.doors.openapi_parameters import PARAMETERS
from haproc.doors.openapi_schemas import SCHEMAS, ref
from haproc.doors.openapi_verify import VERIFY_SCHEMAS
from haproc.route.pieces import CONTENT_TYPE as PIECES
from haproc.route.rows.forms import FormKind

ROWS: Final = "rows"  # in any of their forms

_ERRORS: Final = {
    "400": "The request is refused as it stands.",
    "401": "Valid credentials are missing.",
    "404": "There is no such statement, chunk, link, session or offset here.",
    "405": "The path has no such method.",
    "408": "The request's body did not come in time.",
    "409": "The request id was used for another request, or nothing may be done now.",
    "413": "The request, or an inline result, is too large.",
    "415": "The body's content type is not the one this path takes.",
    "417": "The header Expect says something else than 100-continue.",
    "422": "The statement is wrong (kind application).",
    "424": "The outcome is unknown, and the request had no request_id: ask, don't repeat it.",
    "429": "Too many requests are under way.",
    "503": "This HAProc cannot answer now (kind availability).",
}
_COMMON: Final = ("401", "417", "503")


_BOTH: Final = (CLIENT, OPERATOR)
_PEERS: Final = (OPERATOR,)
_STATEMENT: Final = "/api/2.0/sql/statements/{statement_id}"
_BATCH: Final = "/batches/{batch_id}"
_JOB: Final = "/ha/v1/jobs/{batch_id}"
_HEADERS: Final = (*FRESHNESS_HEADERS.values(), *HEADERS)
_BODY_ERRORS: Final = ("400", "408", "413", "415")

OPERATIONS: Final = (
    Operation(
        "post",
        "/api/2.0/sql/statements",
        "Run a statement; with Accept: application/vnd.apache.arrow.stream, stream its result",
        "Statement",
        (*_BODY_ERRORS, "404", "409", "422", "424", "429"),
        "StatementRequest",
        stream=True,
        headers=_HEADERS,
    ),
    Operation(
        "get",
        _STATEMENT,
        "A statement's state and result",
        "Statement",
        ("400", "404", "413", "429"),
        query=("concern",),
    ),
    Operation(
        "get",
        _STATEMENT + "/result/chunks/{chunk_index}",
        "One chunk of a result",
        "Result",
        ("400", "404", "413", "422", "429"),
    ),
    Operation(
        "post",
        _STATEMENT + "/cancel",
        "Cancel a query, or take back a write, and tell what became of it",
        "Canceled",
        ("404",),
    ),
    Operation(
        "get",
        "/api/ha/results/{link_secret}/{chunk_index}",
        "A chunk's bytes, by the link that an answer gave",
        "data_array",
        ("404",),
        stream=True,
    ),
    Operation(
        "post",
        "/api/ha/tables/{table}/rows",
        "Append rows of any size to a table, as one operation",
        "Appended",
        (*_BODY_ERRORS, "409", "422", "424", "429"),
        ROWS,
        query=ROWS_PARAMETERS,
        headers=tuple(HEADERS),
    ),
    Operation(
        "put",
        "/api/ha/sessions/{session_id}",
        "Open a session, wherever it was before",
        "Session",
        (*_BODY_ERRORS, "404", "422", "429"),
        "Opening",
    ),
    Operation("delete", "/api/ha/sessions/{session_id}", "Close a session", "Nothing", ("400",)),
    Operation(
        "post",
        "/batches",
        "Submit a job, as JSON or as a form with its files",
        "Batch",
        (*_BODY_ERRORS, "404", "409", "429"),
        "BatchRequest",
        headers=("Idempotency-Key",),
        status="201",
    ),
    Operation(
        "get", "/batches", "The user's jobs", "Batches", ("400", "404"), query=("from", "size")
    ),
    Operation("get", _BATCH, "One job", "Batch", ("400", "404")),
    Operation("get", f"{_BATCH}/state", "A job's state", "BatchState", ("400", "404")),
    Operation(
        "get",
        f"{_BATCH}/log",
        "Lines of a job's log",
        "BatchLog",
        ("400", "404"),
        query=("from", "size"),
    ),
    Operation("delete", _BATCH, "End a job", "BatchDeleted", ("400", "404")),
    Operation(
        "get",
        "/api/ha/operations",
        "What every cluster has applied, from an offset on; for archive.user alone",
        ARROW_STREAM,
        ("400", "409", "429"),
        query=("from", "rows"),
    ),
    Operation(
        "post",
        "/api/ha/operations/archived",
        "Tell that all below an offset is archived; for archive.user alone",
        "Archived",
        (*_BODY_ERRORS, "409", "429"),
        "Archived",
    ),
    Operation(
        "post",
        "/api/ha/classify",
        "Tell what would become of a statement, which does not run",
        "Classified",
        (*_BODY_ERRORS, "422", "429"),
        "ClassifyRequest",
    ),
    Operation("post", "/api/ha/verify", "As /ha/v1/verify, for archive.user", "VerifyMarker"),
    Operation(
        "get",
        "/api/ha/verify/{offset}",
        "As /ha/v1/verify/{offset}, for archive.user",
        "Verification",
        ("400", "404"),
    ),
    *ABOUT,
    Operation("get", "/healthz", "Whether the process runs", "Health", doors=_BOTH),
    Operation(
        "get",
        "/readyz",
        "Whether the cluster serves",
        "Readiness",
        doors=_BOTH,
        also=(("503", "Readiness"),),
    ),
    Operation(
        "get", "/clusterStatus", "This HAProc's view of the ring", "ClusterStatus", doors=_BOTH
    ),
    Operation("get", "/metrics", "Prometheus text", "text/plain", doors=_BOTH),
    Operation("get", "/openapi.json", "This document", "document", doors=_BOTH),
    Operation(
        "post",
        "/heartbeat",
        "A peer lives",
        "",
        _BODY_ERRORS,
        "Heartbeat",
        doors=_PEERS,
    ),
    Operation(
        "post",
        "/reportlag",
        "A peer's state and progress",
        "",
        _BODY_ERRORS,
        "LagReport",
        doors=_PEERS,
    ),
    Operation(
        "post",
        "/ha/v1/apply",
        "Run a synchronous operation now, asked by a peer",
        "PeerAnswer",
        _BODY_ERRORS,
        "ApplyRequest",
        doors=_PEERS,
    ),
    Operation(
        "post",
        "/ha/v1/query",
        "Run a query that came to a peer; the result comes in pieces",
        PIECES,
        (*_BODY_ERRORS, "422", "429"),
        "PeerQuery",
        doors=_PEERS,
    ),
    Operation(
        "get",
        "/ha/v1/outcomes/{offset}",
        "What became of an operation here, asked by a peer",
        "PeerAnswer",
        ("400",),
        doors=_PEERS,
    ),
    Operation(
        "get",
        "/ha/v1/latencies",
        "How long operations took until they were done here, asked by a peer",
        "Latencies",
        ("400",),
        query=("start", "end"),
        doors=_PEERS,
    ),
    Operation(
        "get",
        "/ha/v1/queue",
        "A page of this cluster's queue",
        "Queue",
        ("400",),
        query=("start", "limit"),
        doors=_PEERS,
    ),
    Operation(
        "get",
        "/ha/v1/queue/{offset}",
        "One operation, and what retry and skip would do",
        "QueuedOperation",
        ("400", "404"),
        doors=_PEERS,
    ),
    Operation(
        "post",
        "/ha/v1/queue/{offset}/retry",
        "Try an operation that fails now",
        "Retried",
        (*_BODY_ERRORS, "404", "409"),
        "RetryRequest",
        doors=_PEERS,
    ),
    Operation(
        "post",
        "/ha/v1/queue/{offset}/skip",
        "Have this cluster pass over an operation that it cannot apply",
        "Skipped",
        (*_BODY_ERRORS, "404", "409"),
        "SkipRequest",
        doors=_PEERS,
    ),
    Operation(
        "post",
        "/ha/v1/queue/{offset}/revoke",
        "Have the ring take back an operation that waits, runs or fails",
        "Revoked",
        (*_BODY_ERRORS, "404", "409"),
        "RevokeRequest",
        doors=_PEERS,
    ),
    Operation(
        "post",
        "/ha/v1/verify",
        "Have all clusters say what their tables hold at this place in the order",
        "VerifyMarker",
        (*_BODY_ERRORS, "409"),
        "VerifyRequest",
        doors=_PEERS,
    ),
    Operation(
        "get",
        "/ha/v1/verify/{offset}",
        "What a verification, or a newer one, came to so far",
        "Verification",
        ("400", "404"),
        doors=_PEERS,
    ),
    Operation(
        "get",
        "/ha/v1/sessions",
        "Some of the ring's sessions, by user and id",
        "Sessions",
        ("400", "503"),
        query=("start", "limit"),
        doors=_PEERS,
    ),
    Operation(
        "post",
        "/ha/v1/sessions/close",
        "Close a client's session, whichever HAProc has it",
        "SessionClosed",
        (*_BODY_ERRORS, "404", "503"),
        "SessionToClose",
        doors=_PEERS,
    ),
    Operation(
        "get",
        "/ha/v1/jobs",
        "The ring's jobs, of all users",
        "Batches",
        ("400", "404"),
        query=("from", "size"),
        doors=_PEERS,
    ),
    Operation("get", _JOB, "One job", "Batch", ("400", "404"), doors=_PEERS),
    Operation(
        "get",
        f"{_JOB}/log",
        "Lines of a job's log",
        "BatchLog",
        ("400", "404"),
        query=("from", "size"),
        doors=_PEERS,
    ),
    Operation("delete", _JOB, "End a job", "BatchDeleted", ("400", "404"), doors=_PEERS),
    Operation("get", "/ha/v1/members", "Who the ring's members are", "Members", doors=_PEERS),
    Operation(
        "post",
        "/ha/v1/members/{cluster}/join",
        "Add a cluster to the ring",
        "MembersChanged",
        (*_BODY_ERRORS, "409"),
        "JoinRequest",
        doors=_PEERS,
    ),
    Operation(
        "post",
        "/ha/v1/members/{cluster}/leave",
        "Remove a cluster from the ring for good",
        "MembersChanged",
        (*_BODY_ERRORS, "409"),
        "LeaveRequest",
        doors=_PEERS,
    ),
    Operation(
        "get",
        "/ha/v1/settings",
        "The versions and settings of this Spark that change results",
        "ServerSettings",
        doors=_PEERS,
    ),
    Operation(
        "get",
        "/ha/v1/progress",
        "What is applied here, once that differs from what was seen, asked by a peer",
        "PeerAnswer",
        ("400",),
        query=("seen", "timeout_s"),
        doors=_PEERS,
    ),
    Operation(
        "get",
        "/ha/v1/drain",
        "Whether the cluster is drained, and what clients still have here",
        "Drain",
        doors=_PEERS,
    ),
    Operation(
        "post",
        "/ha/v1/drain",
        "Take no more requests from clients, and stay a member of the ring",
        "Drain",
        (*_BODY_ERRORS, "409"),
        "DrainRequest",
        doors=_PEERS,
    ),
    Operation(
        "post",
        "/ha/v1/undrain",
        "Serve clients again, once caught up",
        "Drain",
        (*_BODY_ERRORS, "409"),
        "UndrainRequest",
        doors=_PEERS,
    ),
    Operation(
        "get", "/ha/v1/status", "State, cursor and lag, asked by a peer", "PeerAnswer", doors=_PEERS
    ),
)

_INLINE: Final[dict[str, dict[str, Any]]] = {
    "data_array": {
        "type": "array",
        "items": {"type": "array", "items": {"type": ["string", "null"]}},
    },
    "document": {"type": "object"},
}


def document() -> dict[str, Any]:
    """Return the document as data."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "HAProc",
            "version": __version__,
            "description": "The client door takes statements and is open only while the cluster "
            "serves or drains; the operator door is always open.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": CLIENT}, {"name": OPERATOR}],
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": {
                **SCHEMAS,
                **ABOUT_SCHEMAS,
                **JOB_SCHEMAS,
                **CLASSIFY_SCHEMAS,
                **VERIFY_SCHEMAS,
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


@functools.cache
def document_json() -> bytes:
    """Return the document as JSON."""
    return json.dumps(document(), ensure_ascii=False).encode()


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": operation.summary,
        "tags": list(operation.doors),
        "operationId": _operation_id(operation),
        "responses": _responses(operation),
    }
    parameters = [_parameter(name, "path") for name in re.findall(r"{(\w+)}", operation.path)]
    parameters += [_parameter(name, "query") for name in operation.query]
    parameters += [_parameter(name, "header") for name in operation.headers]
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        needed = operation.body != "Journal"  # an empty one needs no body
        described["requestBody"] = {"required": needed, "content": _content(operation.body)}
    return described


def _operation_id(operation: Operation) -> str:
    words = re.findall(r"[A-Za-z]+", operation.path.replace("/api/2.0/", "/"))
    return "_".join([operation.method, *words])


def _parameter(name: str, where: str) -> dict[str, Any]:
    schema = PARAMETERS.get(name, {"type": "string"})
    return {"name": name, "in": where, "required": where == "path", "schema": schema}


def _responses(operation: Operation) -> dict[str, Any]:
    responses: dict[str, Any] = {"204": {"description": operation.summary}}
    if operation.answer:
        content = _content(operation.answer)
        if operation.stream:
            content.update(_content(ARROW_STREAM))
        responses = {operation.status: {"description": operation.summary, "content": content}}
    for status in sorted({*operation.errors, *_COMMON}):
        name = dict(operation.also).get(status, "Error")
        responses[status] = {"description": _ERRORS[status], "content": _content(name)}
    return responses


def _content(name: str) -> dict[str, Any]:
    if name == ROWS:
        return {kind.value: {"schema": {"type": "string"}} for kind in FormKind}
    if name == ARROW_STREAM:
        return {name: {"schema": {"type": "string", "contentMediaType": ARROW_STREAM}}}
    if "/" in name:
        return {name: {"schema": {"type": "string"}}}
    return {"application/json": {"schema": _INLINE.get(name) or ref(name)}}
