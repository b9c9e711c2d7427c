"""The retry ids of a request: the ids under which its write stands in the log.

Mostly there is one: the request's own. A write that was rejected because something was gone that
its client brings back (its session, its rows) is made again when the request is sent again, under
another id that follows from its own: ``ID~2``, ``ID~3`` …

Applied is at most one of them. Each id is made only by somebody who has read that the one before it
was *rejected*, which is final on every cluster; and of several operations of one id the first in
the log counts, whoever appended them. So whoever looks goes through the ids in turn, up to the
first that is not known, or was not rejected so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from haproc.failure import ErrorClass
from haproc.replicate.records.failures import ApplicationFailure

IDS_MAX: Final = 8
"""Chosen: sessions are not lost so often in a row; then the rejection is what its client hears."""
_AGAIN: Final = frozenset({ErrorClass.SESSION_GONE.value, ErrorClass.ROWS_GONE.value})


def retry_ids(request_id: str) -> Iterator[str]:
    """Yield a request's ids in their order."""
    yield request_id
    for number in range(2, IDS_MAX + 1):
        yield f"{request_id}~{number}"


def may_be_made_again(rejection: ApplicationFailure | None) -> bool:
    """Whether the same request may have more luck, given why its write was rejected."""
    return rejection is not None and rejection.error_class in _AGAIN
