"""Trims the log: deletes the records that no cluster needs any more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from dmq import Json, LogError, LogUnavailableError
from haproc.config.model import Trim
from haproc.membership.state import State
from haproc.replicate.agree.admission import Admission
from haproc.replicate.log_state.definitions import records_needed
from haproc.replicate.log_state.members import names_needed
from haproc.replicate.member.core import Core
from haproc.replicate.records.control import Change, Roster
from haproc.replicate.records.operation import Operation, from_record, to_record
from haproc.replicate.records.rows import Part

# The plan: which records may be deleted. Values in, values out.
#
# A record may be deleted when no member needs it any more. A member needs the records from
# ``records_needed`` below its *stored* cursor on. If it were restarted now, it would read from
# there, to know the request ids of the window and the stale records
# (`haproc.replicate.log_state.definitions`). It never reads below that: the intents, outcomes and
# claims that are stored with the cursor lie above the cursor or within the window. A member that
# never stored a cursor needs everything. If trimming waits for the archive, the archive needs as
# many records below its position: it reads on from there in the same way.
#
# Stored cursors never go back, so a plan stays valid for ever: a slow process, or two at once,
# delete nothing that a member needs. Only a member that is new, or comes back, is not in the plan.
# If such a member misses records, its state is TOO_FAR_BEHIND.


ARCHIVE: Final = "(archive)"
"""The name in the `Need` of the archive, which reads the log from its position on, as a cluster
does. No cluster may have such a name."""


@dataclass(frozen=True, slots=True)
class Need:
    """The lowest offset that the cluster ``name``, or the archive, still has to read."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Which records may be deleted: those below ``point``.

    ``start`` and ``end``: the log's. ``held_by``: the cluster that holds trimming back; empty if
    none does. If it had applied all, or were gone, ``held_records`` more could be deleted.
    """

    start: int
    end: int
    point: int
    held_by: str = ""
    held_records: int = 0


def needs(
    names: Collection[str], cursors: Mapping[str, int], records_needed: int
) -> tuple[Need, ...]:
    """Return the need of each of ``names``, the lowest offset first.

    ``cursors``: their stored cursors; without one, everything is needed. ``records_needed``: how
    many records below its cursor each needs.
    """
    found = (Need(name, max(0, cursors.get(name, 0) - records_needed)) for name in names)
    return tuple(sorted(found, key=lambda need: (need.offset, need.name)))


def plan(
    start: int, end: int, needed: tuple[Need, ...], records_needed: int, keep_from: int
) -> Plan:
    """Return the plan; ``keep_from``: the first record that the operator's settings keep.

    ``start`` and ``end``: the log's. ``needed``: as `needs` returns it.
    """
    lowest = needed[0].offset if needed else start
    point = max(start, min(lowest, keep_from))
    # The point if every member had applied everything.
    wanted = min(keep_from, max(0, end - records_needed))
    if not needed or lowest >= wanted:
        return Plan(start, end, point)
    without = min([need.offset for need in needed[1:]] + [wanted])
    return Plan(start, end, point, needed[0].name, max(0, without - max(start, lowest)))


def trims(me: str, ready_peers: Collection[str]) -> bool:
    """True if the HAProc ``me``, which is READY, trims: no READY peer has a name before its own."""
    return all(me < peer for peer in ready_peers)


# The trimmer.
#
# Every HAProc makes a plan at regular times, for its status. Only the HAProc with the lowest name
# of those that are READY trims, by its own view. Two may believe that at once: it does no harm.
#
# Before a plan is made, the log's end is asked for, and the log is read up to it. So all clusters
# that had joined by then are known. The newest record with the members stays in the log: instead of
# trimming it, the HAProc appends it anew, and trims only up to the old one this time.


logger = logging.getLogger(__name__)

READ_S: Final = 10.0
"""The longest wait until the log is read to its end; if it is over, the next round tries again."""
_PAGES_MAX: Final = 16
_PAGE_RECORDS: Final = 64


class Trimmer:
    """Makes a plan at regular times, and trims the log if this HAProc is the one that does.

    ``ready_peers``: returns the other HAProcs that are alive and READY. ``archived``: returns the
    offset below which all is archived (raises LogError); None: trimming does not wait for an
    archive.
    """

    def __init__(
        self,
        core: Core,
        admission: Admission,
        rules: Trim,
        ready_peers: Callable[[], Collection[str]],
        archived: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        self._core = core
        self._admission = admission
        self._rules = rules
        self._ready_peers = ready_peers
        self._archived = archived
        self._old_below = 0
        self._logged = ""
        self.plan: Plan | None = None
        """The newest plan; None: none was made yet."""

    async def run_forever(self) -> None:
        """Call `look` at regular times until cancelled."""
        while True:
            try:
                await self.look()
            except LogUnavailableError:
                pass  # the state shows it, and the next round is soon
            except LogError as error:
                logger.warning("%s did not trim the log: %s", self._core.me, error)
            await asyncio.sleep(self._rules.interval_s)

    async def look(self) -> None:
        """Make a plan, and trim the log if this HAProc is the one that trims; raises LogError."""
        core, log = self._core, self._core.log
        end = await log.end()
        known = await self._admission.wait_read_to(end, READ_S)
        enrolled = core.members.enrolled
        cursors = {name: cursor.offset for name, cursor in (await log.cursors()).items()}
        start = await log.start()
        configured = [member.name for member in core.identity.founders]
        named = names_needed(
            enrolled.names, configured, cursors.keys(), core.log_state.claims.clusters
        )
        below = records_needed(core.limits.window_records)
        if self._archived is not None:
            named |= {ARCHIVE}
            cursors[ARCHIVE] = await self._archived()
        needed = needs(named, cursors, below)
        keep_from = await self._keep_from(start, end)
        self.plan = plan(start, end, needed, below, keep_from)
        self._warn_if_held(self.plan)
        mine = core.condition.state is State.READY and trims(core.me, self._ready_peers())
        sure = known and (enrolled.offset < 0 or enrolled.members is not None)
        if self._rules.enabled and mine and sure and self.plan.point > start:
            await self._trim(start, self.plan.point)

    def describe(self) -> Mapping[str, Json]:
        """Return as JSON the log's range at the newest plan, and what holds trimming back."""
        found = self.plan
        return {
            "enabled": self._rules.enabled,
            "log_start": found.start if found else None,
            "log_end": found.end if found else None,
            "held_by": found.held_by if found else "",
            "held_records": found.held_records if found else 0,
        }

    async def _trim(self, start: int, point: int) -> None:
        core, enrolled = self._core, self._core.members.enrolled
        if 0 <= enrolled.offset < point:
            assert enrolled.members is not None
            anew = Roster(Change.MEMBERS, "", enrolled.members, enrolled.offset, core.me)
            await core.log.append([to_record(anew)])
            point = enrolled.offset
        if point > start:
            logger.info("%s trims the log to offset %d", core.me, point)
            await core.log.trim(point)

    def _warn_if_held(self, found: Plan) -> None:
        much = found.held_records > max(self._rules.keep_records, self._core.limits.window_records)
        logged, self._logged = self._logged, found.held_by if much else ""
        if much and self._logged != logged:
            logger.warning(
                "the trimming of %d records is held back by %s: it has not applied them",
                found.held_records,
                found.held_by,
            )

    # -- the records that an operator wants kept -------------------------------------------

    async def _keep_from(self, start: int, end: int) -> int:
        """Return the first offset that ``keep_records`` or ``keep_s`` keeps; raises LogError."""
        newest = max(0, end - self._rules.keep_records)
        if newest <= start or not self._rules.keep_s:
            return newest
        return await self._old_up_to(start, newest)

    async def _old_up_to(self, start: int, limit: int) -> int:
        """Return an offset, at most ``limit``, below which all records are older than ``keep_s``.

        Only operations and parts have times. A long run of records without a time counts as young.
        Raises LogError.
        """
        old_ms = self._core.unix_ms() - 1000 * self._rules.keep_s
        low, high = max(start, min(self._old_below, limit)), limit
        while low < high:
            middle = (low + high) // 2
            made = await self._made(middle, high)
            if made is not None and made[1] <= old_ms:
                low = made[0] + 1
            else:
                high = middle
        self._old_below = low
        return low

    async def _made(self, offset: int, end: int) -> tuple[int, int] | None:
        """Return offset and Unix time (ms) of the first record in a range that has a time.

        None if none has, or none was found among the first thousand records.
        """
        for _ in range(_PAGES_MAX):
            entries = await self._core.log.read(offset, records_max=_PAGE_RECORDS)
            for entry in entries:
                message = from_record(entry.record)
                created_ms = message.created_ms if isinstance(message, Operation | Part) else 0
                if entry.offset < end and created_ms:
                    return entry.offset, created_ms
            if not entries or entries[-1].offset + 1 >= end:
                return None
            offset = entries[-1].offset + 1
        return None
