"""Restores this cluster from a backup, in a ring whose log has no operation yet.

All clusters of the ring restore the same backup, each by its own Spark, and then go on with the
log. So they are equal before the first operation. All are drained meanwhile: no client can write
before that. A cluster with any table, view or function is not restored.

1. The request is stored beside the cursor, and the HAProc begins anew.
2. The manifest is read. The log is checked: it must not contain an operation.
3. Schemas, tables, functions and views are made. With ``verify``, checksums are compared.
4. The request is removed. From here on the cluster recovers like any other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from dmq import Json, LogError, TrimmedError
from haproc.engine.backups import (
    Manifest,
    TableBackup,
    batches,
    differences,
    is_place,
    manifest_name,
    manifest_offsets,
    state_of,
)
from haproc.engine.copies import CHUNK_BYTES, Copies, CopyTable, Place
from haproc.engine.errors import EngineError
from haproc.failure import ErrorClass, log_unavailable, refused
from haproc.replicate.agree.rebuilding import ask_for, check_running
from haproc.replicate.member.core import Core
from haproc.replicate.member.steps import Step
from haproc.replicate.records.operation import Operation, from_record
from haproc.replicate.records.progress import CopyRequest, Progress, from_cursor
from haproc.replicate.taking import HopelessError, Taking

logger = logging.getLogger(__name__)

T = TypeVar("T")
CHECK_RECORDS_MAX: Final = 100_000
"""The most records that are searched for operations; a longer log is taken as one that has some."""


class RestoreState(StrEnum):
    """The answer to a request for a restore: how far this cluster's restore is."""

    UNDRAINED = "undrained"
    """Nothing is done: clients may still write, so all clusters must be drained first."""
    ASKED = "asked"
    """The request is stored; the restore begins when the HAProc begins anew."""
    RESTORING = "restoring"
    RESTORED = "restored"
    """The cluster's content is that of the backup."""


