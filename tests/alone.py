"""HAProcs that hear nobody, for tests of what needs no peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dmq import Json
from haproc.config.model import Config
from haproc.membership.members import Members
from haproc.membership.peers import Neighbour


class NoLines:
    """Lines that lead nowhere; keeps what was sent."""

    def __init__(self, silent: str = "") -> None:
        self.sent: list[tuple[str, Mapping[str, Json]]] = []
        self._silent = frozenset(silent)

    def send(self, path: str, body: Mapping[str, Json]) -> None:
        self.sent.append((path, body))

    def silent(self) -> frozenset[str]:
        return self._silent

    def follow(self, members: Sequence[Neighbour]) -> None:
        """Nowhere."""


def alone(config: Config, name: str, incarnation: str = "") -> Members:
    """Return the view of a HAProc that hears nobody."""
    peers = tuple(c.name for c in config.clusters if c.name != name)
    return Members(config.membership, (name, incarnation or f"{name}1"), peers, NoLines())
