"""HAProcs that receive nothing from peers, for tests that need no peers."""

from __future__ import annotations

from collections.abc import Sequence

from haproc.config.model import Config
from haproc.membership.members import Members
from haproc.membership.peers import Member
from haproc.membership.state import PeerMessage


class NoLines:
    """Lines that lead nowhere; keeps the messages that were sent."""

    def __init__(self, silent: str = "") -> None:
        self.sent: list[PeerMessage] = []
        self._silent = frozenset(silent)

    def send(self, message: PeerMessage) -> None:
        self.sent.append(message)

    def silent(self) -> frozenset[str]:
        return self._silent

    def follow(self, members: Sequence[Member]) -> None:
        """Follow nothing."""


def alone(config: Config, name: str, incarnation: str = "") -> Members:
    """Return the view of a HAProc that receives nothing."""
    peers = tuple(c.name for c in config.clusters if c.name != name)
    return Members(config.membership, (name, incarnation or f"{name}1"), peers, NoLines())
