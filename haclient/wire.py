"""What both transports share: how an exchange with one server can fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from haclient.failover import AttemptEnd

Body: TypeAlias = bytes | Iterator[bytes]
"""A request's body: whole, or in pieces that are made while it is sent."""


class WireError(Exception):
    """No answer from this server; ``end`` says what that means for failing over."""

    end = AttemptEnd.IN_DOUBT
    retry_after_s = 0.0
    """How long it asked to be left alone for."""


class NotReached(WireError):
    """No connection was made."""

    end = AttemptEnd.NOT_REACHED


class NotTaken(WireError):
    """The server says that it cannot now, and that it has done nothing."""

    end = AttemptEnd.NOT_TAKEN


class Busy(WireError):
    """The server says so because it has as much to do as it takes."""

    end = AttemptEnd.BUSY

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class InDoubt(WireError):
    """The server says that it does not know what becomes of the request."""


class Leaving(WireError):
    """The server says so because it is going out of service."""

    end = AttemptEnd.LEAVING


class Broken(WireError):
    """The connection broke before the answer was complete."""


class Hung(WireError):
    """The server neither answers nor shows a sign of life."""


class DeadlinePassed(WireError):
    """The request's deadline passed."""

    end = AttemptEnd.TIMED_OUT
