"""Lends a request's rows to the operation that it became, until that is over.

The request may be over sooner: its client is told after some time that the outcome is not known,
and the operation waits for its turn all the same.
"""

from __future__ import annotations

from contextlib import suppress

from haproc.failure import RequestError
from haproc.replicate.replica import Replica
from haproc.route.model import ManyRows


class Lending:
    """See the module. Keys are those of operations."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._lent: dict[tuple[str, str], ManyRows] = {}

    def lend(self, key: tuple[str, str], body: ManyRows) -> None:
        """Let an operation that is about to enter the log take its rows from a body."""
        if key in self._lent:
            return  # made anew: the same request, the same rows
        body.hold()
        self._lent[key] = body
        self._replica.computing.lend_rows(key, body)

    def request_is_over(self, body: ManyRows) -> None:
        """Take the rows back, from what is not in the log or over at once."""
        for key in [key for key, lent in self._lent.items() if lent is body]:
            known = self._replica.core.outcomes.find(key)
            if known is None or known.outcome is not None:
                self._take_back(key)
            else:
                self._replica.core.tasks.spawn(self._follow(key))

    async def _follow(self, key: tuple[str, str]) -> None:
        known = self._replica.core.outcomes.find(key)
        try:
            if known is not None:
                with suppress(RequestError):
                    await self._replica.writes.settled(known)
        finally:
            self._take_back(key)

    def _take_back(self, key: tuple[str, str]) -> None:
        if (body := self._lent.pop(key, None)) is not None:
            self._replica.computing.take_rows_back(key)
            body.release()
