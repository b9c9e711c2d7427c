"""Batch jobs of a ring: submitted once, watched anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from haclient.aio.documents import AsyncDocuments
from haclient.protocol import JobFile, form
from haclient.request_ids import new_request_id


class AsyncJobs(AsyncDocuments):
    """The jobs of one user; leave it with ``async with``. Methods raise DatabaseError."""

    async def submit(
        self,
        request: Mapping[str, Any],
        files: Sequence[JobFile] = (),
        request_id: str | None = None,
    ) -> dict[str, Any]:
        """Submit a job and return it; whichever server is asked again, it is one job.

        ``request``: the fields of ``POST /batches``.
        """
        request_id = request_id or new_request_id()
        kind, body = form(request, files)
        headers = {"Content-Type": kind, "Idempotency-Key": request_id}
        return await self.request("POST", "/batches", headers, body, request_id)

    async def listed(self, start: int, size: int) -> dict[str, Any]:
        """Return jobs by their ids, so many from this place on: ``total`` and ``sessions``."""
        return await self.request("GET", f"/batches?from={start}&size={size}")

    async def job(self, job_id: int) -> dict[str, Any]:
        """Return a job as it is now."""
        return await self.request("GET", f"/batches/{job_id}")

    async def log(self, job_id: int, start: int, size: int = 1000) -> dict[str, Any]:
        """Return lines of a job's log from this number on: ``from``, ``total`` and ``log``."""
        return await self.request("GET", f"/batches/{job_id}/log?from={start}&size={size}")

    async def kill(self, job_id: int) -> None:
        """End a job."""
        await self.request("DELETE", f"/batches/{job_id}")
