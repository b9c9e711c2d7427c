"""Connections to the servers, and the watch over servers with unfinished calls.

A connection begins with a health check: a missing or hung server costs at most
``connect_timeout_s``. While a call waits and receives nothing, the server is probed on a fresh
connection, as in HTTP's transports. If it shows no sign of life, the connection is closed, which
ends all calls on it at once. One thread does that, and only while there are calls.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any

import grpc

from haclient.failover import Liveness, Policy, Pulse
from haclient.protocol import Broken
from haclient.settings import Server
from haclient.spark_connect.status import HEALTH_CHECK, Health, greeted, health
from haclient.sync.transport import StateLock, now, spawn
from haclient.topology import Topology

_TICK_S = 0.05
"""The interval at which silent servers are looked for: so late a frozen one is noticed."""
_REST_S = 5.0
"""The thread that watches servers ends after this time without a call; chosen, not measured."""
_IDLE_MAX_S = 15.0
"""A connection that was unused for longer is checked first: it may have been dropped."""


class Link:
    """One gRPC connection to a server, and the number of its unfinished calls."""

    def __init__(self, server: Server, channel: grpc.Channel) -> None:
        self.server = server
        self.channel = channel
        self.calls = 0
        self.retired = False
        """True if it gets no new calls; it is closed when its last call ends."""
        self.hung = False
        self.received_at = now()
        self.liveness = Liveness()
        self._callables: dict[str, Any] = {}

    def callable(self, method: str, make: Callable[[grpc.Channel], Any]) -> Any:
        """Return gRPC's object that calls a method on this connection; it is made once."""
        found = self._callables.get(method)
        if found is None:
            found = self._callables[method] = make(self.channel)
        return found

    def received(self) -> None:
        """Remember that the server has just shown a sign of life."""
        self.received_at = now()
        self.liveness = Liveness()


class Links:
    """All gRPC connections of one session; many threads use it."""

    def __init__(self, policy: Policy, open_channel: Callable[[Server], grpc.Channel]) -> None:
        self._policy = policy
        self._open = open_channel
        self._lock = StateLock()
        self._current: dict[int, Link] = {}
        self._busy: set[Link] = set()
        self._watching = False
        self._used_at = now()
        self._hung_in_a_row = 0
        self.closed = False

    @property
    def busy(self) -> bool:
        """True if a call is unfinished."""
        return bool(self._busy)

    def enter(self, server: Server) -> Link:
        """Return a connection to the server for one call, which `leave` ends. Raises WireError."""
        while True:
            link = self._current.get(server.index)
            if link is None or self._gone_stale(link):
                link = self._connect(server)
            with self._lock:
                if self.closed:
                    raise Broken("the session is closed")
                if link.retired:
                    continue
                if not link.calls:
                    link.received()
                link.calls += 1
                self._busy.add(link)
                start = not self._watching
                self._watching = True
            if start:
                self._watch()
            return link

    def leave(self, link: Link, *, broken: bool = False) -> None:
        """Mark a call as ended; ``broken``: close the connection, it cannot be used any more."""
        with self._lock:
            link.calls -= 1
            self._used_at = now()
            if not link.calls:
                self._busy.discard(link)
        if broken:
            self._retire(link)
        elif link.retired and not link.calls:
            link.channel.close()

    def received(self, link: Link) -> None:
        """Remember that a message has arrived on this connection."""
        link.received()
        self._hung_in_a_row = 0

    def _retire(self, link: Link) -> None:
        with self._lock:
            link.retired = True
            if self._current.get(link.server.index) is link:
                del self._current[link.server.index]
            unused = not link.calls
        if unused:
            link.channel.close()

    def _gone_stale(self, link: Link) -> bool:
        if link.calls or now() - link.received_at < _IDLE_MAX_S:
            return False
        found, _ = _check(link.channel, self._policy.connect_timeout_s)
        if found is Health.SERVING:
            link.received()
            return False
        self._retire(link)
        return True

    def _connect(self, server: Server) -> Link:
        """Open a connection and wait until the server reports that it serves; raises WireError."""
        channel = self._open(server)
        found, details = _check(channel, self._policy.connect_timeout_s)
        error = greeted(server.url, found, details)
        if error is not None:
            channel.close()
            raise error
        with self._lock:
            link = self._current.setdefault(server.index, Link(server, channel))
        if link.channel is not channel:  # another thread was faster
            channel.close()
        return link

    # -- servers' reports (haclient.sync.view.Doors) --------------------------

    def ready(self, server: Server) -> bool:
        """True if the server reports that it accepts calls."""
        return self._probe(server) is Health.SERVING

    def topology(self, server: Server) -> Topology | None:
        """Return a report that names no clusters if the server answers; None if it does not."""
        found = self._probe(server)
        return Topology("", server.url, found.name, ()) if found.pulse is Pulse.ALIVE else None

    def _probe(self, server: Server) -> Health:
        """Return what a health check of the server says, over a new connection."""
        channel = self._open(server)
        try:
            return _check(channel, self._policy.probe_timeout_s)[0]
        finally:
            channel.close()

    # -- the watch -------------------------------------------------------------------------

    def _watch(self) -> None:
        links = weakref.ref(self)
        spawn(lambda: _watch(links))

    def look(self) -> bool:
        """Probe the servers of calls that receive nothing; end the calls of hung ones.

        Returns True if this must be repeated, False if there was no call for a while.
        """
        for link in tuple(self._busy):
            if now() - link.received_at < self._policy.silence_s and not link.liveness.silent:
                continue
            pulse = self._probe(link.server).pulse
            if pulse is not Pulse.SILENT:
                # Refused is no failure: a draining HAProc closes its door and finishes its calls. A
                # process that is gone breaks the connection, and gRPC's keepalive finds the rest.
                link.received()
                continue
            link.liveness = link.liveness.after(pulse)
            if link.liveness.hung(self._policy, self._hung_in_a_row):
                self._hung_in_a_row += 1
                self._end(link)
        with self._lock:
            resting = not self._busy and now() - self._used_at > _REST_S
            self._watching = not (resting or self.closed)
            return self._watching

    def _end(self, link: Link) -> None:
        link.hung = True
        self._retire(link)
        link.channel.close()  # its calls end now, as cancelled
        with self._lock:
            self._busy.discard(link)

    def close(self) -> None:
        """Close all connections, also those with unfinished calls."""
        with self._lock:
            self.closed = True
            links = {*self._current.values(), *self._busy}
            self._current.clear()
        for link in links:
            link.channel.close()


def _check(channel: grpc.Channel, timeout_s: float) -> tuple[Health, str]:
    """Make a health check on a channel; return the server's health, and the error's text."""
    try:
        answer = channel.unary_unary(HEALTH_CHECK)(b"", timeout=timeout_s)
    except grpc.RpcError as error:
        return health(error.code().name), error.details() or ""
    except ValueError as error:  # closed meanwhile
        return Health.REFUSED, str(error)
    return health("OK", answer), ""


def _watch(reference: weakref.ref[Links]) -> None:
    """Check for silent servers as long as there are calls, and a little longer."""
    while (links := reference()) is not None and links.look():
        del links
        time.sleep(_TICK_S)
