"""Operations as clients name them, and what is said of those that are not as they think.

The words and classes are those of Spark 4.2.1, which its clients know: a PySpark that hears
OPERATION_NOT_FOUND before it got anything sends its plan again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from haproc.doors.connect.errors import invalid_handle
from haproc.failure import ErrorClass, FailureKind, RequestError


@dataclass(frozen=True, slots=True)
class Key:
    """Which operation: ids are those of one user, in one session."""

    user: str
    session_id: str
    operation_id: str


class OperationState(IntEnum):
    """GetStatusResponse.OperationStatus.OperationState."""

    UNKNOWN = 1
    RUNNING = 2
    TERMINATING = 3
    """Ended, and not released by its client yet."""
    SUCCEEDED = 4
    FAILED = 5
    CANCELLED = 6


def not_found(operation_id: str) -> RequestError:
    """Return the error of one that is not here, or was released."""
    return _handle("NOT_FOUND", operation_id, "Operation not found.")


def already_exists(operation_id: str) -> RequestError:
    """Return the error of another plan under an id that is in use."""
    return _handle("ALREADY_EXISTS", operation_id, "Operation already exists.")


def abandoned(operation_id: str) -> RequestError:
    """Return the error of a plan under an id whose operation ended, or was given up."""
    return _handle(
        "ABANDONED",
        operation_id,
        "Operation was considered abandoned because of inactivity and removed.",
    )


def disconnected() -> RequestError:
    """Return what ends a stream when another one takes over, or the operation is released."""
    return _cursor("DISCONNECTED", "The cursor has been disconnected by the server.")


def not_reattachable() -> RequestError:
    """Return the error of a stream that its client did not ask to outlive its connection."""
    return _cursor("NOT_REATTACHABLE", "The cursor is not reattachable.")


def position_not_found(response_id: str) -> RequestError:
    """Return the error of an id that no response of the operation has."""
    shown = response_id if len(response_id) <= 64 else response_id[:64] + "…"
    return _cursor("POSITION_NOT_FOUND", f"The cursor position id {shown} is not found.")


def not_available(index: int) -> RequestError:
    """Return the error of a place whose responses were released."""
    return _cursor(
        "POSITION_NOT_AVAILABLE", f"The cursor position is no longer available at index {index}."
    )


def canceled() -> RequestError:
    """Return what an interrupted operation ends with."""
    return _error("OPERATION_CANCELED", "Operation has been canceled.", "HY008")


def lost(why: str) -> RequestError:
    """Return the error of a result that broke off where nobody can go on with it."""
    return RequestError(
        FailureKind.REFUSED,
        f"the result broke off, and cannot be gone on with: {why}",
        error_class=ErrorClass.RESULT_LOST,
        sqlstate="40000",
        hint="run the query again",
    )


def _handle(name: str, operation_id: str, what: str) -> RequestError:
    message = f"The handle {operation_id} is invalid. {what}"
    return invalid_handle(f"OPERATION_{name}", message)


def _cursor(name: str, what: str) -> RequestError:
    return _error(f"INVALID_CURSOR.{name}", f"The cursor is invalid. {what}", "HY109")


def _error(error_class: str, message: str, sqlstate: str) -> RequestError:
    return RequestError(FailureKind.REFUSED, message, error_class=error_class, sqlstate=sqlstate)
