"""Signed messages through Redis, and the choice for each peer between Redis and the mesh.

The *mesh* is the direct HTTP connections from each HAProc to each other one.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from haproc.config.model import Membership
from haproc.membership.state import Beat, ClusterReport

# HAProcs' messages through Redis: one line of JSON that ends with its signature.
#
# Any user of the Redis could write anything into its channels and keys, so only messages that are
# signed with the ring's secret count. The key is derived from the secret and the ring's name: two
# rings on one Redis, even with one secret, don't accept each other's messages. A signature does not
# prove when a message was sent; `Exchange` checks that.


BYTES_MAX: Final = 64 << 10
"""The largest message. A ring of 64 clusters with names of 63 characters needs a third of that."""
_MAC_FIELD: Final = b',"mac":"'
_MAC_LENGTH: Final = 64
_END_LENGTH: Final = len(_MAC_FIELD) + _MAC_LENGTH + len(b'"}')


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message of a HAProc through Redis; it contains a heartbeat, or a heartbeat and a report.

    ``number``: one more than that of the HAProc's message before. ``heard``: for each peer, the
    incarnation and number of the last message received from it through Redis. ``url``: the address
    of the HAProc's cluster for clients.
    """

    cluster: str
    incarnation: str
    number: int
    heard: Mapping[str, tuple[str, int]]
    url: str
    beat: Beat | None = None
    report: ClusterReport | None = None


_ENVELOPE: Final = msgspec.json.Decoder(Envelope)


class Seal:
    """Signs messages for Redis with the ring's secret, and checks the signatures of others."""

    def __init__(self, secret: str, ring: str) -> None:
        self._key = hmac.digest(
            secret.encode(), b"haproc state over redis\0" + ring.encode(), "sha256"
        )

    def close(self, envelope: Envelope) -> bytes:
        """Return the message as JSON with its signature."""
        content = msgspec.json.encode(envelope)[:-1]
        return content + _MAC_FIELD + self._mac(content) + b'"}'

    def open(self, data: bytes) -> Envelope | None:
        """Check the signature and return the message; None if no HAProc of this ring has signed it.

        None also if it is too large, or of another version.
        """
        if not _END_LENGTH < len(data) <= BYTES_MAX:
            return None
        content, end = data[:-_END_LENGTH], data[-_END_LENGTH:]
        if not hmac.compare_digest(end, _MAC_FIELD + self._mac(content) + b'"}'):
            return None
        try:
            return _ENVELOPE.decode(content + b"}")
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None  # signed, but of another version

    def _mac(self, content: bytes) -> bytes:
        return hmac.digest(self._key, content, hashlib.sha256).hex().encode()


PROVEN_INTERVALS_MAX = 2.0
"""At the check: the highest age, in heartbeat intervals, of the newest own message that a peer
names. Half an interval after a message this age may be 1.5, since peers send at their own times.
0.5 more is for late timers."""
SETTLE_INTERVALS = 0.5
"""The time after a message, in heartbeat intervals, at which it is checked which peers received
it."""


class Way(StrEnum):
    """The transport of heartbeats and reports: Redis, or direct HTTP (the mesh)."""

    MESH = "mesh"
    REDIS = "redis"


class Receipt(StrEnum):
    """The result of checking a message that came through Redis; only a TAKEN one is used."""

    TAKEN = "taken"
    UNPROVEN = "unproven"
    """Nothing proves that it was sent just now; usual when a HAProc starts."""
    REPEATED = "repeated"
    STRANGE = "strange"
    """No HAProc of this ring has signed it."""


@dataclass(slots=True)
class _Peer:
    """What is known of a peer from its messages through Redis."""

    incarnation: str = ""
    number: int = 0
    proven_at: float = float("-inf")
    """The time at which its last TAKEN message was received."""
    received_at: float = float("-inf")
    """The time at which this HAProc sent the newest message that the peer is known to have
    received."""
    mesh_since: float = float("-inf")
    """The time since which messages to the peer go over the mesh."""


