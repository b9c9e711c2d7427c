"""The errors of a cluster, recognised by their codes, and their kinds: who must act on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from haproc.failure import ErrorClass
from haproc.spark_error import NO_DETAILS, Details

# The errors of a failed statement, reduced to the facts that HAProc needs for its decisions.


class ErrorKind(StrEnum):
    """The kind of a failure, which says who must act on it."""

    APPLICATION = "application"
    """The statement is wrong for these tables, the same everywhere; the client gets the error."""
    AVAILABILITY = "availability"
    """The cluster could not be asked, or went away; the outcome is unknown, another may work."""
    ENVIRONMENT = "environment"
    """The cluster answered but lacks something (memory, disk, executors): trying again may help."""


REFUSED: Final = "CONNECTION_REFUSED"
"""The error class of a server that refuses connections: it surely does not run."""


class EngineError(Exception):
    """A statement failed on a cluster.

    ``error_class``, ``sqlstate`` and ``details`` are Spark's own if Spark gave them (for example
    ``TABLE_OR_VIEW_NOT_FOUND`` and ``42P01``).
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        error_class: str = "",
        sqlstate: str = "",
        details: Details = NO_DETAILS,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.error_class = error_class
        self.sqlstate = sqlstate
        self.details = details


class NoQueryError(EngineError):
    """A guarded session, which allows queries only, refused a statement with effects.

    ``effects``: the Java classes of the plan's nodes that have effects, without packages
    (`InsertIntoStatement`, `DeleteFromTable`); never empty.
    """

    def __init__(self, effects: tuple[str, ...], details: Details = NO_DETAILS) -> None:
        super().__init__(
            ErrorKind.APPLICATION,
            f"Spark takes the statement for no query: {', '.join(effects)}",
            error_class=ErrorClass.NO_QUERY,
            details=details,
        )
        self.effects = effects


class RelayedError(EngineError):
    """A client's call that HAProc passed on to Spark failed; Spark's error is kept unchanged.

    ``code`` and ``status_message`` are those of the gRPC status; ``packed`` is a serialized
    google.rpc.Status, empty if Spark gave none.
    """

    def __init__(self, error: EngineError, code: str, status_message: str, packed: bytes) -> None:
        super().__init__(
            error.kind,
            error.message,
            error_class=error.error_class,
            sqlstate=error.sqlstate,
            details=error.details,
        )
        self.code = code
        self.status_message = status_message
        self.packed = packed


# The party that must act on a failure: decided from codes and classes, never from a message's text.
#
# A failure on a Spark cluster is a chain of errors, each the cause of the one before. An error that
# Spark wrote itself has an error class and mostly a SQLSTATE; others only have Java classes. Some
# errors *decide*: a division by zero keeps its meaning however deep it lies in a failed job. Others
# only *suggest*, because they also occur around any other error (TASK_WRITE_FAILED, a bare
# RuntimeException). A few *wrap* another error and have no meaning of their own. The outermost
# deciding error counts. Without one, the innermost suggestion counts, but only if the whole chain
# is known. Otherwise the kind is ENVIRONMENT. Trying again is safe: with transaction markers a
# second run does nothing. The opposite mistake is worse: if a broken disk or a lost connection to
# the metastore counted as the statement's fault, this cluster would skip a write that the others
# have. A statement that fails on every cluster for an unknown reason is given up by the ring, not
# by one.
#
# A failure without an error of Spark's (a broken connection, a deadline, a wrong token) is
# AVAILABILITY: it is unknown if the statement ran.


_APPLICATION = ErrorKind.APPLICATION
_AVAILABILITY = ErrorKind.AVAILABILITY
_ENVIRONMENT = ErrorKind.ENVIRONMENT


@dataclass(frozen=True, slots=True)
class Link:
    """One error in a chain of errors, each of which caused the one before.

    ``java_classes``: the error's Java class, then its ancestors.
    """

    error_class: str = ""
    sqlstate: str = ""
    java_classes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ErrorVerdict:
    """What one error of a chain says about the kind of the failure.

    ``decides``: False if it is only a suggestion, for the case that no error of the chain decides.
    """

    kind: ErrorKind
    decides: bool = True


