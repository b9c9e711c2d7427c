"""Failures and operations as Spark Connect's clients see them: gRPC codes, names, refusals."""

from __future__ import annotations

import copy
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from google.protobuf import duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from haproc import protos
from haproc.engine.errors import RelayedError, session_lost
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome
from haproc.spark_error import Context

# Failures as Spark Connect's clients see them: a gRPC code and a google.rpc.Status.
#
# Unmodified clients repeat UNAVAILABLE and every error with a RetryInfo, for ten minutes or more,
# with the same operation id. So only an availability error that a retry may solve gets these. A
# client chooses its exception by the Java classes in an ErrorInfo. Spark's errors have their own
# classes there; other errors get those that Spark would have used.


DETAILS: Final = "grpc-status-details-bin"
_MESSAGE_BYTES_MAX: Final = 2048
"""As in Spark: clients accept 8 KiB of metadata, which contain a message twice."""
ENRICHED_MAX: Final = 500
"""Errors with more details than fit into their status; clients fetch them at once. At most 24 KiB
each, mostly less than one."""
_CODE_OF_CLASS: Final[Mapping[str, str]] = {
    ErrorClass.UNAUTHENTICATED: "UNAUTHENTICATED",
    ErrorClass.FORBIDDEN: "PERMISSION_DENIED",
    ErrorClass.TIMEOUT: "DEADLINE_EXCEEDED",
    ErrorClass.INTERNAL: "INTERNAL",
    ErrorClass.UNKNOWN_ERROR: "INTERNAL",
    ErrorClass.RETRY_TOO_LATE: "ABORTED",
    ErrorClass.RESULT_CHANGED: "ABORTED",
    ErrorClass.RESULT_LOST: "ABORTED",
}
"""Classes of errors that the same request would meet again."""
_CODE_OF_KIND: Final = {
    FailureKind.REFUSED: "INVALID_ARGUMENT",
    FailureKind.APPLICATION: "INTERNAL",
    FailureKind.AVAILABILITY: "UNAVAILABLE",
}
_SPARK_CLASS: Final[Mapping[str, str]] = {
    ErrorClass.SESSION_CLOSED: "INVALID_HANDLE.SESSION_CLOSED",
}
"""Spark's names, which its clients know, for errors that Spark has, too."""
DRAINING_RETRY_S: Final = 0.7
_RETRY_AFTER_S: Final[Mapping[str, float]] = {
    ErrorClass.BUSY: 1.0,
    ErrorClass.NOT_FRESH: 1.0,
    ErrorClass.DRAINING: DRAINING_RETRY_S,
}
_JAVA: Final = "java.lang.Object", "java.lang.Throwable", "java.lang.Exception"
_ANALYSIS: Final = ("org.apache.spark.sql.AnalysisException",)
_PARSE: Final = ("org.apache.spark.sql.catalyst.parser.ParseException", *_ANALYSIS)
_CLASSES_OF_OURS: Final[Mapping[str, tuple[str, ...]]] = {
    # Statements that Spark's parser would refuse, then those that its analyzer would refuse.
    **dict.fromkeys(
        (
            ErrorClass.SYNTAX,
            ErrorClass.UNCLASSIFIED,
            ErrorClass.EMPTY,
            ErrorClass.MULTIPLE_STATEMENTS,
            ErrorClass.HIDDEN_STATEMENT,
        ),
        _PARSE,
    ),
    **dict.fromkeys(
        (
            ErrorClass.JVM_CODE,
            ErrorClass.RESERVED_SETTING,
            ErrorClass.ROWS_MISFIT,
            ErrorClass.PARAMETERS,
            ErrorClass.TABLE_NAME,
            ErrorClass.VARIABLE,
        ),
        _ANALYSIS,
    ),
}
"""Spark's classes for statements that HAProc refuses: a program catches them by the same class."""
_PARAMETERS_BYTES_MAX: Final = 1024
"""The limit of an ErrorInfo's parameters, as in Spark; a client fetches longer ones."""
_UNSUPPORTED: Final = (
    "org.apache.spark.SparkUnsupportedOperationException",
    "java.lang.UnsupportedOperationException",
)
_CLASSES_OF_SQLSTATE: Final = (
    ("42601", _PARSE),
    ("42", _ANALYSIS),
    ("0A", _UNSUPPORTED),
    ("22012", ("org.apache.spark.SparkArithmeticException", "java.lang.ArithmeticException")),
    ("22003", ("org.apache.spark.SparkArithmeticException", "java.lang.ArithmeticException")),
    ("22018", ("org.apache.spark.SparkNumberFormatException", "java.lang.NumberFormatException")),
    ("22007", ("org.apache.spark.SparkDateTimeException", "java.time.DateTimeException")),
    ("22", ("org.apache.spark.SparkRuntimeException", "java.lang.RuntimeException")),
    ("HY", ("org.apache.spark.SparkSQLException", "java.sql.SQLException")),
    ("23", ("org.apache.spark.SparkRuntimeException", "java.lang.RuntimeException")),
)
_SPARK: Final = ("org.apache.spark.SparkException",)


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of a call; ``packed`` is a serialized google.rpc.Status, sent as `DETAILS`."""

    code: str
    message: str
    packed: bytes
    enriched: bytes = b""
    """A FetchErrorDetailsResponse, for clients that ask for details; empty: there are none."""


def as_given(error: RelayedError) -> CallEnd | None:
    """Return Spark's own error for a statement; None if it is not for the client.

    It is not for the client if it is about a session that the client does not know, if HAProc's
    plugin raised it, or if Spark sent no status.
    """
    is_ours = error.error_class.startswith("HAPROC_")
    if not error.packed or session_lost(error.error_class) or is_ours:
        return None
    return CallEnd(error.code, error.status_message, error.packed)


def call_end(
    error: RequestError, *, own_id: bool = True, error_id: str = "", to_java: bool = False
) -> CallEnd:
    """Return the end of a call that failed.

    - ``own_id``: False if the client did not choose the operation's id. Then the client must not
      repeat a call whose outcome is unknown.
    - ``error_id``: the id by which the client may fetch details that do not fit into a status.
    - ``to_java``: True for Spark's client for the JVM. It looks up each class in Spark's own list,
      and shows nothing else of an error with an unknown class. So for HAProc's errors it gets only
      the message, which begins with the class.
    """
    error = _as_spark_names(error)
    code = _CODE_OF_CLASS.get(error.error_class, _CODE_OF_KIND[error.kind])
    if code == "INVALID_ARGUMENT" and not _is_ours(error):
        code = "INTERNAL"
    if code == "UNAVAILABLE" and error.outcome is WriteOutcome.UNKNOWN and not own_id:
        code = "ABORTED"
    message = _message(error)
    status = status_pb2.Status(code=code_pb2.Code.Value(code), message=message)
    classes = (*_classes(error), *reversed(_JAVA))
    parameters = dict(error.details.parameters)
    if error.hint:
        parameters |= {"hint": error.hint, "outcome": error.outcome.value}
    parameters_json = json.dumps(parameters)
    named = {
        "errorClass": error.error_class,
        "messageParameters": parameters_json
        if len(parameters_json) <= _PARAMETERS_BYTES_MAX
        else "{}",
    }
    enriched = _enriched(error, message, classes, parameters) if error_id and error.details else b""
    info = error_details_pb2.ErrorInfo(
        reason=classes[0],
        domain="org.apache.spark" if classes[0].startswith("org.apache.spark") else "haproc",
        metadata={
            "classes": json.dumps(classes),
            **({} if to_java and _is_ours(error) else named),
            "sqlState": error.sqlstate,
            "outcome": error.outcome.value,
            **({"errorId": error_id} if enriched else {}),
        },
    )
    status.details.add().Pack(info)
    if code == "UNAVAILABLE" and (after_s := _RETRY_AFTER_S.get(error.error_class)):
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(1000 * after_s))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return CallEnd(code, message, status.SerializeToString(), enriched)


def _enriched(
    error: RequestError, message: str, classes: Sequence[str], parameters: Mapping[str, str]
) -> bytes:
    """Return the parts of an error that clients show beside its status."""
    response = protos.base.FetchErrorDetailsResponse(root_error_idx=0)
    root = response.errors.add(message=message, error_type_hierarchy=classes)
    throwable = root.spark_throwable
    throwable.error_class = error.error_class
    if error.sqlstate:
        throwable.sql_state = error.sqlstate
    throwable.message_parameters.update(parameters)
    throwable.query_contexts.extend(map(_context, error.details.contexts))
    return bytes(response.SerializeToString())


def _context(context: Context) -> Any:
    kinds = protos.base.FetchErrorDetailsResponse.QueryContext
    return kinds(
        context_type=kinds.DATAFRAME if context.of_frame else kinds.SQL,
        object_type=context.object_type,
        object_name=context.object_name,
        start_index=context.start,
        stop_index=context.stop,
        fragment=context.fragment,
        call_site=context.call_site,
        summary=context.summary,
    )


def invalid_handle(condition: str, text: str) -> RequestError:
    """Return an error of class INVALID_HANDLE as Spark makes it; clients check its name."""
    return RequestError(
        FailureKind.REFUSED, text, error_class=f"INVALID_HANDLE.{condition}", sqlstate="HY000"
    )


def _as_spark_names(error: RequestError) -> RequestError:
    name = _SPARK_CLASS.get(error.error_class)
    if name is None:
        return error
    named = copy.copy(error)
    named.error_class, named.sqlstate = name, "HY000"
    return named


def _is_ours(error: RequestError) -> bool:
    """True if the error's class is HAProc's, not Spark's."""
    return error.error_class.startswith("HAPROC_")


