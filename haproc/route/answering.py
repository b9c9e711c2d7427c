"""Answers and errors for clients, made from this cluster's results and from other failures."""

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
"""Errors of this host: another host may have the disk space, the memory or the file."""


def to_request_error(error: BaseException, what: str, *, only_reads: bool = False) -> RequestError:
    """Return the client's error for any error that was raised while ``what`` was done.

    ``only_reads``: True if nothing can have been applied.
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
    """Return the error to raise for a query's error; an error of Spark stays as it is."""
    if isinstance(error, EngineError | RefusedError):
        return error
    return to_request_error(error, what, only_reads=True)


def _internal(error: BaseException, what: str, *, only_reads: bool) -> RequestError:
    """Log an unforeseen exception and return the client's error for it."""
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
    """Return the client's error for an error in a result that is being read."""
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
    """Return the answer for the client of a write; raises RequestError if it had no effect."""
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
    """Return the client's error for a write without an effect."""
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
    """Return the client's error for an error of this cluster; report a suspicion to its health."""
    reported = request_error(error, core.me, outcome)
    if error.kind is ErrorKind.AVAILABILITY or reported.error_class == ErrorClass.UNKNOWN_ERROR:
        core.health.suspect(error.message)
    return reported
