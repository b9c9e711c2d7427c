"""What both transports share: how an exchange with one server can fail."""

from __future__ import annotations

from haclient.failover import AttemptEnd


class WireError(Exception):
    """No answer from this server; ``end`` says what that means for failing over."""

    end = AttemptEnd.IN_DOUBT


class NotReached(WireError):
    """No connection was made."""

    end = AttemptEnd.NOT_REACHED


class Broken(WireError):
    """The connection broke before the answer was complete."""


class Hung(WireError):
    """The server neither answers nor shows a sign of life."""


class DeadlinePassed(WireError):
    """The request's deadline passed."""

    end = AttemptEnd.TIMED_OUT
