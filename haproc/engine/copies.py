"""What a cluster gives to another one that copies it, and takes from it.

A table is its files and the newest state of its Delta log. So a copy has the donor's rows, columns
and properties, whatever they are, and Spark computes nothing. The plugin in the server reads and
writes (`haproc/spark/Copies.java`); a commit that HAProc writes makes the files a table.

The table is made empty first, so that the catalog knows it. The second commit replaces the state.
That commit names its source, so a later process finds the tables that are done.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final, Protocol

from dmq import Json
from haproc.classify.allowed import place_of
from haproc.engine.confs import user_metadata
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import TransactionMarker

FILES_AT_ONCE: Final = 500
"""Files of a table that are told of at a time. Chosen: half a MiB."""
CHUNK_BYTES: Final = 4 << 20
"""What is asked for and written at a time; a HAProc holds it up to six times for each file that is
copied at once: 100 MiB. Chosen."""
LINES_BYTES_MAX: Final = 8 << 20
"""Of a commit in memory; a larger one is put together in a file."""
COMMIT: Final = "_delta_log/00000000000000000001.json"
"""The commit that makes a copy of an empty table."""
OPERATION: Final = "HAPROC COPY"
"""What a table's history says of the commit that made a copy of it."""
_NOT_COPIED: Final = frozenset({"catalogManaged", "catalogOwned-preview", "coordinatedCommits"})
"""Features of Delta whose commits stand elsewhere than in the table's folder."""
_Z85: Final = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_RFC1924: Final = (
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()" + "*+-;<=>?@^_`{|}~"
)
_UUID_CHARACTERS: Final = 20


@dataclass(frozen=True, slots=True)
class CopyTable:
    """A Delta table as it stands. ``id``: Delta's own of this table; ``bytes`` of its files."""

    schema: str
    name: str
    location: str
    version: int
    id: str
    files: int
    bytes: int
    request: int = 0
    """What is copied for one request is not kept for the next one."""
    marker: int = -1
    """The offset of the record at which this state was noted."""

    @property
    def full_name(self) -> str:
        """What people call it."""
        return f"{self.schema}.{self.name}"

    @property
    def key(self) -> tuple[str, str]:
        """Schema and name."""
        return self.schema, self.name

    @property
    def source(self) -> str:
        """What tells this state of this table from every other one, and one request from others."""
        state = f"{self.id}@{self.version}"
        return f"{state} for {self.request} at {self.marker}" if self.request else state

    def is_kept(self, begun: Begun) -> bool:
        """Return whether a copy that was begun is one of this state, so that it can go on.

        All clusters hold the same rows at a record. So a finished copy as of the same record is
        right, too, whichever cluster it is from.
        """
        state, _, request = self.source.partition(" for ")
        known, _, known_request = begun.source.partition(" for ")
        if begun.done and request and request == known_request:
            return True
        first, known_first = request.partition(" at ")[0], known_request.partition(" at ")[0]
        return (state, first) == (known, known_first)


@dataclass(frozen=True, slots=True)
class Inventory:
    """All that a cluster holds. Definitions are JSON, as the plugin gives and takes them.

    ``others``: what cannot be copied, and why.
    """

    schemas: tuple[Mapping[str, Any], ...] = ()
    views: tuple[Mapping[str, Any], ...] = ()
    functions: tuple[Mapping[str, Any], ...] = ()
    tables: tuple[CopyTable, ...] = ()
    others: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CopyFile:
    """A file of a table. ``path``: below the table's folder, as in Delta's log.

    ``size`` is None where only the file itself tells it.
    """

    path: str
    size: int | None


@dataclass(frozen=True, slots=True)
class Begun:
    """A copy of a table that was begun: its `CopyTable.source`, and whether it is finished."""

    source: str
    done: bool


@dataclass(frozen=True, slots=True)
class Place:
    """Where a copy is made: the table's folder, Delta's id of it, the sizes of the files there."""

    location: str
    id: str
    sizes: Mapping[str, int]


def located(location: str, prefixes: Iterable[tuple[str, str]]) -> str:
    """Return how another Spark reaches a folder: the longest prefix of it is replaced.

    ``prefixes``: each with what stands for it. A folder below none of them stays what it is.
    """
    place, found, length = place_of(location), location, -1
    for prefix, target in prefixes:
        top = place_of(f"{prefix}/")
        if place is None or top is None or len(top.names) <= length:
            continue
        names = place.names[: len(top.names)]
        if (place.scheme, place.authority, names) == (top.scheme, top.authority, top.names):
            length = len(top.names)
            found = "/".join((target.rstrip("/"), *place.names[length:]))
    return found


class Copies(Protocol):
    """What one cluster gives and takes. Methods raise EngineError."""

    async def inventory(self) -> Inventory:
        """Return all that the cluster holds now."""
        ...

    async def state(self, table: CopyTable) -> Sequence[Json]:
        """Return the actions of a table's state, but for its files."""
        ...

    async def files(self, table: CopyTable, after: str) -> Sequence[Json]:
        """Return the next ``add`` actions behind a path, in the order of paths; empty: no more."""
        ...

    async def table(self, schema: str, name: str, location: str) -> CopyTable | None:
        """Return the Delta table in a folder, which need not be in the catalog; None: none."""
        ...

    async def names(self, location: str) -> Mapping[str, int]:
        """Return the files that lie in a folder itself, and their sizes."""
        ...

    async def transfer(self, source: str, target: str, paths: Sequence[str]) -> tuple[int, int]:
        """Copy files from one folder to another; return how many were not there, and their bytes.

        A file that is there with its size is left alone.
        """
        ...

    async def read(self, location: str, path: str, offset: int, length: int) -> tuple[int, bytes]:
        """Return a file's size, and so many of its bytes."""
        ...

    async def begun(self, tables: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], Begun]:
        """Return how far copies are that were begun under these names."""
        ...

    async def clear(
        self, keep: Iterable[tuple[str, str]], only: Collection[tuple[str, str]] | None = None
    ) -> None:
        """Drop everything that the cluster holds, or ``only`` these tables, but for some."""
        ...

    async def define(self, what: str, said: Mapping[str, Json]) -> None:
        """Make a ``schema``, ``view`` or ``function``."""
        ...

    async def begin(self, table: CopyTable) -> Place:
        """Make an empty table for a copy, or find the one that was made."""
        ...

    async def put(self, location: str, path: str, offset: int, data: bytes, *, last: bool) -> int:
        """Write bytes of a file; return its size so far.

        A commit or manifest is there as a whole or not at all. One that is there already with
        other content is an error.
        """
        ...


def files_of(adds: Iterable[Any]) -> list[CopyFile]:
    """Return the files that ``add`` actions name; EngineError if they lie outside the table."""
    found: dict[str, CopyFile] = {}
    for add in adds:
        path = str(add["path"])
        if ":" in path.split("/")[0]:
            raise _refused(f"its file {path} belongs to another table (a clone)")
        found[path] = CopyFile(path, int(add["size"]))
        vector = add.get("deletionVector") or {}
        if vector.get("storageType") == "p":
            raise _refused("deletion vectors lie outside of it (a clone)")
        if vector.get("storageType") == "u":
            name = vector_path(str(vector["pathOrInlineDv"]))
            found[name] = CopyFile(name, None)
    return list(found.values())


def vector_path(coded: str) -> str:
    """Return the path of a deletion vector's file from what Delta's log says: prefix and UUID."""
    prefix, code = coded[:-_UUID_CHARACTERS], coded[-_UUID_CHARACTERS:]
    data = base64.b85decode(code.translate(str.maketrans(_Z85, _RFC1924)))
    text = data.hex()
    uuid = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    return f"{prefix}/deletion_vector_{uuid}.bin" if prefix else f"deletion_vector_{uuid}.bin"


def check_state(actions: Sequence[Any]) -> None:
    """Raise EngineError if a table of this state cannot be copied file by file."""
    for action in actions:
        protocol = action.get("protocol") or {}
        features = {
            *(protocol.get("readerFeatures") or ()),
            *(protocol.get("writerFeatures") or ()),
        }
        if found := sorted(features & _NOT_COPIED):
            raise _refused(f"it has the table feature {found[0]}")


def commit(
    table: CopyTable,
    table_id: str,
    actions: Sequence[Any],
    application: str,
    marker: int,
    at_ms: int,
) -> list[bytes]:
    """Return the lines of the commit that makes files a table, but for the ``add`` actions.

    ``table_id``: what Delta calls the copy. ``application`` and ``marker``: the transaction marker
    that says that everything below the copy's record is in the table.
    """
    info: dict[str, Json] = {
        "timestamp": at_ms,
        "operation": OPERATION,
        "operationParameters": {"source": json.dumps(table.source)},
        "isBlindAppend": False,
        "userMetadata": user_metadata(TransactionMarker(application, marker)),
        "txnId": table.source,
    }
    done = {"appId": application, "version": marker, "lastUpdated": at_ms}
    return [line_of(each) for each in (*begin_commit(info, table_id, actions), {"txn": done})]


def begin_commit(
    info: Mapping[str, Json], table_id: str, actions: Sequence[Any]
) -> list[dict[str, Any]]:
    """Return what a commit begins with that gives a table the state of another one.

    ``info``: what it says of itself, with a ``timestamp``; ``actions``: that state.
    """
    told, state = dict(info), list[dict[str, Any]]()
    for action in actions:
        said = dict(action)
        if "metaData" in said:
            meta = {**said["metaData"], "id": table_id}
            meta["configuration"] = {
                key: value
                for key, value in meta.get("configuration", {}).items()
                # They name a commit of the donor's table.
                if not key.startswith("delta.inCommitTimestampEnablement")
            }
            if meta["configuration"].get("delta.enableInCommitTimestamps") == "true":
                told["inCommitTimestamp"] = told["timestamp"]
            said["metaData"] = meta
        state.append(said)
    return [{"commitInfo": told}, *state]


async def put_all(put: Callable[[int, bytes, bool], Awaitable[int]], file: IO[bytes]) -> None:
    """Write a file that was put together; nothing of it is seen before its last byte.

    ``put``: takes an offset, bytes, and whether they are the last; returns the size so far.
    """
    size, offset = file.tell(), 0
    while offset < size:
        file.seek(offset)
        data = file.read(CHUNK_BYTES)
        offset = await put(offset, data, offset + len(data) >= size)


def line_of(action: object) -> bytes:
    """Return an action as a line of Delta's log."""
    return json.dumps(action, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _refused(why: str) -> EngineError:
    return EngineError(
        ErrorKind.APPLICATION, f"the table cannot be copied: {why}", error_class="NOT_COPIED"
    )
