"""The files that a simulated cluster gives to another one that copies it, and takes from it.

A table's files have a few of its rows each; its state is the statement that created it. A dropped
table has no files any more, as in Delta. Unfinished copies outlive the server, as files do.

A cluster has its tables below its own name (``/a/t@version``). Others reach them below ``/mnt``
(``/mnt/a/t@version``), if the cluster is mounted there. Other paths that begin with a slash belong
to an outside storage, see `places`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from dmq import Json
from haproc.engine.copies import COMMIT, FILES_AT_ONCE, Begun, CopyTable, Inventory, Place
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Lane
from haproc.engine.remote import RemoteSession
from tests.simulation.places import Kept

if TYPE_CHECKING:
    from tests.simulation.spark import SimSpark

T = TypeVar("T")
SCHEMA = "default"
FILE_ROWS = 3


class Shelf:
    """The copies in a cluster's storage, beside the tables."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, int], tuple[str, dict[str, bytes]]] = {}
        """The statement that created a table, and its files, by name and version."""
        self.half: dict[str, tuple[str, dict[str, bytes]]] = {}
        """Sources and files of tables that have no rows yet."""
        self.whole: dict[str, str] = {}
        """Sources of finished copies, until something changes them."""
        self.copied: list[str] = []
        """Tables, once for each time that they were finished."""
        self.mounts: dict[str, SimSpark] = {}
        """Clusters whose files this one can read."""
        self.transferred: list[str] = []
        """Tables, once for each time that this cluster copied files of them itself."""
        self.others: list[tuple[str, str]] = []
        """Objects that cannot be copied, with the reasons."""
        self.parts: dict[str, bytes] = {}
        """The parts so far of a file outside; the server has them, and forgets them."""

    def checksum(self, name: str, version: int) -> str:
        """Return the checksum of a table at a version of an inventory; empty if unknown."""
        kept = self.kept.get((name, version))
        return "" if kept is None else checksum(_rows(kept[1].values()))


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
        """Return what ``effect`` gives behind some work, if this process still has the cluster."""
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
            made, files = self._spark.definition(name), _files(rows)
            version = zlib.crc32("".join((made, *files)).encode())
            self._spark.shelf.kept[name, version] = made, files
            place, id_ = f"/{self._spark.name}/{name}@{version}", f"{name} of {self._spark.name}"
            size = sum(map(len, files.values()))
            tables.append(CopyTable(SCHEMA, name, place, version, id_, len(files), size))
        return Inventory(tables=tuple(tables), others=tuple(self._spark.shelf.others))

    def _known(self, location: str) -> tuple[str, dict[str, bytes]]:
        top, cluster, file = location.rsplit("/", 2)
        reached = {"": {self._spark.name: self._spark}, "/mnt": self._spark.shelf.mounts}
        spark = reached[top].get(cluster)
        name, _, version = file.partition("@")
        if spark is None:
            raise EngineError(ErrorKind.ENVIRONMENT, f"there is no folder {location}")
        if name not in spark.dump():
            raise EngineError(ErrorKind.APPLICATION, f"{name} is gone", sqlstate="42P01")
        return spark.shelf.kept[name, int(version)]

    def _outside(self, table: CopyTable) -> Kept:
        return self._spark.places.table(table.location, table.version)

    async def state(self, table: CopyTable) -> Sequence[Json]:
        def state() -> Sequence[Json]:
            if not _is_table(table.location):
                return [{"metaData": self._outside(table).meta}]
            return [{"metaData": {"made": self._known(table.location)[0]}}]

        return await self._done(state)

    async def files(self, table: CopyTable, after: str) -> Sequence[Json]:
        def files() -> Sequence[Json]:
            if not _is_table(table.location):
                found = self._outside(table).adds
                adds = [found[path] for path in sorted(found)]
            else:
                known = self._known(table.location)[1]
                adds = [{"path": path, "size": len(known[path])} for path in sorted(known)]
            return [add for add in adds if add["path"] > after][:FILES_AT_ONCE]

        return await self._done(files)

    async def table(self, schema: str, name: str, location: str) -> CopyTable | None:
        def table() -> CopyTable | None:
            found = self._spark.places.table(location)
            if found.version < 0:
                return None
            size = sum(add["size"] for add in found.adds.values())
            figures = found.version, found.meta["id"], len(found.adds), size
            return CopyTable(schema, name, location, *figures)

        return await self._done(table)

    async def names(self, location: str) -> Mapping[str, int]:
        return await self._done(lambda: self._spark.places.names(location))

    async def transfer(self, source: str, target: str, paths: Sequence[str]) -> tuple[int, int]:
        sizes = []
        for path in paths:
            # Whoever dies in between leaves a file that is too short.
            if await self._done(lambda: self._transfer(source, target, path, half=True)):  # noqa: B023
                size = await self._done(lambda: self._transfer(source, target, path))  # noqa: B023
                sizes.append(size)
        if sizes and _is_table(source):
            self._spark.shelf.transferred.append(target)
        return len(sizes), sum(sizes)

    def _transfer(self, source: str, target: str, path: str, *, half: bool = False) -> int:
        """Copy a file, or its first half; return the number of bytes; 0 if it exists."""
        files, shelf = self._spark.places.files, self._spark.shelf
        data = self._known(source)[1][path] if _is_table(source) else files[f"{source}/{path}"]
        there = shelf.half[target][1] if not target.startswith("/") else files
        name = path if there is not files else f"{target}/{path}"
        if half and len(there.get(name, b"")) == len(data):
            return 0
        there[name] = data[: len(data) // 2] if half else data
        if there is files and not half:
            self._spark.places.written.append(name)
        return len(data)

    async def read_file_part(
        self, location: str, path: str, offset: int, length: int
    ) -> tuple[int, bytes]:
        def read() -> bytes:
            if _is_table(location):
                return self._known(location)[1][path]
            found = self._spark.places.files.get(f"{location}/{path}")
            if found is None:
                raise EngineError(ErrorKind.APPLICATION, f"there is no {location}/{path}")
            return found

        data = await self._done(read)
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

    async def define(self, what: str, fields: Mapping[str, Json]) -> None:
        raise AssertionError(what)

    async def begin(self, table: CopyTable) -> Place:
        def begin() -> Place:
            _, files = self._spark.shelf.half.setdefault(table.name, (table.source, {}))
            return Place(table.name, "id", {name: len(data) for name, data in files.items()})

        return await self._done(begin)

    async def put(self, location: str, path: str, offset: int, data: bytes, *, last: bool) -> int:
        return await self._done(lambda: self._put(location, path, offset, data, last=last))

    def _put(self, location: str, path: str, offset: int, data: bytes, *, last: bool) -> int:
        if location.startswith("/"):
            return self._put_outside(f"{location}/{path}", offset, data, last=last)
        source, files = self._spark.shelf.half[location]
        if path != COMMIT:
            if len(files.get(path, b"")) >= offset:
                files[path] = files.get(path, b"")[:offset] + data
            return len(files[path])
        assert last and not offset
        lines = [json.loads(line) for line in data.splitlines()]
        made = next(line["metaData"]["made"] for line in lines if "metaData" in line)
        version = next(line["txn"]["version"] for line in lines if "txn" in line)
        rows = _rows(files[line["add"]["path"]] for line in lines if "add" in line)
        del self._spark.shelf.half[location]
        self._spark.make(location, made, rows, version)
        self._spark.shelf.whole[location] = source
        self._spark.shelf.copied.append(location)
        return len(data)

    def _put_outside(self, path: str, offset: int, data: bytes, *, last: bool) -> int:
        parts, places = self._spark.shelf.parts, self._spark.places
        before = parts.get(path, b"")
        if len(before) < offset:
            return len(before)
        parts[path] = before[:offset] + data
        if not last:
            return len(parts[path])
        whole = parts.pop(path)
        if places.files.get(path, whole) != whole:
            raise EngineError(ErrorKind.APPLICATION, f"there is another commit already: {path}")
        places.write(path, whole)
        return len(whole)


def checksum(rows: Sequence[Sequence[object]]) -> str:
    """Return a table's checksum, which begins with the number of its rows."""
    return f"{len(rows)}:{rows!r}"


def _files(rows: Sequence[Sequence[object]]) -> dict[str, bytes]:
    """Return files of a few rows each; their content determines their names."""
    found = {}
    for number, first in enumerate(range(0, len(rows), FILE_ROWS)):
        data = json.dumps(rows[first : first + FILE_ROWS]).encode()
        found[f"part-{number:05}-{zlib.crc32(data):08x}"] = data
    return found


def _rows(files: Iterable[bytes]) -> list[tuple[object, ...]]:
    return [tuple(row) for data in files for row in json.loads(data)]


def _is_table(location: str) -> bool:
    """Return whether a path belongs to a cluster's table, not to an outside storage."""
    return "@" in location