_BY_MAIN_CLASS: Mapping[str, ErrorVerdict] = {
    # The session, the operation or the whole server went away.
    "INVALID_HANDLE": ErrorVerdict(_AVAILABILITY),
    "INVALID_CURSOR": ErrorVerdict(_AVAILABILITY),
    "OPERATION_CANCELED": ErrorVerdict(_AVAILABILITY),
    "SPARK_JOB_CANCELLED": ErrorVerdict(_AVAILABILITY),
    "SPARK_CONNECT_ILLEGAL_STATE": ErrorVerdict(_AVAILABILITY),
    # Another commit came in between: the same statement may succeed a moment later.
    "DELTA_MERGE_MATERIALIZE_SOURCE_FAILED_REPEATEDLY": ErrorVerdict(_ENVIRONMENT),
    "DELTA_MERGE_SOURCE_CACHED_DURING_EXECUTION": ErrorVerdict(_ENVIRONMENT),
    "DELTA_ROW_TRACKING_BACKFILL_RUNNING_CONCURRENTLY_WITH_UNBACKFILL": ErrorVerdict(_ENVIRONMENT),
    "INCOMPATIBLE_TABLE_CHANGE_AFTER_ANALYSIS": ErrorVerdict(_ENVIRONMENT),
    "INTERNAL_ERROR": ErrorVerdict(_APPLICATION, decides=False),  # mostly the same everywhere
    # Memory, disk, executors, network.
    "INTERNAL_ERROR_BROADCAST": ErrorVerdict(_ENVIRONMENT),
    "INTERNAL_ERROR_EXECUTOR": ErrorVerdict(_ENVIRONMENT),
    "INTERNAL_ERROR_MEMORY": ErrorVerdict(_ENVIRONMENT),
    "INTERNAL_ERROR_NETWORK": ErrorVerdict(_ENVIRONMENT),
    "INTERNAL_ERROR_SHUFFLE": ErrorVerdict(_ENVIRONMENT),
    "INTERNAL_ERROR_STORAGE": ErrorVerdict(_ENVIRONMENT),
    "STAGE_MATERIALIZATION_MULTIPLE_FAILURES": ErrorVerdict(_ENVIRONMENT, decides=False),
    "FAILED_RENAME_TEMP_FILE": ErrorVerdict(_ENVIRONMENT),
    "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND": ErrorVerdict(_ENVIRONMENT),
    # The files of a table on this cluster are damaged.
    "DELTA_CHECKPOINT_SNAPSHOT_MISMATCH": ErrorVerdict(_ENVIRONMENT),
    "DELTA_DELETION_VECTOR_CARDINALITY_MISMATCH": ErrorVerdict(_ENVIRONMENT),
    "DELTA_DELETION_VECTOR_CHECKSUM_MISMATCH": ErrorVerdict(_ENVIRONMENT),
    "DELTA_DELETION_VECTOR_INVALID_ROW_INDEX": ErrorVerdict(_ENVIRONMENT),
    "DELTA_DELETION_VECTOR_SIZE_MISMATCH": ErrorVerdict(_ENVIRONMENT),
    "DELTA_DV_HISTOGRAM_DESERIALIZATON": ErrorVerdict(_ENVIRONMENT),
    "DELTA_FEATURES_PROTOCOL_METADATA_MISMATCH": ErrorVerdict(_ENVIRONMENT),
    "DELTA_FILE_TO_OVERWRITE_NOT_FOUND": ErrorVerdict(_ENVIRONMENT),
    "DELTA_LOG_FILE_NOT_FOUND": ErrorVerdict(_ENVIRONMENT),
    "DELTA_METADATA_ABSENT_EXISTING_CATALOG_TABLE": ErrorVerdict(_ENVIRONMENT),
    "DELTA_MISSING_COMMIT_INFO": ErrorVerdict(_ENVIRONMENT),
    "DELTA_MISSING_COMMIT_TIMESTAMP": ErrorVerdict(_ENVIRONMENT),
    "DELTA_MISSING_PART_FILES": ErrorVerdict(_ENVIRONMENT),
    "DELTA_NUM_RECORDS_MISMATCH": ErrorVerdict(_ENVIRONMENT),
    "DELTA_STATE_RECOVER_ERROR": ErrorVerdict(_ENVIRONMENT),
    "DELTA_TRUNCATED_TRANSACTION_LOG": ErrorVerdict(_ENVIRONMENT),
    "DELTA_TXN_LOG_FAILED_INTEGRITY": ErrorVerdict(_ENVIRONMENT),
    # Delta is older than the table. No statement causes this: ALTER TABLE checks it before.
    "DELTA_INVALID_PROTOCOL_VERSION": ErrorVerdict(_ENVIRONMENT),
    "DELTA_UNSUPPORTED_FEATURES_FOR_READ": ErrorVerdict(_ENVIRONMENT),
    "DELTA_UNSUPPORTED_FEATURES_FOR_WRITE": ErrorVerdict(_ENVIRONMENT),
    # Errors of statements, although their SQLSTATE is one of damage (KD002, KD007).
    "DELTA_FAILED_SCAN_WITH_HISTORICAL_VERSION": ErrorVerdict(_APPLICATION),
    "DELTA_MISSING_CHANGE_DATA": ErrorVerdict(_APPLICATION),
    "DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING_POST_SCHEMA_EVOLUTION": ErrorVerdict(_APPLICATION),
    "DELTA_STREAMING_SCHEMA_MISMATCH_ON_RESTART": ErrorVerdict(_APPLICATION),
    "DELTA_TABLE_INVALID_REMOVE_TABLE_REDIRECT": ErrorVerdict(_APPLICATION),
    # These wrap any error of a task.
    "TASK_WRITE_FAILED": ErrorVerdict(_ENVIRONMENT, decides=False),
    "FAILED_READ_FILE": ErrorVerdict(_ENVIRONMENT, decides=False),
}
"""The verdicts by Spark's error class, without the sub-class behind the dot."""

