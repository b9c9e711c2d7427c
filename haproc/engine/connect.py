"""The implementation of Engine: a Spark cluster, reached over Spark Connect.

One connection carries many server-side sessions: one of HAProc's own (probes, columns and histories
of tables), one for each key of a reader, one for each lane. A query is one round trip; its result
is passed on unparsed.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from haproc.engine import objects, table
from haproc.engine.channel import Channel, EngineLimits
from haproc.engine.confs import CHECKS_POOL, pool_of_lane, quoted_name
from haproc.engine.copying import SparkCopies
from haproc.engine.errors import REFUSED, EngineError, ErrorKind
from haproc.engine.interface import Column, EngineAddress, Lane, Named, Restore, TableState
from haproc.engine.lane import Authorise, SparkLane, anybody, lane_session_id
from haproc.engine.remote import RemoteSession
from haproc.engine.server import Marker, Plugin, settings_of_results
from haproc.engine.session import SparkSession
from haproc.engine.statement import table_relation
from haproc.engine.table import SparkHistories, columns_of, last_version, rows_in_turn

_PROBE = "SELECT count(*) AS n FROM range(0, 2, 1, 1)"
"""The probe's statement. Its job has one task, so a driver without executors cannot answer it."""
_ATTEMPTS_MAX = 3
_CONNECT_S = 1.0
_CHECKS = "haproc/checks"
"""The key of the session for verifications; it has a slash, which no client's id has."""
_Result = TypeVar("_Result")


