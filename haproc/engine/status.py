"""Who must act on a failure: decided from codes and classes, never from a message's text.

A failure on a Spark cluster is a chain of errors, each the cause of the one before. An error that
Spark wrote itself has an error class and mostly a SQLSTATE; others only have Java classes. Some
*decide* (a division by zero stays one however deep it lies in a failed job); others only *suggest*,
because they also stand around anything else (TASK_WRITE_FAILED, a bare RuntimeException); a few
*wrap* and say nothing. The outermost deciding error counts; if there is none, the innermost
suggestion, but only if every error of the chain is known and its end was seen. Else ENVIRONMENT:
trying again is safe (marks make a second run a no-op), while calling a broken disk or a metastore's
lost connection the statement's fault would skip a write here that the other clusters have. What
fails on every cluster for a reason that nobody knows is given up by the ring, not by one of them.

A failure without any word from Spark (a broken connection, a deadline, a wrong token) is
AVAILABILITY: whether the statement ran is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from haproc.engine.errors import EngineError, ErrorKind

_APPLICATION = ErrorKind.APPLICATION
_AVAILABILITY = ErrorKind.AVAILABILITY
_ENVIRONMENT = ErrorKind.ENVIRONMENT


@dataclass(frozen=True, slots=True)
class Link:
    """One error of a chain; ``java_classes`` from the class itself up to its ancestors."""

    error_class: str = ""
    sqlstate: str = ""
    java_classes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one error of a chain says; a suggestion counts only if no error decides."""

    kind: ErrorKind
    decides: bool = True


