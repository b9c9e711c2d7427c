"""The facts about a server: settings that affect results, its plugin, its storage."""

from __future__ import annotations

import functools
import hashlib
import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import SETTINGS_OF_RESULTS, VERSION
from haproc.engine.remote import RemoteSession
from haproc.engine.statement import version_plan
from haproc.engine.table import all_rows, rows_in_turn, single_row
from haproc.failure import ErrorClass

# Whether a cluster's Spark runs with HAProc's plugin (`haproc/spark`), in this HAProc's version.
#
# Without it, the writes of the ring would use tables that a client cached in Spark, and statements
# could not be read. The server's own answer proves it: the relation that gives the versions is the
# reader's, and it calls a function of the extension, so both are loaded.


SOURCES: Final = Path(__file__).parent.parent / "spark"
"""The folder of the plugin's Java sources; it is part of the installed package."""
CLASS: Final = "haproc.spark.Extension"
READER: Final = "haproc.spark.Reader"
EXTENSION_SETTING: Final = "spark.sql.extensions"
READER_SETTING: Final = "spark.connect.extensions.relation.classes"
"""By which Spark loads the two: lists, with commas."""
SPARK: Final = "4.2"
"""The version of Spark that the plugin is built for: it uses what is Spark's own business."""
_LACKS: Final = {
    "UNRESOLVED_ROUTINE": f"{CLASS} in {EXTENSION_SETTING}",
    "ROUTINE_NOT_FOUND": f"{CLASS} in {EXTENSION_SETTING}",
    "CONNECT_INVALID_PLAN.NO_HANDLER_FOR_EXTENSION": f"{READER} in {READER_SETTING}",
}
"""The missing part, by the error of its user."""
_UNLOADABLE: Final = frozenset({"java.lang.ClassNotFoundException", "java.lang.LinkageError"})
"""Of a setting that names the plugin without its jar, or with one for another Spark."""
_HOW: Final = (
    "`haproc spark-jar` prints the jar and the settings with which Spark loads it; start Spark "
    "anew with them"
)


