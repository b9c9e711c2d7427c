"""Parameters of the OpenAPI document: those of paths, queries and headers, by name."""

from __future__ import annotations

from typing import Any, Final

from haproc.classify.model import WriteConcern
from haproc.config.model import Consistency
from haproc.doors.http.fields import AGE_MAX_S, ID_PATTERN
from haproc.doors.operators.queue import PAGE_DEFAULT, PAGE_MAX
from haproc.replicate.archive.pages import ROWS_MAX
from haproc.statements.request import TIMEOUT_MAX_S

PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "statement_id": {"type": "string", "pattern": f"^{ID_PATTERN}$"},
    "session_id": {"type": "string", "pattern": f"^{ID_PATTERN}$"},
    "chunk_index": {"type": "integer", "minimum": 0},
    "offset": {"type": "integer", "minimum": 0},
    "secret": {"type": "string"},
    "batch_id": {"type": "integer", "minimum": 0},
    "from": {"type": "integer", "minimum": 0},
    "size": {"type": "integer", "minimum": 0, "default": 100},
    "table": {"type": "string", "description": "[catalog.][schema.]name"},
    "timeout_s": {"type": "number", "exclusiveMinimum": 0, "maximum": TIMEOUT_MAX_S},
    "age_s": {"type": "number", "minimum": 0, "maximum": AGE_MAX_S},
    "request_id": {"type": "string", "pattern": f"^{ID_PATTERN}$"},
    "catalog": {"type": "string", "minLength": 1},
    "schema": {"type": "string", "minLength": 1},
    "write_concern": {"type": "string", "enum": list(WriteConcern)},
    "concern": {
        "type": "string",
        "enum": [*WriteConcern, "default"],
        "description": "tell whether a write has met this write concern",
    },
    "columns": {"type": "string", "minLength": 1, "description": "a line of CSV, or *"},
    "delimiter": {"type": "string", "minLength": 1, "maxLength": 1, "default": ","},
    "null": {"type": "string", "default": ""},
    "time_zone": {"type": "string", "minLength": 1},
    "first_line": {"type": "integer", "minimum": 0, "default": 1},
    "HAProc-Consistency": {"type": "string", "enum": list(Consistency)},
    "HAProc-Acceptable-Offset-Lag": {"type": "integer", "minimum": 0},
    "HAProc-After-Offset": {"type": "integer", "minimum": 0},
    "HAProc-Cache": {"type": "boolean"},
    "Idempotency-Key": {"type": "string", "pattern": f'^"?{ID_PATTERN}"?$'},
    "HAProc-Write-Concern": {"type": "string", "enum": list(WriteConcern)},
    "start": {"type": "integer", "minimum": 0, "default": 0},
    "rows": {"type": "integer", "minimum": 1, "maximum": ROWS_MAX, "default": ROWS_MAX},
    "end": {"type": "integer", "minimum": 0},
    "limit": {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT},
}
