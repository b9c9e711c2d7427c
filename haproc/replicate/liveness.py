"""Whether another cluster goes on with what is its to do."""

from __future__ import annotations

from haproc.membership.peers import PeerUnavailableError
from haproc.membership.state import PROGRESSING, State
from haproc.replicate.core import Core


async def progressing(core: Core, peer: str) -> bool:
    """Whether a peer will run its operations; asked directly, unless it is long known dead."""
    if core.peers.given_up(peer):
        return False
    try:
        status = await core.peers.status(peer, core.timeouts.peer_s)
    except PeerUnavailableError:
        return False
    drained = status.get("state") == State.DRAINING and status.get("drained")
    return status.get("state") in PROGRESSING or bool(drained and status.get("applying"))
