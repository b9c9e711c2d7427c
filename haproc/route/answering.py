"""What a client is told of what this cluster did: a write's outcome, or an error."""

from __future__ import annotations

from haproc.engine.errors import EngineError, ErrorKind
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome
from haproc.replicate.apply.synchronous import QUEUED
from haproc.replicate.member.core import Core
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus
from haproc.replicate.writes import WriteAttempt
from haproc.route.failing import request_error
from haproc.route.model import Answer, HaReport
from haproc.route.streams import Collected
from haproc.spark_error import NO_DETAILS


def answer_of(attempt: WriteAttempt, core: Core) -> Answer:
    """Return what the client of a write is told; raises RequestError if it had no effect."""
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
    """Return what a client is told whose write had no effect."""
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
    """Return what a client is told of this cluster's error, which may be one of its health."""
    told = request_error(error, core.me, outcome)
    if error.kind is ErrorKind.AVAILABILITY or told.error_class == ErrorClass.UNKNOWN_ERROR:
        core.health.suspect(error.message)
    return told
