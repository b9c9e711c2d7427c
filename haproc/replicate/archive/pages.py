"""Makes pages of the operations that all clusters have applied, from the log, in bounded memory.

A page begins at an offset. It ends at the lowest stored cursor, or after some number of rows or
bytes. For consecutive pages the log is read twice: ahead for the outcomes, then for the operations.
The facts for judging the next page are kept. Before a page that begins at another offset, one and a
quarter idempotency windows are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from dmq import Entry, LogError
from haproc.config.sections import Archive
from haproc.engine.arrow import no_rows, stream_of
from haproc.failure import ErrorClass, log_unavailable, refused
from haproc.membership.peers import PeerUnavailableError
from haproc.replicate.archive.account import Account, ArchivePosition, known_from
from haproc.replicate.archive.columns import SCHEMA, Columns, Showing
from haproc.replicate.log_state.members import names_needed
from haproc.replicate.member.core import Core

ROWS_MAX: Final = 50_000
BYTES_MAX: Final = 8 << 20
"""The size at which a page ends: as much as one record of rows may have by default."""
SPAN_MAX: Final = 1 << 18
"""The most offsets that a page covers, even if few of them give rows."""
_READ_RECORDS: Final = 256
"""How many records are read at once: they hold up the event loop for some milliseconds."""
_READ_BYTES: Final = 4 << 20
_READ_S: Final = 10.0
_NO_ROWS: Final = no_rows(SCHEMA)


class Timekeepers(Protocol):
    """The other HAProcs; each knows how long operations took on its cluster."""

    async def latencies(
        self, peer: str, start: int, end: int, timeout_s: float
    ) -> Mapping[int, int]:
        """Return, by offset, the latency of each operation in ms on a peer's cluster.

        Raises PeerUnavailableError.
        """
        ...

    def is_gone(self, peer: str) -> bool:
        """True if a peer has been silent for so long that a request to it is useless."""
        ...


@dataclass(frozen=True, slots=True)
class Page:
    """The operations from offset ``start`` on and below ``end``, as an Arrow IPC stream.

    ``applied_to``: where the last page ends that can be made now. ``start`` is above the requested
    offset if the log was trimmed.
    """

    rows: bytes
    count: int
    start: int
    end: int
    applied_to: int


class Pages:
    """Makes the pages, one at a time.

    ``wait_read_to`` waits until the log is read up to an offset, so that the members are known; it
    returns False if that takes longer than the given seconds. ``secret``: the ring's secret.
    """

    def __init__(
        self,
        core: Core,
        wait_read_to: Callable[[int, float], Awaitable[bool]],
        peers: Timekeepers,
        position: ArchivePosition,
        rules: Archive,
        secret: str,
    ) -> None:
        self._core = core
        self._wait_read_to = wait_read_to
        self._peers = peers
        self._position = position
        self._showing = Showing(rules, secret)
        self._lock = asyncio.Lock()
        self._account: Account | None = None

    async def page(self, start: int, rows_max: int) -> Page:
        """Return the page that begins at ``start``, with at most ``rows_max`` rows.

        Raises RequestError.
        """
        try:
            async with self._lock:
                return await self._page(start, min(rows_max, ROWS_MAX))
        except LogError as error:
            self._account = None
            raise log_unavailable("the log cannot be read", error, "try again") from error

    async def archived(self, below: int) -> None:
        """Store that all operations below an offset are archived; raises RequestError."""
        try:
            _, applied_to = await self._applied()
            if below > applied_to:
                raise refused(
                    ErrorClass.BAD_REQUEST,
                    f"not every cluster has applied all below {below}, only below {applied_to}",
                )
            await self._position.move(below)
        except LogError as error:
            raise log_unavailable("the store took nothing", error, "try again") from error

    async def _applied(self) -> tuple[tuple[str, ...], int]:
        """Return the clusters, and the lowest of their stored cursors.

        Raises RequestError, LogError.
        """
        core = self._core
        end = await core.log.end()
        cursors = {name: cursor.offset for name, cursor in (await core.log.cursors()).items()}
        if not await self._wait_read_to(end, _READ_S):
            raise refused(
                ErrorClass.NOT_NOW,
                f"cluster {core.me} has not read the log to its end",
                "ask another HAProc, or again a little later",
            )
        configured = [member.name for member in core.identity.founders]
        names = names_needed(
            core.members.enrolled.names, configured, cursors.keys(), core.log_state.claims.clusters
        )
        return tuple(sorted(names)), min((cursors.get(name, 0) for name in names), default=0)

    async def _page(self, asked: int, rows_max: int) -> Page:
        core = self._core
        clusters, applied_to = await self._applied()
        end = await core.log.end()
        start = max(asked, await core.log.start())
        if start >= applied_to:
            return Page(_NO_ROWS, 0, start, start, applied_to)
        account, columns = await self._account_at(start), Columns(clusters)
        limit = min(applied_to, start + SPAN_MAX)
        reached = await self._fill(columns, account, limit, rows_max)
        await self._read(account.noted_to, end, account.note)
        known_below = account.fates.known_below
        if known_below is not None:  # too many to remember: the next page reads them again
            reached = min(reached, known_below)
        latencies = await self._latencies(clusters, start, reached)
        table = await asyncio.to_thread(columns.table, reached, account.fates, latencies)
        account.go_on_from(reached)
        self._account = account if known_below is None else None
        return Page(stream_of(table), table.num_rows, start, reached, applied_to)

    async def _fill(self, columns: Columns, account: Account, limit: int, rows_max: int) -> int:
        """Add rows until the page is full or reaches the offset ``limit``.

        Returns the page's end.
        """
        while account.position < limit:
            entries = await self._entries(account.position)
            for at, entry in enumerate(entries):
                full = len(columns) >= rows_max or columns.size_bytes >= BYTES_MAX
                if full or entry.offset >= limit:
                    account.note(entries[:at])
                    return account.position if full else limit
                op = account.take(entry)
                if op is not None and not self._showing.own(op):
                    columns.add_operation_row(entry.offset, op, self._showing.of(op))
                    account.shown(entry.offset)
            account.note(entries)
            if not entries:
                break
        return limit

    async def _account_at(self, start: int) -> Account:
        """Return an account at the offset ``start``: that of the page before, or a new one.

        For a new one, the log before the offset is read.
        """
        account, core = self._account, self._core
        self._account = None
        if account is not None and account.stands_at(start):
            return account
        window = core.limits.window_records
        read_from = max(await core.log.start(), known_from(start, window))
        account = Account(start, read_from, window, core.log_state.claims.before(read_from))

        def judge(entries: list[Entry]) -> None:
            before = [entry for entry in entries if entry.offset < start]
            account.note(before)
            for entry in before:
                account.take(entry)

        await self._read(read_from, start, judge)
        account.go_on_from(start)
        return account

    async def _read(self, start: int, end: int, take: Callable[[list[Entry]], None]) -> None:
        position = start
        while position < end:
            entries = await self._entries(position)
            if not entries:
                return
            take(entries)
            position = entries[-1].offset + 1
            await asyncio.sleep(0)

    async def _entries(self, start: int) -> list[Entry]:
        return await self._core.log.read(start, records_max=_READ_RECORDS, bytes_max=_READ_BYTES)

    async def _latencies(
        self, clusters: tuple[str, ...], start: int, end: int
    ) -> Mapping[str, Mapping[int, int]]:
        """Return, by cluster and offset, the latencies in ms.

        The entry of a cluster is empty if its HAProc did not answer.
        """
        core = self._core

        async def asked(name: str) -> Mapping[int, int]:
            if name == core.me:
                return core.outcomes.latencies(start, end)
            if self._peers.is_gone(name):
                return {}
            try:
                return await self._peers.latencies(name, start, end, core.timeouts.peer_s)
            except PeerUnavailableError:
                return {}

        known = [name for name in clusters if name == core.me or name in core.members.peers]
        found = await asyncio.gather(*(asked(name) for name in known))
        return dict(zip(known, found, strict=True))
