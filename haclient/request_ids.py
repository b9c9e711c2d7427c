"""Request ids: made once per request and kept across its retries.

They are UUIDs of version 7 (RFC 9562): the time in milliseconds, then 74 random bits, so that ids
sort by the time at which they were made.
"""

from __future__ import annotations

import os
import time
import uuid


def new_request_id() -> str:
    """Return a fresh id."""
    return request_id(time.time_ns() // 1_000_000, os.urandom(10))


def request_id(unix_ms: int, entropy: bytes) -> str:
    """Return the id made of this time and these 10 random bytes."""
    bits = int.from_bytes(entropy)
    value = (unix_ms & ((1 << 48) - 1)) << 80
    value |= 0x7 << 76 | ((bits >> 62) & 0xFFF) << 64
    value |= 0b10 << 62 | (bits & ((1 << 62) - 1))
    return str(uuid.UUID(int=value))


def made_s(request_id: str) -> float:
    """Return the unix time at which an id was made; raises ValueError if it is no id."""
    return (uuid.UUID(request_id).int >> 80) / 1000
