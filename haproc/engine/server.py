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

# The check for HAProc's plugin (`haproc/spark`), of this HAProc's version, in a cluster's Spark.
#
# Without it, the writes of the ring would use tables that a client cached in Spark, and plan
# readings would be impossible. The server's answer proves it: the reader answers the question for
# versions, and calls a function of the extension, so both are loaded.


SOURCES: Final = Path(__file__).parent.parent / "spark"
"""The folder of the plugin's Java sources; it is part of the installed package."""
CLASS: Final = "haproc.spark.Extension"
READER: Final = "haproc.spark.Reader"
EXTENSION_SETTING: Final = "spark.sql.extensions"
READER_SETTING: Final = "spark.connect.extensions.relation.classes"
"""The name of a setting by which Spark loads a part of the plugin: a list, with commas."""
SPARK: Final = "4.2"
"""The version of Spark that the plugin is built for: the plugin uses Spark's internals."""
_LACKS: Final = {
    "UNRESOLVED_ROUTINE": f"{CLASS} in {EXTENSION_SETTING}",
    "ROUTINE_NOT_FOUND": f"{CLASS} in {EXTENSION_SETTING}",
    "CONNECT_INVALID_PLAN.NO_HANDLER_FOR_EXTENSION": f"{READER} in {READER_SETTING}",
}
"""What is missing on the server, by the error class that its absence causes."""
_UNLOADABLE: Final = frozenset({"java.lang.ClassNotFoundException", "java.lang.LinkageError"})
"""The Java errors if a setting names the plugin, but its jar is missing or for another Spark."""
_HOW: Final = (
    "`haproc spark-jar` prints the jar and the settings with which Spark loads it; start Spark "
    "anew with them"
)


@functools.cache
def version() -> str:
    """Return the version of the plugin that a cluster must have: a digest of its sources."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.glob("*.java")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def missing(found: Mapping[str, str]) -> str:
    """Return the wrong or missing parts of a server as a text; empty if there are none.

    ``found``: the versions, by `version` (the plugin's), `spark` and `delta`.
    """
    spark = ".".join(found["spark"].split(".")[:2])
    if found["version"] != version():
        return f"HAProc's plugin in version {version()}, it has version {found['version']}: {_HOW}"
    if spark != SPARK:
        return f"Spark {SPARK}, for which HAProc and its plugin are made; it is {found['spark']}"
    return "" if found["delta"] else "Delta Lake: none of its jars is there"


class Plugin:
    """Checks that a Spark server has HAProc's plugin: once for each epoch of the session."""

    def __init__(self) -> None:
        self._seen_in: int | None = None

    async def check(self, remote: RemoteSession, timeout_s: float) -> None:
        """Raise EngineError, of class ErrorClass.PLUGIN_MISSING, if the plugin is missing or wrong.

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


# The check for the cluster's storage: a file of HAProc's own in the warehouse, with the storage id.
#
# Storage that is away mostly looks like missing or empty tables: a folder with a file system that
# is not mounted is a folder without files. So an answer of the cluster does not prove it. A file
# that must exist proves it: it is written once, with an id that is stored with the progress in the
# log. If that file cannot be read, or has another id, the storage is not the one to which the
# cursor belongs, and reports about its tables do not count.


_WAREHOUSE = "spark.sql.warehouse.dir"
_FOLDER = "_haproc"
"""The name of the folder with the storage id. It begins with an underscore, so Spark does not take
it for a table's folder."""


class Marker:
    """Reads the storage id of one cluster; ``known`` is the id that it must have, if known."""

    def __init__(self) -> None:
        self._path = ""
        self._files = frozenset[str]()
        """The names of the files in which `check` found the storage id."""
        self.known = ""

    async def find(self, remote: RemoteSession, known: str) -> str:
        """Return the storage id; make one if none is known and the storage has none.

        Raises EngineError, of class ErrorClass.STORAGE_AWAY if the id is not the known one.
        """
        self.known = known
        if known:
            await self.check(remote, remote.small_timeout_s)
            return known
        found = await self._read(remote, remote.small_timeout_s)
        if not found:
            found = uuid.uuid4().hex
            await self._write(remote, found)
        self.known = found
        return found

    async def check(self, remote: RemoteSession, timeout_s: float) -> None:
        """Read the storage id, by a job on the executors; EngineError unless it is ``known``."""
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

    async def look(self, remote: RemoteSession, files: Collection[str]) -> None:
        """Check the storage id again if the ``files`` of its `folder` have changed.

        A file of Spark's is never written twice, so the same files have the same content. Raises
        EngineError like `check`; does nothing while the id is not known.
        """
        if self.known and (not files or frozenset(files) != self._files):
            await self.check(remote, remote.small_timeout_s)
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
        await all_rows(remote, sql)

    async def folder(self, remote: RemoteSession) -> str:
        """Return the path of the folder with the storage id, inside the warehouse."""
        if not self._path:
            confs = await remote.get_confs([_WAREHOUSE])
            self._path = f"{confs[_WAREHOUSE].rstrip('/')}/{_FOLDER}"
        return self._path


# The settings and versions of a server that must be equal for equal results.


_VERSIONS = (
    # With the revision: a private build has the same number.
    ("spark", "version()"),
    # Also decides the rules of time zones, and the text forms of dates and numbers.
    ("java", "java_method('java.lang.System', 'getProperty', 'java.version')"),
    # Spark Connect cannot tell it; it is a constant of Delta's package.
    ("delta", "java_method('io.delta.package', 'VERSION')"),
)


async def settings_of_results(
    remote: RemoteSession, names: Collection[str]
) -> dict[str, str | None]:
    """Return the versions and settings that `Engine.server_settings` describes.

    ``remote``: a fresh session. Spark and Delta themselves set something in a session once
    statements run in it (Delta 4.4: `spark.sql.parquet.fieldId.read.enabled`), so the settings are
    read before any statement.
    """
    given = [name for prefix in SETTINGS_OF_RESULTS for name in await remote.confs_below(prefix)]
    found = dict(await remote.get_confs_if_any(sorted({*given, *names})))
    for what, expression in _VERSIONS:
        found[VERSION + what] = await _version(remote, expression)
    return found


async def _version(remote: RemoteSession, expression: str) -> str | None:
    try:
        row = await single_row(remote, f"SELECT {expression} AS version")
    except EngineError as error:
        if error.kind is not ErrorKind.APPLICATION:
            raise
        return None  # there is no such class: no Delta
    return None if row["version"] is None else str(row["version"])
