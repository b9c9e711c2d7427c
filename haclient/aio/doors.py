"""The servers' HTTP doors: what a server says of itself."""

from __future__ import annotations

from haclient import topology
from haclient.aio.transport import Transport
from haclient.settings import Server
from haclient.topology import Topology


class AsyncHttpDoors:
    """All of one connection's."""

    def __init__(self, transport: Transport, headers: dict[str, str]) -> None:
        self._transport = transport
        self._headers = headers

    async def ready(self, server: Server) -> bool:
        """Whether the server says that it takes requests; not if it does not answer in time."""
        answer = await self._transport.fetch(server, "/readyz", self._headers)
        return answer is not None and answer[0] == 200

    async def topology(self, server: Server) -> Topology | None:
        """Return what the server says of itself and its ring; None if nothing that counts."""
        answer = await self._transport.fetch(server, topology.PATH, self._headers)
        return None if answer is None else topology.parse(*answer)
