"""A failed request: who must act on it, and what became of a write."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from haproc.spark_error import NO_DETAILS, Details

E = TypeVar("E", bound=Exception)


class ErrorClass(StrEnum):
    """HAProc's own error classes; docs/operations.md says what each of them asks for.

    Of those that Spark gives there is no list.
    """

    # What a statement must not be.
    EMPTY = "HAPROC_EMPTY"
    SYNTAX = "HAPROC_SYNTAX"
    MULTIPLE_STATEMENTS = "HAPROC_MULTIPLE_STATEMENTS"
    HIDDEN_STATEMENT = "HAPROC_HIDDEN_STATEMENT"
    UNCLASSIFIED = "HAPROC_UNCLASSIFIED"
    STATEMENT_TOO_COMPLEX = "HAPROC_STATEMENT_TOO_COMPLEX"
    REFUSED_BY_RULE = "HAPROC_REFUSED_BY_RULE"
    OVERRIDE_REFUSED = "HAPROC_OVERRIDE_REFUSED"
    NONDETERMINISTIC = "HAPROC_NONDETERMINISTIC"
    ANALYSIS_DIFFERS = "HAPROC_ANALYSIS_DIFFERS"
    VARIABLE = "HAPROC_VARIABLE"
    TIME_ZONE = "HAPROC_TIME_ZONE"
    PARAMETERS = "HAPROC_PARAMETERS"
    TABLE_NAME = "HAPROC_TABLE_NAME"
    PATH = "HAPROC_PATH"
    OPTION = "HAPROC_OPTION"
    RESERVED_OPTION = "HAPROC_RESERVED_OPTION"
    RESERVED_SETTING = "HAPROC_RESERVED_SETTING"
    TEMPORARY_VIEW = "HAPROC_TEMPORARY_VIEW"
    GLOBAL_TEMPORARY = "HAPROC_GLOBAL_TEMPORARY"
    CANNOT_MATERIALISE = "HAPROC_CANNOT_MATERIALISE"
    TOO_LARGE_TO_MATERIALISE = "HAPROC_TOO_LARGE_TO_MATERIALISE"
    ROWS_MISFIT = "HAPROC_ROWS_MISFIT"
    OPERATION_TOO_LARGE = "HAPROC_OPERATION_TOO_LARGE"

    # What a Spark Connect plan must not hold.
    PLAN_UNKNOWN = "HAPROC_PLAN_UNKNOWN"
    NESTED_WRITE = "HAPROC_NESTED_WRITE"
    STREAMING = "HAPROC_STREAMING"
    SOURCE = "HAPROC_SOURCE"
    JVM_CODE = "HAPROC_JVM_CODE"
    EXTERNAL_COMMAND = "HAPROC_EXTERNAL_COMMAND"
    PIPELINE = "HAPROC_PIPELINE"
    MODEL_FILES = "HAPROC_MODEL_FILES"
    CHECKPOINT = "HAPROC_CHECKPOINT"
    RESOURCE_PROFILE = "HAPROC_RESOURCE_PROFILE"

    # What became of a write.
    REQUEST_ID_REUSED = "HAPROC_REQUEST_ID_REUSED"
    RETRY_TOO_LATE = "HAPROC_RETRY_TOO_LATE"
    REDEFINED = "HAPROC_REDEFINED"
    REJECTED = "HAPROC_REJECTED"
    GIVEN_UP = "HAPROC_GIVEN_UP"
    REVOKED = "HAPROC_REVOKED"
    NO_ROWS = "HAPROC_NO_ROWS"
    SESSION_GONE = "HAPROC_SESSION_GONE"
    ROWS_GONE = "HAPROC_ROWS_GONE"
    SKIPPED = "HAPROC_SKIPPED"
    TIMEOUT = "HAPROC_TIMEOUT"
    TOO_FEW_IN_SYNC = "HAPROC_TOO_FEW_IN_SYNC"
    WRITE_CONCERN = "HAPROC_WRITE_CONCERN"

    # Sessions, and queries for peers.
    SESSION_REQUIRED = "HAPROC_SESSION_REQUIRED"
    SESSION_UNKNOWN = "HAPROC_SESSION_UNKNOWN"
    SESSION_HAS_SCHEMA = "HAPROC_SESSION_HAS_SCHEMA"
    NOT_A_SESSION_STATEMENT = "HAPROC_NOT_A_SESSION_STATEMENT"
    TOO_MANY_SESSIONS = "HAPROC_TOO_MANY_SESSIONS"
    SESSION_CLOSED = "HAPROC_SESSION_CLOSED"
    SESSION_EXISTS = "HAPROC_SESSION_EXISTS"
    SESSION_MOVED = "HAPROC_SESSION_MOVED"
    SESSION_VERSION = "HAPROC_SESSION_VERSION"
    SESSION_NOT_REBUILT = "HAPROC_SESSION_NOT_REBUILT"
    SESSION_TOO_LARGE = "HAPROC_SESSION_TOO_LARGE"
    HANDLE_LOST = "HAPROC_HANDLE_LOST"
    NO_QUERY = "HAPROC_NO_QUERY"
    NOT_FRESH = "HAPROC_NOT_FRESH"

    # Jobs.
    JOBS_OFF = "HAPROC_JOBS_OFF"
    JOB_UNKNOWN = "HAPROC_JOB_UNKNOWN"
    JOB_FIELD = "HAPROC_JOB_FIELD"
    JOB_FILE = "HAPROC_JOB_FILE"
    JOB_MASTER = "HAPROC_JOB_MASTER"
    JOB_FENCED = "HAPROC_JOB_FENCED"
    JOB_VERSION = "HAPROC_JOB_VERSION"

    # Requests, at whatever door.
    BAD_REQUEST = "HAPROC_BAD_REQUEST"
    UNAUTHENTICATED = "HAPROC_UNAUTHENTICATED"
    NOT_FOUND = "HAPROC_NOT_FOUND"
    METHOD_NOT_ALLOWED = "HAPROC_METHOD_NOT_ALLOWED"
    CONTENT_TYPE = "HAPROC_CONTENT_TYPE"
    EXPECTATION = "HAPROC_EXPECTATION"
    BODY_TIMEOUT = "HAPROC_BODY_TIMEOUT"
    TOO_LARGE = "HAPROC_TOO_LARGE"
    STATEMENT_UNKNOWN = "HAPROC_STATEMENT_UNKNOWN"
    OFFSET_UNKNOWN = "HAPROC_OFFSET_UNKNOWN"
    NOT_NOW = "HAPROC_NOT_NOW"
    CANCELED = "HAPROC_CANCELED"
    RESULT_TOO_LARGE = "HAPROC_RESULT_TOO_LARGE"
    RESULT_TYPE = "HAPROC_RESULT_TYPE"
    RESULTS_FULL = "HAPROC_RESULTS_FULL"
    RESULT_CHANGED = "HAPROC_RESULT_CHANGED"
    RESULT_LOST = "HAPROC_RESULT_LOST"
    BUSY = "HAPROC_BUSY"
    STOPPING = "HAPROC_STOPPING"
    INTERNAL = "HAPROC_INTERNAL"

    # The log, Spark, storage.
    LOG_UNAVAILABLE = "HAPROC_LOG_UNAVAILABLE"
    STORAGE_AWAY = "HAPROC_STORAGE_AWAY"
    PLUGIN_MISSING = "HAPROC_PLUGIN_MISSING"
    CORES_HELD = "HAPROC_CORES_HELD"
    AVAILABILITY = "HAPROC_AVAILABILITY"
    ENVIRONMENT = "HAPROC_ENVIRONMENT"
    UNKNOWN_ERROR = "HAPROC_UNKNOWN_ERROR"

    # The cluster's state, where that is why.
    STOPPED = "HAPROC_STOPPED"
    FENCED = "HAPROC_FENCED"
    REMOVED = "HAPROC_REMOVED"
    TOO_FAR_BEHIND = "HAPROC_TOO_FAR_BEHIND"
    DIVERGED = "HAPROC_DIVERGED"
    STUCK = "HAPROC_STUCK"
    DRAINING = "HAPROC_DRAINING"
    STARTING = "HAPROC_STARTING"
    DOWN = "HAPROC_DOWN"
    ISOLATED = "HAPROC_ISOLATED"
    RECOVERING = "HAPROC_RECOVERING"
    READ_ONLY = "HAPROC_READ_ONLY"
    READY = "HAPROC_READY"


class FailureKind(StrEnum):
    """Who must act on a failed request."""

    APPLICATION = "application"
    """The statement is wrong; every cluster would say the same."""
    AVAILABILITY = "availability"
    """This HAProc cannot answer now; the next one may, with the same request id."""
    REFUSED = "refused"
    """HAProc will not run this request as it stands; it has changed nothing by itself."""


class WriteOutcome(StrEnum):
    """What became of a failed write."""

    NOT_SENT = "NOT_SENT"
    """It is in no log and on no cluster."""
    REJECTED = "REJECTED"
    """It has no effect on any cluster, now or later."""
    UNKNOWN = "UNKNOWN"
    """It may have been or may yet be applied; asking again with the same request id tells."""


class RequestError(Exception):
    """A request failed; carries everything that the client is told."""

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        error_class: str,
        sqlstate: str = "",
        outcome: WriteOutcome = WriteOutcome.NOT_SENT,
        hint: str = "",
        offset: int | None = None,
        details: Details = NO_DETAILS,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.error_class = error_class
        self.sqlstate = sqlstate
        self.outcome = outcome
        self.hint = hint
        self.offset = offset
        self.details = details

    def __reduce__(self) -> tuple[object, tuple[object, ...], dict[str, object]]:
        """Exceptions are copied between processes by what made them."""
        return _remade, (self.kind, self.message, self.error_class), dict(self.__dict__)


def without_frames(error: E) -> E:
    """Return a copy of an error to be kept: the frames that it came through hold statements."""
    kept = type(error).__new__(type(error), *error.args)
    kept.__dict__.update(error.__dict__)
    return kept


def refused(error_class: str, message: str, hint: str = "") -> RequestError:
    """Return the error of a request that HAProc will not run; nothing was changed."""
    return RequestError(FailureKind.REFUSED, message, error_class=error_class, hint=hint)


def busy(message: str) -> RequestError:
    """Return the error of a request that came while too many were under way."""
    return RequestError(
        FailureKind.AVAILABILITY,
        message,
        error_class=ErrorClass.BUSY,
        hint="try the next HAProc, or again a little later, with the same request id",
    )


def _remade(kind: FailureKind, message: str, error_class: str) -> RequestError:
    return RequestError(kind, message, error_class=error_class)


def message_of(error: Exception) -> str:
    """Return what an error says; a deadline that has passed says nothing by itself."""
    return str(error) or "no answer in time"


def log_unavailable(
    what: str, error: Exception, hint: str, outcome: WriteOutcome = WriteOutcome.UNKNOWN
) -> RequestError:
    """Return the error of a request for which the log did not do something; ``what`` says it."""
    return RequestError(
        FailureKind.AVAILABILITY,
        f"{what}: {message_of(error)}",
        error_class=ErrorClass.LOG_UNAVAILABLE,
        outcome=outcome,
        hint=hint,
    )


def log_away(error: Exception) -> str:
    """Return what is told of a HAProc while its log is away."""
    return f"the log cannot be reached: {message_of(error)}"


def let_go(error: BaseException | None) -> None:
    """Have an error that was told hold nothing any more.

    The frames that it came through hold the request, up to 64 MiB, and some of them the error: a
    cycle, and the collector of cycles comes seldom.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # one that was raised from itself
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