class SparkConnectEngine:
    """Implements Engine over Spark Connect; must be made in a running event loop.

    ``paths``: the folders of the files that users' statements may name.
    """

    def __init__(
        self,
        address: EngineAddress,
        *,
        ring: str,
        cluster: str,
        limits: EngineLimits = EngineLimits(),  # noqa: B008 (frozen)
        paths: Sequence[str] = (),
    ) -> None:
        self._limits = limits
        self._paths = paths
        self._address = address
        self._ring = ring
        self._cluster = cluster
        self._channel = Channel(address, limits)
        self._own = RemoteSession(self._channel, lambda _: uuid.uuid4())
        self._sessions: dict[str, SparkSession] = {}
        self._lanes: dict[int, SparkLane] = {}
        self._marker = Marker()
        self._plugin = Plugin()
        self._touching: asyncio.Task[None] | None = None

    async def probe(self, *, timeout_s: float) -> None:
        """Run a statement through driver and executors; EngineError if it fails."""
        try:
            await self._in_own_session(lambda own: self._probe(own, timeout_s))
        except EngineError as error:
            if error.kind is ErrorKind.AVAILABILITY and await self._refuses():
                raise EngineError(
                    error.kind, "the server refuses connections", error_class=REFUSED
                ) from error
            raise

    async def _probe(self, own: RemoteSession, timeout_s: float) -> None:
        await self._plugin.check(own, timeout_s)
        if self._marker.known:
            await self._marker.check(own, timeout_s)
        else:
            await rows_in_turn(own, _PROBE, timeout_s)

    async def _refuses(self) -> bool:
        """True if the server refuses connections; gRPC's own errors do not show that."""
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, writer = await asyncio.open_connection(self._address.host, self._address.port)
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        writer.close()
        return False

    def session(self, key: str, restore: Restore | None = None, pool: str = "") -> SparkSession:
        """Return the session of this key; ``restore`` and ``pool`` matter only if it is new."""
        known = self._sessions.get(key)
        if known is None:

            def closed(session: SparkSession) -> None:
                if self._sessions.get(key) is session:
                    del self._sessions[key]

            remote = RemoteSession(self._channel, lambda _: uuid.uuid4())
            known = SparkSession(remote, self._default_confs, restore, pool, self._paths, closed)
            self._sessions[key] = known
            self._keep_sessions()
        return known

    def lane(self, index: int, authorise: Authorise = anybody) -> SparkLane:
        """Return the applier's lane of this index; only the first call's ``authorise`` is used."""
        if index not in self._lanes:
            remote = RemoteSession(
                self._channel,
                lambda generation: lane_session_id(self._ring, self._cluster, index, generation),
            )
            self._lanes[index] = SparkLane(
                remote, self._default_confs, authorise, pool=pool_of_lane(index)
            )
            self._keep_sessions()
        return self._lanes[index]

    async def table_columns(self, table: str) -> list[Column]:
        """Return a table's columns (for the rows door); EngineError if there is no such table."""
        schema = await self._in_own_session(
            lambda own: own.schema(table_relation(quoted_name(table)))
        )
        return columns_of(schema)

    async def plain_columns(self, table: str) -> Sequence[Column] | None:
        """Return a table's columns if it is a Delta table that stores rows exactly as given."""
        return await self._in_own_session(lambda own: objects.plain_columns(own, table))

    # -- the objects on the cluster --------------------------------------------------------

    async def storage(self, known: str) -> str:
        """Return the storage id, which is in a file in the cluster's storage."""
        return await self._in_own_session(lambda own: self._marker.find(own, known))

    async def offsets_applied(self, tables: Sequence[str], application: str) -> Mapping[str, int]:
        """Return, by table, the highest version in the transaction markers of ``application``."""
        found = await self._of_each(tables, lambda own, name: self._offset(own, name, application))
        if None in found.values():
            await self.probe(timeout_s=self._limits.small_statement_timeout_s)
        return {table: version for table, version in found.items() if version is not None}

    async def _offset(self, own: RemoteSession, table: str, application: str) -> int | None:
        name = quoted_name(table)
        try:
            return await last_version(own, name, application, self._limits.history_rows)
        except EngineError as error:
            if error.kind is not ErrorKind.APPLICATION:
                raise
            if await objects.what_is(own, table) is objects.What.UNREADABLE:
                raise objects.unreadable(table, error) from error
        return None

    async def check_tables(self, tables: Sequence[str]) -> None:
        """Raise EngineError if the storage is away, or a table exists but is unreadable."""
        await self.probe(timeout_s=self._limits.small_statement_timeout_s)
        await self._of_each(tables, objects.check_readable)

    async def object_fingerprint(self, named: Sequence[Named]) -> str:
        """Return the fingerprint of the objects: a text that changes when any of them changes."""
        return await self._in_own_session(lambda own: objects.fingerprint(own, self._marker, named))

    async def keeps_marks(self, table: str) -> bool:
        """True if the name is that of a Delta table, which can keep transaction markers."""
        return await self._in_own_session(lambda own: objects.is_delta(own, table))

    async def default_place(self, table: str) -> str:
        """Return the folder that a managed table of this name would get; empty if unknown."""
        return await self._in_own_session(lambda own: objects.default_place(own, table))

    async def server_settings(self, names: Collection[str]) -> Mapping[str, str | None]:
        """Return the server's versions, and the settings of a fresh session on it."""
        fresh = RemoteSession(self._channel, lambda _: uuid.uuid4())
        try:
            return await settings_of_results(fresh, names)
        finally:
            await fresh.release()

    async def _of_each(
        self, tables: Sequence[str], read: Callable[[RemoteSession, str], Awaitable[_Result]]
    ) -> Mapping[str, _Result]:
        """Call ``read`` for each table, a few at a time; return the results by table."""
        permits = asyncio.Semaphore(self._limits.tables_at_once)

        async def one(table: str) -> _Result:
            async with permits:
                return await self._in_own_session(lambda own: read(own, table))

        names = list(dict.fromkeys(tables))
        found = await asyncio.gather(*(one(table) for table in names))
        return dict(zip(names, found, strict=True))

    # -- content, for verifications --------------------------------------------------------

    async def staged(self) -> Collection[str]:
        """Return the full names of the existing staging tables; raises EngineError."""
        return await self._in_own_session(objects.staged)

    def copies(self, lane: Lane | None = None) -> SparkCopies:
        """Return the object that reads copies of tables, and with a ``lane`` also writes them."""
        return SparkCopies(self._in_own_session if lane is None else lane.guarded)

    def histories(self) -> SparkHistories:
        """Return the object that reads the histories of the cluster's tables."""
        return SparkHistories(self._in_own_session, self.object_fingerprint)

    async def table_states(self) -> Sequence[TableState]:
        """Return all tables and views with their present states; raises EngineError."""
        # A fresh session: one that has read a table of files does not see new files.
        await self._checking().aclose()
        confs = await self._in_own_session(lambda own: own.confs_below(table.CATALOG_CONFS))
        return await table.survey(
            self._checking(), table.catalogs(confs), self._limits.tables_at_once
        )

    async def checksum(self, state: TableState, *, timeout_s: float) -> str:
        """Return a checksum of a table's content; raises EngineError."""
        return state.checksum or await table.checksum(self._checking(), state, timeout_s)

    def _checking(self) -> SparkSession:
        return self.session(_CHECKS, pool=CHECKS_POOL)

    async def aclose(self) -> None:
        """Close the connection; sessions of clients are released."""
        if self._touching is not None:
            self._touching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._touching
        releases: list[Awaitable[Any]] = [each.aclose() for each in list(self._sessions.values())]
        await asyncio.gather(*releases, self._own.release())
        await self._channel.aclose()

    async def _default_confs(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        return await self._in_own_session(lambda own: own.get_confs_if_any(keys))

    async def _in_own_session(self, call: Callable[[RemoteSession], Awaitable[_Result]]) -> _Result:
        """Call ``call`` with HAProc's own session; again if Spark had lost that session."""
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            epoch = self._own.epoch
            try:
                return await call(self._own)
            except EngineError as error:
                if attempt == _ATTEMPTS_MAX or not self._own.renew(error, epoch):
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _keep_sessions(self) -> None:
        if self._touching is None:
            self._touching = asyncio.create_task(self._touch_sessions())

    async def _touch_sessions(self) -> None:
        while True:
            await asyncio.sleep(self._limits.session_touch_interval_s)
            for session in list(self._sessions.values()):
                await session.touch()
            for lane in self._lanes.values():
                await lane.touch()
