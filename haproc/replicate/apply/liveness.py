"""Whether another cluster goes on with what is its to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dmq import Json
from haproc.membership.peers import PeerUnavailableError
from haproc.membership.state import PROGRESSING, State
from haproc.replicate.member.core import Core

NONE: Final[frozenset[int]] = frozenset()


async def progressing(core: Core, peer: str) -> bool:
    """Whether a peer will run its operations."""
    status = await _status(core, peer)
    drained = status.get("state") == State.DRAINING and status.get("drained")
    return status.get("state") in PROGRESSING or bool(drained and status.get("applying"))


async def diverged(core: Core, peer: str) -> bool:
    """Whether a peer says that it differs from the others."""
    return (await _status(core, peer)).get("state") == State.DIVERGED


async def computing(core: Core, peer: str) -> frozenset[int]:
    """Return the operations whose rows a peer is at: their turn has come there, and it can."""
    told = (await _status(core, peer)).get("computing")
    return frozenset(at for at in told if isinstance(at, int)) if isinstance(told, list) else NONE


async def _status(core: Core, peer: str) -> Mapping[str, Json]:
    """Ask a peer directly, unless it is long known dead; empty if it does not answer."""
    if core.peers.given_up(peer):
        return {}
    try:
        return await core.peers.status(peer, core.timeouts.peer_s)
    except PeerUnavailableError:
        return {}