@functools.cache
def version() -> str:
    """Return the version that a cluster must have: a digest of the plugin's sources."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.glob("*.java")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def missing(found: Mapping[str, str]) -> str:
    """Return the missing parts of a server, by its versions; empty if there are none.

    ``found``: by `version` (the plugin's), `spark` and `delta`.
    """
    spark = ".".join(found["spark"].split(".")[:2])
    if found["version"] != version():
        return f"HAProc's plugin in version {version()}, it has version {found['version']}: {_HOW}"
    if spark != SPARK:
        return f"Spark {SPARK}, for which HAProc and its plugin are made; it is {found['spark']}"
    return "" if found["delta"] else "Delta Lake: none of its jars is there"


class Plugin:
    """Looks at each server once: in another one the session is of another epoch."""

    def __init__(self) -> None:
        self._seen_in: int | None = None

    async def check(self, remote: RemoteSession, timeout_s: float) -> None:
        """Raise EngineError, of class ErrorClass.PLUGIN_MISSING if it is not there as it must be.

        ``remote``: always the same session.
        """
        epoch = remote.epoch
        if epoch == self._seen_in:
            return
        lacks = await _lacks(remote, timeout_s)
        if lacks:
            raise EngineError(
                ErrorKind.ENVIRONMENT,
                f"the cluster's Spark lacks {lacks}",
                error_class=ErrorClass.PLUGIN_MISSING,
            )
        self._seen_in = epoch


async def _lacks(remote: RemoteSession, timeout_s: float) -> str:
    try:
        rows: list[dict[str, Any]] = await rows_in_turn(remote, version_plan(), timeout_s)
    except EngineError as error:
        what = _LACKS.get(error.error_class, _LACKS.get(error.error_class.partition(".")[0]))
        if what is not None:
            return f"HAProc's plugin: there is no {what}. {_HOW}"
        if _UNLOADABLE.isdisjoint(error.details.java_classes):
            raise
        return f"HAProc's plugin: a class cannot be loaded ({error.message}). {_HOW}"
    return missing(rows[0])


# Whether the cluster's storage is there: a marker of HAProc's own in the warehouse.
#
# Storage that is away mostly looks like tables that do not exist, or like empty ones: a folder
# whose file system is not mounted is a folder without files. So no answer of the cluster shows it.
# A file that is known to exist shows it: written once, with an id that the progress in the log
# remembers. Where that file cannot be read, or has another id, the storage is not the one to which
# the cursor belongs, and nothing that the cluster reports about its tables counts.


_WAREHOUSE = "spark.sql.warehouse.dir"
_FOLDER = "_haproc"
"""Begins with an underscore: Spark takes it for no table's."""


class Marker:
    """The marker of one cluster; ``known`` is the id that it has to have, once that is known."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._path = ""
        self._files = frozenset[str]()
        """Those in which `check` found it."""
        self.known = ""

    async def find(self, remote: RemoteSession, known: str) -> str:
        """Return the marker's id; one that nobody knows yet is made if it is not there.

        Raises EngineError, of class ErrorClass.STORAGE_AWAY if it is not the known one.
        """
        self.known = known
        if known:
            await self.check(remote, self._timeout_s)
            return known
        found = await self._read(remote, self._timeout_s)
        if not found:
            found = uuid.uuid4().hex
            await self._write(remote, found)
        self.known = found
        return found

    async def check(self, remote: RemoteSession, timeout_s: float) -> None:
        """Read the marker, by a job on the executors; raises EngineError unless it is known."""
        found = await self._read(remote, timeout_s)
        if found != self.known:
            what = f"has the id {found}" if found else "is not there"
            raise EngineError(
                ErrorKind.ENVIRONMENT,
                f"the cluster's storage is away, or is another one: {self._path} {what}, where "
                f"{self.known} was written. Bring the storage back; if it was moved on purpose, "
                "write that id into a text file in this folder",
                error_class=ErrorClass.STORAGE_AWAY,
            )

    async def look(self, remote: RemoteSession, timeout_s: float, files: Collection[str]) -> None:
        """See to it that these files of its `folder` are those in which `check` found it.

        Nobody writes into a file of Spark's a second time. Raises EngineError like `check`; nothing
        as long as it is not known.
        """
        if self.known and (not files or frozenset(files) != self._files):
            await self.check(remote, timeout_s)
            self._files = frozenset(files)

    async def _query(self, remote: RemoteSession) -> str:
        return f"SELECT value FROM text.`{(await self.folder(remote)).replace('`', '``')}`"

    async def _read(self, remote: RemoteSession, timeout_s: float) -> str:
        try:
            rows = await rows_in_turn(remote, await self._query(remote), timeout_s)
        except EngineError as error:
            if error.kind is not ErrorKind.APPLICATION:
                raise
            return ""
        return str(rows[0]["value"]) if rows else ""

    async def _write(self, remote: RemoteSession, marker: str) -> None:
        path = (await self.folder(remote)).replace("\\", "\\\\").replace("'", "\\'")
        sql = f"INSERT OVERWRITE DIRECTORY '{path}' USING text SELECT '{marker}'"
        async for _ in all_rows(remote, sql, self._timeout_s):
            pass

    async def folder(self, remote: RemoteSession) -> str:
        """Return its place below the warehouse."""
        if not self._path:
            confs = await remote.get_confs([_WAREHOUSE])
            self._path = f"{confs[_WAREHOUSE].rstrip('/')}/{_FOLDER}"
        return self._path


# The facts of a server by which its results are the same as another one's.


_VERSIONS = (
    # The revision belongs to it: a build of one's own has the same number.
    ("spark", "version()"),
    # Of time zones' rules and of how dates and numbers are written, too.
    ("java", "java_method('java.lang.System', 'getProperty', 'java.version')"),
    # Spark Connect has no question for it; it is a constant of Delta's package.
    ("delta", "java_method('io.delta.package', 'VERSION')"),
)


async def settings_of_results(
    remote: RemoteSession, names: Collection[str], timeout_s: float
) -> dict[str, str | None]:
    """See Engine.server_settings. The session must be a fresh one.

    Spark and Delta themselves set something in a session once statements run in it (Delta 4.4:
    `spark.sql.parquet.fieldId.read.enabled`), so the settings are read before there is any.
    """
    given = [name for prefix in SETTINGS_OF_RESULTS for name in await remote.confs_below(prefix)]
    found = dict(await remote.get_confs_if_any(sorted({*given, *names})))
    for what, expression in _VERSIONS:
        found[VERSION + what] = await _version(remote, expression, timeout_s)
    return found


async def _version(remote: RemoteSession, expression: str, timeout_s: float) -> str | None:
    try:
        row = await single_row(remote, f"SELECT {expression} AS version", timeout_s)
    except EngineError as error:
        if error.kind is not ErrorKind.APPLICATION:
            raise
        return None  # there is no such class: no Delta
    return None if row["version"] is None else str(row["version"])
