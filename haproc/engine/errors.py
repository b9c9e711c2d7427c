"""What a cluster answers when a statement fails, reduced to what HAProc must decide by."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from haproc.failure import ErrorClass
from haproc.spark_error import NO_DETAILS, Details


class ErrorKind(StrEnum):
    """Who must act on a failure."""

    APPLICATION = "application"
    """The statement is wrong for these tables: the same everywhere, goes to the client."""
    AVAILABILITY = "availability"
    """The cluster could not be asked, or went away: its outcome is unknown, another one may do."""
    ENVIRONMENT = "environment"
    """The cluster answered but lacks something (memory, disk, executors): trying again may do."""


REFUSED: Final = "CONNECTION_REFUSED"
"""The error class of a server that does not accept connections: it is not there, for certain."""


class EngineError(Exception):
    """A statement failed on a cluster.

    ``error_class`` and ``sqlstate`` are Spark's own (such as ``TABLE_OR_VIEW_NOT_FOUND`` and
    ``42P01``) where it gave them, and so are the ``details``.
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
    """A statement did not run in a guarded session: it does more than give rows.

    ``effects``: the classes of what in its plan does more, without packages (`InsertIntoStatement`,
    `DeleteFromTable`); never empty.
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
    """A relayed call failed; what the server said of it is here as it came.

    ``code`` and ``status_message`` are those of its status; ``packed`` is a serialized
    google.rpc.Status, empty where Spark said nothing.
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
