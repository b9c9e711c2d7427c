"""The exceptions of PEP 249, each with the server's facts about the failure.

The class follows from the failure's kind and its SQLSTATE, never from its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FailureKind(StrEnum):
    """The party that must act on a failed request."""

    APPLICATION = "application"
    """The statement is wrong; every cluster would give the same error."""
    AVAILABILITY = "availability"
    """No server could answer in time."""
    REFUSED = "refused"
    """The server refuses the request in this form; nothing was changed."""
    CLIENT = "client"
    """The client found the fault before anything was sent."""


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
    """One failed request, with all known facts."""

    kind: FailureKind
    message: str
    outcome: Outcome = Outcome.NOT_SENT
    error_class: str = ""
    sqlstate: str = ""
    hint: str = ""
    cluster: str = ""
    log_offset: int | None = None
    status: int | None = None
    """The HTTP status, if there was an answer."""
    retry_after_s: float = 0.0
    """The pause that the server asks for."""
    final: bool = False
    """Of a rejected write, after a server was asked: no cluster applies it, now or later."""


class Warning(Exception):
    """An important warning (PEP 249); never raised at present."""


class Error(Exception):
    """The base of all errors of this package.

    - ``kind``: the party that must act;
    - ``outcome``: the effect of a write;
    - ``hint``: the remedy;
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
    """The server failed without an explanation."""


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
    """Return the exception to raise for this failure."""
    if failure.kind is FailureKind.AVAILABILITY:
        return OperationalError(failure.message, failure, request_id)
    chosen = _BY_ERROR_CLASS.get(failure.error_class)
    chosen = chosen or _BY_SQLSTATE_CLASS.get(failure.sqlstate[:2])
    if chosen is None and failure.status is not None:
        chosen = _BY_STATUS.get(failure.status)
    if chosen is None:
        chosen = NotSupportedError if failure.kind is FailureKind.REFUSED else DatabaseError
    return chosen(failure.message, failure, request_id)
