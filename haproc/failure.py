"""A failed request: the party that must act on it, and the effect of a write."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import TypeVar

from haproc.spark_error import NO_DETAILS, Details

E = TypeVar("E", bound=Exception)


class ErrorClass(StrEnum):
    """HAProc's own error classes; the text under each goes into docs/reference/errors.md.

    Classes that Spark gives are not listed.
    """

    # Statements that are refused.
    EMPTY = "HAPROC_EMPTY"
    """Send exactly one statement; of ``FROM … INSERT … INSERT …`` each INSERT by itself."""
    SYNTAX = "HAPROC_SYNTAX"
    """A string, comment or quoted name is not closed, or the text holds a NUL character."""
    MULTIPLE_STATEMENTS = "HAPROC_MULTIPLE_STATEMENTS"
    """Send exactly one statement; of ``FROM … INSERT … INSERT …`` each INSERT by itself."""
    HIDDEN_STATEMENT = "HAPROC_HIDDEN_STATEMENT"
    """EXECUTE IMMEDIATE and BEGIN … END hide what they run: send the statements themselves."""
    UNCLASSIFIED = "HAPROC_UNCLASSIFIED"
    """HAProc does not know the statement: write it otherwise; a rule can allow it as a query."""
    STATEMENT_TOO_COMPLEX = "HAPROC_STATEMENT_TOO_COMPLEX"
    """The statement is too large or too deeply nested for Spark to read it surely on every cluster
    (``limits.statement_bytes_max``, ``statement_tokens_max``, ``statement_depth_max``; 10,000
    columns of a SELECT; for a plan, its limits; 500,000 columns of all its parts, where a view or
    WITH counts at each use): write it flatter, or send its values as rows."""
    REFUSED_BY_RULE = "HAPROC_REFUSED_BY_RULE"
    """An operator's rule forbids it; the message is the rule's."""
    OVERRIDE_REFUSED = "HAPROC_OVERRIDE_REFUSED"
    """The request asked for a class that the statement can't have."""
    NONDETERMINISTIC = "HAPROC_NONDETERMINISTIC"
    """The statement would differ from cluster to cluster; the hint says how to write it."""
    ANALYSIS_DIFFERS = "HAPROC_ANALYSIS_DIFFERS"
    """Spark reads the statement as another kind than HAProc does, or finds code outside SQL in it.
    """
    VARIABLE = "HAPROC_VARIABLE"
    """Each cluster would replace ``${…}`` by a setting of its own: bind a parameter."""
    TIME_ZONE = "HAPROC_TIME_ZONE"
    """The session's time zone is not known to the HAProc's host."""
    PARAMETERS = "HAPROC_PARAMETERS"
    """Parameters don't fit the markers, or a value doesn't fit its type."""
    TABLE_NAME = "HAPROC_TABLE_NAME"
    """The rows' path names no table, or a name in a statement is computed: write
    ``[catalog.][schema.]name``. Objects of a session (temporary views, functions, variables) cannot
    be named by ``IDENTIFIER(…)``."""
    PATH = "HAPROC_PATH"
    """The statement reads files, or writes to a path: name a table, or allow its folder
    (``paths``)."""
    OPTION = "HAPROC_OPTION"
    """A write gives an option or a property of Delta's that is not known to do the same on every
    cluster, and to keep HAProc's transaction markers: leave it out. The message names the known
    ones."""
    RESERVED_OPTION = "HAPROC_RESERVED_OPTION"
    """The option belongs to HAProc's transaction markers: leave it out."""
    RESERVED_SETTING = "HAPROC_RESERVED_SETTING"
    """No session may change this setting; the message says why: set it in the configuration of all
    Sparks, or leave it out."""
    TEMPORARY_VIEW = "HAPROC_TEMPORARY_VIEW"
    """In this session, the target's name means a temporary view: write the table's schema in front.
    """
    GLOBAL_TEMPORARY = "HAPROC_GLOBAL_TEMPORARY"
    """A global temporary view would be on one cluster: use a temporary or a permanent one."""
    CANNOT_MATERIALISE = "HAPROC_CANNOT_MATERIALISE"
    """A column's type cannot travel as rows (user-defined types; calendar intervals beyond 8 MiB of
    rows), or the rows could not be written: leave it out, or cast it."""
    TOO_LARGE_TO_MATERIALISE = "HAPROC_TOO_LARGE_TO_MATERIALISE"
    """The query's rows exceed ``limits.staged_bytes_max``: make it deterministic, write in several
    steps, or raise it."""
    ROWS_MISFIT = "HAPROC_ROWS_MISFIT"
    """The rows don't fit the table's columns; the message names them."""
    OPERATION_TOO_LARGE = "HAPROC_OPERATION_TOO_LARGE"
    """Split the write, or raise ``limits.operation_bytes_max``."""

    # Plans of Spark Connect that are refused.
    PLAN_UNKNOWN = "HAPROC_PLAN_UNKNOWN"
    """A DataFrame's plan contains parts that this version does not know (of a newer client, of an
    extension): write it as SQL, or use the PySpark that HAProc was made for."""
    NESTED_WRITE = "HAPROC_NESTED_WRITE"
    """A write is part of a query, or of a statement that is only explained: run it by itself."""
    STREAMING = "HAPROC_STREAMING"
    """Streams run on one cluster's server, outside the order of writes: write each batch with
    ``df.write``."""
    SOURCE = "HAPROC_SOURCE"
    """A data source that keeps its data elsewhere (JDBC, Kafka, one in Python): read it in the
    program and give its rows to ``createDataFrame``."""
    JVM_CODE = "HAPROC_JVM_CODE"
    """A class or function of the JVM: write it in Python or SQL."""
    EXTERNAL_COMMAND = "HAPROC_EXTERNAL_COMMAND"
    """Commands of Spark that act on one server alone: the message says what to use instead."""
    PIPELINE = "HAPROC_PIPELINE"
    """Commands of Spark that act on one server alone: the message says what to use instead."""
    MODEL_FILES = "HAPROC_MODEL_FILES"
    """A model would be written to, or read from, files of one cluster: keep it in the program."""
    CHECKPOINT = "HAPROC_CHECKPOINT"
    """A checkpoint would be written to storage: use ``localCheckpoint()``, or a table."""
    RESOURCE_PROFILE = "HAPROC_RESOURCE_PROFILE"
    """Commands of Spark that act on one server alone: the message says what to use instead."""

    # The outcome of a write.
    REQUEST_ID_REUSED = "HAPROC_REQUEST_ID_REUSED"
    """Use a new request id for each new request."""
    RETRY_TOO_LATE = "HAPROC_RETRY_TOO_LATE"
    """The write was first sent before the idempotency window (``limits.window_records``): check in
    the tables whether it was applied. If not, send it under a new id."""
    REDEFINED = "HAPROC_REDEFINED"
    """A table or view that the write depends on was redefined again and again before the write's
    turn came; the write was not applied. Repeat with the same request id when there is less DDL on
    its tables."""
    REJECTED = "HAPROC_REJECTED"
    """The origin rejected the operation and its error is no longer known here."""
    GIVEN_UP = "HAPROC_GIVEN_UP"
    """No cluster could apply the write, and the ring has rejected it: it has no effect anywhere.
    The message says what failed on each cluster."""
    REVOKED = "HAPROC_REVOKED"
    """The write was revoked by its sender, an operator or its time budget (SQLSTATE 57014; the
    message says by whom): it has no effect anywhere. Its request id stays revoked: send the write
    under a new one."""
    NO_ROWS = "HAPROC_NO_ROWS"
    """No cluster may compute the write's rows: every one is DIVERGED."""
    SESSION_GONE = "HAPROC_SESSION_GONE"
    """The write's query needs its session (temporary views, variables), which was closed or begun
    afresh before its turn came, or an object that only one server had (a checkpoint): run the
    session's statements again, then the write; the same request_id may be used."""
    ROWS_GONE = "HAPROC_ROWS_GONE"
    """A large body of rows was lost with the HAProc that took it, before the log had all of it;
    nothing was appended: send the request again, with its rows; the same request_id may be used."""
    SKIPPED = "HAPROC_SKIPPED"
    """The operation was skipped on this cluster. Another cluster knows its outcome; haclient asks
    it."""
    TIMEOUT = "HAPROC_TIMEOUT"
    """The deadline passed. With outcome ``UNKNOWN`` a write may be in the log: repeat with the same
    request id to learn its outcome."""
    TOO_FEW_IN_SYNC = "HAPROC_TOO_FEW_IN_SYNC"
    """Fewer clusters are in sync than the write concern or ``writes.min_insync_clusters`` asks for;
    nothing was written: see ``haproc status``."""
    WRITE_CONCERN = "HAPROC_WRITE_CONCERN"
    """The write is in the log, but not all clusters that its write concern asks for have applied
    it: repeat with the same request id to wait on; the message names those that lack it."""

    # Sessions, and queries for peers.
    SESSION_REQUIRED = "HAPROC_SESSION_REQUIRED"
    """USE, SET and temporary views need a session."""
    SESSION_UNKNOWN = "HAPROC_SESSION_UNKNOWN"
    """The ring has no such session (any more): open a new one, and run there what the program needs
    of the old one."""
    SESSION_HAS_SCHEMA = "HAPROC_SESSION_HAS_SCHEMA"
    """Name either a session or catalog and schema."""
    NOT_A_SESSION_STATEMENT = "HAPROC_NOT_A_SESSION_STATEMENT"
    """A journal holds session statements only."""
    TOO_MANY_SESSIONS = "HAPROC_TOO_MANY_SESSIONS"
    """Close sessions, or raise ``limits.sessions_max`` or ``user_share``."""
    SESSION_CLOSED = "HAPROC_SESSION_CLOSED"
    """The session was closed, or nobody used it for ``limits.session_idle_s``: open one under
    another id. PySpark gets ``INVALID_HANDLE.SESSION_CLOSED``."""
    SESSION_EXISTS = "HAPROC_SESSION_EXISTS"
    """A session is to be cloned under the id of another one: choose another id."""
    SESSION_MOVED = "HAPROC_SESSION_MOVED"
    """Another HAProc took the session over meanwhile, and the step has no effect: ask again
    (clients do). If the error is frequent, one program uses several HAProcs at a time."""
    SESSION_VERSION = "HAPROC_SESSION_VERSION"
    """A later version of HAProc wrote into the session: upgrade this one."""
    SESSION_NOT_REBUILT = "HAPROC_SESSION_NOT_REBUILT"
    """A part of the session cannot be rebuilt on this cluster; the message names it and the
    reason. A temporary view fails alone (its rows are this error), and so does a function (each
    call is refused by ``TABLE_OR_VIEW_NOT_FOUND`` with this text as the name). A write whose rows
    needed it is rejected. Restore what it depends on (a dropped table, for example) and create the
    view again, or open a new session."""
    SESSION_TOO_LARGE = "HAPROC_SESSION_TOO_LARGE"
    """The session's journal or files reach ``limits.session_entries_max``, ``session_bytes_max`` or
    ``session_files_bytes_max``: go on in a new session, or raise them."""
    HANDLE_LOST = "HAPROC_HANDLE_LOST"
    """A local checkpoint or a fitted model was in the memory of a Spark that is gone: run
    ``localCheckpoint()`` or ``fit()`` again."""
    NO_QUERY = "HAPROC_NO_QUERY"
    """A HAProc forwarded a query that is no query by this one's rules: restart those that have not
    read the rules."""
    NOT_FRESH = "HAPROC_NOT_FRESH"
    """No cluster has applied what the query's read level asks for; the message says what each one
    lacks. haclient repeats the query. Or a table or view of the statement was redefined when it
    began. If the error lasts, an operation runs for minutes (``haproc queue list``), or a cluster
    is too slow for the writes. After the log was replaced, clients need new connections."""

    # Jobs.
    JOBS_OFF = "HAPROC_JOBS_OFF"
    """The ring takes no jobs: set ``jobs.enabled`` at each HAProc."""
    JOB_UNKNOWN = "HAPROC_JOB_UNKNOWN"
    """There is no job of this id, or it is another user's."""
    JOB_FIELD = "HAPROC_JOB_FIELD"
    """A field or setting is for a driver in a JVM, or not allowed: the message says what to use
    instead."""
    JOB_FILE = "HAPROC_JOB_FILE"
    """The file is in no folder of ``jobs.folders``: upload it with the request."""
    JOB_MASTER = "HAPROC_JOB_MASTER"
    """The program asks for a Spark of its own, which would write past the ring: leave
    ``.master(…)`` out."""
    JOB_FENCED = "HAPROC_JOB_FENCED"
    """The request comes from an attempt of a job that was killed, has ended or was replaced by a
    later one; the request has no effect."""
    JOB_VERSION = "HAPROC_JOB_VERSION"
    """A later version of HAProc wrote into the ring's jobs: upgrade this one."""

    # Requests, at any door.
    BAD_REQUEST = "HAPROC_BAD_REQUEST"
    """The request itself is wrong or too slow; the message says how."""
    UNAUTHENTICATED = "HAPROC_UNAUTHENTICATED"
    """Send a token that the door takes: of a user of the configuration, of its OpenID Connect
    provider, or of a job; between HAProcs the ring's secret."""
    FORBIDDEN = "HAPROC_FORBIDDEN"
    """The token's user may not do this: the user's roles or tables do not include it; the message
    says which are needed. An operator changes ``roles`` or ``tables`` of the user."""
    PROVIDER_AWAY = "HAPROC_PROVIDER_AWAY"
    """The keys of the OpenID Connect provider could not be fetched, and this HAProc has no earlier
    ones: the message says why. Ask again later; operators: see ``oidc``."""
    NOT_FOUND = "HAPROC_NOT_FOUND"
    """The statement ran on another HAProc, is no longer kept, or the path is wrong."""
    METHOD_NOT_ALLOWED = "HAPROC_METHOD_NOT_ALLOWED"
    """The request itself is wrong or too slow; the message says how."""
    CONTENT_TYPE = "HAPROC_CONTENT_TYPE"
    """The request itself is wrong or too slow; the message says how."""
    EXPECTATION = "HAPROC_EXPECTATION"
    """The request itself is wrong or too slow; the message says how."""
    BODY_TIMEOUT = "HAPROC_BODY_TIMEOUT"
    """The request itself is wrong or too slow; the message says how."""
    TOO_LARGE = "HAPROC_TOO_LARGE"
    """The body is larger than the limit that the message names: split it, or raise the limit."""
    STATEMENT_UNKNOWN = "HAPROC_STATEMENT_UNKNOWN"
    """The statement ran on another HAProc, is no longer kept, or the path is wrong."""
    OFFSET_UNKNOWN = "HAPROC_OFFSET_UNKNOWN"
    """The log has no operation at this offset: ``haproc queue list`` shows those that wait."""
    NOT_NOW = "HAPROC_NOT_NOW"
    """An operator's request is not allowed in the present situation: the message says why."""
    CANCELED = "HAPROC_CANCELED"
    """The statement was cancelled."""
    RESULT_TOO_LARGE = "HAPROC_RESULT_TOO_LARGE"
    """Use EXTERNAL_LINKS or an Arrow stream."""
    RESULT_TYPE = "HAPROC_RESULT_TYPE"
    """A column has a type without a form in JSON: cast it, or ask for the Arrow stream."""
    RESULTS_FULL = "HAPROC_RESULTS_FULL"
    """Kept results fill ``limits.results_kept_bytes_max``: fetch results, use streams, or raise it.
    """
    RESULT_CHANGED = "HAPROC_RESULT_CHANGED"
    """A large result broke off; the query ran again on another cluster, and gave other rows, or
    another order: run it again. A query that gives the same rows in the same order (ORDER BY, no
    random values) continues where it was."""
    RESULT_LOST = "HAPROC_RESULT_LOST"
    """A result broke off and cannot be continued; the message says why: run the query again.
    """
    BUSY = "HAPROC_BUSY"
    """The request got no permit (``limits.statements_max``) within ``statement_queue_s``, or
    ``connections_max``, ``requests_bytes_max`` or a user's share of it (``user_share``) is
    exceeded: send less, or raise it."""
    STOPPING = "HAPROC_STOPPING"
    """This HAProc stopped while a long statement waited to be read: ask the next one."""
    INTERNAL = "HAPROC_INTERNAL"
    """HAProc has a fault: search its log for the reference in the message. A query can be sent to
    another HAProc only where the error says so."""

    # The log, Spark, storage.
    LOG_UNAVAILABLE = "HAPROC_LOG_UNAVAILABLE"
    """The log accepted no append in time, or did not report its end for a ``bounded`` or
    ``linearizable`` query: its disk is full, slow or gone. Repeat with the same request id."""
    STORAGE_AWAY = "HAPROC_STORAGE_AWAY"
    """The storage id (file ``_haproc`` in Spark's warehouse folder) cannot be read, or is another
    one: the storage is not mounted, or is not the one that this cluster had. Bring it back. If it
    was moved on purpose, write the id that the message names into a text file in that folder; if
    the cluster was emptied on purpose, rebuild it."""
    PLUGIN_MISSING = "HAPROC_PLUGIN_MISSING"
    """The cluster's Spark was started without HAProc's plugin, without one of its two parts, or
    with that of another version of HAProc: start it with the jar and the settings that ``haproc
    spark-jar`` prints. Or it has no Delta Lake, or is another Spark than 4.2."""
    CORES_HELD = "HAPROC_CORES_HELD"
    """Tasks of cancelled or timed-out statements hold all cores, and another cluster serves. The
    cluster returns once Spark has ended them, or is restarted."""
    AVAILABILITY = "HAPROC_AVAILABILITY"
    """Spark failed without naming an error class; see the message and Spark's log."""
    ENVIRONMENT = "HAPROC_ENVIRONMENT"
    """Spark failed without naming an error class; see the message and Spark's log."""
    UNKNOWN_ERROR = "HAPROC_UNKNOWN_ERROR"
    """Spark answered with an error without an explanation, and still runs: see its log. haclient
    asks one more cluster. If that answers the same, the statement is the cause (nested too deep,
    for example)."""

    # The cluster's state, if that is the cause.
    STOPPED = "HAPROC_STOPPED"
    """This HAProc is in the state STOPPED, or was a moment ago. haclient asks the next HAProc."""
    FENCED = "HAPROC_FENCED"
    """This HAProc is in the state FENCED, or was a moment ago. haclient asks the next HAProc."""
    REMOVED = "HAPROC_REMOVED"
    """This HAProc is in the state REMOVED, or was a moment ago. haclient asks the next HAProc."""
    TOO_FAR_BEHIND = "HAPROC_TOO_FAR_BEHIND"
    """This HAProc is in the state TOO_FAR_BEHIND, or was a moment ago. haclient asks the next
    HAProc."""
    DIVERGED = "HAPROC_DIVERGED"
    """This HAProc is in the state DIVERGED, or was a moment ago. haclient asks the next HAProc."""
    STUCK = "HAPROC_STUCK"
    """This HAProc is in the state STUCK, or was a moment ago. haclient asks the next HAProc."""
    DRAINING = "HAPROC_DRAINING"
    """This HAProc is in the state DRAINING, or was a moment ago. haclient asks the next HAProc."""
    STARTING = "HAPROC_STARTING"
    """This HAProc is in the state STARTING, or was a moment ago. haclient asks the next HAProc."""
    DOWN = "HAPROC_DOWN"
    """This HAProc is in the state DOWN, or was a moment ago. haclient asks the next HAProc."""
    ISOLATED = "HAPROC_ISOLATED"
    """This HAProc is in the state ISOLATED, or was a moment ago. haclient asks the next HAProc."""
    COPYING = "HAPROC_COPYING"
    """This HAProc is in the state COPYING, or was a moment ago. haclient asks the next HAProc."""
    RECOVERING = "HAPROC_RECOVERING"
    """This HAProc is in the state RECOVERING, or was a moment ago. haclient asks the next HAProc.
    """
    READ_ONLY = "HAPROC_READ_ONLY"
    """This HAProc is in the state READ_ONLY, or was a moment ago. haclient asks the next HAProc."""
    READY = "HAPROC_READY"
    """This HAProc was out of service a moment ago and is READY now: ask again."""


