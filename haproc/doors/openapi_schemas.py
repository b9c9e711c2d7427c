"""The schemas of the OpenAPI document, written by hand; the tests hold answers against them."""

from __future__ import annotations

from typing import Any, Final

from haproc.classify.model import BUDGET_MAX_S, OperationClass, WriteConcern
from haproc.config.model import Consistency
from haproc.doors.http.fields import AGE_MAX_S, ID_PATTERN
from haproc.failure import FailureKind, WriteOutcome
from haproc.membership.exchange import Way
from haproc.membership.state import State
from haproc.replicate.queue.revoked import Fate
from haproc.replicate.queue.standing import Position
from haproc.route.model import Fanout
from haproc.statements.request import TIMEOUT_MAX_S, Disposition, Format, OnWaitTimeout

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
WORD: Final[Schema] = {"type": "string", "pattern": r"\S"}
"""Not empty."""
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
NUMBER: Final[Schema] = {"type": "number"}
IDENTIFIER: Final[Schema] = {"type": "string", "pattern": f"^{ID_PATTERN}$"}
OFFSET: Final[Schema] = {"type": ["integer", "null"], "description": "Place in the log."}


def ref(name: str) -> Schema:
    """Return a reference to a schema of this document."""
    return {"$ref": f"#/components/schemas/{name}"}


def described(schema: Schema, text: str) -> Schema:
    """Return the schema with a description."""
    return {**schema, "description": text}


def choice(*values: str, default: str | None = None) -> Schema:
    """Return a string of a few values."""
    schema: Schema = {"type": "string", "enum": list(values)}
    return schema if default is None else {**schema, "default": default}


def listed(items: Schema) -> Schema:
    """Return a list of items."""
    return {"type": "array", "items": items}


def record(required: str, optional: Schema | None = None, **fields: Schema) -> Schema:
    """Return an object of exactly these fields; ``required`` names them, or is ``*`` for all."""
    names = list(fields) if required == "*" else required.split()
    return {
        "type": "object",
        "properties": {**fields, **(optional or {})},
        "required": names,
        "additionalProperties": False,
    }


def nullable(schema: Schema) -> Schema:
    """Return a schema that null fits too: null counts as absent in requests."""
    return {**schema, "type": [schema["type"], "null"]}


_PARAMETER = record(
    "value",
    name=described(nullable(TEXT), "For :name markers; absent for ?."),
    value={"description": "A string or null; JSON for ARRAY, MAP and STRUCT."},
    type=described(nullable(TEXT), "A Spark type; STRING unless given."),
)
_CHUNK_FIELDS: Final[Schema] = {
    "chunk_index": COUNT,
    "row_offset": COUNT,
    "row_count": COUNT,
    "byte_count": described(COUNT, "Size of data_array's JSON text or of the Arrow stream."),
}
_MEMBERS: Final[Schema] = {
    "since_offset": described(OFFSET, "Of the record that says so; null: the configuration does."),
    "names": listed(TEXT),
    "disagreement": described(TEXT, "What this HAProc's file says differently, if anything."),
}
_STATE = choice("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELED", "CLOSED")
_BOOLEAN: Final[Schema] = {"type": "boolean"}
_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_CLUSTER = record(
    "*",
    name=TEXT,
    url=described(TEXT, "Where clients reach it."),
    alive=described(_BOOLEAN, "Somebody hears its HAProc."),
    direct=described(_BOOLEAN, "This HAProc hears it."),
    state=described(TEXT, "Empty while nobody hears it."),
    incarnation=nullable(TEXT),
    cursor=OFFSET,
    log_end=OFFSET,
    lag={"type": ["integer", "null"], "minimum": 0},
    in_sync=described(_BOOLEAN, "It lives, applies the log as usual, and lags little."),
    since=described(_TIME, "Since when it is in this state, or down."),
    last_update=described(nullable(_TIME), "When it told its state last."),
)
_CLUSTER["additionalProperties"] = True
_WAY = choice(*Way)
_TRANSPORT = record(
    "*",
    configured=described(_WAY, "What should carry heartbeats and reports."),
    in_use=described(_WAY, "What does."),
    reason=described(TEXT, "Why, if that differs."),
    since=_TIME,
    peers={
        "type": "object",
        "description": "What reaches each peer.",
        "additionalProperties": _WAY,
    },
)
_SENDER: Final[dict[str, Schema]] = {
    "cluster": described(TEXT, "Whose HAProc sends this."),
    "incarnation": IDENTIFIER,
    "epoch": described(COUNT, "One more than the offset of its claim; 0 before it has one."),
    "state": choice(*State),
}

