"""Whether the cluster's storage is there: a marker of HAProc's own in the warehouse.

Storage that is away mostly looks like tables that do not exist, or like empty ones: a folder whose
file system is not mounted is a folder without files. So no answer of the cluster's tells it. What
tells it is a file that is known to be there: written once, with an id that the progress in the log
remembers. Where that file cannot be read, or has another id, the storage is not the one to which
the cursor belongs, and nothing that the cluster says of its tables counts.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection

from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.remote import RemoteSession
from haproc.engine.table import all_rows, rows_in_turn
from haproc.failure import ErrorClass

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
        """Return where it is, below the warehouse."""
        if not self._path:
            confs = await remote.get_confs([_WAREHOUSE])
            self._path = f"{confs[_WAREHOUSE].rstrip('/')}/{_FOLDER}"
        return self._path
