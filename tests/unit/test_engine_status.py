"""The party that must act on a failure, for a table of real errors."""

from __future__ import annotations

import json

import grpc
import grpc.aio
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from haproc import protos
from haproc.engine import channel
from haproc.engine.errors import (
    CHAIN_MAX,
    ErrorKind,
    Link,
    kind_of_chain,
    kind_of_code,
    needs_causes,
    session_id_spent,
    session_lost,
)

APPLICATION, AVAILABILITY, ENVIRONMENT = (
    ErrorKind.APPLICATION,
    ErrorKind.AVAILABILITY,
    ErrorKind.ENVIRONMENT,
)
_JAVA = ("java.lang.Exception", "java.lang.Throwable", "java.lang.Object")
_SPARK_EXCEPTION = Link(java_classes=("org.apache.spark.SparkException", *_JAVA))
_OUT_OF_MEMORY = Link(
    java_classes=("java.lang.OutOfMemoryError", "java.lang.VirtualMachineError", *_JAVA[1:])
)
_DISK_FULL = Link(java_classes=("java.io.IOException", *_JAVA))
_RUNTIME = Link(java_classes=("java.lang.RuntimeException", *_JAVA))
_NULL_POINTER = Link(java_classes=("java.lang.NullPointerException", *_JAVA))
_STORAGE_CLIENT = Link(java_classes=("com.example.StorageException", *_JAVA))
_CATALOG = Link("_LEGACY_ERROR_TEMP_3065", "", ("org.apache.spark.sql.AnalysisException", *_JAVA))
_HIVE = Link(java_classes=("org.apache.hadoop.hive.ql.metadata.HiveException", *_JAVA))
_META = Link(java_classes=("org.apache.hadoop.hive.metastore.api.MetaException", *_JAVA))
_TRANSPORT = Link(java_classes=("org.apache.thrift.transport.TTransportException", *_JAVA))
_INVOKED = Link(java_classes=("java.lang.reflect.InvocationTargetException", *_JAVA))
_EXISTS = Link(java_classes=("org.apache.hadoop.hive.metastore.api.AlreadyExistsException", *_JAVA))
_DIVISION = Link("DIVIDE_BY_ZERO", "22012", ("org.apache.spark.SparkArithmeticException",))
_TASK_WRITE = Link("TASK_WRITE_FAILED", "58030", ("org.apache.spark.SparkException", *_JAVA))