class Exchange:
    """Chooses the transport to each peer (Redis or the mesh), and checks messages through Redis.

    Time is an argument. Every message through Redis has a number, and names the last message that
    its sender received from each peer. Both ends conclude from this:

    - *A HAProc's own message comes back* through its subscription: Redis works for this HAProc.
    - *A peer names a message of the last two intervals*: Redis works for that peer, too, and in
      this direction. Otherwise messages to it go over the mesh as well. This is checked half an
      interval after each message, so a peer misses at most two in a row, whatever part of Redis
      fails: one less than the number after which it calls this HAProc silent.
    - *A peer names a message of the last window* (``window_s``): its own message is fresh. Other
      messages are not used, so a process that can write to Redis cannot send an earlier message
      again as a heartbeat. It cannot repeat a fresh one either: a peer's numbers only grow.

    A new incarnation of a peer replaces the known one only if it names a newer message than that
    one did. Messages to a peer go by Redis again once the peer names a recent message.

    ``identity``: this HAProc's cluster and incarnation.
    """

    def __init__(self, rules: Membership, identity: tuple[str, str], peers: Iterable[str]) -> None:
        self._rules = rules
        self._cluster, self._incarnation = identity
        self._peers = {name: _Peer() for name in peers}
        self._number = self._echoed = 0
        self._sent: deque[tuple[int, float]] = deque(
            maxlen=max(4, 2 * round(rules.window_s / rules.heartbeat_interval_s))
        )
        self._connected = False
        self._good = self._bad = 0
        self.way = Way.MESH
        """The transport in use, for people to see; a single late message does not change it."""
        self.by_mesh = frozenset(self._peers)
        """The peers to which messages go over the mesh."""

    def follow(self, peers: Iterable[str], now_s: float) -> None:
        """Exchange messages with ``peers`` from now on.

        New ones get them over the mesh at first.
        """
        known, self._peers = self._peers, {}
        for name in peers:
            self._peers[name] = known.get(name) or _Peer(mesh_since=now_s)
        new = self._peers.keys() - known.keys()
        self.by_mesh = frozenset(self.by_mesh & self._peers.keys()) | new

    # -- this HAProc's messages ------------------------------------------------------------------

    def publish(self, now_s: float) -> tuple[int, dict[str, tuple[str, int]]]:
        """Give a number to the message that is sent now.

        Returns the number, and by peer the incarnation and number of its last message, to be named.
        """
        self._number += 1
        self._sent.append((self._number, now_s))
        peers = self._peers.items()
        return self._number, {name: (p.incarnation, p.number) for name, p in peers if p.number}

    def settle(self, now_s: float) -> frozenset[str]:
        """Check which peers have received the last message; return those that need the mesh.

        Called half an interval after each message.
        """
        echoed = self._connected and self._echoed == self._number
        self._count(echoed)
        limit_s = PROVEN_INTERVALS_MAX * self._rules.heartbeat_interval_s
        for name, peer in self._peers.items():
            if echoed and now_s - peer.received_at <= limit_s:
                self.by_mesh -= {name}
            else:
                self._to_mesh(name, now_s)
        return self.by_mesh

    def connected(self) -> None:
        """Note that the subscription to the Redis channel exists again."""
        self._connected = True

    def lost(self, now_s: float) -> None:
        """Note that the subscription to the Redis channel is lost; use the mesh to all peers."""
        self._connected = False
        self.way, self._good = Way.MESH, 0
        for name in self._peers:
            self._to_mesh(name, now_s)

    def meshed_s(self, peer: str, now_s: float) -> float:
        """Return for how long messages to this peer go over the mesh already; 0: by Redis."""
        return now_s - self._peers[peer].mesh_since if peer in self.by_mesh else 0.0

    def _to_mesh(self, name: str, now_s: float) -> None:
        if name not in self.by_mesh:
            self._peers[name].mesh_since = now_s
            self.by_mesh |= {name}

    def _count(self, echoed: bool) -> None:
        self._good, self._bad = (self._good + 1, 0) if echoed else (0, self._bad + 1)
        if self._good >= self._rules.received_in_a_row:
            self.way = Way.REDIS
        elif self._bad >= self._rules.missed_in_a_row:
            self.way = Way.MESH

    # -- peers' messages -------------------------------------------------------------------------

    def echo(self) -> None:
        """Note that this HAProc's newest message came back to it through Redis."""
        self._echoed = self._number

    def receive(self, envelope: Envelope, now_s: float) -> Receipt:
        """Check a message whose signature is right; note it, and return whether it may be used."""
        if envelope.cluster == self._cluster:
            return Receipt.REPEATED  # or an earlier process's
        peer = self._peers.get(envelope.cluster)
        if peer is None:
            return Receipt.STRANGE
        named_at = self._named_at(envelope.heard)
        recent = now_s - named_at <= self._rules.window_s
        if peer.incarnation == envelope.incarnation:
            if envelope.number <= peer.number:
                return Receipt.REPEATED
        elif now_s - peer.proven_at <= self._rules.window_s and named_at <= peer.received_at:
            return Receipt.UNPROVEN  # perhaps of an earlier process; the known one is alive
        else:
            peer.received_at = float("-inf")
        peer.incarnation, peer.number = envelope.incarnation, envelope.number
        if not recent:
            return Receipt.UNPROVEN
        peer.proven_at = now_s
        peer.received_at = max(peer.received_at, named_at)
        return Receipt.TAKEN

    def _named_at(self, received: Mapping[str, tuple[str, int]]) -> float:
        """Return when this HAProc sent its own message that ``received`` names; -inf: unknown."""
        incarnation, number = received.get(self._cluster, ("", 0))
        if incarnation == self._incarnation and self._sent:
            index = number - self._sent[0][0]
            if 0 <= index < len(self._sent):
                return self._sent[index][1]
        return float("-inf")
