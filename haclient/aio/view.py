"""What a connection knows of its servers, and how it learns that: reports and probes."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from typing import Protocol

from haclient import failover, topology
from haclient.aio.transport import StateLock, Transport, now, sleep, spawn
from haclient.choosing import CLOSED, Order, arrange
from haclient.failover import Memory
from haclient.settings import Server, Settings
from haclient.topology import Roster, Topology

# The servers' HTTP doors: servers' reports about themselves.


class AsyncHttpDoors:
    """Asks the servers of one connection over HTTP about themselves."""

    def __init__(self, transport: Transport, headers: dict[str, str]) -> None:
        self._transport = transport
        self._headers = headers

    async def ready(self, server: Server) -> bool:
        """True if the server reports within the probe's timeout that it accepts requests."""
        answer = await self._transport.fetch(server, "/readyz", self._headers)
        return answer is not None and answer[0] == 200

    async def topology(self, server: Server) -> Topology | None:
        """Return the server's report of itself and its ring; None if it sends no valid one."""
        answer = await self._transport.fetch(server, topology.PATH, self._headers)
        return None if answer is None else topology.parse(*answer)


# A connection's knowledge of its servers, and its sources: discovery, probes, round trips.
#
# No request waits for this. It runs beside the requests, when an answer has come and the knowledge
# is older than ``refresh_s``, or when a server has failed; so an unused connection sends nothing.
# The decisions are in `haclient.failover`, `haclient.topology` and `haclient.choosing`.


_CLIENT_NUMBER_BITS = 128
"""The random bits that choose a client's order of servers.

With so many, each order of up to 30 servers is equally likely.
"""
_REFRESH_PAUSE_S = 1.0
"""The shortest time between two refreshes after failures; chosen, not measured."""


class AsyncDoors(Protocol):
    """The questions that a connection asks servers about themselves, over any protocol."""

    async def ready(self, server: Server) -> bool:
        """True if the server reports within the probe's timeout that it accepts requests."""

    async def topology(self, server: Server) -> Topology | None:
        """Return the server's report of itself and its ring; None if it sends no valid one."""


