"""The other HAProcs' operator doors: where they are, and one pool of connections to them."""

from __future__ import annotations

from collections.abc import Iterable

import aiohttp

from haproc.config.model import Config
from haproc.membership.peers import PeerUnavailableError
from haproc.membership.roster import Neighbour


class PeerDoors:
    """Where the HAProc ``me`` asks the others, under the ring's secret; close with ``aclose``."""

    def __init__(self, config: Config, me: str) -> None:
        self._me = me
        self.follow(config.clusters)
        self.connect_s = config.timeouts.peer_s
        """What a connection may take."""
        self._headers = {"Authorization": f"Bearer {config.secret}"}
        self._session: aiohttp.ClientSession | None = None

    def follow(self, members: Iterable[Neighbour]) -> None:
        """Go by these peers from now on: a cluster was added or removed."""
        self._urls = {each.name: each.peer.url for each in members if each.name != self._me}

    @property
    def names(self) -> tuple[str, ...]:
        """The peers in ring order."""
        return tuple(self._urls)

    def url(self, peer: str, path: str) -> str:
        """Return where to ask a peer; raises PeerUnavailableError for one that left the ring."""
        if peer not in self._urls:
            raise PeerUnavailableError(f"the ring has no cluster {peer} any more")
        return self._urls[peer] + path

    @property
    def session(self) -> aiohttp.ClientSession:
        """The pool, opened when it is first needed."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    async def aclose(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
