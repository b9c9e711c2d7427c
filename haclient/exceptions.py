"""The exceptions of PEP 249, each with what the server states about the failure.

The class of the exception follows from the failure's kind and its SQLSTATE, never from its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FailureKind(StrEnum):
    """The kind of a failure; it shows who must act."""

    APPLICATION = "application"
    """The statement is wrong; every cluster would give the same error."""
    AVAILABILITY = "availability"
    """No server could answer in time."""
    REFUSED = "refused"
    """The server does not accept the request in this form; nothing was changed."""
    CLIENT = "client"
    """The client itself found the fault, before it sent anything."""


class Outcome(StrEnum):
    """The effect of a failed write."""

    NOT_SENT = "NOT_SENT"
    """It is in no log and on no cluster."""
    REJECTED = "REJECTED"
    """It has no effect on any cluster, now or later."""
    UNKNOWN = "UNKNOWN"
    """It may have been applied, or may be applied later; repeating its request id shows it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What is known of one failed request."""

    kind: FailureKind
    message: str
    outcome: Outcome = Outcome.NOT_SENT
    error_class: str = ""
    sqlstate: str = ""
    hint: str = ""
    cluster: str = ""
    log_offset: int | None = None
    status: int | None = None
    """The HTTP status of the answer; None if there was no answer."""
    retry_after_s: float = 0.0
    """The pause that the server asks for before the next attempt; 0 for none."""
    final: bool = False
    """True if a server stated that this rejected write is applied on no cluster, now or later."""


class Warning(Exception):
    """A warning, as PEP 249 defines it; this package never raises it."""


class Error(Exception):
    """The base of all errors of this package.

    - ``kind``: who must act (`FailureKind`);
    - ``outcome``: the effect of a write (`Outcome`);
    - ``hint``: what to do;
    - ``request_id``: the request's id; ``execute`` with this id again returns the outcome;
    - ``cluster``: the cluster that answered
    """

    def __init__(
        self, message: str = "", failure: Failure | None = None, request_id: str = ""
    ) -> None:
        super().__init__(message, failure, request_id)
        failure = failure or Failure(FailureKind.CLIENT, message)
        self.failure = failure
        self.message = message
        self.kind = failure.kind
        self.outcome = failure.outcome
        self.error_class = failure.error_class
        self.sqlstate = failure.sqlstate
        self.hint = failure.hint
        self.cluster = failure.cluster
        self.request_id = request_id

    def __str__(self) -> str:
        name = f"[{self.error_class}] " if self.error_class not in self.message else ""
        state = f" (SQLSTATE {self.sqlstate})" if self.sqlstate not in self.message else ""
        hint = f"\nHint: {self.hint}" if self.hint else ""
        return f"{name}{self.message}{state}{hint}"


class InterfaceError(Error):
    """The client was used wrongly: a closed cursor, an unknown option."""


class DatabaseError(Error):
    """An error that the server reported."""


class DataError(DatabaseError):
    """A value does not fit: out of range, not convertible, too large."""


class OperationalError(DatabaseError):
    """Not the statement's fault: no server available, deadline passed, cancelled, not allowed."""


class IntegrityError(DatabaseError):
    """A constraint of the table was violated."""


class InternalError(DatabaseError):
    """The server failed and gave no explanation."""


class ProgrammingError(DatabaseError):
    """The statement is wrong: syntax, unknown table, wrong parameters."""


class NotSupportedError(DatabaseError):
    """The server refuses this, such as a statement with different results on different clusters."""


# The first two characters of a SQLSTATE name its class.
_BY_SQLSTATE_CLASS: dict[str, type[DatabaseError]] = {
    "07": ProgrammingError,
    "08": OperationalError,
    "0A": NotSupportedError,
    "21": ProgrammingError,
    "22": DataError,
    "23": IntegrityError,
    "28": OperationalError,
    "40": OperationalError,
    "42": ProgrammingError,
    "44": IntegrityError,
    "53": OperationalError,
    "54": ProgrammingError,
    "57": OperationalError,
    "58": OperationalError,
    "XX": InternalError,
}
# HAProc's own classes have no SQLSTATE.
_BY_ERROR_CLASS: dict[str, type[DatabaseError]] = {"HAPROC_CANCELED": OperationalError}
_BY_STATUS: dict[int, type[DatabaseError]] = {
    401: OperationalError,
    404: OperationalError,
    409: ProgrammingError,
    413: DataError,
    500: InternalError,
}


def error_from(failure: Failure, request_id: str = "") -> DatabaseError:
    """Return the exception to raise for a failure, of the class that PEP 249 asks for."""
    if failure.kind is FailureKind.AVAILABILITY:
        return OperationalError(failure.message, failure, request_id)
    chosen = _BY_ERROR_CLASS.get(failure.error_class)
    chosen = chosen or _BY_SQLSTATE_CLASS.get(failure.sqlstate[:2])
    if chosen is None and failure.status is not None:
        chosen = _BY_STATUS.get(failure.status)
    if chosen is None:
        chosen = NotSupportedError if failure.kind is FailureKind.REFUSED else DatabaseError
    return chosen(failure.message, failure, request_id)
