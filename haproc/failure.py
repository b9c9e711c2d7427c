"""A failed request: who must act on it, and what became of a write."""

from __future__ import annotations

from enum import StrEnum


class FailureKind(StrEnum):
    """Who must act on a failed request."""

    APPLICATION = "application"
    """The statement is wrong; every cluster would say the same."""
    AVAILABILITY = "availability"
    """This HAProc cannot answer now; the next one may, with the same request id."""
    REFUSED = "refused"
    """HAProc will not run this request as it stands; it has changed nothing by itself."""


class Outcome(StrEnum):
    """What became of a failed write."""

    NOT_SENT = "NOT_SENT"
    """It is in no log and on no cluster."""
    REJECTED = "REJECTED"
    """It has no effect on any cluster, now or later."""
    UNKNOWN = "UNKNOWN"
    """It may have been or may yet be applied; asking again with the same request id tells."""


class RequestError(Exception):
    """A request failed; carries everything that the client is told."""

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        error_class: str,
        sqlstate: str = "",
        outcome: Outcome = Outcome.NOT_SENT,
        hint: str = "",
        offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.error_class = error_class
        self.sqlstate = sqlstate
        self.outcome = outcome
        self.hint = hint
        self.offset = offset

    def __reduce__(self) -> tuple[object, tuple[object, ...], dict[str, object]]:
        """Exceptions are copied between processes by what made them."""
        return _remade, (self.kind, self.message, self.error_class), dict(self.__dict__)


def _remade(kind: FailureKind, message: str, error_class: str) -> RequestError:
    return RequestError(kind, message, error_class=error_class)


def message_of(error: Exception) -> str:
    """Return what an error says; a deadline that has passed says nothing by itself."""
    return str(error) or "no answer in time"


def log_away(error: Exception) -> str:
    """Return what is told of a HAProc while its log is away."""
    return f"the log cannot be reached: {message_of(error)}"
