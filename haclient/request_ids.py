"""Request ids: made once per request and kept across its retries; the age of a request.

The ids are UUIDs of version 7 (RFC 9562): the time in milliseconds, then 74 random bits, so that
ids sort by the time at which they were made.
"""

from __future__ import annotations

import os
import time
import uuid
from typing import Final

AGE_MAX_S: Final = 1e9
"""The largest age that a server accepts."""
_AGE_MIN_S: Final = 0.001
"""The least age of a request that is sent again: servers take 0 for a first attempt."""


def new_request_id() -> str:
    """Return a new request id."""
    return request_id(time.time_ns() // 1_000_000, os.urandom(10))


def request_id(unix_ms: int, entropy: bytes) -> str:
    """Return the request id made of this unix time in ms and these 10 random bytes."""
    bits = int.from_bytes(entropy)
    value = (unix_ms & ((1 << 48) - 1)) << 80
    value |= 0x7 << 76 | ((bits >> 62) & 0xFFF) << 64
    value |= 0b10 << 62 | (bits & ((1 << 62) - 1))
    return str(uuid.UUID(int=value))


def made_s(request_id: str) -> float:
    """Return the unix time at which a request id was made. Raises ValueError if it is none."""
    return (uuid.UUID(request_id).int >> 80) / 1000


class Age:
    """Measures the time since a request was first sent, over all attempts.

    The computer may be suspended between two attempts. The monotonic clock may stop meanwhile, and
    the wall clock may be set back. So the longer of the two times counts. After a time that is too
    long a server may refuse the request. After one that is too short, it could apply it twice.
    """

    def __init__(self, before_s: float = 0.0) -> None:
        """``before_s``: the request's age by now, if it was sent before."""
        self._before_s = before_s
        self._began: tuple[float, float] | None = None

    def now(self) -> float:
        """Return the request's age now; at the first call ``before_s``."""
        clocks = time.monotonic(), time.time()
        if self._began is None:
            self._began = clocks
            return self._before_s
        passed_s = max(clocks[0] - self._began[0], clocks[1] - self._began[1])
        return min(self._before_s + max(passed_s, _AGE_MIN_S), AGE_MAX_S)
