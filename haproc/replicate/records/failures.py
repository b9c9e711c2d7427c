"""An application error as records of the log hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dmq import Json
from haproc.engine.errors import EngineError
from haproc.spark_error import NO_DETAILS, Details, cut, details_json, details_of

MESSAGE_CHARACTERS_MAX: Final = 2048
"""As much as Spark puts into a status; what quotes a statement may be as long as that."""
_DETAILS: Final = "failure_details"
"""A header of its own: older readers pass over it."""


@dataclass(frozen=True, slots=True)
class ApplicationFailure:
    """An application error: the deterministic outcome of an operation on a cluster.

    Its message is cut to what is worth to be remembered.
    """

    error_class: str
    sqlstate: str
    message: str
    details: Details = NO_DETAILS

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", cut(self.message, MESSAGE_CHARACTERS_MAX))

    @classmethod
    def of(cls, error: EngineError) -> ApplicationFailure:
        """Return a cluster's error as a record holds it."""
        return cls(error.error_class, error.sqlstate, error.message, error.details)

    def same_as(self, other: ApplicationFailure) -> bool:
        """Whether two clusters met the same error (messages may name files or hosts)."""
        return (self.error_class, self.sqlstate) == (other.error_class, other.sqlstate)


def failure_headers(failure: ApplicationFailure | None) -> dict[str, Json]:
    """Return a failure as headers of a record."""
    if failure is None:
        return {"failure": None}
    headers: dict[str, Json] = {"failure": [failure.error_class, failure.sqlstate, failure.message]}
    if failure.details:
        headers[_DETAILS] = details_json(failure.details)
    return headers


def failure_in(headers: Mapping[str, Any]) -> ApplicationFailure:
    """Return the failure that a record's headers hold; KeyError, TypeError or ValueError."""
    error_class, sqlstate, message = headers["failure"]
    said = headers.get(_DETAILS)
    return ApplicationFailure(
        error_class, sqlstate, message, NO_DETAILS if said is None else details_of(said)
    )


def failure_if_any(headers: Mapping[str, Any]) -> ApplicationFailure | None:
    """Return the same, or None where there is none."""
    return None if headers["failure"] is None else failure_in(headers)
