"""Scans the tables now and then for foreign commits: those made past HAProc, see `findings`.

A scan asks for the newest commit of every table, which Spark's driver answers without a task. Then
it reads the histories of those tables that have a new commit, one after another.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from dmq import Json, KeyValueStore, LogError
from haproc.config.model import OnForeignWrite
from haproc.engine.commits import Commit, Newest
from haproc.engine.errors import EngineError, ErrorKind
from haproc.membership.state import Cause, Divergence, State
from haproc.replicate.agree.findings import Foreign, Looked, listed_names
from haproc.replicate.member.core import Core

logger = logging.getLogger(__name__)

KEPT_MAX: Final = 1000
"""The most foreign commits that are kept in memory, to be shown to operators. Chosen."""
SHOWN_MAX: Final = 20
"""The most foreign commits in an answer, and of one scan in the program's log. Chosen."""
_PLAIN: Final = re.compile(r"`([A-Za-z_]\w*)`")


def plain(name: str) -> str:
    """Return a table's full name without backquotes where it needs none."""
    return _PLAIN.sub(r"\1", name)


def settled_by(foreign: Mapping[str, Any], marker: int) -> list[Json]:
    """Return a cluster's foreign commits, without those that an earlier verification covered.

    A verification before ``marker`` covered a commit if it came after that commit, and found the
    cluster equal to the others. ``foreign``: the result of `ForeignWatch.json`.
    """
    return [each for each in foreign.get("commits", ()) if each["verified_at"] in (None, marker)]


class ForeignWatch:
    """Finds, keeps and reports the foreign commits (those made past HAProc) on this cluster."""

    def __init__(self, core: Core, store: KeyValueStore, on_foreign_write: OnForeignWrite) -> None:
        self._core = core
        self._store = store
        self._what_then = on_foreign_write
        self._key = f"foreign/{core.me}"
        self._looked: Looked | None = None
        self._stored_ms: int | None = None
        self._one_at_a_time = asyncio.Lock()
        self._found: deque[Foreign] = deque(maxlen=KEPT_MAX)
        self._counts = Counter[bool]()
        self._taken = Counter[bool]()

    async def run(self) -> None:
        """Scan whenever the cluster is READY, with pauses; return at once if scans are off."""
        core = self._core
        while self._what_then is not OnForeignWrite.IGNORE:
            await core.news.until(self._ready)
            with suppress(TimeoutError):
                async with asyncio.timeout(core.timeouts.foreign_look_s):
                    await core.news.until(self._quiet)
            if self._ready() and (newest := await self.newest()) is not None:
                await self.look(newest, core.schedule.read_to)
            await asyncio.sleep(core.timeouts.foreign_look_s)

    def _ready(self) -> bool:
        return self._core.condition.state is State.READY

    def _quiet(self) -> bool:
        return self._core.watermarks.lag == 0 or not self._ready()

    # -- scanning --------------------------------------------------------------------------

    async def newest(self) -> Mapping[str, Newest] | None:
        """Return the newest commit of each table; None if scans are off, or Spark cannot tell."""
        if self._what_then is OnForeignWrite.IGNORE:
            return None
        try:
            return await self._core.engine.histories().newest()
        except EngineError as error:
            logger.info("no look for foreign writes: %s", error.message)
            return None

    async def look(self, newest: Mapping[str, Newest], offset: int) -> None:
        """Find the new foreign commits of each table, up to its newest commit.

        ``offset``: up to which the log was read. A later verification shows whether they did harm.
        """
        async with self._one_at_a_time:
            try:
                looked = self._looked or await self._load()
                found, unread = await self._read(looked, newest, offset)
                await self._note(found)
                self._looked = looked.after(newest, unread)
                await self._keep(self._looked.until_ms)
            except (EngineError, LogError) as error:
                logger.info("the look for foreign writes broke off: %s", error)

    async def _load(self) -> Looked:
        kept = await self._store.get(self._key)
        self._stored_ms = None if kept is None else int(kept.value)
        return Looked(self._stored_ms)

    async def _keep(self, until_ms: int | None) -> None:
        if until_ms != self._stored_ms:
            await self._store.put(self._key, str(until_ms).encode())
            self._stored_ms = until_ms

    async def _read(
        self, looked: Looked, newest: Mapping[str, Newest], offset: int
    ) -> tuple[list[Foreign], list[str]]:
        """Return the new foreign commits, and the tables whose history cannot be read."""
        application = self._core.own_log.application
        found: list[Foreign] = []
        unread: list[str] = []
        for table, at in sorted(newest.items()):
            if not looked.is_due(table, at):
                continue
            try:
                commits = await self._commits(looked, table, at)
            except EngineError as error:
                if error.kind is ErrorKind.AVAILABILITY:
                    raise
                logger.warning("the history of %s cannot be read: %s", table, error.message)
                unread.append(table)
                continue
            foreign = looked.foreign(table, at, commits, application)
            found += [Foreign(plain(table), each, offset) for each in foreign]
        return found, unread

    async def _commits(self, looked: Looked, table: str, newest: Newest) -> Sequence[Commit]:
        histories, count = self._core.engine.histories(), looked.first_count(table, newest)
        commits = await histories.commits(table, count)
        while count := looked.more_count(commits, count):
            commits = await histories.commits(table, count)
        return commits

    async def _note(self, found: Sequence[Foreign]) -> None:
        core = self._core
        for each in found[:SHOWN_MAX]:
            what = "a foreign write" if each.changes_rows else "foreign maintenance"
            logger.warning("%s: %s: %s", core.me, what, each)
        if len(found) > SHOWN_MAX:
            logger.warning("%s: %d more foreign commits", core.me, len(found) - SHOWN_MAX)
        self._found.extend(found)
        self._counts.update(each.changes_rows for each in found)
        written = [each for each in found if each.changes_rows]
        if written and self._what_then is OnForeignWrite.STOP:
            tables = listed_names(sorted({each.table for each in written}))
            at = max(each.found_at for each in written)
            core.diverge(Divergence(at, Cause.TABLES, applies=True, tables=tables))
            await core.store()

    # -- results ---------------------------------------------------------------------------

    def verified(self, marker: int) -> None:
        """Note that a verification at ``marker``, after these commits, found the tables equal."""
        settled = [each.verified(marker) for each in self._found]
        self._found.clear()
        self._found.extend(settled)

    def take_counts(self) -> Mapping[str, int]:
        """Return how many commits were found since the last call.

        "rows": those that changed rows or definitions; "nothing": the others.
        """
        more, self._taken = self._counts - self._taken, self._counts.copy()
        return {"rows": more[True], "nothing": more[False]}

    @property
    def found(self) -> Sequence[Foreign]:
        """The foreign commits that were found since the start, the newest last."""
        return tuple(self._found)

    def json(self) -> dict[str, Json]:
        """Return the foreign commits as JSON: their counts since the start, and the newest ones."""
        return {
            "rows": self._counts[True],
            "nothing": self._counts[False],
            "commits": [each.json() for each in self.found[-SHOWN_MAX:]],
        }