_BY_MAIN_CLASS: Mapping[str, Verdict] = {
    # The session, the operation or the whole server went away.
    "INVALID_HANDLE": Verdict(_AVAILABILITY),
    "INVALID_CURSOR": Verdict(_AVAILABILITY),
    "OPERATION_CANCELED": Verdict(_AVAILABILITY),
    "SPARK_JOB_CANCELLED": Verdict(_AVAILABILITY),
    "SPARK_CONNECT_ILLEGAL_STATE": Verdict(_AVAILABILITY),
    # Another commit came in between: the same statement may pass a moment later.
    "DELTA_MERGE_MATERIALIZE_SOURCE_FAILED_REPEATEDLY": Verdict(_ENVIRONMENT),
    "DELTA_MERGE_SOURCE_CACHED_DURING_EXECUTION": Verdict(_ENVIRONMENT),
    "DELTA_ROW_TRACKING_BACKFILL_RUNNING_CONCURRENTLY_WITH_UNBACKFILL": Verdict(_ENVIRONMENT),
    "INCOMPATIBLE_TABLE_CHANGE_AFTER_ANALYSIS": Verdict(_ENVIRONMENT),
    "INTERNAL_ERROR": Verdict(_APPLICATION, decides=False),  # mostly the same everywhere
    # Memory, disk, executors, network.
    "INTERNAL_ERROR_BROADCAST": Verdict(_ENVIRONMENT),
    "INTERNAL_ERROR_EXECUTOR": Verdict(_ENVIRONMENT),
    "INTERNAL_ERROR_MEMORY": Verdict(_ENVIRONMENT),
    "INTERNAL_ERROR_NETWORK": Verdict(_ENVIRONMENT),
    "INTERNAL_ERROR_SHUFFLE": Verdict(_ENVIRONMENT),
    "INTERNAL_ERROR_STORAGE": Verdict(_ENVIRONMENT),
    "STAGE_MATERIALIZATION_MULTIPLE_FAILURES": Verdict(_ENVIRONMENT, decides=False),
    "FAILED_RENAME_TEMP_FILE": Verdict(_ENVIRONMENT),
    "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND": Verdict(_ENVIRONMENT),
    # This cluster's files of a table do not hold what they must.
    "DELTA_CHECKPOINT_SNAPSHOT_MISMATCH": Verdict(_ENVIRONMENT),
    "DELTA_DELETION_VECTOR_CARDINALITY_MISMATCH": Verdict(_ENVIRONMENT),
    "DELTA_DELETION_VECTOR_CHECKSUM_MISMATCH": Verdict(_ENVIRONMENT),
    "DELTA_DELETION_VECTOR_INVALID_ROW_INDEX": Verdict(_ENVIRONMENT),
    "DELTA_DELETION_VECTOR_SIZE_MISMATCH": Verdict(_ENVIRONMENT),
    "DELTA_DV_HISTOGRAM_DESERIALIZATON": Verdict(_ENVIRONMENT),
    "DELTA_FEATURES_PROTOCOL_METADATA_MISMATCH": Verdict(_ENVIRONMENT),
    "DELTA_FILE_TO_OVERWRITE_NOT_FOUND": Verdict(_ENVIRONMENT),
    "DELTA_LOG_FILE_NOT_FOUND": Verdict(_ENVIRONMENT),
    "DELTA_METADATA_ABSENT_EXISTING_CATALOG_TABLE": Verdict(_ENVIRONMENT),
    "DELTA_MISSING_COMMIT_INFO": Verdict(_ENVIRONMENT),
    "DELTA_MISSING_COMMIT_TIMESTAMP": Verdict(_ENVIRONMENT),
    "DELTA_MISSING_PART_FILES": Verdict(_ENVIRONMENT),
    "DELTA_NUM_RECORDS_MISMATCH": Verdict(_ENVIRONMENT),
    "DELTA_STATE_RECOVER_ERROR": Verdict(_ENVIRONMENT),
    "DELTA_TRUNCATED_TRANSACTION_LOG": Verdict(_ENVIRONMENT),
    "DELTA_TXN_LOG_FAILED_INTEGRITY": Verdict(_ENVIRONMENT),
    # Its Delta is older than the table, which no statement can be: ALTER TABLE checks it before.
    "DELTA_INVALID_PROTOCOL_VERSION": Verdict(_ENVIRONMENT),
    "DELTA_UNSUPPORTED_FEATURES_FOR_READ": Verdict(_ENVIRONMENT),
    "DELTA_UNSUPPORTED_FEATURES_FOR_WRITE": Verdict(_ENVIRONMENT),
    # About what a statement asks of a table, though their SQLSTATE is one of damage (KD002, KD007).
    "DELTA_FAILED_SCAN_WITH_HISTORICAL_VERSION": Verdict(_APPLICATION),
    "DELTA_MISSING_CHANGE_DATA": Verdict(_APPLICATION),
    "DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING_POST_SCHEMA_EVOLUTION": Verdict(_APPLICATION),
    "DELTA_STREAMING_SCHEMA_MISMATCH_ON_RESTART": Verdict(_APPLICATION),
    "DELTA_TABLE_INVALID_REMOVE_TABLE_REDIRECT": Verdict(_APPLICATION),
    # Wrap whatever happened in a task.
    "TASK_WRITE_FAILED": Verdict(_ENVIRONMENT, decides=False),
    "FAILED_READ_FILE": Verdict(_ENVIRONMENT, decides=False),
}
"""By error class without its sub-class (what stands before the dot)."""