@pytest.mark.parametrize(
    ("error_class", "sqlstate", "kind"),
    [
        ("TABLE_OR_VIEW_NOT_FOUND", "42P01", APPLICATION),
        ("PARSE_SYNTAX_ERROR", "42601", APPLICATION),
        ("UNSUPPORTED_FEATURE.DROP_DATABASE", "0A000", APPLICATION),
        ("SCALAR_SUBQUERY_TOO_MANY_ROWS", "21000", APPLICATION),
        ("CAST_INVALID_INPUT", "22018", APPLICATION),
        ("DELTA_VIOLATE_CONSTRAINT_WITH_VALUES", "23001", APPLICATION),
        ("SCHEMA_NOT_EMPTY", "2BP01", APPLICATION),
        ("FAILED_FUNCTION_CALL", "38000", APPLICATION),
        ("FAILED_EXECUTE_UDF", "39000", APPLICATION),
        ("MISSING_DATABASE_FOR_V1_SESSION_CATALOG", "3F000", APPLICATION),
        ("DELTA_REPLACE_WHERE_MISMATCH", "44000", APPLICATION),
        ("CANNOT_MODIFY_CONFIG", "46110", APPLICATION),
        ("COLLECTION_SIZE_LIMIT_EXCEEDED.PARAMETER", "54000", APPLICATION),
        ("USER_RAISED_EXCEPTION", "P0001", APPLICATION),
        ("INCOMPATIBLE_DATA_FOR_TABLE.CANNOT_FIND_DATA", "KD000", APPLICATION),
        ("DELTA_MISSING_CHANGE_DATA", "KD002", APPLICATION),
        ("INTERNAL_ERROR", "XX000", APPLICATION),
        ("AN_ERROR_CLASS_OF_TOMORROW", "", APPLICATION),
        ("INTERNAL_ERROR_SHUFFLE", "XX000", ENVIRONMENT),
        ("UNABLE_TO_ACQUIRE_MEMORY", "53200", ENVIRONMENT),
        ("SPILL_OUT_OF_MEMORY", "82003", ENVIRONMENT),
        ("TASK_WRITE_FAILED", "58030", ENVIRONMENT),
        ("FAILED_READ_FILE.FILE_NOT_EXIST", "KD001", ENVIRONMENT),
        ("DELTA_CONCURRENT_APPEND.WITHOUT_HINT", "2D521", ENVIRONMENT),
        ("DELTA_CONCURRENT_TRANSACTION", "2D521", ENVIRONMENT),
        ("DELTA_METADATA_CHANGED", "2D521", ENVIRONMENT),
        ("DELTA_MAX_COMMIT_RETRIES_EXCEEDED", "40000", ENVIRONMENT),
        ("DELTA_SCHEMA_CHANGE_SINCE_ANALYSIS", "KD007", ENVIRONMENT),
        ("INVALID_HANDLE.SESSION_CHANGED", "HY000", AVAILABILITY),
        ("INVALID_HANDLE.OPERATION_NOT_FOUND", "HY000", AVAILABILITY),
        ("INVALID_CURSOR.DISCONNECTED", "HY109", AVAILABILITY),
        ("OPERATION_CANCELED", "HY008", AVAILABILITY),
        ("SPARK_JOB_CANCELLED", "XXKDA", AVAILABILITY),
    ],
)
def test_kind_of_a_spark_error_follows_from_class_and_sqlstate(
    error_class: str, sqlstate: str, kind: ErrorKind
) -> None:
    java = ("org.apache.spark.SparkException", *_JAVA)
    assert kind_of_chain([Link(error_class, sqlstate, java)]) is kind


OF_DELTA = {
    APPLICATION: """
        KD002 FAILED_SCAN_WITH_HISTORICAL_VERSION MISSING_CHANGE_DATA
        KD002 STREAMING_CANNOT_CONTINUE_PROCESSING_POST_SCHEMA_EVOLUTION
        KD003 FOUND_MAP_TYPE_COLUMN INCORRECT_ARRAY_ACCESS INCORRECT_ARRAY_ACCESS_BY_NAME
        KD004 INVALID_PROTOCOL_DOWNGRADE READ_FEATURE_PROTOCOL_REQUIRES_WRITE
        KD005 NON_PARTITION_COLUMN_ABSENT
        KD007 STREAMING_SCHEMA_MISMATCH_ON_RESTART TABLE_INVALID_REMOVE_TABLE_REDIRECT
        KD008 SCHEMA_NOT_SET
        KD009 PARSING_ANALYSIS_ERROR PARSING_ILLEGAL_TABLE_NAME PARSING_INCORRECT_CLONE_HEADER
        KD009 PARSING_MISSING_TABLE_NAME_OR_PATH PARSING_MUTUALLY_EXCLUSIVE_CLAUSES
        KD009 PARSING_UNSUPPORTED_DATA_TYPE UNEXPECTED_NUM_PARTITION_COLUMNS_FROM_FILE_NAME
        KD009 UNEXPECTED_PARTITION_COLUMN_FROM_FILE_NAME UNEXPECTED_PARTITION_SCHEMA_FROM_USER
        KD00A UNEXPECTED_PARTIAL_SCAN
        KD00D ZORDERING_ON_COLUMN_WITHOUT_STATS
        KD00E ICEBERG_COMPAT_VIOLATION UNIVERSAL_FORMAT_CONVERSION_FAILED UNIVERSAL_FORMAT_VIOLATION
        KD00G PATH_BASED_ACCESS_TO_CATALOG_MANAGED_TABLE_BLOCKED
    """,
    ENVIRONMENT: """
        KD001 FAILED_READ_FILE_FOOTER
        KD002 STREAMING_CHECK_COLUMN_MAPPING_NO_SNAPSHOT
        KD004 INVALID_PROTOCOL_VERSION MISSING_COMMIT_INFO MISSING_COMMIT_TIMESTAMP
        KD004 FEATURES_PROTOCOL_METADATA_MISMATCH
        KD006 NO_COMMITS_FOUND NO_RECREATABLE_HISTORY_FOUND
        KD007 SCHEMA_CHANGED SCHEMA_CHANGED_WITH_STARTING_OPTIONS SCHEMA_CHANGED_WITH_VERSION
        KD007 SCHEMA_CHANGE_SINCE_ANALYSIS
        KD00B UNRECOGNIZED_LOGFILE
        KD00C VERSIONS_NOT_CONTIGUOUS
        XXKDS CHECKPOINT_SNAPSHOT_MISMATCH STATE_RECOVER_ERROR TXN_LOG_FAILED_INTEGRITY
        XXKDS DELETION_VECTOR_CARDINALITY_MISMATCH DELETION_VECTOR_CHECKSUM_MISMATCH
        22000 DV_HISTOGRAM_DESERIALIZATON
        42K03 FILE_TO_OVERWRITE_NOT_FOUND LOG_FILE_NOT_FOUND TRUNCATED_TRANSACTION_LOG
        42KD6 MISSING_PART_FILES
        56038 UNSUPPORTED_FEATURES_FOR_READ UNSUPPORTED_FEATURES_FOR_WRITE
        XXKDS METADATA_ABSENT_EXISTING_CATALOG_TABLE NUM_RECORDS_MISMATCH
        XXKDS DELETION_VECTOR_INVALID_ROW_INDEX DELETION_VECTOR_SIZE_MISMATCH
    """,
}
"""Delta's errors of its SQLSTATEs KD0xx (those of Delta 4.4.0), and of damaged files."""