_POSITION: Final[Schema] = {
    "position": choice(*Position),
    "blocked_by": described(OFFSET, "The first operation before it that it waits for."),
    "together": {
        "type": ["array", "null"],
        "items": COUNT,
        "description": "First and last offset of the statement it is combined into.",
    },
    "attempts": described(COUNT, "Failed ones."),
    "error": TEXT,
}
_FATE = described(choice(*Fate), "What became of it; docs/api.md says what each means.")
_ADVICE = record("*", allowed={"type": "boolean"}, text=TEXT)
_AGE: Final[Schema] = {"type": ["integer", "null"], "description": "Seconds."}
_CACHED = record(
    "*",
    hit=described({"type": "boolean"}, "The answer was kept from an earlier query."),
    age_s=described({"type": "number"}, "Seconds since that query began."),
    kept=described({"type": "boolean"}, "The answer is kept to be given again."),
    reason=described(TEXT, "Why it is not."),
)

SCHEMAS: Final[dict[str, Schema]] = {
    "StatementRequest": record(
        "statement",
        statement=described(WORD, "One SQL statement."),
        parameters=nullable(listed(ref("Parameter"))),
        parameter_rows=described(
            {**nullable(listed(listed(ref("Parameter")))), "minItems": 1},
            "One INSERT … VALUES with one row template; a row for each list.",
        ),
        catalog=nullable(WORD),
        schema=nullable(WORD),
        wait_timeout={"type": "string", "pattern": "^(0|[5-9]|[1-4][0-9]|50)s$", "default": "10s"},
        on_wait_timeout=choice(*OnWaitTimeout, default="CONTINUE"),
        row_limit={"type": ["integer", "null"], "minimum": 1},
        byte_limit={"type": ["integer", "null"], "minimum": 1},
        format=choice(*Format, default="JSON_ARRAY"),
        disposition=choice(*Disposition, default="INLINE"),
        warehouse_id=described(nullable(TEXT), "Ignored."),
        query_tags=described(
            nullable(listed({"type": "object"})),
            "Objects of key and value; the one of key request_id counts as request_id.",
        ),
        request_id=described(IDENTIFIER, "Idempotency key; becomes the statement_id."),
        session_id=described(IDENTIFIER, "The session the statement runs in."),
        consistency=described(choice(*Consistency), "How fresh a query must be; else configured."),
        acceptable_offset_lag=described(
            {"type": ["integer", "null"], "minimum": 0},
            "Records of the log that may lack in an answer of consistency bounded.",
        ),
        after_offset=described(
            {"type": ["integer", "null"], "minimum": 0},
            "So many records of the log the answer must show, unless consistency is any.",
        ),
        seen=described(
            {"type": ["object", "null"], "additionalProperties": COUNT},
            "after_offset of earlier answers, by cluster; counts on the other clusters.",
        ),
        operation_class=choice(*(c for c in OperationClass if c is not OperationClass.SESSION)),
        fanout=choice(*Fanout),
        write_concern=described(
            choice(*WriteConcern), "Which clusters must have applied a write before it is answered."
        ),
        apply_budget_s=described(
            {"type": "number", "exclusiveMinimum": 0, "maximum": BUDGET_MAX_S},
            "How long a write, or its query, may run on a cluster; then the ring takes it back.",
        ),
        cache=described(
            {"type": ["boolean", "null"]},
            "Whether an answer that is kept will do, and this one may be kept; else by the rules.",
        ),
        timeout_s={"type": "number", "exclusiveMinimum": 0, "maximum": TIMEOUT_MAX_S},
        age_s=described(
            {"type": "number", "minimum": 0, "maximum": AGE_MAX_S},
            "How long ago this request_id was first sent; 0 or absent for a first attempt.",
        ),
    ),
    "PeerQuery": record(
        "request_id statement user needed timeout_s",
        request_id=IDENTIFIER,
        statement=WORD,
        user=WORD,
        catalog=nullable(TEXT),
        schema=nullable(TEXT),
        operation_class={"type": ["string", "null"]},
        needed=described(COUNT, "Records of the log that must be applied before it runs."),
        timeout_s={"type": "number", "exclusiveMinimum": 0, "maximum": TIMEOUT_MAX_S},
    ),
    "Parameter": _PARAMETER,
    "Statement": record(
        "statement_id status",
        statement_id=TEXT,
        status=record("state", state=_STATE, error=ref("Error")),
        manifest=ref("Manifest"),
        result=ref("Result"),
        ha={"oneOf": [ref("Ha"), ref("Rejection")]},
    ),
    "Rejection": record(
        "*",
        cluster=TEXT,
        log_offset=OFFSET,
        final=described(
            _BOOLEAN, "No cluster applies it, now or later; false also where that is not known."
        ),
    ),
    "Manifest": record(
        "*",
        format=choice(*Format),
        schema=record("*", column_count=COUNT, columns=listed(ref("Column"))),
        total_chunk_count=COUNT,
        total_row_count=COUNT,
        total_byte_count=COUNT,
        truncated={"type": "boolean"},
        chunks=listed(record("*", **_CHUNK_FIELDS)),
    ),
    "Column": record(
        "name type_name type_text position nullable",
        name=TEXT,
        type_name=TEXT,
        type_text=TEXT,
        type_precision=COUNT,
        type_scale={"type": "integer"},
        type_interval_type=TEXT,
        position=COUNT,
        nullable={"type": "boolean"},
    ),
    "Result": {
        "oneOf": [
            record(
                "chunk_index row_offset row_count",
                **_CHUNK_FIELDS,
                data_array=listed(listed({"type": ["string", "null"]})),
                attachment=described(TEXT, "An Arrow stream in base64."),
                next_chunk_index=COUNT,
                next_chunk_internal_link=TEXT,
            ),
            record("external_links", external_links=listed(ref("Link"))),
        ]
    },
    "Link": record(
        "chunk_index row_offset row_count byte_count external_link expiration",
        **_CHUNK_FIELDS,
        external_link={"type": "string", "format": "uri"},
        expiration={"type": "string", "format": "date-time"},
        next_chunk_index=COUNT,
    ),
    "Ha": {
        **record(
            "*",
            cluster=TEXT,
            log_offset=OFFSET,
            outcomes={"type": "object", "additionalProperties": TEXT},
            affected_rows={"type": ["integer", "null"]},
            after_offset=OFFSET,
            optional={
                "cache": described(_CACHED, "Of a query for which the cache counts."),
                "concern_met": described(
                    _BOOLEAN, "Of a write, where it was asked: the clusters of `concern` have it."
                ),
            },
            **{"class": choice(*OperationClass)},
        )
    },
    "Error": record(
        "error_code message error_class sqlstate kind outcome hint cluster log_offset statement_id",
        msg=described(TEXT, "Below /batches alone, as Livy has it: message and hint."),
        error_code=TEXT,
        message=TEXT,
        error_class=described(TEXT, "Spark's, or HAProc's own (HAPROC_…)."),
        sqlstate=TEXT,
        kind=choice(*FailureKind),
        outcome=choice(*WriteOutcome),
        hint=described(TEXT, "What to do."),
        cluster=TEXT,
        log_offset=OFFSET,
        statement_id=described(
            {"type": ["string", "null"]}, "Where it is about a statement or rows."
        ),
    ),
    "Appended": record(
        "*", statement_id=TEXT, status=record("*", state={"const": "SUCCEEDED"}), ha=ref("Ha")
    ),
    "Archived": record("*", below=described(COUNT, "All below this offset is archived.")),
    "Latencies": record("*", offsets=listed(COUNT), latencies_ms=listed(COUNT)),
    "Opening": record(
        "",
        begin_with=described(listed(TEXT), "Run in order in a session that is new."),
        statements=described(
            listed(TEXT), "Run in order, after all that the session held is gone."
        ),
    ),
    "Session": record("*", catalog=TEXT, schema=TEXT, time_zone=TEXT, cluster=TEXT),
    "Nothing": record(""),
    "Health": record("*", status={"const": "ok"}),
    "Readiness": record(
        "*",
        state=TEXT,
        reason=TEXT,
        drained=described(_BOOLEAN, "An operator keeps clients away."),
    ),
    "ClusterStatus": {
        **record(
            "*",
            ring=TEXT,
            cluster=TEXT,
            undecided=described(
                {"type": ["object", "null"]},
                "Where clusters differ and nothing proves who is wrong: offset, cause, what.",
            ),
            state=TEXT,
            reason=TEXT,
            incarnation=TEXT,
            since={"type": "string", "format": "date-time"},
            log_end=OFFSET,
            cursor=OFFSET,
            lag=OFFSET,
            recovery=record(
                "*",
                applied=COUNT,
                remaining=COUNT,
                rate_per_s=NUMBER,
                seconds_left=NUMBER,
                replay_s=nullable(NUMBER),
                copy_s=nullable(NUMBER),
                copy_is_faster={"type": "boolean"},
            ),
            in_sync=described(listed(TEXT), "The clusters in sync, as this HAProc sees them."),
            high_watermark=described(COUNT, "Below it, all of them have applied everything."),
            transport=_TRANSPORT,
            clusters=listed(_CLUSTER),
        ),
        "additionalProperties": True,
        "description": "Once the log is open, with `members`, `trim`, `settings`, `sessions`.",
    },
    "ServerSettings": record(
        "*",
        cluster=TEXT,
        settings={
            "type": "object",
            "description": "By name; null: has no value. Empty: not read yet.",
            "additionalProperties": nullable(TEXT),
        },
    ),
    "Sessions": record(
        "*",
        total=COUNT,
        sessions=listed(
            record(
                "*",
                user=TEXT,
                session_id=TEXT,
                owner=described(TEXT, "The cluster whose HAProc has it."),
                owned_since_ms=COUNT,
                adoptions=described(COUNT, "How often it was taken over."),
                steps=described(COUNT, "Of its journal."),
                bytes=COUNT,
                files_bytes=COUNT,
                used_ms=nullable(described(COUNT, "The hour in which it was used.")),
            )
        ),
    ),
    "SessionToClose": record("*", user=TEXT, session_id=TEXT),
    "SessionClosed": record("*", user=TEXT, session_id=TEXT, closed={"const": True}),
    "Members": record("*", **_MEMBERS),
    "MembersChanged": record("*", cluster=TEXT, **_MEMBERS),
    "JoinRequest": record(
        "*",
        peer=described(WORD, "host:port of its HAProc's operator door."),
        client_url=described(WORD, "URL of its client door."),
    ),
    "LeaveRequest": record("*"),
    "Heartbeat": record(
        "*",
        **_SENDER,
        hears=described(listed(TEXT), "Whom the sender hears."),
        log_up=described(_BOOLEAN, "The log answered it a moment ago."),
    ),
    "LagReport": record(
        " ".join((*_SENDER, "since cursor log_end")),
        **_SENDER,
        since=IDENTIFIER,
        cursor=COUNT,
        log_end=COUNT,
        lag=described(COUNT, "Records that it lacks, if it has applied some above its cursor."),
    ),
    "ApplyRequest": record(
        "*",
        offset=COUNT,
        operation_id=TEXT,
        timeout_s={"type": "number", "exclusiveMinimum": 0, "maximum": TIMEOUT_MAX_S},
    ),
    "Queue": record(
        "*",
        cluster=TEXT,
        state=TEXT,
        reason=TEXT,
        cursor=COUNT,
        read_to=described(COUNT, "The log was read ahead up to here."),
        more={"type": "boolean"},
        operations=listed(
            record(
                "*",
                offset=COUNT,
                head={"type": "boolean"},
                kind=TEXT,
                reads=listed(TEXT),
                writes=listed(TEXT),
                origin=TEXT,
                age_s=_AGE,
                **{"class": TEXT},
                **_POSITION,
            )
        ),
    ),
    "QueuedOperation": record(
        "*",
        cluster=TEXT,
        offset=COUNT,
        operation={"type": "object", "description": "The record as it is in the log."},
        outcome={"type": ["object", "null"]},
        retry=_ADVICE,
        skip=_ADVICE,
        revoke=_ADVICE,
        unable=described(listed(TEXT), "Who has said that it does not apply it."),
        **_POSITION,
    ),
    "Canceled": record("became", became=_FATE, log_offset=COUNT, message=TEXT),
    "RetryRequest": record("*", cluster=described(TEXT, "Whose HAProc this is.")),
    "Retried": record("*", cluster=TEXT, offset=COUNT, done=TEXT),
    "SkipRequest": record(
        "*",
        cluster=described(TEXT, "Whose HAProc this is."),
        reason=described(TEXT, "Kept in the log."),
    ),
    "Skipped": record(
        "*",
        cluster=TEXT,
        offset=COUNT,
        recorded_at=COUNT,
        status=described(TEXT, "skipped; applied: it was committed after all; recorded: not yet."),
        state=TEXT,
        reason=TEXT,
    ),
    "RevokeRequest": record(
        "*",
        reason=described(TEXT, "Kept in the log, and told to who waits for the operation."),
        without=described(TEXT, "Members that are away and certainly did not apply it, by commas."),
    ),
    "Revoked": record("*", offset=COUNT, status=_FATE, text=TEXT),
    "DrainRequest": record(
        "cluster",
        cluster=described(TEXT, "Whose HAProc this is."),
        force=described(_BOOLEAN, "Even if no other cluster serves."),
    ),
    "UndrainRequest": record("*", cluster=described(TEXT, "Whose HAProc this is.")),
    "Drain": record(
        "*",
        cluster=TEXT,
        state=TEXT,
        reason=TEXT,
        drained=_BOOLEAN,
        under_way=described(COUNT, "Requests of clients."),
        unfetched=described(COUNT, "Kept results that clients are still fetching."),
    ),
    "PeerAnswer": {"type": "object", "description": "Between HAProcs of one version."},
}
