"""Requests for a ring's JSON documents, such as its status and its jobs, with failover."""

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
    """Requests JSON documents of the ring; use it with ``async with``.

    Methods raise DatabaseError.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._headers = protocol.headers(settings.token, settings.user)
        self._transport = Transport(settings)
        self._view = AsyncView(settings, AsyncHttpDoors(self._transport, self._headers))
        self._ring = AsyncRing(settings, self._view)

    async def cluster_status(self) -> dict[str, Any]:
        """Return the ring's status as one server sees it, even if that server is not READY."""
        return await self.request("GET", topology.PATH)

    async def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        request_id: str = "",
    ) -> dict[str, Any]:
        """Send a request to one server after another, until one answers; return the JSON.

        The request must be one that may be sent twice.
        """
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
        """Close all connections to servers."""
        self._view.close()
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


# Batch jobs of a ring: submitted once, followed at any server.


class AsyncJobs(AsyncDocuments):
    """Submits and watches jobs of one user; use it with ``async with``.

    Methods raise DatabaseError.
    """

    async def submit(
        self,
        request: Mapping[str, Any],
        files: Sequence[JobFile] = (),
        request_id: str | None = None,
    ) -> dict[str, Any]:
        """Submit a job and return it; sent again under its id, to any server, it is the same job.

        ``request``: the fields of ``POST /batches``. ``request_id``: the id; made here if it is
        None.
        """
        request_id = request_id or new_request_id()
        kind, body = form(request, files)
        headers = {"Content-Type": kind, "Idempotency-Key": request_id}
        return await self.request("POST", "/batches", headers, body, request_id)

    async def listed(self, start: int, size: int) -> dict[str, Any]:
        """Return ``size`` jobs in the order of their ids, after the first ``start`` jobs.

        The answer has the fields ``total`` (the number of all jobs) and ``sessions`` (the jobs).
        """
        return await self.request("GET", f"/batches?from={start}&size={size}")

    async def job(self, job_id: int) -> dict[str, Any]:
        """Return the job's present state."""
        return await self.request("GET", f"/batches/{job_id}")

    async def log(self, job_id: int, start: int, size: int = 1000) -> dict[str, Any]:
        """Return at most ``size`` lines of a job's output, from line ``start`` on.

        The answer has the fields ``from``, ``total`` and ``log`` (the lines).
        """
        return await self.request("GET", f"/batches/{job_id}/log?from={start}&size={size}")

    async def kill(self, job_id: int) -> None:
        """End a job, whether it runs or waits."""
        await self.request("DELETE", f"/batches/{job_id}")
