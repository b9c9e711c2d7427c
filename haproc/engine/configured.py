"""Spark's sessions on the server: their settings, and the restoring of new ones."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import grpc.aio

from haproc import protos, wire
from haproc.engine import channel, confs
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Column, SessionFile, Settings, TransactionMarker
from haproc.engine.remote import USER, RemoteSession, plan_bytes
from haproc.engine.statement import Statement, sql_plan, sql_relation
from haproc.engine.table import columns_of

# A new session, into which its owner puts its content back.
#
# No other call uses it yet, so nothing here waits. After a loss the restoring begins again.


_base = protos.base


class FreshSession:
    """Restores content into a new Spark session; implements Fresh."""

    def __init__(self, remote: RemoteSession, session: ConfiguredSession) -> None:
        self._remote = remote
        self._session = session

    async def configure(self, settings: Settings) -> None:
        """Give the session exactly these settings, in one round trip; none if it has them."""
        await self._session.ensure(settings, None)

    async def run_change(self, statement: Statement, *, timeout_s: float) -> None:
        """Run a statement that changes the content of the session."""
        self._session.touched()
        plan = await plan_bytes(statement)
        responses = self._remote.execute(plan, str(uuid.uuid4()), timeout_s)
        async with contextlib.aclosing(responses):
            async for _ in responses:
                pass

    async def columns(self, sql: str) -> list[Column]:
        """Return a query's columns without running it."""
        return columns_of(await self._remote.schema(sql_relation(sql)))

    async def add_files(self, files: Sequence[SessionFile]) -> None:
        """Add files to the session, in one call."""
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
            answer = await call(requests(), self._remote.small_timeout_s)
        except grpc.aio.AioRpcError as error:
            raise channel.decode(error).error() from error
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


# A server-side session with the settings that are known to be in force in it.
#
# Settings, and the current catalog and schema, are sent only if they differ from the last ones. The
# calls are sent together, so a change costs one round trip.


Defaults = Callable[[Sequence[str]], Awaitable[Mapping[str, str | None]]]
"""Takes names of settings; returns the values that they have in a session which never changed
them."""

_HOME: Final = "USE `spark_catalog`.`default`"
_HOME_BY: Final = {
    "spark.sql.defaultCatalog": "spark_catalog",
    "spark.sql.catalog.spark_catalog.defaultDatabase": "default",
}
"""The settings that decide in which catalog and schema a session begins, with their default values.
No client may set them. Reading them takes a tenth of the time of a USE."""


class ConfiguredSession:
    """Gives a Spark session the settings that its next statement needs."""

    def __init__(
        self,
        remote: RemoteSession,
        defaults: Defaults,
        pool: str = "",
        paths: Sequence[str] = (),
    ) -> None:
        self.remote = remote
        self._pool = pool
        self._paths = paths
        self._defaults = defaults
        self._in_force = confs.InForce()
        self._used: str | None = None
        self._is_new = True

    def forget(self, *, session_is_new: bool) -> None:
        """Treat the session's settings as unknown. A new session has none that must be reset."""
        attempted = confs.Change()
        self._in_force = (
            confs.InForce() if session_is_new else confs.unknown_after(self._in_force, attempted)
        )
        self._used = None
        self._is_new = session_is_new

    def touched(self) -> None:
        """Record that the session is not new any more: a call has used it."""
        self._is_new = False

    async def ensure(self, settings: Settings, marker: TransactionMarker | None) -> None:
        """Give the session exactly these settings and this marker; raises EngineError."""
        want = confs.wanted(settings, marker, self._pool, self._paths)
        change = confs.change(self._in_force, want)
        if client_confs := [key for key in change.unsets if key not in confs.MARKER_CONFS]:
            change = confs.resolved(change, await self._defaults(client_confs))
        use = confs.use_statement(settings)
        calls: list[Awaitable[None]] = []
        if change.sets:
            calls.append(self.remote.set_confs(change.sets))
        if change.resets:
            calls.append(self.remote.set_confs(change.resets, silent=True))
        if change.unsets:
            calls.append(self.remote.unset_confs(change.unsets))
        if use != self._used:
            calls.append(self._begin_at_home() if self._is_new and use == _HOME else self._run(use))
        if not calls:
            return
        self._in_force = confs.unknown_after(self._in_force, change)
        self._used = None
        self._is_new = False
        results = await asyncio.gather(*calls, return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            # An error that leaves doubt about the session goes first: the caller must know it.
            raise next((error for error in errors if _in_doubt(error)), errors[0])
        self._in_force = confs.InForce(want)
        self._used = use

    async def _begin_at_home(self) -> None:
        """Send the USE of the default catalog and schema, unless a new session begins there."""
        begins = await self.remote.get_confs_if_any(list(_HOME_BY))
        if any((begins.get(key) or home) != home for key, home in _HOME_BY.items()):
            await self._run(_HOME)

    async def _run(self, sql: str) -> None:
        """Run a statement and ignore its result."""
        async with contextlib.aclosing(
            self.remote.execute(sql_plan(sql), str(uuid.uuid4()), self.remote.small_timeout_s)
        ) as responses:
            async for _ in responses:
                pass


def _in_doubt(error: BaseException) -> bool:
    return not isinstance(error, EngineError) or error.kind is ErrorKind.AVAILABILITY