_BY_SQLSTATE: Mapping[str, ErrorVerdict] = {
    "08": ErrorVerdict(_ENVIRONMENT),  # connection exception (inside the cluster)
    "0B": ErrorVerdict(_ENVIRONMENT),  # invalid transaction initiation
    "2D": ErrorVerdict(_ENVIRONMENT),  # Delta's concurrent modifications
    "40": ErrorVerdict(_ENVIRONMENT),  # transaction rollback, commit retries exceeded
    "53": ErrorVerdict(_ENVIRONMENT),  # insufficient resources
    "57": ErrorVerdict(_ENVIRONMENT),  # operator intervention
    "58": ErrorVerdict(_ENVIRONMENT, decides=False),  # system error
    "82": ErrorVerdict(_ENVIRONMENT),  # out of memory
    "HY": ErrorVerdict(_AVAILABILITY),
    "KD001": ErrorVerdict(_ENVIRONMENT, decides=False),  # a data file can't be read
    "KD002": ErrorVerdict(_ENVIRONMENT),  # a log can't be read
    "KD006": ErrorVerdict(_ENVIRONMENT),  # commits are missing
    "KD007": ErrorVerdict(_ENVIRONMENT),  # the schema changed while the statement ran
    "KD00B": ErrorVerdict(_ENVIRONMENT),  # a log has unknown content
    "KD00C": ErrorVerdict(_ENVIRONMENT),  # a log has a gap
    "XX": ErrorVerdict(_APPLICATION, decides=False),  # internal errors
}
"""The verdicts by SQLSTATE, the longest prefix first. Any other SQLSTATE is the statement's
fault."""

