"""Makes a backup of this cluster's tables, views and functions, as of one offset, by its own Spark.

1. This HAProc appends a `Copy` record. When the cluster reaches the record, it lists its content
   (the donor's snapshot, see `haproc.replicate.agree.donating`), and goes on.
2. Tables whose state is not in the newest manifest are updated in the backup: the missing files
   are copied, then a commit names the files of the table.
3. The manifest is written.

One backup is made at a time. A killed process leaves files without a manifest. They are no backup,
but the next backup does not copy them again.
"""

from __future__ import annotations

import asyncio
import io
import logging
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import IO, Any, Final, TypeVar

import msgspec

from dmq import Json, LogError
from haproc.engine.backups import (
    Manifest,
    TableBackup,
    backup_lines,
    batches,
    changes,
    commit_name,
    folder_of,
    is_place,
    manifest_name,
    manifest_offsets,
    state_of,
)
from haproc.engine.copies import (
    FILES_AT_ONCE,
    LINES_BYTES_MAX,
    CopyTable,
    Inventory,
    line_of,
    put_all,
)
from haproc.engine.errors import EngineError, ErrorKind
from haproc.failure import ErrorClass, refused
from haproc.membership.peers import CopyQuestion
from haproc.membership.state import time_text
from haproc.replicate.agree.donating import LEASE_S, Donor
from haproc.replicate.agree.rebuilding import uncopied
from haproc.replicate.member.core import Core
from haproc.replicate.records.control import BACKUP, Copy
from haproc.replicate.restoring import read_manifest

logger = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 5
"""How often a request to Spark is tried before the backup fails. Chosen."""
T = TypeVar("T")


class BackupState(StrEnum):
    """The state of the newest backup that this process has made or begun."""

    NONE = "none"
    """No backup was requested since the process began."""
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class _FailedError(Exception):
    """The backup cannot be made; the text says why."""


@dataclass(slots=True)
class BackupProgress:
    """How far a backup is. ``offset``: as of which it is made.

    ``files``, ``bytes``: copied so far.
    """

    state: BackupState = BackupState.NONE
    destination: str = ""
    offset: int = -1
    tables: int = 0
    tables_done: int = 0
    files: int = 0
    bytes: int = 0
    message: str = ""


