"""Makes clients' answers and errors from this cluster's results and from all failures."""

from __future__ import annotations

import logging
import uuid
from typing import Final

from haproc.classify.model import RefusedError
from haproc.engine.errors import EngineError, ErrorKind
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome
from haproc.replicate.apply.synchronous import QUEUED
from haproc.replicate.member.core import Core
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus
from haproc.replicate.writes import WriteAttempt
from haproc.route.model import Answer, HaReport
from haproc.route.streams import Collected, refused, request_error
from haproc.spark_error import NO_DETAILS

# Clients' errors for all failures, at every door.
#
# An unforeseen exception is logged under an id, and the client gets that id. If the request may
# have written, it is an availability error: the outcome is unknown, and another HAProc may know it.
# For a request that only reads, it is an application error, unless this host may be the cause.


_LOG = logging.getLogger(__name__)
_OF_THIS_HOST: Final = (OSError, MemoryError)
"""Exceptions that this host may have caused: another host may have the disk space, memory or
file."""


def to_request_error(error: BaseException, what: str, *, only_reads: bool = False) -> RequestError:
    """Turn any exception into the RequestError that the client receives.

    ``what``: what was being done when it was raised, for the program's log. ``only_reads``: the
    request writes nothing, so the outcome is NOT_SENT, never UNKNOWN.
    """
    if isinstance(error, RequestError):
        if only_reads and error.outcome is WriteOutcome.UNKNOWN:
            error.outcome = WriteOutcome.NOT_SENT
        return error
    if isinstance(error, RefusedError):
        return refused(error)
    if isinstance(error, EngineError):
        return _of_engine(error)
    return _internal(error, what, only_reads=only_reads)


def of_query(error: Exception, what: str) -> Exception:
    """Return the error to raise for a query's ``error``.

    An EngineError or RefusedError stays as it is; every other error becomes a RequestError.
    """
    if isinstance(error, EngineError | RefusedError):
        return error
    return to_request_error(error, what, only_reads=True)


def _internal(error: BaseException, what: str, *, only_reads: bool) -> RequestError:
    """Write an unforeseen exception to the program's log; return the client's error.

    The error's message has a reference under which the program's log shows the exception.
    """
    reference = uuid.uuid4().hex[:12]
    _LOG.error("%s failed unexpectedly, reference %s", what, reference, exc_info=error)
    others_may_succeed = not only_reads or isinstance(error, _OF_THIS_HOST)
    return RequestError(
        FailureKind.AVAILABILITY if others_may_succeed else FailureKind.APPLICATION,
        f"an internal error of HAProc, reference {reference}",
        error_class=ErrorClass.INTERNAL,
        outcome=WriteOutcome.NOT_SENT if only_reads else WriteOutcome.UNKNOWN,
        hint="try the next HAProc with the same request id; this HAProc's log has the details"
        if others_may_succeed
        else "any HAProc would fail likewise: report it, with what this one's log says of it",
    )


def _of_engine(error: EngineError) -> RequestError:
    """Turn an error of Spark, raised while a result is being read, into a RequestError."""
    application = error.kind is ErrorKind.APPLICATION
    return RequestError(
        FailureKind.APPLICATION if application else FailureKind.AVAILABILITY,
        error.message,
        error_class=error.error_class,
        sqlstate=error.sqlstate,
        details=error.details,
        hint="" if application else "try the next HAProc with the same request id",
    )


# The client's answer for this cluster's work: a write's outcome, or an error.


def answer_of(attempt: WriteAttempt, core: Core) -> Answer:
    """Make the client's answer from a write's outcome.

    Raises RequestError if the write was not applied.
    """
    facts, offset, outcome = attempt.facts, attempt.offset, attempt.outcome
    if outcome.status is not OutcomeStatus.APPLIED:
        raise rejected(outcome, offset)
    others = dict.fromkeys(core.members.peers, QUEUED)
    report = HaReport(
        core.me,
        facts.operation_class,
        offset,
        outcome.clusters or {core.me: OutcomeStatus.APPLIED.value, **others},
        offset + 1,
    )
    applied = outcome.applied
    affected = applied.affected_rows
    if affected is None:
        affected = facts.rows
    if affected is None and (found := core.log_state.computations.found(offset)) is not None:
        affected = found.count
    return Answer(
        report, Collected(applied.chunks), affected_rows=affected, observed=applied.observed
    )


def rejected(outcome: OperationOutcome, offset: int) -> RequestError:
    """Return the client's error for the write at ``offset``, which was not applied."""
    failure = outcome.failure
    return RequestError(
        FailureKind.APPLICATION,
        failure.message if failure else "the operation was rejected by its origin",
        error_class=failure.error_class if failure else ErrorClass.REJECTED,
        sqlstate=failure.sqlstate if failure else "",
        outcome=WriteOutcome.REJECTED,
        offset=offset,
        details=failure.details if failure else NO_DETAILS,
    )


def failed(error: EngineError, core: Core, outcome: WriteOutcome) -> RequestError:
    """Turn an error of this cluster's Spark into the client's RequestError.

    An error that raises doubts about the cluster is also reported to the cluster's health.
    """
    reported = request_error(error, core.me, outcome)
    if error.kind is ErrorKind.AVAILABILITY or reported.error_class == ErrorClass.UNKNOWN_ERROR:
        core.health.suspect(error.message)
    return reported
