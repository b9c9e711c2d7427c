"""What the doors ask of the HAProc behind them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from dmq import Json
from haproc.classify.model import WriteConcern
from haproc.replicate.queue.revoked import Revoked
from haproc.route.model import Answer, Request


class Service(Protocol):
    """Runs clients' requests. Every method raises RequestError and nothing else."""

    async def execute(self, request: Request) -> Answer:
        """Run the statement, whatever form it has; a query's result streams."""
        ...

    def find_write(self, request_id: str, user: str) -> Callable[[], Awaitable[Answer]] | None:
        """Return what waits for what became of this user's write; None if it is not here.

        Here: read from the log by this HAProc, within the window of request ids.
        """
        ...

    async def revoke(self, request_id: str, user: str) -> Revoked | None:
        """Take this user's write back for him; None if it was not read from the log here."""
        ...

    async def is_final(self, offset: int) -> bool:
        """Whether a write that was rejected here has no effect on any cluster, now or later.

        False also where that is not known.
        """
        ...

    async def concern_met(self, offset: int, concern: WriteConcern | None) -> bool:
        """Whether a write that is applied here has met this concern, by now or in a moment.

        None: the one that a request without any has. A rule may ask for more.
        """
        ...

    async def open_session(
        self, session_id: str, user: str, statements: Sequence[str], *, afresh: bool
    ) -> Mapping[str, str]:
        """Have a client's session here; one that is new, or ``afresh``, begins with statements.

        Returns the session's current catalog, schema and time zone.
        """
        ...

    async def shown(self, request: Request, *, tree: bool) -> Mapping[str, Json]:
        """Return what would become of a SQL text that is sent now, which does not run."""
        ...

    async def close_session(self, session_id: str, user: str) -> None:
        """Close the session for good; closing one that is not there is harmless."""
        ...

    def only_reads(self, request: Request) -> bool | None:
        """Whether a request under way reads and does nothing else.

        None while that is not known: then nothing of it is in the log.
        """
        ...