def _message(error: RequestError) -> str:
    prefix = f"[{error.error_class}] "
    text = error.message if error.message.lstrip().startswith(prefix) else prefix + error.message
    if error.hint:
        text += f"; {error.hint}"
    if error.sqlstate and "SQLSTATE" not in text:
        text += f" SQLSTATE: {error.sqlstate}"
    return text if _size(text) <= _MESSAGE_BYTES_MAX else f"{_cut(text)}..."


def _cut(text: str) -> str:
    size = 0
    for at, character in enumerate(text):
        size += _size(character)
        if size > _MESSAGE_BYTES_MAX:
            return text[:at]
    return text


def _size(text: str) -> int:
    """Return the length of a status message as gRPC sends it: percent-encoded."""
    data = text.encode("utf-8", "replace")
    plain = sum(1 for byte in data if 0x20 <= byte < 0x7F)
    return 3 * len(data) - 2 * plain


def _classes(error: RequestError) -> tuple[str, ...]:
    if error.details.java_classes:
        return tuple(name for name in error.details.java_classes if name not in _JAVA)
    if error.error_class in _CLASSES_OF_OURS:
        return _CLASSES_OF_OURS[error.error_class]
    if error.kind is FailureKind.REFUSED and _is_ours(error):
        return _UNSUPPORTED
    for prefix, classes in _CLASSES_OF_SQLSTATE:
        if error.sqlstate.startswith(prefix):
            return classes
    return _SPARK


