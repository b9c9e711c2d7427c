"""Failures as PySpark's client shows them: the same exceptions as Spark's own."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from pyspark.errors.exceptions import connect as pyspark_errors
from pyspark.sql.connect.client.retries import DefaultPolicy

from haproc import protos
from haproc.doors.connect.errors import (
    DETAILS,
    ENRICHED_MAX,
    CallEnd,
    Enriched,
    as_given,
    call_end,
    invalid_handle,
)
from haproc.engine.errors import EngineError, ErrorKind, RelayedError
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome, busy, refused
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus
from haproc.replicate.records.rows import ApplicationFailure
from haproc.route.answering import rejected
from haproc.spark_error import Context, details


class _Ended(grpc.RpcError, grpc.Call):
    """A call that ended with this status, as gRPC's client shows it."""

    def __init__(self, ending: CallEnd) -> None:
        self._ending = ending

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode[self._ending.code]

    def details(self) -> str:
        return self._ending.message

    def trailing_metadata(self) -> Any:
        return ((DETAILS, self._ending.packed),)


_Ended.__abstractmethods__ = frozenset()


def _shown(ending: CallEnd, more: Any = None) -> Exception:
    status = status_pb2.Status.FromString(ending.packed)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    shown: Exception = pyspark_errors.convert_exception(info, status.message, more)
    return shown


def _repeated(ending: CallEnd) -> bool:
    return bool(DefaultPolicy().can_retry(_Ended(ending)))


@pytest.mark.parametrize(
    ("sqlstate", "error_class", "kind"),
    [
        ("42P01", "TABLE_OR_VIEW_NOT_FOUND", pyspark_errors.AnalysisException),
        ("42601", "PARSE_SYNTAX_ERROR", pyspark_errors.ParseException),
        ("22012", "DIVIDE_BY_ZERO", pyspark_errors.ArithmeticException),
        ("22018", "CAST_INVALID_INPUT", pyspark_errors.NumberFormatException),
        ("XX000", "INTERNAL_ERROR", pyspark_errors.SparkException),
    ],
)
def test_error_of_a_write_raises_the_exception_that_spark_would_raise(
    sqlstate: str, error_class: str, kind: type[Exception]
) -> None:
    error = RequestError(
        FailureKind.APPLICATION,
        f"[{error_class}] something",
        error_class=error_class,
        sqlstate=sqlstate,
        outcome=WriteOutcome.REJECTED,
    )
    ending = call_end(error)
    shown = _shown(ending)
    assert isinstance(shown, kind)
    assert shown.getCondition() == error_class  # type: ignore[attr-defined]
    assert shown.getSqlState() == sqlstate  # type: ignore[attr-defined]
    assert not _repeated(ending)


SPARK_DETAILS = details(
    (
        "org.apache.spark.sql.catalyst.parser.ParseException",
        "org.apache.spark.sql.AnalysisException",
        "java.lang.Object",
    ),
    {"typeName": '"INTT"'},
    [Context(start=18, stop=21, fragment="INTT", summary="== SQL ==\nINTT")],
)


def test_error_details_of_spark_take_precedence_over_the_sqlstate_of_a_write() -> None:
    failure = ApplicationFailure(
        "UNSUPPORTED_DATATYPE", "0A000", 'Unsupported data type "INTT".', SPARK_DETAILS
    )
    ending = call_end(
        rejected(OperationOutcome(OutcomeStatus.REJECTED, failure=failure), 7), error_id="e1"
    )
    more = protos.base.FetchErrorDetailsResponse.FromString(ending.enriched)
    for shown in (_shown(ending), _shown(ending, more)):
        assert isinstance(shown, pyspark_errors.ParseException)
        assert shown.getMessageParameters() == {"typeName": '"INTT"'}
        assert shown.getSqlState() == "0A000"
    (context,) = shown.getQueryContext()  # type: ignore[attr-defined]
    assert (context.fragment(), context.startIndex(), context.stopIndex()) == ("INTT", 18, 21)
    assert context.summary() == "== SQL ==\nINTT"


def test_python_function_that_fails_in_a_write_raises_a_python_exception() -> None:
    error_details = details(
        ["org.apache.spark.api.python.PythonException", "java.lang.Exception"], {}
    )
    failure = ApplicationFailure("", "", "Traceback: ZeroDivisionError", error_details)
    shown = _shown(call_end(rejected(OperationOutcome(OutcomeStatus.REJECTED, failure=failure), 7)))
    assert isinstance(shown, pyspark_errors.PythonException)


