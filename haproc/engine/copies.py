"""The data that pass from a donor to another cluster when that one copies tables.

A table is its files and the newest state of its Delta log. So a copy has exactly the donor's rows,
columns and properties, and Spark computes nothing. The plugin in the server reads and writes
(`haproc/spark/Copies.java`); HAProc writes the commit that makes the files a table.

An empty table is created first, so that the catalog has it. The second commit replaces its state.
It names its source, so a later process finds the finished tables.
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
from haproc.pin.sqltypes import quote_name

FILES_AT_ONCE: Final = 500
"""The number of a table's files that one answer lists. Chosen: half a MiB."""
CHUNK_BYTES: Final = 4 << 20
"""The bytes of a file that one call reads or writes. A HAProc holds up to six such chunks for each
file that is copied at once: 100 MiB. Chosen."""
LINES_BYTES_MAX: Final = 8 << 20
"""The largest commit that HAProc builds in memory; it builds a larger one in a file."""
COMMIT: Final = "_delta_log/00000000000000000001.json"
"""The file of the commit that turns an empty table into a copy."""
OPERATION: Final = "HAPROC COPY"
"""The name of the commit that makes a copy, in the history of the copied table (Delta's column
`operation`)."""
_NOT_COPIED: Final = frozenset({"catalogManaged", "catalogOwned-preview", "coordinatedCommits"})
"""Delta features of tables that cannot be copied: their commits are not in the table's folder."""
_Z85: Final = (
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_RFC1924: Final = (
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()" + "*+-;<=>?@^_`{|}~"
)
_UUID_CHARACTERS: Final = 20


@dataclass(frozen=True, slots=True)
class CopyTable:
    """A Delta table in the state that is copied.

    ``id``: Delta's id of the table; ``bytes``: the size of its files.
    """

    schema: str
    name: str
    location: str
    version: int
    id: str
    files: int
    bytes: int
    request: int = 0
    """The number of the request for a copy. What was copied for one request is not kept for
    another."""
    marker: int = -1
    """The copy offset: the offset of the record in the log at which the donor recorded this
    state."""

    @property
    def full_name(self) -> str:
        """Return the table's schema and name with a dot between."""
        return f"{self.schema}.{self.name}"

    @property
    def key(self) -> tuple[str, str]:
        """Return the table's schema and name."""
        return self.schema, self.name

    @property
    def source(self) -> str:
        """Return a text that names this table, this state of it, and the request for its copy."""
        state = f"{self.id}@{self.version}"
        return f"{state} for {self.request} at {self.marker}" if self.request else state

    def is_kept(self, begun: Begun) -> bool:
        """True if a copy that an earlier attempt began has this state: it can be continued.

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
    """All schemas, tables, views and functions of a cluster; definitions are the plugin's JSON.

    ``others``: names of objects that cannot be copied, and the reasons.
    """

    schemas: tuple[Mapping[str, Any], ...] = ()
    views: tuple[Mapping[str, Any], ...] = ()
    functions: tuple[Mapping[str, Any], ...] = ()
    tables: tuple[CopyTable, ...] = ()
    others: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CopyFile:
    """A data file of a Delta table.

    ``path``: below the table's folder, as in Delta's log. ``size`` is None if Delta's log does not
    contain it.
    """

    path: str
    size: int | None


@dataclass(frozen=True, slots=True)
class Begun:
    """A copy of a table that was begun.

    ``source``: the `CopyTable.source` of that copy. ``done``: True if it is finished.
    """

    source: str
    done: bool


@dataclass(frozen=True, slots=True)
class Place:
    """The table that becomes a copy: its folder, its Delta id, the sizes of its files so far."""

    location: str
    id: str
    sizes: Mapping[str, int]


def catalog_name(*parts: str) -> str:
    """Return the full name, as SQL has it, of an object in Spark's own catalog."""
    return ".".join(("spark_catalog", *map(quote_name, parts)))


def located(location: str, prefixes: Iterable[tuple[str, str]]) -> str:
    """Return the path by which another Spark reaches a folder: the longest prefix is replaced.

    ``prefixes``: pairs of a prefix and its replacement. A folder below no prefix stays as it is.
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
    """Reads and writes copies of tables on one cluster. Methods raise EngineError."""

    async def inventory(self) -> Inventory:
        """Return all objects that the cluster holds now."""
        ...

    async def state(self, table: CopyTable) -> Sequence[Json]:
        """Return Delta's actions that make up the table's state, without those that name files."""
        ...

    async def files(self, table: CopyTable, after: str) -> Sequence[Json]:
        """Return the next ``add`` actions (one for each file) of a table, in the order of paths.

        ``after``: the last path that was returned before. Empty: no file is left.
        """
        ...

    async def table(self, schema: str, name: str, location: str) -> CopyTable | None:
        """Return the Delta table in a folder, even if no catalog has it; None if there is none."""
        ...

    async def names(self, location: str) -> Mapping[str, int]:
        """Return the names and sizes of the files directly in a folder."""
        ...

    async def transfer(self, source: str, target: str, paths: Sequence[str]) -> tuple[int, int]:
        """Copy files between folders; return the number of missing files, and their bytes.

        A file that is there with the same size is not copied again.
        """
        ...

    async def read_file_part(
        self, location: str, path: str, offset: int, length: int
    ) -> tuple[int, bytes]:
        """Return a file's size, and ``length`` of its bytes from ``offset`` on."""
        ...

    async def begun(self, tables: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], Begun]:
        """Return the copies that earlier attempts began, by schema and name of the table."""
        ...

    async def clear(
        self, keep: Iterable[tuple[str, str]], only: Collection[tuple[str, str]] | None = None
    ) -> None:
        """Drop everything on the cluster, or ``only`` these tables; never what is in ``keep``."""
        ...

    async def define(self, what: str, definition: Mapping[str, Json]) -> None:
        """Create a schema, view or function; ``what``: ``schema``, ``view`` or ``function``."""
        ...

    async def begin(self, table: CopyTable) -> Place:
        """Create an empty table for a copy, or find the one that was created before."""
        ...

    async def put(self, location: str, path: str, offset: int, data: bytes, *, last: bool) -> int:
        """Write bytes of a file; return its size so far.

        A commit or manifest appears as a whole or not at all. If it exists with other content, that
        is an error.
        """
        ...


def files_of(adds: Iterable[Any]) -> list[CopyFile]:
    """Return the files that ``add`` actions name; EngineError if one lies outside the table."""
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
    """Return the path of a deletion vector's file, from its coded name in Delta's log."""
    prefix, code = coded[:-_UUID_CHARACTERS], coded[-_UUID_CHARACTERS:]
    data = base64.b85decode(code.translate(str.maketrans(_Z85, _RFC1924)))
    text = data.hex()
    uuid = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    return f"{prefix}/deletion_vector_{uuid}.bin" if prefix else f"deletion_vector_{uuid}.bin"


def check_state(actions: Sequence[Any]) -> None:
    """Raise EngineError if a table in this state cannot be copied file by file."""
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
    """Return the lines of the commit that turns copied files into a table, but no ``add`` lines.

    ``table_id``: Delta's id of the copy. ``application`` and ``marker``: the transaction marker; it
    says that the table contains everything below the copy's record.
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
    """Return the first actions of a commit that gives a table the state of another one.

    ``info``: the content of ``commitInfo``, with a ``timestamp``. ``actions``: that state.
    """
    commit_info, state = dict(info), list[dict[str, Any]]()
    for action in actions:
        copied = dict(action)
        if "metaData" in copied:
            meta = {**copied["metaData"], "id": table_id}
            meta["configuration"] = {
                key: value
                for key, value in meta.get("configuration", {}).items()
                # These properties name a commit of the donor's table.
                if not key.startswith("delta.inCommitTimestampEnablement")
            }
            if meta["configuration"].get("delta.enableInCommitTimestamps") == "true":
                commit_info["inCommitTimestamp"] = commit_info["timestamp"]
            copied["metaData"] = meta
        state.append(copied)
    return [{"commitInfo": commit_info}, *state]


async def put_all(put: Callable[[int, bytes, bool], Awaitable[int]], file: IO[bytes]) -> None:
    """Write a finished local file in chunks; it appears only with its last byte.

    ``put``: takes an offset, bytes, and True for the last bytes; returns the size so far.
    """
    size, offset = file.tell(), 0
    while offset < size:
        file.seek(offset)
        data = file.read(CHUNK_BYTES)
        offset = await put(offset, data, offset + len(data) >= size)


def line_of(action: object) -> bytes:
    """Return one of Delta's actions as a line of a table's Delta log."""
    return json.dumps(action, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _refused(why: str) -> EngineError:
    return EngineError(
        ErrorKind.APPLICATION, f"the table cannot be copied: {why}", error_class="NOT_COPIED"
    )