class Enriched:
    """The details of the newest errors for clients, by ids of errors."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    def keep(self, error_id: str, details: bytes) -> None:
        """Keep an error's details; the oldest ones are dropped."""
        self._kept[error_id] = details
        while len(self._kept) > ENRICHED_MAX:
            self._kept.popitem(last=False)

    def find(self, error_id: str) -> bytes | None:
        """Return the kept details; None for an unknown or dropped id."""
        return self._kept.get(error_id)


# Operations as clients name them, and the errors of operations in an unexpected state.
#
# The messages and classes are those of Spark 4.2.1, which its clients know: a PySpark that gets
# OPERATION_NOT_FOUND before any response sends its plan again.


@dataclass(frozen=True, slots=True)
class Key:
    """The key of an operation: ids are those of one user, in one session."""

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
    """Return the error of an operation that is not here, or was released."""
    return _handle("NOT_FOUND", operation_id, "Operation not found.")


def already_exists(operation_id: str) -> RequestError:
    """Return the error of another plan under an id that is in use."""
    return _handle("ALREADY_EXISTS", operation_id, "Operation already exists.")


def abandoned(operation_id: str) -> RequestError:
    """Return the error of a plan under the id of an operation that ended, or was given up."""
    return _handle(
        "ABANDONED",
        operation_id,
        "Operation was considered abandoned because of inactivity and removed.",
    )


def disconnected() -> RequestError:
    """Return the error of a stream that another one or a release of its operation has ended."""
    return _cursor("DISCONNECTED", "The cursor has been disconnected by the server.")


def not_reattachable() -> RequestError:
    """Return the error of a stream that its client did not make reattachable."""
    return _cursor("NOT_REATTACHABLE", "The cursor is not reattachable.")


def position_not_found(response_id: str) -> RequestError:
    """Return the error of an id that no response of the operation has."""
    shown = response_id if len(response_id) <= 64 else response_id[:64] + "…"
    return _cursor("POSITION_NOT_FOUND", f"The cursor position id {shown} is not found.")


def not_available(index: int) -> RequestError:
    """Return the error of an index before the first kept response."""
    return _cursor(
        "POSITION_NOT_AVAILABLE", f"The cursor position is no longer available at index {index}."
    )


def canceled() -> RequestError:
    """Return the error of an interrupted operation."""
    return _error("OPERATION_CANCELED", "Operation has been canceled.", "HY008")


def lost(why: str) -> RequestError:
    """Return the error of a result that broke off, and that no HAProc can go on with."""
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
