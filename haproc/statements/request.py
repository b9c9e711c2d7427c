"""A statement as a door hands it in: what is asked, and how the answer is delivered."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from haproc.failure import ErrorClass, refused
from haproc.route.model import Request

TIMEOUT_MAX_S: Final = 86_400.0
"""What a request may ask for; chosen."""


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
    delivery: Delivery | None = None
    """None: the result is not kept; who asks again for a write asks the log."""
    wait_s: float = 0.0
    on_wait_timeout: OnWaitTimeout = OnWaitTimeout.CONTINUE
    own_id: bool = True
    """The client chose the request's id, so that it can repeat the request."""


def fingerprint_of(user: str, parts: Mapping[str, Any]) -> str:
    """Return the digest of what a request is; refuses text that is not Unicode.

    ``parts``: what its statement is and where it runs, not how its answer is delivered. So a retry
    that has less time left, or wants a stream, is still the same request.
    """
    canonical = json.dumps([user, parts], ensure_ascii=False, sort_keys=True)
    try:
        return hashlib.sha256(canonical.encode()).hexdigest()
    except UnicodeEncodeError:
        raise refused(ErrorClass.BAD_REQUEST, "the request holds half a surrogate pair") from None
