"""Runs one request against the ring: does what the failover policy says.

The policy (`haclient.failover`) decides; this sends, waits and probes.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from haclient import failover
from haclient.aio.transport import StateLock, Transport, now, sleep, spawn
from haclient.exceptions import DatabaseError, Failure, FailureKind, Outcome, error_from
from haclient.failover import Action, AttemptEnd, GiveUp, Memory, Pause, Progress, Reason, Try
from haclient.protocol import Rejected, end_of
from haclient.settings import Failover, Server, Settings
from haclient.wire import WireError

T = TypeVar("T")

_SQLSTATES = {Reason.DEADLINE: "57014", Reason.OUTAGE: "08001", Reason.NOT_REPEATABLE: "08007"}
_SILENT = Failure(FailureKind.AVAILABILITY, "")


class AsyncRing:
    """The servers of one connection, and what is known of them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.transport = Transport(settings)
        self._memory = Memory.of(len(settings.servers))
        self._lock = StateLock()
        self._probing = False
        self._closed = False

    @property
    def current(self) -> Server:
        """The server that the next request goes to first."""
        return self.settings.servers[self._memory.current]

    async def run(
        self,
        request_id: str,
        timeout_s: float,
        attempt: Callable[[Server, float], Awaitable[T]],
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> T:
        """Attempt at one server after another until there is an answer; raises DatabaseError."""
        policy = self.settings.policy
        progress, action = failover.begin(policy, self._memory, now(), timeout_s, True)
        failed: tuple[Server, Failure] | None = None
        while True:
            if isinstance(action, Pause):
                await sleep(action.seconds)
                progress, action = failover.resume(policy, self._memory, progress, now())
                continue
            if is_cancelled():
                raise error_from(_cancelled(progress), request_id)
            if not isinstance(action, Try):
                assert isinstance(action, GiveUp)
                raise _given_up(action, failed[1] if failed else _SILENT, request_id)
            server = self.settings.servers[action.server]
            if failed is not None and self.settings.on_failover is not None:
                went_on = Failover(request_id, failed[0].url, server.url, failed[1].message)
                self.settings.on_failover(went_on)
            try:
                result = await attempt(server, progress.deadline)
            except WireError as error:
                failure = Failure(FailureKind.AVAILABILITY, str(error))
                progress, action = self._after(progress, server, error.end)
            except Rejected as error:
                failure = error.failure
                progress, action = self._after(progress, server, end_of(failure))
                if end_of(failure) is AttemptEnd.ANSWERED:
                    outcome = failover.final_outcome(progress, failure.outcome, failure.log_offset)
                    raise error_from(replace(failure, outcome=outcome), request_id) from None
            else:
                self._after(progress, server, AttemptEnd.ANSWERED)
                return result
            failed = (server, failure)

    def _after(
        self, progress: Progress, server: Server, end: AttemptEnd
    ) -> tuple[Progress, Action]:
        with self._lock:
            self._memory, progress, action = failover.after(
                self.settings.policy,
                self._memory,
                progress,
                server.index,
                end,
                now(),
                random.random(),
            )
            start = self._memory.current != 0 and not self._probing and not self._closed
            self._probing = self._probing or start
        if start:
            ring = weakref.ref(self)
            spawn(lambda: _watch_first(ring))
        return progress, action

    async def probe_first(self) -> bool:
        """Ask the first server whether it is ready; return whether to go on asking."""
        ready = await self.transport.ready(self.settings.servers[0])
        with self._lock:
            self._memory = failover.probed(self.settings.policy, self._memory, ready, now())
            self._probing = self._memory.current != 0 and not self._closed
            return self._probing

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        await self.transport.close()


async def _watch_first(reference: weakref.ref[AsyncRing]) -> None:
    """Probe the first server until the client is back with it, or has gone."""
    while (ring := reference()) is not None and await ring.probe_first():
        pause_s = ring.settings.policy.failback_probe_s
        del ring
        await sleep(pause_s)


def _given_up(action: GiveUp, last: Failure, request_id: str) -> DatabaseError:
    unknown = action.outcome is Outcome.UNKNOWN
    because = f"; the last one said: {last.message}" if last.message else ""
    failure = Failure(
        kind=FailureKind.AVAILABILITY,
        message=f"{action.reason.value}{because}",
        outcome=action.outcome,
        error_class=f"HACLIENT_{action.reason.name}",
        sqlstate=_SQLSTATES[action.reason],
        hint=(
            f"run it again with request_id={request_id!r} and age_s (the seconds since it was "
            "first sent): it is not applied twice"
            if unknown
            else last.hint or "nothing was done; try again once a server is available"
        ),
        cluster=last.cluster,
    )
    return error_from(failure, request_id)


def _cancelled(progress: Progress) -> Failure:
    return Failure(
        kind=FailureKind.AVAILABILITY,
        message="cancelled",
        outcome=Outcome.UNKNOWN if progress.in_doubt else Outcome.NOT_SENT,
        error_class="HACLIENT_CANCELLED",
        sqlstate="57014",
    )
