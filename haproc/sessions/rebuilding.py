"""Clients' sessions for whoever computes the rows of a write in the place of its HAProc."""

from __future__ import annotations

from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Session
from haproc.failure import FailureKind, RequestError
from haproc.replicate.apply.computing import Rebuild, session_gone
from haproc.replicate.records.rows import SessionRef
from haproc.sessions.sessions import Sessions


def rebuilding(sessions: Sessions) -> Rebuild:
    """Return what makes a session anew as its journal has it, for computing alone.

    A session that is closed, or was begun afresh, is gone for good, and so is the write. A step
    that Spark refuses at the write's place it refuses on every cluster, like the query itself: who
    tried again would only keep waiting what stands behind it. A store that is away for a moment
    says nothing about either.
    """

    async def rebuild(ref: SessionRef) -> Session:
        try:
            return await sessions.rebuild(ref.user, ref.session_id, ref.entries, ref.begun)
        except RequestError as error:
            if error.kind is FailureKind.REFUSED:
                raise session_gone("every cluster: it was closed, or begun afresh") from error
            final = error.kind is FailureKind.APPLICATION
            raise EngineError(
                ErrorKind.APPLICATION if final else ErrorKind.ENVIRONMENT,
                error.message,
                error_class=error.error_class,
                sqlstate=error.sqlstate,
            ) from error

    return rebuild