class Asking(Protocol):
    """A function that sends a request to a cluster; it may repeat it after errors."""

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call ``call``, perhaps several times, and return its result."""
        ...


async def read_manifest(copies: Copies, asking: Asking, place: str, offset: int) -> Manifest:
    """Return the manifest of the backup as of ``offset`` in ``place``; -1: of the newest one.

    Raises ValueError if there is no backup.
    """
    if offset < 0:
        known = manifest_offsets(await asking(lambda: copies.names(place)))
        if not known:
            raise ValueError(f"{place} holds no backup")
        offset = known[-1]
    name, text, size = manifest_name(offset), b"", 1
    while len(text) < size:
        size, data = await asking(
            partial(copies.read_file_part, place, name, len(text), CHUNK_BYTES)
        )
        if not data:
            break
        text += data
    return Manifest.of(text)


async def operations_below(core: Core, end: int) -> bool:
    """True if the log has, or may have had, an operation below the offset ``end``; raises LogError.

    Also True if the log was trimmed, or is too long to be searched.
    """
    start = await core.log.start()
    if start > 0 or end > CHECK_RECORDS_MAX:
        return True
    while start < end:
        try:
            entries = await core.log.read(start)
        except TrimmedError:
            return True
        if not entries:
            break
        for entry in entries:
            if entry.offset < end and isinstance(from_record(entry.record), Operation):
                return True
        start = entries[-1].offset + 1
    return False


class Restorer:
    """Restores this cluster from a backup when an operator requests it."""

    def __init__(self, core: Core, taking: Taking) -> None:
        self._core = core
        self._taking = taking

    # -- the operator's request ------------------------------------------------------------

    async def ask(self, place: str, offset: int, *, verify: bool) -> Mapping[str, Json]:
        """Check and store a request for a restore, which is made when the HAProc begins anew.

        Returns as JSON the `RestoreState` and the backup's offset; raises RequestError.
        """
        core = self._core
        check_running(core)
        if not is_place(place):
            raise refused(ErrorClass.BAD_REQUEST, f"{place[:80]!r} is no whole path or URL")
        if self._taking.progress is not None:
            return self._answer(RestoreState.RESTORING, self._taking.progress.marker)
        try:
            async with asyncio.timeout(core.timeouts.apply_s):
                cursor = await core.own_log.unless_replaced()
                stored = None if cursor is None else from_cursor(cursor).copying
                if await operations_below(core, await core.log.end()):
                    raise refused(
                        ErrorClass.NOT_NOW,
                        "the ring's log has operations, or was trimmed",
                        "a backup is restored into a new ring: one with a new log",
                    )
                copies = core.engine.copies()
                manifest = await read_manifest(copies, _once, place, offset)
                if stored is None or not stored.source:
                    found = await copies.inventory()
                    if found.tables or found.views or found.functions or found.others:
                        await self._check_restored(copies, manifest, place)
                        return self._answer(RestoreState.RESTORED, manifest.offset)
        except LogError as error:
            raise log_unavailable("the log cannot be read", error, "try again") from error
        except TimeoutError as error:
            raise refused(ErrorClass.NOT_NOW, f"{core.me} does not answer in time") from error
        except EngineError as error:
            raise refused(ErrorClass.NOT_NOW, f"{core.me}: {error.message}") from error
        except ValueError as error:
            raise refused(ErrorClass.NOT_NOW, f"{place}: {error}") from error
        if not core.condition.now.drained:
            return self._answer(RestoreState.UNDRAINED, manifest.offset)
        request = CopyRequest(marker=manifest.offset, source=place, verify=verify)
        await ask_for(core, request)
        logger.warning("%s is restored from %s, offset %d", core.me, place, manifest.offset)
        return self._answer(RestoreState.ASKED, manifest.offset)

    def _answer(self, state: RestoreState, offset: int) -> Mapping[str, Json]:
        return {"cluster": self._core.me, "state": state.value, "offset": offset}

    async def _check_restored(self, copies: Copies, manifest: Manifest, place: str) -> None:
        """Raise RequestError unless the cluster's content was restored from this backup."""
        wanted = {each.key: each.table(place).source for each in manifest.tables}
        begun = await copies.begun(wanted)
        done = {key: each.source for key, each in begun.items() if each.done}
        other = differences(manifest, await copies.inventory())
        if done != wanted or other:
            raise refused(
                ErrorClass.NOT_NOW,
                f"cluster {self._core.me} holds tables, views or functions",
                "a backup is restored into clusters that hold nothing",
            )

    # -- the restore -----------------------------------------------------------------------

    async def restored(self, progress: Progress) -> Progress | None:
        """Make the restore that ``progress`` requests; return the progress to begin with.

        None if the restore is impossible; the state says why.
        """
        core, request = self._core, progress.copying
        assert request is not None
        try:
            async with self._taking.begun("haproc restore"):
                await self._restore(request)
        except HopelessError as error:
            self._taking.failed(error)
            return None
        done = replace(progress, copying=None)
        await core.trace(Step.COPIED)
        await self._taking.store(done)
        logger.info("%s is restored from %s", core.me, request.source)
        self._taking.over()
        return done

    async def _restore(self, request: CopyRequest) -> None:
        core, place = self._core, request.source
        self._taking.copies(f"the backup {place}", request.marker)
        try:
            manifest = await read_manifest(
                core.engine.copies(), self._taking.asking, place, request.marker
            )
            has_operations = await core.own_log.reaching(
                lambda: operations_below(core, core.own_log.epoch)
            )
        except ValueError as error:
            raise HopelessError(f"{place}: {error}; run haproc restore again") from error
        except TrimmedError:
            has_operations = True
        if has_operations:
            raise HopelessError(
                "the ring's log has operations by now, so this cluster cannot be restored by "
                f"itself: run haproc cluster rebuild {core.me}"
            )
        inventory = manifest.inventory(place)
        await self._taking.take(inventory, lambda _, table: self._table(table))
        if request.verify:
            await self._verify(manifest)

    async def _table(self, table: CopyTable) -> None:
        """Copy one table of the backup: first its files, then the commit with its state."""
        taking = self._taking
        state = await taking.own(lambda copies: copies.state(table))
        place = await taking.own(lambda copies: copies.begin(table))

        async def files(after: str) -> Sequence[Any]:
            return await taking.own(lambda copies: copies.files(table, after))

        async def copy(adds: Sequence[Any]) -> None:
            for paths in batches(adds):
                await taking.own(partial(_transfer, table=table, place=place, paths=paths))
            taking.got(sum(int(add["size"]) for add in adds))

        await taking.fill(table, place, state, self._core.own_log.epoch, files, copy)

    async def _verify(self, manifest: Manifest) -> None:
        """Compare the cluster's content with the manifest; raises HopelessError if they differ."""
        core = self._core
        found = await self._taking.asking(core.engine.copies().inventory)
        wrong = differences(manifest, found)
        known = {table.key: table for table in found.tables}
        for each in manifest.tables:
            if each.key in known and not await self._is_equal(each, known[each.key]):
                wrong.append(f"table {each.schema}.{each.name} has other rows")
        if wrong:
            raise HopelessError(
                f"what was restored differs from the manifest: {'; '.join(wrong[:20])}. Restore "
                "another backup, or run haproc restore without --verify"
            )

    async def _is_equal(self, backup: TableBackup, table: CopyTable) -> bool:
        core = self._core
        checksum = await self._taking.asking(
            lambda: core.engine.checksum(state_of(table), timeout_s=core.timeouts.apply_s)
        )
        return checksum == backup.checksum


async def _once(call: Callable[[], Awaitable[T]]) -> T:
    return await call()


async def _transfer(copies: Copies, table: CopyTable, place: Place, paths: Sequence[str]) -> None:
    await copies.transfer(table.location, place.location, paths)
