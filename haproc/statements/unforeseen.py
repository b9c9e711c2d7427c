"""What a client is told of whatever went wrong, at every door.

An exception that nobody foresaw is logged under an id and told as an availability error with that
id: its outcome is unknown, and another HAProc may do better.
"""

from __future__ import annotations

import logging
import uuid

from haproc.classify.model import RefusedError
from haproc.engine.errors import EngineError, ErrorKind
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome, refused

_LOG = logging.getLogger(__name__)


def as_told(error: BaseException, what: str) -> RequestError:
    """Turn whatever was raised while ``what`` was done into what the client is told."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, RefusedError):
        return refused(error.error_class, error.message, error.hint)
    if isinstance(error, EngineError):
        return _of_engine(error)
    return _internal(error, what)


def _internal(error: BaseException, what: str) -> RequestError:
    """Log an exception that nobody foresaw and return what the client is told of it."""
    reference = uuid.uuid4().hex[:12]
    _LOG.error("%s failed unexpectedly, reference %s", what, reference, exc_info=error)
    return RequestError(
        FailureKind.AVAILABILITY,
        f"an internal error of HAProc, reference {reference}",
        error_class=ErrorClass.INTERNAL,
        outcome=WriteOutcome.UNKNOWN,
        hint="try the next HAProc with the same request id; this HAProc's log has the details",
    )


def _of_engine(error: EngineError) -> RequestError:
    """Errors of a result that is being read: the statement itself was accepted before."""
    application = error.kind is ErrorKind.APPLICATION
    return RequestError(
        FailureKind.APPLICATION if application else FailureKind.AVAILABILITY,
        error.message,
        error_class=error.error_class,
        sqlstate=error.sqlstate,
        details=error.details,
        hint="" if application else "try the next HAProc with the same request id",
    )
