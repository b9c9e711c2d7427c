"""HAProc's failures in the form of Spark Connect: gRPC codes, Spark's error classes and names."""

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
"""The most bytes of a status message, as in Spark: clients accept 8 KiB of metadata, which contain
the message twice."""
ENRICHED_MAX: Final = 500
"""The number of errors for which details are kept, if these do not fit into the gRPC status.
Clients fetch them at once. Each has at most 24 KiB, mostly less than one."""
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
"""The gRPC codes of single error classes; `_CODE_OF_KIND` has the codes of all others. None of
these codes makes a client repeat its request."""
_CODE_OF_KIND: Final = {
    FailureKind.REFUSED: "INVALID_ARGUMENT",
    FailureKind.APPLICATION: "INTERNAL",
    FailureKind.AVAILABILITY: "UNAVAILABLE",
}
_SPARK_CLASS: Final[Mapping[str, str]] = {
    ErrorClass.SESSION_CLOSED: "INVALID_HANDLE.SESSION_CLOSED",
}
"""Spark's own names, which its clients know, for error classes of HAProc's that Spark has, too."""
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
"""Spark's exception classes for statements that HAProc refuses, by HAProc's error class. So a
program catches a refusal as it would catch Spark's own error."""
_PARAMETERS_BYTES_MAX: Final = 1024
"""The most bytes of an ErrorInfo's parameters, as in Spark; longer ones a client has to fetch."""
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
    """How a failed call ends. ``packed``: a serialized google.rpc.Status, sent as `DETAILS`."""

    code: str
    message: str
    packed: bytes
    enriched: bytes = b""
    """A serialized FetchErrorDetailsResponse for a client that asks for details; empty: none."""


def as_given(error: RelayedError) -> CallEnd | None:
    """Return Spark's own error for the client; None if the client must not see it as it is.

    That is so if it is about a Spark session that the client does not know, if HAProc's plugin
    raised it, or if Spark sent no status.
    """
    is_ours = error.error_class.startswith("HAPROC_")
    if not error.packed or session_lost(error.error_class) or is_ours:
        return None
    return CallEnd(error.code, error.status_message, error.packed)


def call_end(
    error: RequestError, *, own_id: bool = True, error_id: str = "", to_java: bool = False
) -> CallEnd:
    """Return how the call ends that failed with ``error``.

    - ``own_id``: False if the client did not choose the Spark Connect operation's id. Then the
      client must not repeat a call whose outcome is unknown.
    - ``error_id``: the id by which the client may fetch details that do not fit into a status.
    - ``to_java``: True for Spark's client for the JVM. It looks up each error class in Spark's own
      list, and if the class is not there, it shows nothing else of the error. So for HAProc's
      errors it gets only the message, which begins with the class.
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
    """Return an error's details as a serialized FetchErrorDetailsResponse."""
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
    """Return the error INVALID_HANDLE with Spark's subclass ``condition``, which clients check."""
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
    """True if the error has a class of HAProc's own, and not one of Spark's."""
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
    """Return the length of a status message in the form that gRPC sends: percent-encoded."""
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
    """The details of the newest errors, kept until clients fetch them by the error's id."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    def keep(self, error_id: str, details: bytes) -> None:
        """Keep the details of an error; the details of the oldest errors are dropped."""
        self._kept[error_id] = details
        while len(self._kept) > ENRICHED_MAX:
            self._kept.popitem(last=False)

    def find(self, error_id: str) -> bytes | None:
        """Return the kept details of an error; None if the id is unknown or they were dropped."""
        return self._kept.get(error_id)


# Operations as clients name them, and the errors of operations in an unexpected state.
#
# The messages and classes are those of Spark 4.2.1, which its clients know: a PySpark that gets
# OPERATION_NOT_FOUND before any response sends its plan again.


@dataclass(frozen=True, slots=True)
class Key:
    """What identifies a Spark Connect operation; its id alone is unique only within a session."""

    user: str
    session_id: str
    operation_id: str


class OperationState(IntEnum):
    """The states of a Spark Connect operation, as in GetStatusResponse.OperationStatus."""

    UNKNOWN = 1
    RUNNING = 2
    TERMINATING = 3
    """The operation has ended, and its client has not released it yet."""
    SUCCEEDED = 4
    FAILED = 5
    CANCELLED = 6


def not_found(operation_id: str) -> RequestError:
    """Return Spark's error for a Spark Connect operation that is not here, or was released."""
    return _handle("NOT_FOUND", operation_id, "Operation not found.")


def already_exists(operation_id: str) -> RequestError:
    """Return Spark's error for another plan with the id of a Spark Connect operation in use."""
    return _handle("ALREADY_EXISTS", operation_id, "Operation already exists.")


def abandoned(operation_id: str) -> RequestError:
    """Return Spark's error for using a Spark Connect operation that ended, or was given up."""
    return _handle(
        "ABANDONED",
        operation_id,
        "Operation was considered abandoned because of inactivity and removed.",
    )


def disconnected() -> RequestError:
    """Return Spark's error for a stream that ends, as another stream or a release replaced it."""
    return _cursor("DISCONNECTED", "The cursor has been disconnected by the server.")


def not_reattachable() -> RequestError:
    """Return Spark's error for reattaching to an operation that is not reattachable."""
    return _cursor("NOT_REATTACHABLE", "The cursor is not reattachable.")


def position_not_found(response_id: str) -> RequestError:
    """Return Spark's error for a response id that no response of the operation has."""
    shown = response_id if len(response_id) <= 64 else response_id[:64] + "…"
    return _cursor("POSITION_NOT_FOUND", f"The cursor position id {shown} is not found.")


def not_available(index: int) -> RequestError:
    """Return Spark's error for asking for a response (by its index) that is not kept any more."""
    return _cursor(
        "POSITION_NOT_AVAILABLE", f"The cursor position is no longer available at index {index}."
    )


def canceled() -> RequestError:
    """Return Spark's error for a Spark Connect operation that its client interrupted."""
    return _error("OPERATION_CANCELED", "Operation has been canceled.", "HY008")


def lost(why: str) -> RequestError:
    """Return the error RESULT_LOST: the result broke off, and no HAProc can continue it."""
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