@pytest.mark.parametrize("kind", OF_DELTA)
def test_kind_of_a_delta_error_is_application_unless_files_are_damaged_or_changing(
    kind: ErrorKind,
) -> None:
    for line in OF_DELTA[kind].split("\n"):
        sqlstate, *names = line.split() or [""]
        for name in names:
            java = ("org.apache.spark.sql.delta.DeltaAnalysisException", *_JAVA)
            assert kind_of_chain([Link(f"DELTA_{name}", sqlstate, java)]) is kind, name
    assert kind_of_chain([Link("DELTA_OF_TOMORROW", "KD002")]) is ENVIRONMENT


@pytest.mark.parametrize(
    ("java_classes", "kind"),
    [
        (_OUT_OF_MEMORY.java_classes, ENVIRONMENT),
        (("java.nio.file.FileSystemException", "java.io.IOException", *_JAVA), ENVIRONMENT),
        (("java.sql.SQLTransientException", "java.sql.SQLException", *_JAVA), ENVIRONMENT),
        (
            (
                "io.delta.exceptions.ConcurrentAppendException",
                "io.delta.exceptions.DeltaConcurrentModificationException",
                *_JAVA,
            ),
            ENVIRONMENT,
        ),
        (("org.apache.spark.SparkException", *_JAVA), ENVIRONMENT),
        (("java.lang.IllegalStateException", "java.lang.RuntimeException", *_JAVA), ENVIRONMENT),
        (("com.example.StorageException", "java.lang.RuntimeException", *_JAVA), ENVIRONMENT),
        ((), ENVIRONMENT),
        (("java.lang.StackOverflowError", "java.lang.VirtualMachineError"), APPLICATION),
        (("java.lang.RuntimeException", *_JAVA), APPLICATION),
        (("java.lang.NumberFormatException", "java.lang.IllegalArgumentException"), APPLICATION),
        (("org.apache.spark.sql.AnalysisException", *_JAVA), APPLICATION),
    ],
)
def test_kind_of_an_error_without_error_class_follows_from_its_java_classes(
    java_classes: tuple[str, ...], kind: ErrorKind
) -> None:
    assert kind_of_chain([Link(java_classes=java_classes)]) is kind