_BY_SQLSTATE: Mapping[str, Verdict] = {
    "08": Verdict(_ENVIRONMENT),  # connection exception (inside the cluster)
    "0B": Verdict(_ENVIRONMENT),  # invalid transaction initiation
    "2D": Verdict(_ENVIRONMENT),  # Delta's concurrent modifications
    "40": Verdict(_ENVIRONMENT),  # transaction rollback, commit retries exceeded
    "53": Verdict(_ENVIRONMENT),  # insufficient resources
    "57": Verdict(_ENVIRONMENT),  # operator intervention
    "58": Verdict(_ENVIRONMENT, decides=False),  # system error
    "82": Verdict(_ENVIRONMENT),  # out of memory
    "HY": Verdict(_AVAILABILITY),
    "KD001": Verdict(_ENVIRONMENT, decides=False),  # a data file can't be read
    "KD002": Verdict(_ENVIRONMENT),  # a log can't be read
    "KD006": Verdict(_ENVIRONMENT),  # commits are missing
    "KD007": Verdict(_ENVIRONMENT),  # the schema changed while the statement ran
    "KD00B": Verdict(_ENVIRONMENT),  # a log holds what nobody knows
    "KD00C": Verdict(_ENVIRONMENT),  # a log has a gap
    "XX": Verdict(_APPLICATION, decides=False),  # internal errors
}
"""By SQLSTATE, the longest prefix first. What has another one is the statement's fault."""

_BY_ANCESTOR: Mapping[str, Verdict] = {
    "java.lang.OutOfMemoryError": Verdict(_ENVIRONMENT),
    "java.lang.LinkageError": Verdict(_ENVIRONMENT),
    "java.io.IOException": Verdict(_ENVIRONMENT),
    "java.io.UncheckedIOException": Verdict(_ENVIRONMENT),
    "java.sql.SQLException": Verdict(_ENVIRONMENT),  # the metastore's database
    "java.util.concurrent.TimeoutException": Verdict(_ENVIRONMENT),
    "java.lang.InterruptedException": Verdict(_ENVIRONMENT),
    "io.delta.exceptions.DeltaConcurrentModificationException": Verdict(_ENVIRONMENT),
    "org.apache.spark.sql.delta.DeltaConcurrentModificationException": Verdict(_ENVIRONMENT),
    "org.apache.spark.shuffle.FetchFailedException": Verdict(_ENVIRONMENT),
    "org.apache.spark.ExecutorDeadException": Verdict(_ENVIRONMENT),
    "java.lang.StackOverflowError": Verdict(_APPLICATION),  # a statement nested too deep
    "org.apache.spark.api.python.PythonException": Verdict(_APPLICATION),
    "org.apache.hadoop.hive.metastore.api.AlreadyExistsException": Verdict(_APPLICATION),
    "org.apache.hadoop.hive.metastore.api.NoSuchObjectException": Verdict(_APPLICATION),
    "org.apache.hadoop.hive.metastore.api.InvalidObjectException": Verdict(_APPLICATION),
    "org.apache.hadoop.hive.metastore.api.InvalidOperationException": Verdict(_APPLICATION),
    "org.apache.spark.sql.AnalysisException": Verdict(_APPLICATION, decides=False),
    "org.apache.spark.sql.catalyst.parser.ParseException": Verdict(_APPLICATION),
}
"""By Java class or one of its ancestors; for errors without a class of Spark's."""

_BY_EXACT_JAVA_CLASS: Mapping[str, Verdict] = {
    name: Verdict(_APPLICATION, decides=False)
    for name in (
        "java.lang.RuntimeException",
        "java.lang.IllegalArgumentException",
        "java.lang.UnsupportedOperationException",
        "java.lang.ArithmeticException",
        "java.lang.NumberFormatException",
        "java.lang.ClassCastException",
        "java.lang.NullPointerException",
        "java.lang.ArrayIndexOutOfBoundsException",
        "java.lang.IndexOutOfBoundsException",
        "java.time.DateTimeException",
        "java.util.NoSuchElementException",
        "scala.MatchError",
        "scala.NotImplementedError",
        "org.apache.spark.SparkRuntimeException",
        "org.apache.spark.SparkUnsupportedOperationException",
        "org.apache.spark.SparkIllegalArgumentException",
    )
}
"""By the class itself only: a storage library's own RuntimeException is not the statement's."""

