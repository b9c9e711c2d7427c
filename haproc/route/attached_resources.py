"""Attaches a request's resources to the operation that it became, until that is over.

The resources are the rows that the request brought, and its client's session. The request may end
sooner: its client gets an answer after some time that the outcome is not known, and the operation
still waits for its turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

from haproc.failure import RequestError
from haproc.replicate.queue.facts import Facts
from haproc.replicate.replica import Replica
from haproc.route.model import ManyRows
from haproc.route.retry_ids import retry_ids
from haproc.sessions.client import ClientSession

_Key: TypeAlias = tuple[str, str]


class AttachedResources:
    """See the module. Keys are those of operations, if nothing else is said."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._rows: dict[_Key, ManyRows] = {}
        self._sessions: set[_Key] = set()
        self._followed: set[_Key] = set()
        self._requests: Counter[_Key] = Counter()

    def attach_rows(self, key: _Key, body: ManyRows) -> None:
        """Let an operation that is about to enter the log take its rows from a body."""
        if key in self._rows:
            return  # made anew: the same request, the same rows
        body.hold()
        self._rows[key] = body
        self._replica.computing.attach_rows(key, body)

    def request_is_over(self, body: ManyRows) -> None:
        """Take the rows back, from what is not in the log or over at once."""
        for key in [key for key, attached in self._rows.items() if attached is body]:
            self._when_over(key, self._take_back)

    def attach_session(self, facts: Facts, session: ClientSession) -> None:
        """Let an operation's query run in its client's session, if that may hold what it rests on.

        While a request of it is at work here, see `during`.
        """
        if _may_hold(session, facts):
            self._sessions.add(facts.key)
            self._replica.computing.attach_session(facts.key, session.spark, session.unchanged())

    @contextmanager
    def during(self, request: _Key) -> Iterator[None]:
        """Take sessions back behind the last of a request that is sent several times, likewise.

        ``request``: its user and its id, which all its operations' ids follow from.
        """
        self._requests[request] += 1
        try:
            yield
        finally:
            self._requests[request] -= 1
            if not self._requests[request]:
                del self._requests[request]
                user, request_id = request
                for key in [(user, each) for each in retry_ids(request_id)]:
                    if key in self._sessions and key not in self._followed:
                        self._when_over(key, self._take_session_back)

    def _when_over(self, key: _Key, take_back: Callable[[_Key], None]) -> None:
        known = self._replica.core.outcomes.find(key)
        if known is None or known.outcome is not None:
            take_back(key)
        else:
            self._followed.add(key)
            self._replica.core.tasks.spawn(self._follow(key, take_back))

    async def _follow(self, key: _Key, take_back: Callable[[_Key], None]) -> None:
        known = self._replica.core.outcomes.find(key)
        try:
            if known is not None:
                with suppress(RequestError):
                    await self._replica.writes.settled(known)
        finally:
            self._followed.discard(key)
            take_back(key)

    def _take_back(self, key: _Key) -> None:
        if (body := self._rows.pop(key, None)) is not None:
            self._replica.computing.detach_rows(key)
            body.release()

    def _take_session_back(self, key: _Key) -> None:
        self._sessions.discard(key)
        self._replica.computing.detach_session(key)


def _may_hold(session: ClientSession, facts: Facts) -> bool:
    """Whether a session may hold what an operation's query rests on."""
    if facts.entries is not None:
        same = facts.begun in ("", session.begun)
        return same and facts.entries == session.next_ordinal
    return session.holds_temporaries
