"""The servers that a client uses: given ones, learned ones, and what is known of each.

A HAProc reports the ring's clusters and their URLs. The user's list is the seed: its order comes
first, and its URLs are used as long as they answer. A learned URL is used only after the cluster of
that name has answered there: as a further server, or in place of a seed that no longer answers. So
a client in a network that translates addresses goes on with the given list.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from haclient.exceptions import InterfaceError
from haclient.settings import Server, server_at

PATH = "/clusterStatus"
SERVERS_MAX = 256
"""The most URLs that one connection learns in its life; further ones are ignored."""
SERVING = frozenset({"READY", "READ_ONLY"})
DRAINING = "DRAINING"


@dataclass(frozen=True, slots=True)
class Member:
    """A cluster of the ring, as a HAProc's report names it."""

    name: str
    url: str
    state: str
    """The state of its HAProc; empty if the reporting HAProc does not know it."""


@dataclass(frozen=True, slots=True)
class Topology:
    """One HAProc's report: its own cluster and state, and the clusters of its ring."""

    ring: str
    cluster: str
    state: str
    members: tuple[Member, ...]


def parse(status: int, body: bytes) -> Topology | None:
    """Read the answer to ``GET /clusterStatus`` as a Topology; None if it is not one."""
    try:
        fields = json.loads(body) if status == 200 else None
        if not isinstance(fields, dict):
            return None
        members = tuple(_member(each) for each in fields["clusters"])
        return Topology(str(fields["ring"]), str(fields["cluster"]), str(fields["state"]), members)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _member(fields: dict[str, Any]) -> Member:
    return Member(str(fields["name"]), str(fields["url"]), str(fields.get("state") or ""))


@dataclass(frozen=True, slots=True)
class Known:
    """What a connection knows of one server."""

    server: Server
    cluster: str = ""
    """The name of its cluster; empty until the server has reported it."""
    answers: bool = False
    """True if its last report was valid, and came from this ring."""
    round_trip_s: float | None = None


@dataclass(frozen=True, slots=True)
class Roster:
    """Every server that a connection knows; its index never changes, because requests use it."""

    known: tuple[Known, ...]
    seeds: int
    """The number of servers that the user gave: they are the first of ``known``."""
    ring: str = ""
    members: tuple[Member, ...] = ()

    @staticmethod
    def of(seeds: tuple[Server, ...]) -> Roster:
        """Return the roster of a new connection; ``seeds``: the servers that the user gave."""
        return Roster(tuple(Known(server) for server in seeds), len(seeds))

    def described_by(self, by: Server, topology: Topology) -> Roster:
        """Return the roster with the servers that ``topology``, the report of ``by``, names."""
        urls = {each.server.url for each in self.known}
        found = list(self.known)
        for member in topology.members:
            server = _follow(by, member.url, len(found))
            if server is not None and server.url not in urls and len(found) < SERVERS_MAX:
                urls.add(server.url)
                found.append(Known(server))
        return replace(
            self, known=tuple(found), ring=topology.ring, members=tuple(topology.members)
        )

    def identified(self, index: int, topology: Topology | None) -> Roster:
        """Return the roster after a server's report; None: it sent no valid one."""
        before = self.known[index]
        if topology is None or (self.ring and topology.ring != self.ring):
            return self._with(index, replace(before, answers=False))
        return self._with(index, replace(before, answers=True, cluster=topology.cluster))

    def timed(self, index: int, round_trip_s: float) -> Roster:
        """Return the roster with the server's response time."""
        return self._with(index, replace(self.known[index], round_trip_s=round_trip_s))

    def _with(self, index: int, known: Known) -> Roster:
        return replace(self, known=(*self.known[:index], known, *self.known[index + 1 :]))

    def unidentified(self, failing: Collection[int], *, everybody: bool) -> tuple[int, ...]:
        """Return the servers to ask for a report: without a valid one, or with a new cluster.

        ``failing``: servers that fail now; ``everybody``: ask all servers in use.
        """
        advertised = {member.url.rstrip("/"): member.name for member in self.members}
        found = []
        for index, each in enumerate(self.known):
            in_use = index < self.seeds or each.server.url in advertised or each.answers
            renamed = advertised.get(each.server.url, each.cluster) != each.cluster
            doubtful = not each.answers or renamed or index in failing or everybody
            if in_use and doubtful:
                found.append(index)
        return tuple(found)

    def in_use(self) -> tuple[int, ...]:
        """Return the servers to use: first those in the order of the seeds, then the others."""
        names = [member.name for member in self.members]
        found: list[int] = []
        gone: list[int] = []
        for index, seed in enumerate(self.known[: self.seeds]):
            if names and seed.cluster and seed.cluster not in names:
                gone.append(index)
                continue
            learned = None if seed.answers else self._learned(seed.cluster)
            found.append(index if learned is None else learned)
        covered = {self.known[index].cluster for index in found}
        others = (self._learned(name) for name in names if name not in covered)
        found += [index for index in others if index is not None]
        return tuple(dict.fromkeys([*found, *gone]))

    def _learned(self, cluster: str) -> int | None:
        """Return the learned server at which this cluster answered, best at its newest URL.

        None if there is none.
        """
        at = {member.url.rstrip("/") for member in self.members if member.name == cluster}
        found = [
            index
            for index, each in enumerate(self.known)
            if index >= self.seeds and each.cluster == cluster and cluster and at
        ]
        advertised = [index for index in found if self.known[index].server.url in at]
        answering = [index for index in advertised if self.known[index].answers]
        return next(iter(answering or advertised or found), None)


def _follow(by: Server, url: str, index: int) -> Server | None:
    """Return the server at a learned URL; None if the URL is no server's or must not get the token.

    The token must not go from a TLS server to one without TLS, nor from another machine to this
    one: loopback addresses mean the HAProc's own host.
    """
    try:
        server = server_at(index, url)
    except InterfaceError:
        return None
    downgrade = by.secure and not server.secure
    return None if downgrade or (server.is_local and not by.is_local) else server
