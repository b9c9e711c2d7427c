# Written by scripts/async_to_sync.py from haclient/aio/view.py; edit that one.
"""A connection's knowledge of its servers, and its sources: doors, probes, round trips."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from typing import Protocol

from haclient import failover, topology
from haclient.choosing import CLOSED, Order, arrange
from haclient.failover import Memory
from haclient.settings import Server, Settings
from haclient.sync.transport import StateLock, Transport, now, sleep, spawn
from haclient.topology import Roster, Topology

# The servers' HTTP doors: servers' reports about themselves.


class HttpDoors:
    """The HTTP doors of all servers of one connection."""

    def __init__(self, transport: Transport, headers: dict[str, str]) -> None:
        self._transport = transport
        self._headers = headers

    def ready(self, server: Server) -> bool:
        """True if the server reports in time that it accepts requests."""
        answer = self._transport.fetch(server, "/readyz", self._headers)
        return answer is not None and answer[0] == 200

    def topology(self, server: Server) -> Topology | None:
        """Return the server's report of itself and its ring; None if there is no valid one."""
        answer = self._transport.fetch(server, topology.PATH, self._headers)
        return None if answer is None else topology.parse(*answer)


# A connection's knowledge of its servers, and its sources: discovery, probes, round trips.
#
# No request waits for this. It runs beside the requests, when an answer has come and the knowledge
# is older than ``refresh_s``, or when a server has failed; so an unused connection sends nothing.
# The decisions are in `haclient.failover`, `haclient.topology` and `haclient.choosing`.


_CLIENT_NUMBER_BITS = 128
"""Enough bits that for 30 servers every order is equally likely."""
_REFRESH_PAUSE_S = 1.0
"""The shortest time between refreshes after failures; chosen, not measured."""


class Doors(Protocol):
    """Questions to servers about themselves, in any protocol."""

    def ready(self, server: Server) -> bool:
        """True if the server reports in time that it accepts requests."""

    def topology(self, server: Server) -> Topology | None:
        """Return the server's report of itself and its ring; None if there is no valid one."""


class View:
    """The servers of one connection; shared by its requests.

    ``stays`` returns True if the client must not go back to a preferred server just now.
    """

    def __init__(
        self,
        settings: Settings,
        doors: Doors,
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
        """Return all servers in use, best first."""
        return tuple(self.server(index) for index in self._memory.preferred)

    @property
    def memory(self) -> Memory:
        """Return the present knowledge."""
        return self._memory

    def server(self, index: int) -> Server:
        """Return the server of this number."""
        return self._roster.known[index].server

    def update(self, change: Callable[[Memory], Memory]) -> None:
        """Note a request's experience, and probe servers that need it."""
        with self._lock:
            self._change(change)
            start = not self._probing and not self._closed and bool(self._to_probe())
            self._probing = self._probing or start
        if start:
            view = weakref.ref(self)
            spawn(lambda: _watch(view))

    def _change(self, change: Callable[[Memory], Memory]) -> None:
        """Change the knowledge, with the lock held.

        Python may run a finalizer at any allocation, and PySpark's finalizers make requests. So a
        change by this same thread may come between, in spite of the lock.
        """
        while True:
            before = self._memory
            after = change(before)
            if self._memory is before:
                break
        self._memory = after

    def left(self, server: Server) -> None:
        """Note a server's report that it is out of service, or about to be."""
        if not self._memory.servers[server.index].leaving:
            self.update(lambda memory: failover.left(memory, server.index))

    def settled(self) -> None:
        """Let the client go back to a preferred server, if one is ready."""
        if self._probing:
            policy = self._settings.policy
            self.update(lambda memory: failover.back(policy, memory, now()))

    def answered(self, *, after_failure: bool) -> None:
        """Refresh the knowledge after an answer, if it is old."""
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
        """Ask no server any more."""
        self._closed = True

    # -- beside the requests ---------------------------------------------------------------

    def refresh(self) -> None:
        """Learn the ring from the current server, then ask others for reports; time the answers."""
        try:
            source = self.current if self._settings.discover else None
            received = self._identify(source, of_all=True) if source else None
            everybody = self._settings.order is Order.NEAREST
            for index in self._roster.unidentified(self._failing(), everybody=everybody):
                if self._closed:
                    return
                if source is None or index != source.index:
                    self._identify(self.server(index))
            self.update(lambda memory: failover.prefer(memory, self._arranged(memory)))
            self._leave(received)
        finally:
            self._refreshed_at = now()
            self._refreshing = False

    def _identify(self, server: Server, *, of_all: bool = False) -> Topology | None:
        """Ask a server for its report of itself; with ``of_all`` also learn the ring from it."""
        begun = now()
        received = self._doors.topology(server)
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
        """Avoid servers that are reported as draining."""
        members = received.members if received else ()
        draining = {each.name for each in members if each.state == topology.DRAINING}
        for index in self._memory.preferred:
            if self._roster.known[index].cluster in draining:
                self.left(self.server(index))

    def _arranged(self, memory: Memory | None) -> tuple[int, ...]:
        """Return the servers in use in the order of the policy."""
        used = self._roster.in_use()
        round_trips_s = [self._roster.known[index].round_trip_s for index in used]
        first = used.index(memory.preferred[0]) if memory and memory.preferred[0] in used else None
        order = arrange(self._settings.order, self._number, round_trips_s, first)
        return tuple(used[place] for place in order)

    def _to_probe(self) -> tuple[int, ...]:
        return failover.to_probe(self._memory)

    def probe(self) -> float | None:
        """Probe if servers are ready; return the pause until the next probes, None at the end."""
        policy = self._settings.policy
        for index in self._to_probe():
            self._probed(index, self._doors.ready(self.server(index)))
        with self._lock:
            self._probing = bool(self._to_probe()) and not self._closed
            return policy.failback_probe_s if self._probing else None

    def _probed(self, index: int, ready: bool) -> None:
        policy = self._settings.policy
        with self._lock:
            at, stays = now(), self._stays()
            self._change(lambda memory: failover.probed(policy, memory, index, ready, at, stays))


def _watch(reference: weakref.ref[View]) -> None:
    """Probe until the client uses its preferred server, or is gone."""
    while (view := reference()) is not None and (pause_s := view.probe()) is not None:
        del view
        sleep(pause_s)


def _refresh(reference: weakref.ref[View]) -> None:
    view = reference()
    if view is not None:
        view.refresh()