@pytest.mark.parametrize(
    ("chain", "kind"),
    [
        ([_TASK_WRITE, _DIVISION], APPLICATION),
        ([_TASK_WRITE, _SPARK_EXCEPTION, _DIVISION], APPLICATION),
        ([_TASK_WRITE, _DISK_FULL], ENVIRONMENT),
        ([_SPARK_EXCEPTION, _OUT_OF_MEMORY], ENVIRONMENT),
        ([_SPARK_EXCEPTION], ENVIRONMENT),
        ([Link("INTERNAL_ERROR", "XX000"), _DISK_FULL], ENVIRONMENT),
        ([Link("INTERNAL_ERROR", "XX000")], APPLICATION),
        ([Link("INTERNAL_ERROR", "XX000"), _STORAGE_CLIENT], ENVIRONMENT),
        ([_RUNTIME], APPLICATION),
        ([_RUNTIME, _STORAGE_CLIENT], ENVIRONMENT),
        ([_NULL_POINTER, _STORAGE_CLIENT, _RUNTIME], ENVIRONMENT),
        ([_SPARK_EXCEPTION, _RUNTIME], APPLICATION),
        ([_CATALOG], APPLICATION),
        ([_CATALOG, _HIVE, _META], ENVIRONMENT),
        ([_CATALOG, _HIVE, _META, _TRANSPORT], ENVIRONMENT),
        ([_CATALOG, _HIVE, _RUNTIME, _INVOKED], ENVIRONMENT),
        ([_CATALOG, _HIVE, _EXISTS], APPLICATION),
        ([_CATALOG] * CHAIN_MAX, ENVIRONMENT),
        ([Link("FAILED_EXECUTE_UDF", "39000"), _DISK_FULL], APPLICATION),
        ([Link("DELTA_CONCURRENT_WRITE", "2D521"), _DIVISION], ENVIRONMENT),
    ],
)
def test_kind_of_a_chain_is_the_outermost_decision_or_the_innermost_suggestion(
    chain: list[Link], kind: ErrorKind
) -> None:
    assert kind_of_chain(chain) is kind


@pytest.mark.parametrize("link", [_RUNTIME, _NULL_POINTER, _CATALOG, Link("INTERNAL_ERROR")])
def test_kind_of_a_suggestion_without_its_causes_is_environment(link: Link) -> None:
    assert kind_of_chain([link]) is APPLICATION
    assert kind_of_chain([link], whole=False) is ENVIRONMENT
    assert kind_of_chain([_DIVISION], whole=False) is APPLICATION


@pytest.mark.parametrize("java_class", ["java.lang.RuntimeException", "java.lang.MatchError"])
def test_error_without_details_from_the_server_is_environment(java_class: str) -> None:
    metadata = {"errorId": "e1", "classes": json.dumps([java_class])}
    failed = channel.decode(_rpc_error(grpc.StatusCode.INTERNAL, "no", metadata))
    assert failed.wants_details
    assert failed.error().kind is ENVIRONMENT
    forgotten = protos.base.FetchErrorDetailsResponse()
    assert channel.error_with_details(failed, forgotten).kind is ENVIRONMENT


@given(st.lists(st.sampled_from([_TASK_WRITE, _SPARK_EXCEPTION]), max_size=5))
def test_kind_of_a_chain_does_not_depend_on_errors_around_the_decision(
    wrappers: list[Link],
) -> None:
    assert kind_of_chain([*wrappers, _DIVISION]) is APPLICATION
    assert kind_of_chain([*wrappers, _DIVISION, _OUT_OF_MEMORY]) is APPLICATION
    assert kind_of_chain([*wrappers, _OUT_OF_MEMORY, _DIVISION]) is ENVIRONMENT


def test_causes_are_needed_only_if_they_can_change_the_kind() -> None:
    assert needs_causes(_TASK_WRITE)
    assert needs_causes(_SPARK_EXCEPTION)
    assert not needs_causes(_DIVISION)


@pytest.mark.parametrize("code", [code.name for code in grpc.StatusCode if code.value[0]])
def test_kind_of_a_call_without_an_error_from_spark_is_never_application(
    code: str,
) -> None:
    has_server_answer = code in ("RESOURCE_EXHAUSTED", "UNKNOWN")
    expected = ENVIRONMENT if has_server_answer else AVAILABILITY
    assert kind_of_code(code) is expected


def test_lost_and_spent_sessions_are_recognised_by_error_class() -> None:
    assert session_lost("INVALID_HANDLE.SESSION_CHANGED")
    assert session_lost("INVALID_HANDLE.SESSION_CLOSED")
    assert not session_lost("INVALID_HANDLE.OPERATION_NOT_FOUND")
    assert session_id_spent("INVALID_HANDLE.SESSION_CLOSED")
    assert not session_id_spent("INVALID_HANDLE.SESSION_CHANGED")


