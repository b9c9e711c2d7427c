"""A session that was just made, into which its owner puts back what it held.

Nobody else uses it yet, so nothing here waits for anybody, and a loss is everybody's: whoever
restores a session begins anew then.
"""

from __future__ import annotations

import contextlib
import uuid
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import grpc.aio

from haproc import protos, wire
from haproc.engine import failure
from haproc.engine.configured import ConfiguredSession
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Column, SessionFile, Settings
from haproc.engine.remote import USER, RemoteSession, plan_bytes, sql_relation
from haproc.engine.statement import Statement
from haproc.engine.table import columns_of

_base = protos.base


class FreshSession:
    """Implements Fresh."""

    def __init__(self, remote: RemoteSession, session: ConfiguredSession, timeout_s: float) -> None:
        self._remote = remote
        self._session = session
        self._timeout_s = timeout_s

    async def configure(self, settings: Settings) -> None:
        """See Fresh."""
        await self._session.ensure(settings, None)

    async def run(self, statement: Statement, *, timeout_s: float) -> None:
        """See Fresh."""
        self._session.touched()
        plan = await plan_bytes(statement)
        responses = self._remote.execute(plan, str(uuid.uuid4()), timeout_s)
        async with contextlib.aclosing(responses):
            async for _ in responses:
                pass

    async def columns(self, sql: str) -> list[Column]:
        """See Fresh."""
        return columns_of(await self._remote.schema(sql_relation(sql), self._timeout_s))

    async def add_files(self, files: Sequence[SessionFile]) -> None:
        """See Fresh."""
        call = self._remote.channel.relay("AddArtifacts")
        names = self._remote.names

        async def requests() -> Any:
            for request in _requests(files):
                request.session_id = names.session_id
                request.user_context.user_id = USER
                if names.server_id:
                    request.client_observed_server_side_session_id = names.server_id
                yield request.SerializeToString()

        try:
            answer = await call(requests(), self._timeout_s)
        except grpc.aio.AioRpcError as error:
            raise failure.decode(error).error() from error
        response = wire.parsed(_base.AddArtifactsResponse, bytes(answer))
        if bad := [each.name for each in response.artifacts if not each.is_crc_successful]:
            raise EngineError(
                ErrorKind.AVAILABILITY, f"files did not arrive whole: {', '.join(bad)}"
            )


def _requests(files: Sequence[SessionFile]) -> Iterator[Any]:
    for file in files:
        first, *others = file.pieces
        request = _base.AddArtifactsRequest()
        if not others:
            artifact = request.batch.artifacts.add(name=file.name)
            _fill(artifact.data, first)
            yield request
            continue
        begin = request.begin_chunk
        begin.name, begin.num_chunks = file.name, len(file.pieces)
        begin.total_bytes = sum(map(len, file.pieces))
        _fill(begin.initial_chunk, first)
        yield request
        for piece in others:
            request = _base.AddArtifactsRequest()
            _fill(request.chunk, piece)
            yield request


def _fill(chunk: Any, data: bytes) -> None:
    chunk.data, chunk.crc = data, zlib.crc32(data)
