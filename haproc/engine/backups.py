"""The form of a backup: Delta tables in a folder, readable without HAProc, and manifests.

``tables/SCHEMA/TABLE`` is a Delta table. Each backup of it is a commit, which removes files that
the cluster's table no longer has, and adds new ones. No file is ever deleted, so earlier backups
are earlier versions of the table. ``manifest-OFFSET.json`` names the versions of one backup, the
definitions besides tables, and the checksums of the rows on the cluster. It is written last.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from dmq import Json
from haproc.engine.copies import (
    CopyTable,
    Inventory,
    begin_commit,
    catalog_name,
    files_of,
    line_of,
)
from haproc.engine.interface import TableState

FORMAT: Final = 1
BATCH_FILES: Final = 500
BATCH_BYTES: Final = 8 << 30
"""The most bytes that one call has Spark copy, except for one larger file. Chosen: it takes
minutes."""
OPERATION: Final = "HAPROC BACKUP"
"""The name of a backup's commits in the history of a table in the backup (Delta's column
`operation`)."""
PLACE_CHARACTERS_MAX: Final = 500
"""The most characters of a backup's path: a request to restore it is stored with a cursor."""
_MANIFEST: Final = re.compile(r"manifest-(\d{20})\.json")
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/[!-~]*|/[!-~]*")


def is_place(text: str) -> bool:
    """True if a backup can be at this place: an absolute path or URL that all storages accept."""
    return len(text) <= PLACE_CHARACTERS_MAX and _URL.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class TableBackup:
    """One table in a backup, as the backup's manifest names it.

    ``source``: the cluster's table and its state, see `CopyTable.source`. ``id`` and ``version``:
    those that Delta has for the table in the backup. ``bytes``: the size of its ``files``.
    ``checksum``: of rows and columns, as `haproc verify` computes it.
    """

    schema: str
    name: str
    source: str
    id: str
    version: int
    files: int
    bytes: int
    rows: int
    checksum: str

    @property
    def key(self) -> tuple[str, str]:
        """Return the table's schema and name."""
        return self.schema, self.name

    def table(self, place: str) -> CopyTable:
        """Return this table as a source of copies; ``place``: the folder of the backup."""
        folder = folder_of(place, self.schema, self.name)
        return CopyTable(
            self.schema, self.name, folder, self.version, self.id, self.files, self.bytes
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """The description of one backup, which is stored with it.

    ``offset``: the offset of the log to which its tables belong. ``log``: the id of that log.
    """

    ring: str
    cluster: str
    log: str
    offset: int
    time: str
    definitions: Inventory
    tables: tuple[TableBackup, ...]
    format: int = FORMAT

    def text(self) -> bytes:
        """Return the manifest as the bytes of its JSON file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1)

    @classmethod
    def of(cls, text: bytes) -> Manifest:
        """Return the manifest in the bytes of a JSON file; raises ValueError for any other text."""
        try:
            found = msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise ValueError(f"it is no manifest: {error}") from error
        if found.format != FORMAT:
            raise ValueError(f"its format is {found.format}, not {FORMAT}")
        return found

    def inventory(self, place: str) -> Inventory:
        """Return the objects that a cluster holds after a restore from the backup at ``place``."""
        tables = tuple(each.table(place) for each in self.tables)
        known = self.definitions
        return Inventory(known.schemas, known.views, known.functions, tables)


def manifest_name(offset: int) -> str:
    """Return the name of a manifest's file."""
    return f"manifest-{offset:020}.json"


def manifest_offsets(names: Iterable[str]) -> list[int]:
    """Return the offsets of the backups with these names of manifest files, lowest first."""
    found = (_MANIFEST.fullmatch(name) for name in names)
    return sorted(int(each[1]) for each in found if each is not None)


def folder_of(place: str, schema: str, name: str) -> str:
    """Return the folder of a table in a backup."""
    return f"{place.rstrip('/')}/tables/{schema}/{name}"


def commit_name(version: int) -> str:
    """Return the name of a commit's file in the folder ``_delta_log`` of a Delta table."""
    return f"{version:020}.json"


def state_of(table: CopyTable) -> TableState:
    """Return the table's name and version, from which its checksum is computed."""
    return TableState(catalog_name(*table.key), table.version)


def id_of(table: CopyTable) -> str:
    """Return the Delta id of a new backup of ``table``; it differs from the id of ``table``."""
    text = hashlib.sha256(f"haproc backup of {table.id}".encode()).hexdigest()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:32]))