def test_details_too_long_for_a_status_are_available_by_a_fetch() -> None:
    parameters = {f"name{number}": "x" * 500 for number in range(9)}
    error = RequestError(
        FailureKind.APPLICATION, "no", error_class="SOME", details=details(["a.B"], parameters)
    )
    ending = call_end(error, error_id="e1")
    assert len(ending.packed) < 4096
    more = protos.base.FetchErrorDetailsResponse.FromString(ending.enriched)
    assert _shown(ending, more).getMessageParameters() == parameters  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("error_class", "kind"),
    [
        (ErrorClass.UNCLASSIFIED, pyspark_errors.ParseException),
        (ErrorClass.SYNTAX, pyspark_errors.ParseException),
        (ErrorClass.JVM_CODE, pyspark_errors.AnalysisException),
        (ErrorClass.RESERVED_SETTING, pyspark_errors.AnalysisException),
    ],
)
def test_refusal_raises_the_exception_that_spark_would_raise(
    error_class: ErrorClass, kind: type[Exception]
) -> None:
    assert isinstance(_shown(call_end(refused(error_class, "no", "do that"))), kind)


def test_stored_error_details_beyond_the_limit_drop_the_oldest() -> None:
    enriched = Enriched()
    for number in range(ENRICHED_MAX + 1):
        enriched.keep(str(number), b"said")
    assert enriched.find("0") is None
    assert enriched.find("1") == b"said"


def test_refusal_shows_its_class_and_its_hint() -> None:
    shown = _shown(call_end(refused(ErrorClass.PATH, "no files", "use a table")))
    assert isinstance(shown, pyspark_errors.UnsupportedOperationException)
    assert "[HAPROC_PATH] no files; use a table" in str(shown)


def test_error_class_of_haproc_is_sent_to_a_java_client_in_the_message_only() -> None:
    """A Java client shows nothing of an error whose class is not in Spark's own list."""

    def metadata(error: RequestError) -> dict[str, str]:
        status = status_pb2.Status.FromString(call_end(error, to_java=True).packed)
        info = error_details_pb2.ErrorInfo()
        assert status.details[0].Unpack(info)
        assert status.message.startswith(f"[{error.error_class}] ")
        return dict(info.metadata)

    ours = metadata(refused(ErrorClass.PATH, "no", "name a table"))
    assert not {"errorClass", "messageParameters"} & ours.keys()
    sparks = RequestError(FailureKind.APPLICATION, "no", error_class="DIVIDE_BY_ZERO")
    assert metadata(sparks)["errorClass"] == "DIVIDE_BY_ZERO"


def test_availability_error_is_retried_and_busy_contains_a_delay() -> None:
    away = RequestError(FailureKind.AVAILABILITY, "away", error_class=ErrorClass.DOWN)
    assert _repeated(call_end(away))
    ending = call_end(busy("too many"))
    assert _repeated(ending)
    status = status_pb2.Status.FromString(ending.packed)
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in status.details)
    assert retry.retry_delay.seconds == 1


@pytest.mark.parametrize("error_class", [ErrorClass.TIMEOUT, ErrorClass.INTERNAL])
def test_error_that_a_retry_does_not_cure_is_not_retried(error_class: ErrorClass) -> None:
    error = RequestError(FailureKind.AVAILABILITY, "no", error_class=error_class)
    assert not _repeated(call_end(error))


def test_write_of_unknown_outcome_is_retried_only_under_an_id_of_its_client() -> None:
    error = RequestError(
        FailureKind.AVAILABILITY,
        "gone",
        error_class=ErrorClass.STOPPED,
        outcome=WriteOutcome.UNKNOWN,
    )
    assert _repeated(call_end(error))
    assert not _repeated(call_end(error, own_id=False))


def test_unknown_operation_error_contains_the_class_that_clients_look_for() -> None:
    ending = call_end(invalid_handle("OPERATION_NOT_FOUND", "Operation not found."))
    status = status_pb2.Status.FromString(ending.packed)
    assert "INVALID_HANDLE.OPERATION_NOT_FOUND" in status.message
    assert not _repeated(ending)


def test_error_of_spark_is_relayed_unchanged() -> None:
    error = EngineError(ErrorKind.APPLICATION, "no", error_class="TABLE_OR_VIEW_NOT_FOUND")
    relayed = RelayedError(error, "INTERNAL", "no", b"packed")
    assert as_given(relayed) == CallEnd("INTERNAL", "no", b"packed")


def test_lost_session_on_spark_is_not_relayed_as_the_session_of_the_client() -> None:
    error = EngineError(
        ErrorKind.AVAILABILITY, "changed", error_class="INVALID_HANDLE.SESSION_CHANGED"
    )
    assert as_given(RelayedError(error, "INTERNAL", "changed", b"packed")) is None


def test_long_message_is_cut_to_fit_into_the_metadata() -> None:
    ending = call_end(refused(ErrorClass.PATH, "é" * 100_000))
    assert len(ending.packed) < 4_000
    info = error_details_pb2.ErrorInfo()
    assert status_pb2.Status.FromString(ending.packed).details[0].Unpack(info)
    assert json.loads(info.metadata["classes"])[-1] == "java.lang.Object"


def test_error_class_occurs_once_in_the_message() -> None:
    """Spark's parser begins its messages with an empty line."""
    text = '\n[UNSUPPORTED_DATATYPE] Unsupported data type "INTT".\n== SQL =='
    error = RequestError(FailureKind.APPLICATION, text, error_class="UNSUPPORTED_DATATYPE")
    assert call_end(error).message.count("[UNSUPPORTED_DATATYPE]") == 1
