"""The schemas of Livy's batches, for `haproc.doors.openapi`."""

from __future__ import annotations

from typing import Any, Final

from haproc.doors.openapi_schemas import ref
from haproc.jobs.model import BatchState, Outcome
from haproc.jobs.request import FIELDS

_TEXTS: Final = {"type": ["array", "null"], "items": {"type": "string"}}
_LISTS: Final = ("args", "pyFiles", "files", "jars", "archives")
_NUMBERS: Final = (
    *("driverCores", "executorCores", "numExecutors"),
    "heartbeatTimeoutInSecond",
)
_TIME: Final = {"type": ["integer", "null"], "description": "milliseconds since 1970"}
_STATE: Final = {"type": "string", "enum": list(BatchState)}


def _field(name: str) -> dict[str, Any]:
    if name in _LISTS:
        return _TEXTS
    if name == "conf":
        return {"type": ["object", "null"]}
    return {"type": ["integer" if name in _NUMBERS else "string", "null"]}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_OURS: Final = _object(
    {
        "request_id": {"type": "string"},
        "program": {"type": "string"},
        "cluster": {"type": "string"},
        "attempts": {"type": "integer", "minimum": 0},
        "restarts_left": {"type": "integer", "minimum": 0},
        "submitted_ms": _TIME,
        "started_ms": _TIME,
        "ended_ms": _TIME,
        "outcome": {"enum": [*Outcome, None]},
        "exit_code": {"type": ["integer", "null"]},
        "why": {"type": ["string", "null"]},
    }
)
_BATCH: Final = _object(
    {
        "id": {"type": "integer"},
        "name": {"type": ["string", "null"]},
        "owner": {"type": "string"},
        "proxyUser": {"type": ["string", "null"]},
        "state": _STATE,
        "appId": {"type": ["string", "null"]},
        "appInfo": {"type": "object"},
        "log": {"type": "array", "items": {"type": "string"}},
        "haproc": _OURS,
    }
)
_COUNT: Final = {"type": "integer", "minimum": 0}

JOB_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "BatchRequest": {
        "type": "object",
        "properties": {name: _field(name) for name in FIELDS},
        "additionalProperties": False,
    },
    "Batch": _BATCH,
    "Batches": _object(
        {
            "from": _COUNT,
            "total": _COUNT,
            "sessions": {"type": "array", "items": ref("Batch")},
        }
    ),
    "BatchState": _object({"id": {"type": "integer"}, "state": _STATE}),
    "BatchLog": _object(
        {
            "id": {"type": "integer"},
            "from": _COUNT,
            "total": _COUNT,
            "log": {"type": "array", "items": {"type": "string"}},
        }
    ),
    "BatchDeleted": _object({"msg": {"type": "string"}}),
}