class FailureKind(StrEnum):
    """The party that must act on a failed request."""

    APPLICATION = "application"
    """The statement is wrong; every cluster would give the same error."""
    AVAILABILITY = "availability"
    """This HAProc cannot answer now; the next one may, with the same request id."""
    REFUSED = "refused"
    """HAProc does not run the request in this form; the request has changed nothing by itself."""


class WriteOutcome(StrEnum):
    """The effect of a failed write."""

    NOT_SENT = "NOT_SENT"
    """It is in no log and on no cluster."""
    REJECTED = "REJECTED"
    """It has no effect on any cluster, now or later."""
    UNKNOWN = "UNKNOWN"
    """It may have been or may yet be applied; a repetition with the same request id shows it."""


class RequestError(Exception):
    """The error of a failed request, with all that its client receives."""

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
        self.audited = False
        """True if the audit log has a line about this error."""

    def __reduce__(self) -> tuple[object, tuple[object, ...], dict[str, object]]:
        """Return the parts for pickle, from which another process builds an equal error."""
        again = partial(RequestError, error_class=self.error_class)
        return again, (self.kind, self.message), dict(self.__dict__)


def without_frames(error: E) -> E:
    """Return a copy of an error without its traceback, whose frames keep statements in memory."""
    kept = type(error).__new__(type(error), *error.args)
    kept.__dict__.update(error.__dict__)
    return kept


