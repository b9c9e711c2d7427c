"""What every request's head must be like, whatever it asks for."""

from __future__ import annotations

from collections.abc import Collection

from multidict import CIMultiDictProxy

from haproc.doors.http.unpacking import ENCODINGS
from haproc.failure import ErrorClass, refused


def check_head(headers: CIMultiDictProxy[str], read: Collection[str]) -> None:
    """Refuse a head of which only a part would be heard; ``read`` are the headers looked at."""
    for name in ("Content-Encoding", *read):
        if len(headers.getall(name, ())) > 1:
            raise refused(ErrorClass.BAD_REQUEST, f"there are several headers {name}", "send one")
    encoding = headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ENCODINGS:
        raise refused(
            ErrorClass.CONTENT_TYPE,
            f"Content-Encoding {encoding[:80]!r} is not known here",
            "send the body raw, or with gzip or deflate",
        )