class AsyncView:
    """What one connection knows of its servers; all requests of the connection share it.

    ``stays`` returns True if the client must not go back to a preferred server just now.
    """

    def __init__(
        self,
        settings: Settings,
        doors: AsyncDoors,
        stays: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings = settings
        self._doors = doors
        self._stays = stays
        self._lock = StateLock()
        number = settings.client_number
        self._number = random.getrandbits(_CLIENT_NUMBER_BITS) if number is None else number
        self._roster = Roster.of(settings.servers)
        self._memory = Memory.of(self._arranged(None))
        self._refreshed_at: float | None = None
        self._refreshing = False
        self._probing = False
        self._closed = False

    @property
    def current(self) -> Server:
        """Return the server that the next request goes to first."""
        return self.server(self._memory.current)

    @property
    def preferred(self) -> tuple[Server, ...]:
        """Return all servers in use, in order of preference."""
        return tuple(self.server(index) for index in self._memory.preferred)

    @property
    def memory(self) -> Memory:
        """Return what is known of the servers now."""
        return self._memory

    def server(self, index: int) -> Server:
        """Return the server with this index."""
        return self._roster.known[index].server

    def update(self, change: Callable[[Memory], Memory]) -> None:
        """Change what is known of the servers; start probes if a server needs them."""
        with self._lock:
            self._change(change)
            start = not self._probing and not self._closed and bool(self._to_probe())
            self._probing = self._probing or start
        if start:
            view = weakref.ref(self)
            spawn(lambda: _watch(view))

    def _change(self, change: Callable[[Memory], Memory]) -> None:
        """Change what is known of the servers; the caller holds the lock.

        Python may run a finalizer at any allocation, and PySpark's finalizers make requests. So a
        change by this same thread may come between, in spite of the lock; then ``change`` is
        applied again.
        """
        while True:
            before = self._memory
            after = change(before)
            if self._memory is before:
                break
        self._memory = after

    def left(self, server: Server) -> None:
        """Remember that the server has reported that it leaves service, or has left it."""
        if not self._memory.servers[server.index].leaving:
            self.update(lambda memory: failover.left(memory, server.index))

    def settled(self) -> None:
        """Go back to a preferred server if one has been ready for long enough."""
        if self._probing:
            policy = self._settings.policy
            self.update(lambda memory: failover.back(policy, memory, now()))

    def answered(self, *, after_failure: bool) -> None:
        """After an answer: if what is known of the ring is old, start to refresh it."""
        if not self._settings.discover and self._settings.order is not Order.NEAREST:
            return
        age_s = None if self._refreshed_at is None else now() - self._refreshed_at
        limit_s = self._settings.policy.refresh_s
        if after_failure:
            limit_s = min(limit_s, _REFRESH_PAUSE_S)
        due = age_s is None or age_s >= limit_s
        with self._lock:
            if not due or self._refreshing or self._closed:
                return
            self._refreshing = True
        view = weakref.ref(self)
        spawn(lambda: _refresh(view))

    def close(self) -> None:
        """Send no more probes and questions to servers."""
        self._closed = True

    # -- beside the requests ---------------------------------------------------------------

    async def refresh(self) -> None:
        """Learn the ring's servers from the current one, ask others for reports, time them.

        Then arrange the servers in use by what was learned.
        """
        try:
            source = self.current if self._settings.discover else None
            received = await self._identify(source, of_all=True) if source else None
            everybody = self._settings.order is Order.NEAREST
            for index in self._roster.unidentified(self._failing(), everybody=everybody):
                if self._closed:
                    return
                if source is None or index != source.index:
                    await self._identify(self.server(index))
            self.update(lambda memory: failover.prefer(memory, self._arranged(memory)))
            self._leave(received)
        finally:
            self._refreshed_at = now()
            self._refreshing = False

    async def _identify(self, server: Server, *, of_all: bool = False) -> Topology | None:
        """Ask a server for its report; with ``of_all`` also learn the ring's servers from it.

        Returns the report, or None if it sends no valid one.
        """
        begun = now()
        received = await self._doors.topology(server)
        took_s = now() - begun
        with self._lock:
            roster = self._roster
            if received is not None and of_all:
                roster = roster.described_by(server, received)
            roster = roster.identified(server.index, received)
            self._roster = roster if received is None else roster.timed(server.index, took_s)
        return received

    def _failing(self) -> set[int]:
        servers = enumerate(self._memory.servers)
        return {index for index, known in servers if known.breaker != CLOSED}

    def _leave(self, received: Topology | None) -> None:
        """Mark the servers as leaving whose clusters the report ``received`` shows as DRAINING."""
        members = received.members if received else ()
        draining = {each.name for each in members if each.state == topology.DRAINING}
        for index in self._memory.preferred:
            if self._roster.known[index].cluster in draining:
                self.left(self.server(index))

    def _arranged(self, memory: Memory | None) -> tuple[int, ...]:
        """Return the indexes of the servers in use, in the order that the settings ask for."""
        used = self._roster.in_use()
        round_trips_s = [self._roster.known[index].round_trip_s for index in used]
        first = used.index(memory.preferred[0]) if memory and memory.preferred[0] in used else None
        order = arrange(self._settings.order, self._number, round_trips_s, first)
        return tuple(used[place] for place in order)

    def _to_probe(self) -> tuple[int, ...]:
        return failover.to_probe(self._memory)

    async def probe(self) -> float | None:
        """Probe the servers that need it; return the pause until the next probes.

        None: no server needs a probe any more.
        """
        policy = self._settings.policy
        for index in self._to_probe():
            self._probed(index, await self._doors.ready(self.server(index)))
        with self._lock:
            self._probing = bool(self._to_probe()) and not self._closed
            return policy.failback_probe_s if self._probing else None

    def _probed(self, index: int, ready: bool) -> None:
        policy = self._settings.policy
        with self._lock:
            at, stays = now(), self._stays()
            self._change(lambda memory: failover.probed(policy, memory, index, ready, at, stays))


async def _watch(reference: weakref.ref[AsyncView]) -> None:
    """Probe servers until the client uses its preferred one, or the connection is gone."""
    while (view := reference()) is not None and (pause_s := await view.probe()) is not None:
        del view
        await sleep(pause_s)


async def _refresh(reference: weakref.ref[AsyncView]) -> None:
    view = reference()
    if view is not None:
        await view.refresh()
