"""JSON documents of a ring, among them batch jobs, read with the failover of statements."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

from haclient import protocol, topology
from haclient.aio.ring import AsyncRing, Work, exchange
from haclient.aio.transport import Transport
from haclient.aio.view import AsyncHttpDoors, AsyncView
from haclient.protocol import JobFile, Rejected, form
from haclient.request_ids import new_request_id
from haclient.settings import Server, Settings


class AsyncDocuments:
    """Reads JSON documents; leave it with ``async with``. Methods raise DatabaseError."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._headers = protocol.headers(settings.token, settings.user)
        self._transport = Transport(settings)
        self._view = AsyncView(settings, AsyncHttpDoors(self._transport, self._headers))
        self._ring = AsyncRing(settings, self._view)

    async def cluster_status(self) -> dict[str, Any]:
        """Return the ring as one server sees it, even if that server does not serve."""
        return await self.request("GET", topology.PATH)

    async def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        request_id: str = "",
    ) -> dict[str, Any]:
        """Send a repeatable request to one server after another, until one answers."""
        sent = {**self._headers, **(headers or {})}

        async def attempt(server: Server, deadline: float) -> dict[str, Any]:
            status, data = await exchange(
                self._transport, server, method, path, sent, body, deadline
            )
            if status not in (200, 201):
                raise Rejected(protocol.failure(status, data))
            answer: dict[str, Any] = json.loads(data)
            return answer

        return await self._ring.try_servers(request_id, self._settings.timeout_s, Work(attempt))

    async def close(self) -> None:
        """Close all connections."""
        self._view.close()
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


# Batch jobs of a ring: submitted once, followed at any server.


class AsyncJobs(AsyncDocuments):
    """The jobs of one user; leave it with ``async with``. Methods raise DatabaseError."""

    async def submit(
        self,
        request: Mapping[str, Any],
        files: Sequence[JobFile] = (),
        request_id: str | None = None,
    ) -> dict[str, Any]:
        """Submit a job and return it; repeated at any server, it is one job.

        ``request``: the fields of ``POST /batches``.
        """
        request_id = request_id or new_request_id()
        kind, body = form(request, files)
        headers = {"Content-Type": kind, "Idempotency-Key": request_id}
        return await self.request("POST", "/batches", headers, body, request_id)

    async def listed(self, start: int, size: int) -> dict[str, Any]:
        """Return ``size`` jobs by their ids, from index ``start`` on: ``total``, ``sessions``."""
        return await self.request("GET", f"/batches?from={start}&size={size}")

    async def job(self, job_id: int) -> dict[str, Any]:
        """Return a job as it is now."""
        return await self.request("GET", f"/batches/{job_id}")

    async def log(self, job_id: int, start: int, size: int = 1000) -> dict[str, Any]:
        """Return lines of a job's log from line ``start`` on: ``from``, ``total`` and ``log``."""
        return await self.request("GET", f"/batches/{job_id}/log?from={start}&size={size}")

    async def kill(self, job_id: int) -> None:
        """End a job."""
        await self.request("DELETE", f"/batches/{job_id}")