def _rpc_error(
    code: grpc.StatusCode, message: str, metadata: dict[str, str] | None
) -> grpc.aio.AioRpcError:
    trailing = grpc.aio.Metadata()
    if metadata is not None:
        packed = any_pb2.Any()
        packed.Pack(error_details_pb2.ErrorInfo(domain="org.apache.spark", metadata=metadata))
        status = status_pb2.Status(code=13, message=message, details=[packed])
        trailing = grpc.aio.Metadata(("grpc-status-details-bin", status.SerializeToString()))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details=message)


def test_decode_reads_class_sqlstate_and_java_classes() -> None:
    metadata = {
        "errorClass": "DIVIDE_BY_ZERO",
        "sqlState": "22012",
        "classes": json.dumps(["org.apache.spark.SparkArithmeticException"]),
        "errorId": "e1",
    }
    decoded = channel.decode(_rpc_error(grpc.StatusCode.INTERNAL, "no", metadata))
    error = decoded.error()
    assert (error.kind, error.error_class, error.sqlstate) == (
        APPLICATION,
        "DIVIDE_BY_ZERO",
        "22012",
    )
    assert decoded.wants_details


@pytest.mark.parametrize("garbage", [b"", b"\xff\xff", b"\x1a\x05\x0a\x03abc"])
def test_decode_of_damaged_metadata_uses_the_status_code(garbage: bytes) -> None:
    trailing = grpc.aio.Metadata(("grpc-status-details-bin", garbage))
    broken = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), trailing, details="gone"
    )
    error = channel.decode(broken).error()
    assert (error.kind, error.error_class) == (AVAILABILITY, "UNAVAILABLE")


def _details(*errors: tuple[Link, str]) -> object:
    response = protos.base.FetchErrorDetailsResponse(root_error_idx=0)
    for index, (link, message) in enumerate(errors):
        error = response.errors.add(message=message, error_type_hierarchy=list(link.java_classes))
        if link.error_class:
            error.spark_throwable.error_class = link.error_class
            error.spark_throwable.sql_state = link.sqlstate
        if index + 1 < len(errors):
            error.cause_idx = index + 1
    return response


@pytest.mark.parametrize(
    ("cause", "reported"),
    [
        ((_DIVISION, "by zero"), (APPLICATION, "DIVIDE_BY_ZERO", "22012", "by zero")),
        ((_DIVISION, ""), (APPLICATION, "DIVIDE_BY_ZERO", "22012", "whole message")),
        (
            (_DISK_FULL, "no space"),
            (ENVIRONMENT, "TASK_WRITE_FAILED", "58030", "whole message"),
        ),
    ],
)
def test_error_with_details_shows_the_deciding_cause_with_its_message(
    cause: tuple[Link, str], reported: tuple[ErrorKind, str, str, str]
) -> None:
    metadata = {
        "errorClass": "TASK_WRITE_FAILED",
        "sqlState": "58030",
        "errorId": "e1",
        "classes": json.dumps(list(_TASK_WRITE.java_classes)),
    }
    failed = channel.decode(_rpc_error(grpc.StatusCode.INTERNAL, "cut", metadata))
    assert failed.wants_details
    details = _details((_TASK_WRITE, "whole message"), (_SPARK_EXCEPTION, "aborted"), cause)
    error = channel.error_with_details(failed, details)
    assert (error.kind, error.error_class, error.sqlstate, error.message) == reported


def test_error_with_details_of_circular_causes_ends() -> None:
    details = _details((_SPARK_EXCEPTION, "a"), (_SPARK_EXCEPTION, "b"))
    details.errors[1].cause_idx = 0  # type: ignore[attr-defined]
    metadata = {"classes": json.dumps(list(_SPARK_EXCEPTION.java_classes)), "errorId": "e1"}
    failed = channel.decode(_rpc_error(grpc.StatusCode.INTERNAL, "a", metadata))
    assert channel.error_with_details(failed, details).kind is ENVIRONMENT
