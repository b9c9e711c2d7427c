"""Messages to peers: signed lines for Redis, and the choice between Redis and the mesh."""

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
"""A ring of 64 clusters with names of 63 characters needs a third of that."""
_MAC_FIELD: Final = b',"mac":"'
_MAC_LENGTH: Final = 64
_END_LENGTH: Final = len(_MAC_FIELD) + _MAC_LENGTH + len(b'"}')


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message of a HAProc through Redis.

    ``number``: one more than that of the HAProc's message before. ``heard``: for each peer, the
    incarnation and number of its last message received through Redis. ``url``: the address of the
    HAProc's cluster for clients.
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
    """Signs messages, and checks signatures."""

    def __init__(self, secret: str, ring: str) -> None:
        self._key = hmac.digest(
            secret.encode(), b"haproc state over redis\0" + ring.encode(), "sha256"
        )

    def close(self, envelope: Envelope) -> bytes:
        """Return the signed text."""
        content = msgspec.json.encode(envelope)[:-1]
        return content + _MAC_FIELD + self._mac(content) + b'"}'

    def open(self, data: bytes) -> Envelope | None:
        """Return the signed content; None if it is not the message of a HAProc of this ring."""
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
"""At the check, half an interval after a message, the newest message that a peer names may be 1.5
intervals old, since peers send at their own times. 0.5 more is for late timers."""
SETTLE_INTERVALS = 0.5
"""The time after a message at which its receipt by the peers is checked."""


class Way(StrEnum):
    """The transport of heartbeats and reports."""

    MESH = "mesh"
    REDIS = "redis"


class Receipt(StrEnum):
    """The result of checking a message that came through Redis."""

    TAKEN = "taken"
    UNPROVEN = "unproven"
    """Nothing proves that it was sent just now; usual when a HAProc starts."""
    REPEATED = "repeated"
    STRANGE = "strange"
    """No HAProc of this ring has signed it."""


@dataclass(slots=True)
class _Peer:
    """The known facts about a peer through Redis."""

    incarnation: str = ""
    number: int = 0
    proven_at: float = float("-inf")
    """The time at which the last message that counts was received."""
    received_at: float = float("-inf")
    """The time of this HAProc's newest message that the peer has named."""
    mesh_since: float = float("-inf")
    """The time at which the present use of the mesh began."""


class Exchange:
    """The transport to each peer (Redis or the mesh), and the check of Redis. Time is an argument.

    Every message through Redis has a number, and names the last message that its sender received
    from each peer. Both ends conclude from this:

    - *A HAProc's own message comes back* through its subscription: Redis works for this HAProc.
    - *A peer names a message of the last two intervals*: Redis works for that peer, too, and in
      this direction. Otherwise messages to it go over the mesh as well. This is checked half an
      interval after each message, so a peer misses at most two in a row, whatever part of Redis
      fails: one less than the number that makes it silent.
    - *A peer names a message of the last window*: its message is fresh. Nothing else counts, so a
      process that can write to the Redis cannot repeat an earlier message as a heartbeat. It cannot
      repeat a fresh one either: a peer's numbers only grow.

    An incarnation replaces a known one only if it names a newer message than that one did. The way
    back to Redis is the same: the peer names a recent message, so it needs no mesh any more.

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
        """The transport in use, for people: single late messages do not change it."""
        self.by_mesh = frozenset(self._peers)
        """The peers to which the mesh is used."""

    def follow(self, peers: Iterable[str], now_s: float) -> None:
        """Use these peers from now on: new ones get the mesh until Redis is proven."""
        known, self._peers = self._peers, {}
        for name in peers:
            self._peers[name] = known.get(name) or _Peer(mesh_since=now_s)
        new = self._peers.keys() - known.keys()
        self.by_mesh = frozenset(self.by_mesh & self._peers.keys()) | new

    # -- this HAProc's messages ------------------------------------------------------------------

    def publish(self, now_s: float) -> tuple[int, dict[str, tuple[str, int]]]:
        """Note that a message is sent; return its number, and the peers' messages that it names."""
        self._number += 1
        self._sent.append((self._number, now_s))
        peers = self._peers.items()
        return self._number, {name: (p.incarnation, p.number) for name, p in peers if p.number}

    def settle(self, now_s: float) -> frozenset[str]:
        """Check the receipt, half an interval after a message; return the peers for the mesh."""
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
        """Note that the subscription exists again."""
        self._connected = True

    def lost(self, now_s: float) -> None:
        """Note that the subscription is lost: the mesh carries everything."""
        self._connected = False
        self.way, self._good = Way.MESH, 0
        for name in self._peers:
            self._to_mesh(name, now_s)

    def meshed_s(self, peer: str, now_s: float) -> float:
        """Return the time for which the mesh has been used to this peer; 0 if it is not."""
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
        """Note that this HAProc's newest message came back."""
        self._echoed = self._number

    def receive(self, envelope: Envelope, now_s: float) -> Receipt:
        """Check a message with a good signature, and note it; only one that is TAKEN counts."""
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
        """Return the time at which this HAProc sent the message that a peer names; else -inf."""
        incarnation, number = received.get(self._cluster, ("", 0))
        if incarnation == self._incarnation and self._sent:
            index = number - self._sent[0][0]
            if 0 <= index < len(self._sent):
                return self._sent[index][1]
        return float("-inf")