_WRAPS = Verdict(_ENVIRONMENT, decides=False)
_WRAPPERS = frozenset(
    {
        "org.apache.spark.SparkException",
        "java.util.concurrent.ExecutionException",
        "java.util.concurrent.CompletionException",
        "java.lang.reflect.InvocationTargetException",
        "java.lang.reflect.UndeclaredThrowableException",
        "java.lang.ExceptionInInitializerError",
        "com.google.common.util.concurrent.UncheckedExecutionException",
        "com.google.common.util.concurrent.ExecutionError",
        "org.sparkproject.guava.util.concurrent.UncheckedExecutionException",
        "org.sparkproject.guava.util.concurrent.ExecutionError",
    }
)
"""Java classes that say nothing about what they stand around; at a chain's end nothing is known."""
_UNKNOWN = Verdict(_ENVIRONMENT, decides=False)
CHAIN_MAX = 5
"""Spark tells at most so many errors of a chain (ErrorUtils.MAX_ERROR_CHAIN_LENGTH)."""


def verdict(link: Link) -> Verdict:
    """Return what one error says, looked at alone."""
    known = link.error_class and not link.error_class.startswith("_LEGACY_ERROR")
    if known:
        main_class = link.error_class.partition(".")[0]
        if main_class in _BY_MAIN_CLASS:
            return _BY_MAIN_CLASS[main_class]
        for length in (5, 2):
            if link.sqlstate[:length] in _BY_SQLSTATE:
                return _BY_SQLSTATE[link.sqlstate[:length]]
    for name in link.java_classes:
        if name in _BY_ANCESTOR and not (known and not _BY_ANCESTOR[name].decides):
            return _BY_ANCESTOR[name]
    if known:
        return Verdict(_APPLICATION)
    if not link.java_classes:
        return _UNKNOWN
    name = link.java_classes[0]
    return _WRAPS if name in _WRAPPERS else _BY_EXACT_JAVA_CLASS.get(name, _UNKNOWN)


def kind_of_chain(chain: Sequence[Link], *, whole: bool = True) -> ErrorKind:
    """Return who must act on a failure that Spark reported, from the outermost error inwards.

    ``whole``: whether the chain's end was seen.
    """
    verdicts = [verdict(link) for link in chain]
    for each in verdicts:
        if each.decides:
            return each.kind
    if not whole or len(chain) >= CHAIN_MAX or any(each is _UNKNOWN for each in verdicts):
        return _ENVIRONMENT
    suggested = [each for each in verdicts if each is not _WRAPS]
    return suggested[-1].kind if suggested else _ENVIRONMENT


def needs_causes(link: Link) -> bool:
    """Tell whether the errors beneath this one have a say in who must act."""
    return not verdict(link).decides


def kind_of_code(code: str) -> ErrorKind:
    """Return who must act when the call failed with this gRPC code and no word from Spark.

    UNKNOWN is what a server answers that met something it did not expect, such as a stack overflow
    in its parser (measured: a SELECT nested 1,500 deep): it lives, and did not do it.
    """
    return _ENVIRONMENT if code in ("RESOURCE_EXHAUSTED", UNKNOWN) else _AVAILABILITY


UNKNOWN = "UNKNOWN"
"""A gRPC code, and the class of an error about which Spark said nothing."""


SESSION_CHANGED = "INVALID_HANDLE.SESSION_CHANGED"
_SESSION_CLOSED = "INVALID_HANDLE.SESSION_CLOSED"
_LOST = frozenset({SESSION_CHANGED, "INVALID_HANDLE.SESSION_NOT_FOUND", _SESSION_CLOSED})


def session_lost(error_class: str) -> bool:
    """Tell whether the server refused the call because it no longer knows the session."""
    return error_class in _LOST


def has_ended(error: EngineError) -> bool:
    """Tell whether nothing of a statement goes on, by the error that its answer ended with."""
    return error.kind is not ErrorKind.AVAILABILITY or session_lost(error.error_class)


def session_id_spent(error_class: str) -> bool:
    """Tell whether the session's id can never be used again on this server."""
    return error_class == _SESSION_CLOSED