class Backups:
    """Makes the backups of this cluster, one at a time, and reports their progress."""

    def __init__(self, core: Core, donor: Donor) -> None:
        self._core = core
        self._donor = donor
        self._newest = BackupProgress()

    def status(self) -> Mapping[str, Json]:
        """Return the progress of the newest backup as JSON."""
        return {"cluster": self._core.me, **msgspec.to_builtins(self._newest)}

    def begin(self, place: str) -> Mapping[str, Json]:
        """Begin a backup at ``place`` (a path or URL), in the background; return its progress.

        Raises RequestError if none can begin now.
        """
        core = self._core
        if not is_place(place):
            raise refused(ErrorClass.BAD_REQUEST, f"{place[:80]!r} is no whole path or URL")
        if self._newest.state is BackupState.RUNNING:
            raise refused(
                ErrorClass.NOT_NOW,
                f"{core.me} makes a backup in {self._newest.destination}",
                "wait until it is done",
            )
        if not core.condition.applying:
            raise refused(
                ErrorClass.NOT_NOW,
                f"cluster {core.me} is {core.condition.state}: {core.condition.reason}",
                "ask another cluster",
            )
        self._newest = BackupProgress(BackupState.RUNNING, place.rstrip("/") or "/")
        core.tasks.spawn(self._run(self._newest))
        return self.status()

    async def _run(self, run: BackupProgress) -> None:
        try:
            await self._backup(run)
            run.state = BackupState.DONE
            logger.info("backup of offset %d in %s", run.offset, run.destination)
            return
        except EngineError as error:
            run.message = error.message
        except (_FailedError, LogError, ValueError) as error:
            run.message = str(error)
        except TimeoutError:
            run.message = "the log did not take the record in time"
        run.state = BackupState.FAILED
        logger.error("backup in %s: %s", run.destination, run.message)

    async def _backup(self, run: BackupProgress) -> None:
        core = self._core
        before = await self._before(run.destination)
        marker = await core.own_log.append_once(Copy(BACKUP, core.me, core.own_log.epoch))
        inventory, at_ms = await self._noted(marker), core.unix_ms()
        run.offset, run.tables = marker, len(inventory.tables)
        holding = asyncio.ensure_future(self._hold(marker))
        try:
            tables = []
            for table in inventory.tables:
                tables.append(await self._table(run, table, before.get(table.key), at_ms))
                run.tables_done += 1
        finally:
            holding.cancel()
            self._donor.forget(marker)
        manifest = Manifest(
            core.identity.ring,
            core.me,
            core.own_log.application,
            marker,
            time_text(datetime.fromtimestamp(at_ms / 1000, UTC)),
            inventory,
            tuple(tables),
        )
        with io.BytesIO(manifest.text()) as file:
            file.seek(0, io.SEEK_END)
            await self._put(run.destination, manifest_name(marker), file)

    async def _before(self, place: str) -> Mapping[tuple[str, str], TableBackup]:
        """Return the tables of the newest backup in ``place``, by schema and name.

        Empty without one. Raises EngineError, and _FailedError if the backups there are of another
        log.
        """
        core, copies = self._core, self._core.engine.copies()
        offsets = manifest_offsets(await self._asking(lambda: copies.names(place)))
        if not offsets:
            return {}
        newest = await read_manifest(copies, self._asking, place, offsets[-1])
        # The offsets of two different logs do not show which backup is newer.
        if newest.log != core.own_log.application:
            raise _FailedError(
                f"{place} holds backups of another ring or log ({newest.log}); choose another place"
            )
        return {each.key: each for each in newest.tables}

    # -- the content of this cluster -------------------------------------------------------

    async def _noted(self, marker: int) -> Inventory:
        """Wait until the cluster reaches the record at ``marker``.

        Return its content at that point. Raises _FailedError.
        """
        while True:
            answer, _ = await self._donor.answer(CopyQuestion("note", marker))
            if answer.inventory is not None:
                break
            if answer.state == "gone":
                raise _FailedError(f"{self._core.me} could not note what it holds")
            await asyncio.sleep(self._core.timeouts.retry_first_s)
        inventory = answer.inventory
        if others := inventory.others:
            raise _FailedError(uncopied(self._core.me, others))
        return inventory

    async def _hold(self, marker: int) -> None:
        """Renew the snapshot until cancelled, so that no operation deletes its files."""
        while True:
            await asyncio.sleep(LEASE_S / 4)
            await self._donor.answer(CopyQuestion("note", marker))

    async def _asking(self, call: Callable[[], Awaitable[T]]) -> T:
        """Try ``call`` up to ATTEMPTS_MAX times, and return its result; raises EngineError.

        An application error is not tried again.
        """
        core, pauses = self._core, self._core.backoff()
        for attempt in range(1, ATTEMPTS_MAX + 1):
            await core.condition.allowed()
            try:
                return await call()
            except EngineError as error:
                if error.kind is ErrorKind.APPLICATION or attempt == ATTEMPTS_MAX:
                    raise
                logger.warning("backup: %s", error.message)
                if error.kind is ErrorKind.AVAILABILITY:
                    core.health.suspect(error.message)
            await asyncio.sleep(pauses.pause_s())
        raise AssertionError("the last attempt returns or raises")

    # -- one table -------------------------------------------------------------------------

    async def _table(
        self, run: BackupProgress, table: CopyTable, known: TableBackup | None, at_ms: int
    ) -> TableBackup:
        """Update one table of the backup, and return its entry for the manifest.

        ``known``: its entry in the newest manifest, or None. Raises EngineError, _FailedError.
        """
        core, copies, asking = self._core, self._core.engine.copies(), self._asking
        folder = folder_of(run.destination, *table.key)
        log = f"{folder}/_delta_log"
        # The folder may have been emptied since the manifest was written: so its commit is checked.
        if known is not None and known.source == table.source:
            there = await asking(lambda: copies.names(log))
            if commit_name(known.version) in there:
                return known
        before = await asking(lambda: copies.table(*table.key, folder))
        state = await asking(lambda: copies.state(table))
        old = [] if before is None else await asking(lambda: copies.state(before))
        version = 0 if before is None else before.version + 1
        with tempfile.SpooledTemporaryFile(max_size=LINES_BYTES_MAX) as lines:
            for line in backup_lines(table, before, state, old, run.offset, at_ms):
                lines.write(line)
            adds: list[Any] = []
            async for action in changes(self._files(table), self._files(before), at_ms):
                lines.write(line_of(action))
                adds += [action["add"]] if "add" in action else []
                if len(adds) == FILES_AT_ONCE:
                    await self._transfer(run, table, folder, adds)
                    adds.clear()
            await self._transfer(run, table, folder, adds)
            try:
                await self._put(log, commit_name(version), lines)
            except EngineError as error:
                if error.kind is not ErrorKind.APPLICATION:
                    raise
                raise _not_alone(folder) from error
        after = await asking(lambda: copies.table(*table.key, folder))
        if after is None or (after.version, after.files) != (version, table.files):
            raise _not_alone(folder)
        checksum = await asking(
            lambda: core.engine.checksum(state_of(table), timeout_s=core.timeouts.apply_s)
        )
        return TableBackup(
            table.schema,
            table.name,
            table.source,
            after.id,
            after.version,
            after.files,
            after.bytes,
            int(checksum.split(":")[0]),
            checksum,
        )

    async def _files(self, table: CopyTable | None) -> AsyncIterator[Mapping[str, Any]]:
        """Yield the ``add`` actions of a table's files, in the order of their paths.

        None: nothing.
        """
        copies, after = self._core.engine.copies(), ""
        if table is None:
            return
        while True:
            adds: Sequence[Any] = await self._asking(partial(copies.files, table, after))
            if not adds:
                return
            for add in adds:
                yield add
            after = str(adds[-1]["path"])

    async def _transfer(
        self, run: BackupProgress, table: CopyTable, folder: str, adds: Sequence[Any]
    ) -> None:
        copies = self._core.engine.copies()
        for paths in batches(adds):
            copied = partial(copies.transfer, table.location, folder, paths)
            files, size = await self._asking(copied)
            run.files += files
            run.bytes += size

    async def _put(self, location: str, name: str, file: IO[bytes]) -> None:
        copies = self._core.engine.copies()
        await put_all(
            lambda offset, data, last: self._asking(
                lambda: copies.put(location, name, offset, data, last=last)
            ),
            file,
        )


def _not_alone(folder: str) -> _FailedError:
    return _FailedError(f"something else writes to {folder}, or has; back up into another place")