_BY_ANCESTOR: Mapping[str, ErrorVerdict] = {
    "java.lang.OutOfMemoryError": ErrorVerdict(_ENVIRONMENT),
    "java.lang.LinkageError": ErrorVerdict(_ENVIRONMENT),
    "java.io.IOException": ErrorVerdict(_ENVIRONMENT),
    "java.io.UncheckedIOException": ErrorVerdict(_ENVIRONMENT),
    "java.sql.SQLException": ErrorVerdict(_ENVIRONMENT),  # the metastore's database
    "java.util.concurrent.TimeoutException": ErrorVerdict(_ENVIRONMENT),
    "java.lang.InterruptedException": ErrorVerdict(_ENVIRONMENT),
    "io.delta.exceptions.DeltaConcurrentModificationException": ErrorVerdict(_ENVIRONMENT),
    "org.apache.spark.sql.delta.DeltaConcurrentModificationException": ErrorVerdict(_ENVIRONMENT),
    "org.apache.spark.shuffle.FetchFailedException": ErrorVerdict(_ENVIRONMENT),
    "org.apache.spark.ExecutorDeadException": ErrorVerdict(_ENVIRONMENT),
    "java.lang.StackOverflowError": ErrorVerdict(_APPLICATION),  # a statement nested too deep
    "org.apache.spark.api.python.PythonException": ErrorVerdict(_APPLICATION),
    "org.apache.hadoop.hive.metastore.api.AlreadyExistsException": ErrorVerdict(_APPLICATION),
    "org.apache.hadoop.hive.metastore.api.NoSuchObjectException": ErrorVerdict(_APPLICATION),
    "org.apache.hadoop.hive.metastore.api.InvalidObjectException": ErrorVerdict(_APPLICATION),
    "org.apache.hadoop.hive.metastore.api.InvalidOperationException": ErrorVerdict(_APPLICATION),
    "org.apache.spark.sql.AnalysisException": ErrorVerdict(_APPLICATION, decides=False),
    "org.apache.spark.sql.catalyst.parser.ParseException": ErrorVerdict(_APPLICATION),
}
"""The verdicts by Java class or one of its ancestors, for errors without an error class of
Spark's."""

_BY_EXACT_JAVA_CLASS: Mapping[str, ErrorVerdict] = {
    name: ErrorVerdict(_APPLICATION, decides=False)
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
"""The verdicts by the Java class itself, not its ancestors: a subclass of these that a storage
library made is not the statement's fault."""

_WRAPS = ErrorVerdict(_ENVIRONMENT, decides=False)
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
"""Java classes of errors that only wrap their cause. If a chain ends with one, the cause is
unknown."""
_UNKNOWN = ErrorVerdict(_ENVIRONMENT, decides=False)
CHAIN_MAX = 5
"""The most errors of one chain that Spark sends (ErrorUtils.MAX_ERROR_CHAIN_LENGTH)."""


def verdict(link: Link) -> ErrorVerdict:
    """Return what this error shows if its causes are not considered."""
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
        return ErrorVerdict(_APPLICATION)
    if not link.java_classes:
        return _UNKNOWN
    name = link.java_classes[0]
    return _WRAPS if name in _WRAPPERS else _BY_EXACT_JAVA_CLASS.get(name, _UNKNOWN)


def kind_of_chain(chain: Sequence[Link], *, whole: bool = True) -> ErrorKind:
    """Return the kind of a failure from Spark's errors; ``chain`` begins with the outermost one.

    ``whole``: False if causes may be missing at the end of the chain.
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
    """True if this error does not decide the kind of the failure, so its causes are needed."""
    return not verdict(link).decides


def kind_of_code(code: str) -> ErrorKind:
    """Return the kind of a failure for which Spark gave no error, only a gRPC code.

    A server answers UNKNOWN if it met something unexpected, such as a stack overflow in its parser
    (measured: a SELECT nested 1,500 deep). It lives, and has not run the statement.
    """
    return _ENVIRONMENT if code in ("RESOURCE_EXHAUSTED", UNKNOWN) else _AVAILABILITY


UNKNOWN = "UNKNOWN"
"""A gRPC code. It is also the error class of an error that Spark did not explain."""


SESSION_CHANGED = "INVALID_HANDLE.SESSION_CHANGED"
_SESSION_CLOSED = "INVALID_HANDLE.SESSION_CLOSED"
_LOST = frozenset({SESSION_CHANGED, "INVALID_HANDLE.SESSION_NOT_FOUND", _SESSION_CLOSED})


def session_lost(error_class: str) -> bool:
    """True if the server refused the call because it no longer knows the session."""
    return error_class in _LOST


def has_ended(error: EngineError) -> bool:
    """True if this error, with which an answer ended, proves that the statement ended in Spark."""
    return error.kind is not ErrorKind.AVAILABILITY or session_lost(error.error_class)


def session_id_spent(error_class: str) -> bool:
    """True if the session's id can never be used again on this server."""
    return error_class == _SESSION_CLOSED
