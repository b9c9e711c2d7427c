"""A statement as a door hands it in: what is asked, and how the answer is delivered."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from haproc.route.model import Request


class Format(StrEnum):
    """How a result's rows are written."""

    JSON_ARRAY = "JSON_ARRAY"
    ARROW_STREAM = "ARROW_STREAM"


class Disposition(StrEnum):
    """Where a result's rows are found."""

    INLINE = "INLINE"
    EXTERNAL_LINKS = "EXTERNAL_LINKS"


class OnWaitTimeout(StrEnum):
    """What happens to a statement that takes longer than ``wait_timeout``."""

    CONTINUE = "CONTINUE"
    CANCEL = "CANCEL"


@dataclass(frozen=True, slots=True)
class Delivery:
    """How the client wants the result."""

    format: Format = Format.JSON_ARRAY
    disposition: Disposition = Disposition.INLINE
    rows_max: int | None = None
    bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class StatementRequest:
    """A checked request: what the service is asked, and how the answer is delivered."""

    request: Request
    delivery: Delivery
    wait_s: float
    on_wait_timeout: OnWaitTimeout
    own_id: bool = True
    """The client chose the request's id, so that it can repeat the request."""
