"""An application error as records of the log hold it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dmq import Json

MESSAGE_CHARACTERS_MAX: Final = 2048
"""As much as Spark puts into a status; what quotes a statement may be as long as that."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An application error: the deterministic outcome of an operation on a cluster.

    Its message is cut to what is worth to be remembered.
    """

    error_class: str
    sqlstate: str
    message: str

    def __post_init__(self) -> None:
        if len(self.message) > MESSAGE_CHARACTERS_MAX:
            short = f"{self.message[: MESSAGE_CHARACTERS_MAX - 1]}…"
            object.__setattr__(self, "message", short)

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
