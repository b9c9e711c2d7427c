"""What HAProcs ask of each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dmq import Json


class PeerUnavailableError(Exception):
    """A peer could not be asked, or did not answer in time."""


class PeerBusyError(PeerUnavailableError):
    """A peer is well, and has as much to do as it takes."""


class Peers(Protocol):
    """The other HAProcs of the ring, by cluster name.

    Every question may raise PeerUnavailableError.
    """

    def given_up(self, peer: str) -> bool:
        """Return whether nobody has heard of a peer for so long that it need not be asked."""
        ...

    async def apply_now(
        self, peer: str, offset: int, operation_id: str, timeout_s: float
    ) -> Mapping[str, Json]:
        """Ask a peer to run a synchronous operation before it is decided; returns its outcome."""
        ...

    async def outcome(self, peer: str, offset: int, timeout_s: float) -> Mapping[str, Json]:
        """Ask what became of an operation on a peer's cluster."""
        ...

    async def progress(self, peer: str, seen: str, timeout_s: float) -> Mapping[str, Json]:
        """Ask what a peer has applied, to be told once that differs from what was ``seen``."""
        ...

    async def status(self, peer: str, timeout_s: float) -> Mapping[str, Json]:
        """Ask a peer for its state, cursor and lag."""
        ...
