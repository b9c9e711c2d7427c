"""An application error as records of the log hold it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dmq import Json


@dataclass(frozen=True, slots=True)
class Failure:
    """An application error: the deterministic outcome of an operation on a cluster."""

    error_class: str
    sqlstate: str
    message: str

    def same_as(self, other: Failure) -> bool:
        """Whether two clusters met the same error (messages may name files or hosts)."""
        return (self.error_class, self.sqlstate) == (other.error_class, other.sqlstate)


def failure_json(failure: Failure | None) -> Json:
    """Return a failure as a record's header."""
    if failure is None:
        return None
    return [failure.error_class, failure.sqlstate, failure.message]


def failure_of(value: Any) -> Failure | None:
    """Return the failure that a record's header holds."""
    return None if value is None else Failure(*value)