def refused(error_class: str, message: str, hint: str = "") -> RequestError:
    """Return the error of a request that HAProc will not run; nothing was changed."""
    return RequestError(FailureKind.REFUSED, message, error_class=error_class, hint=hint)


def busy(message: str) -> RequestError:
    """Return the error of a request that came while the HAProc had too many requests at once."""
    return RequestError(
        FailureKind.AVAILABILITY,
        message,
        error_class=ErrorClass.BUSY,
        hint="try the next HAProc, or again a little later, with the same request id",
    )


def message_of(error: Exception) -> str:
    """Return an error's text; a TimeoutError has no text of its own."""
    return str(error) or "no answer in time"


def log_unavailable(
    what: str, error: Exception, hint: str, outcome: WriteOutcome = WriteOutcome.UNKNOWN
) -> RequestError:
    """Return the error of a request that failed because a call of the log failed.

    ``what``: a text that says what failed.
    """
    return RequestError(
        FailureKind.AVAILABILITY,
        f"{what}: {message_of(error)}",
        error_class=ErrorClass.LOG_UNAVAILABLE,
        outcome=outcome,
        hint=hint,
    )


def log_away(error: Exception) -> str:
    """Return the message of a HAProc that cannot reach its log."""
    return f"the log cannot be reached: {message_of(error)}"


def let_go(error: BaseException | None) -> None:
    """Drop the tracebacks of ``error`` and of its causes, to release memory.

    The frames of a traceback hold the request, up to 64 MiB, and some of them hold the error: a
    cycle, which Python collects only seldom.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # one that was raised from itself
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
