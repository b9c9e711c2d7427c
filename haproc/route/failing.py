"""What clients are told of requests that failed."""

from __future__ import annotations

from haproc.classify.model import RefusedError
from haproc.engine.errors import EngineError, ErrorKind, NoQueryError
from haproc.engine.status import UNKNOWN
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome


def refused(error: RefusedError) -> RequestError:
    """Return what a client is told whose request is not run."""
    return RequestError(
        FailureKind.REFUSED, error.message, error_class=error.error_class, hint=error.hint
    )


def timed_out(
    timeout_s: float, cluster: str, outcome: WriteOutcome = WriteOutcome.UNKNOWN
) -> RequestError:
    """Return what a client is told whose time is over."""
    return RequestError(
        FailureKind.AVAILABILITY,
        f"cluster {cluster} did not finish within {timeout_s:g} s",
        error_class=ErrorClass.TIMEOUT,
        outcome=outcome,
        hint="ask again with the same request_id",
    )


def request_error(error: EngineError, cluster: str, outcome: WriteOutcome) -> RequestError:
    """Return what a client is told of a cluster's error."""
    if isinstance(error, NoQueryError):
        return refused(_is_no_query(error))
    if error.kind is ErrorKind.APPLICATION:
        is_ours = error.error_class.startswith("HAPROC_")
        return RequestError(
            FailureKind.REFUSED if is_ours else FailureKind.APPLICATION,
            error.message,
            error_class=error.error_class,
            sqlstate=error.sqlstate,
            outcome=WriteOutcome.REJECTED,
            details=error.details,
        )
    unexplained = error.kind is ErrorKind.ENVIRONMENT and error.error_class in ("", UNKNOWN)
    return RequestError(
        FailureKind.AVAILABILITY,
        f"cluster {cluster}: {error.message}",
        error_class=ErrorClass.UNKNOWN_ERROR
        if unexplained
        else error.error_class or ErrorClass(f"HAPROC_{error.kind.upper()}"),
        sqlstate=error.sqlstate,
        outcome=outcome,
        hint="ask the next HAProc with the same request_id",
    )


def _is_no_query(error: NoQueryError) -> RefusedError:
    """Return why a query does not run that Spark takes for something else."""
    return RefusedError(
        ErrorClass.ANALYSIS_DIFFERS,
        f"Spark takes the statement for {', '.join(error.effects)}, not for a query",
        "send a query by itself, without other statements, and call only functions of SQL",
    )


def no_query(me: str, found: str) -> RequestError:
    """Return why a cluster does not run what a peer forwarded as a query."""
    return RequestError(
        FailureKind.REFUSED,
        f"cluster {me} takes the statement for {found}, not for a query",
        error_class=ErrorClass.NO_QUERY,
        hint="the HAProcs' rules differ: restart those that have not read them",
    )