def backup_lines(
    table: CopyTable,
    backup: CopyTable | None,
    state: Sequence[Any],
    before: Sequence[Any],
    offset: int,
    at_ms: int,
) -> list[bytes]:
    """Return the first lines of the commit that backs up a table; `changes` gives the others.

    ``backup``: the table in the backup so far, with the state ``before``; None if there is none.
    """
    info: dict[str, Json] = {
        "timestamp": at_ms,
        "operation": OPERATION,
        "operationParameters": {"source": json.dumps(table.source), "offset": str(offset)},
        "isBlindAppend": False,
        "txnId": f"{table.source}@{offset}",
    }
    lines = begin_commit(info, backup.id if backup else id_of(table), state)
    kept = _domains(state)
    lines += [
        {"domainMetadata": {"domain": name, "configuration": "", "removed": True}}
        for name in _domains(before)
        if name not in kept
    ]
    return [line_of(each) for each in lines]


def _domains(state: Sequence[Any]) -> list[str]:
    return [str(each["domainMetadata"]["domain"]) for each in state if "domainMetadata" in each]


async def changes(
    new: AsyncIterator[Mapping[str, Any]], old: AsyncIterator[Mapping[str, Any]], at_ms: int
) -> AsyncIterator[dict[str, Any]]:
    """Yield Delta's actions that turn the files of an old table state into those of a new one.

    ``new`` and ``old``: the ``add`` actions of the two states, in the order of their paths.
    """
    wanted, known = await anext(new, None), await anext(old, None)
    while wanted is not None or known is not None:
        if known is None or (wanted is not None and wanted["path"] < known["path"]):
            assert wanted is not None
            yield _added(wanted)
            wanted = await anext(new, None)
            continue
        if wanted is not None and wanted["path"] == known["path"]:
            # For Delta, a file with another deletion vector is another file.
            if wanted.get("deletionVector") != known.get("deletionVector"):
                yield _removed(known, at_ms)
                yield _added(wanted)
            elif _added(wanted) != _added(known):
                yield _added(wanted)
            wanted = await anext(new, None)
        else:
            yield _removed(known, at_ms)
        known = await anext(old, None)


def _added(add: Mapping[str, Any]) -> dict[str, Any]:
    return {"add": {**add, "dataChange": True}}


def _removed(add: Mapping[str, Any], at_ms: int) -> dict[str, Any]:
    kept = ("path", "partitionValues", "size", "deletionVector")
    kept_fields = {name: add[name] for name in kept if name in add}
    more = {"deletionTimestamp": at_ms, "dataChange": True, "extendedFileMetadata": True}
    return {"remove": kept_fields | more}


def batches(adds: Iterable[Any], bytes_max: int = BATCH_BYTES) -> Iterator[list[str]]:
    """Yield groups of the paths of files, each group for one call that copies them.

    ``adds``: the ``add`` actions that name the files. ``bytes_max``: the most bytes of a group,
    except for one larger file. Raises EngineError if a file lies outside the table.
    """
    paths, size = list[str](), 0
    for file in files_of(adds):
        paths.append(file.path)
        size += file.size or 0
        if len(paths) == BATCH_FILES or size >= bytes_max:
            yield paths
            paths, size = [], 0
    if paths:
        yield paths


def differences(manifest: Manifest, found: Inventory) -> list[str]:
    """Return, as texts, what differs between a backup's definitions and a cluster's (``found``)."""
    wanted = manifest.definitions
    pairs = (
        ("schema", _names(wanted.schemas), _names(found.schemas)),
        ("view", _names(wanted.views), _names(found.views)),
        ("function", _names(wanted.functions), _names(found.functions)),
        ("table", _keys(manifest.tables), _keys(found.tables)),
    )
    return [
        f"{what} {name} is {'missing' if name in ours else 'not in the backup'}"
        for what, ours, theirs in pairs
        for name in sorted(ours ^ theirs)
    ]


def _names(objects: Iterable[Mapping[str, Json]]) -> set[str]:
    return {
        f"{each['schema']}.{each['name']}" if "schema" in each else str(each["name"])
        for each in objects
    }


def _keys(tables: Iterable[CopyTable | TableBackup]) -> set[str]:
    return {f"{each.schema}.{each.name}" for each in tables}
