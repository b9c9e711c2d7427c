"""What a simulated cluster gives to another one that copies it, and takes from it.

A table has one file, its rows; what it was created by is its state. A table that is gone has no
files any more, as in Delta. What is half made outlives the server, as files do.

A cluster has its tables below its own name (``/a``). Others reach them below ``/mnt`` (``/mnt/a``),
if the cluster is mounted there.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from dmq import Json
from haproc.engine.copies import COMMIT, Begun, CopyTable, Inventory, Place
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Lane
from haproc.engine.remote import RemoteSession

if TYPE_CHECKING:
    from tests.simulation.spark import SimSpark

T = TypeVar("T")
SCHEMA = "default"
FILE = "rows"


class Shelf:
    """What a cluster's storage has of copies, beside the tables."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, int], tuple[str, bytes]] = {}
        """What a table was created by, and its rows, by name and version."""
        self.half: dict[str, tuple[str, dict[str, bytes]]] = {}
        """Sources and files of tables that have no rows yet."""
        self.whole: dict[str, str] = {}
        """Sources of finished copies, until something changes them."""
        self.copied: list[str] = []
        """Tables, each time that they are finished."""
        self.mounts: dict[str, SimSpark] = {}
        """Clusters whose files this one reads."""
        self.transferred: list[str] = []
        """Tables, each time that their file was copied by this cluster itself."""
        self.others: list[tuple[str, str]] = []
        """What cannot be copied, and why."""


class SimCopies:
    """Implements Copies for one process of a cluster; with a lane, in its session."""

    def __init__(
        self,
        spark: SimSpark,
        check: Callable[[], Awaitable[None]],
        lane: Lane | None = None,
    ) -> None:
        self._spark = spark
        self._check = check
        self._lane = lane

    async def _done(self, effect: Callable[[], T]) -> T:
        """Return what comes of work on the cluster, if it is still this process that may do it."""
        if self._lane is not None:
            return await self._lane.guarded(lambda remote: self._in_session(remote, effect))
        await self._check()
        await self._spark.work(0.2)
        await self._check()
        return effect()

    async def _in_session(self, remote: RemoteSession, effect: Callable[[], T]) -> T:
        await self._check()
        await self._spark.work(0.2)
        await self._check()
        names = remote.names
        self._spark.session(names.session_id, names.server_id, make=False)
        return effect()

    async def inventory(self) -> Inventory:
        return await self._done(self._inventory)

    def _inventory(self) -> Inventory:
        tables = []
        for name, rows in self._spark.dump().items():
            made, data = self._spark.definition(name), json.dumps(rows).encode()
            version = zlib.crc32(made.encode() + data)
            self._spark.shelf.kept[name, version] = made, data
            place = f"/{self._spark.name}/{name}@{version}"
            id_ = f"{name} of {self._spark.name}"
            tables.append(CopyTable(SCHEMA, name, place, version, id_, 1, len(data)))
        return Inventory(tables=tuple(tables), others=tuple(self._spark.shelf.others))

    def _known(self, location: str) -> tuple[str, bytes]:
        top, cluster, file = location.rsplit("/", 2)
        spark = {"": {self._spark.name: self._spark}, "/mnt": self._spark.shelf.mounts}[top].get(
            cluster
        )
        name, _, version = file.partition("@")
        if spark is None:
            raise EngineError(ErrorKind.ENVIRONMENT, f"there is no folder {location}")
        if name not in spark.dump():
            raise EngineError(ErrorKind.APPLICATION, f"{name} is gone", sqlstate="42P01")
        return spark.shelf.kept[name, int(version)]

    async def state(self, table: CopyTable) -> Sequence[Json]:
        return await self._done(lambda: [{"metaData": {"made": self._known(table.location)[0]}}])

    async def files(self, table: CopyTable, after: str) -> Sequence[Json]:
        size = len((await self._done(lambda: self._known(table.location)))[1])
        return [] if after else [{"path": FILE, "size": size}]

    async def table(self, schema: str, name: str, location: str) -> CopyTable | None:
        raise AssertionError(location)

    async def names(self, location: str) -> Mapping[str, int]:
        raise AssertionError(location)

    async def transfer(self, source: str, target: str, paths: Sequence[str]) -> tuple[int, int]:
        def transfer() -> tuple[int, int]:
            assert list(paths) == [FILE]
            data, (_, files) = self._known(source)[1], self._spark.shelf.half[target]
            if len(files.get(FILE, b"")) == len(data):
                return 0, 0
            files[FILE] = data
            self._spark.shelf.transferred.append(target)
            return 1, len(data)

        return await self._done(transfer)

    async def read(self, location: str, path: str, offset: int, length: int) -> tuple[int, bytes]:
        _, data = await self._done(lambda: self._known(location))
        return len(data), data[offset : offset + min(length, 100)]

    async def begun(self, tables: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], Begun]:
        def begun() -> Mapping[tuple[str, str], Begun]:
            shelf, found = self._spark.shelf, {}
            for key in tables:
                if key[1] in shelf.whole:
                    found[key] = Begun(shelf.whole[key[1]], done=True)
                elif key[1] in shelf.half:
                    found[key] = Begun(shelf.half[key[1]][0], done=False)
            return found

        return await self._done(begun)

    async def clear(
        self, keep: Iterable[tuple[str, str]], only: Collection[tuple[str, str]] | None = None
    ) -> None:
        def clear() -> None:
            kept = {name for _, name in keep}
            for name in self._spark.dump():
                if name not in kept and (only is None or (SCHEMA, name) in only):
                    self._spark.drop(name)
            shelf = self._spark.shelf
            shelf.half = {name: each for name, each in shelf.half.items() if name in kept}

        await self._done(clear)

    async def define(self, what: str, said: Mapping[str, Json]) -> None:
        raise AssertionError(what)

    async def begin(self, table: CopyTable) -> Place:
        def begin() -> Place:
            _, files = self._spark.shelf.half.setdefault(table.name, (table.source, {}))
            return Place(table.name, "id", {name: len(data) for name, data in files.items()})

        return await self._done(begin)

    async def put(self, location: str, path: str, offset: int, data: bytes, *, last: bool) -> int:
        return await self._done(lambda: self._put(location, path, offset, data, last=last))

    def _put(self, location: str, path: str, offset: int, data: bytes, *, last: bool) -> int:
        source, files = self._spark.shelf.half[location]
        if path != COMMIT:
            if len(files.get(path, b"")) >= offset:
                files[path] = files.get(path, b"")[:offset] + data
            return len(files[path])
        assert last and not offset
        lines = [json.loads(line) for line in data.splitlines()]
        made = next(line["metaData"]["made"] for line in lines if "metaData" in line)
        version = next(line["txn"]["version"] for line in lines if "txn" in line)
        rows = [json.loads(files[line["add"]["path"]]) for line in lines if "add" in line]
        del self._spark.shelf.half[location]
        self._spark.make(location, made, rows[0] if rows else [], version)
        self._spark.shelf.whole[location] = source
        self._spark.shelf.copied.append(location)
        return len(data)
