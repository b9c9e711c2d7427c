"""Trims the log: how much of it may go, and what keeps it from being trimmed."""

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

# How much of the log may go. Values in, a plan out.
#
# A record may be deleted when no member needs it any more. What a member needs begins
# ``records_needed`` below its *stored* cursor: where it would begin to read if it were started anew
# at this moment, to know the request ids of the window, and which of its records are stale
# (`haproc.replicate.log_state.definitions`). Beneath that it never reads again: what its
# cursor's note remembers (intents, outcomes to be compared, claims) lies above the cursor or within
# the window. A member that never stored a cursor needs everything.
# An archive that is waited for needs as much below its position: it
# reads on from there in the same way.
#
# Stored cursors never go back, so a plan stays right for ever: carried out late, by a process that
# slept, or by two at once, it deletes nothing that anybody needs. Only a member that is new, or
# back, is not in it; one that then misses records says TOO_FAR_BEHIND.


ARCHIVE: Final = "(archive)"
"""Who holds trimming back where it is no cluster; none may have such a name."""


@dataclass(frozen=True, slots=True)
class Need:
    """The lowest offset that a cluster still needs."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What lies below ``point`` may be deleted.

    ``held_by`` is the one member that holds the trimming back: with its queue empty, or with it
    gone, ``held_records`` more could go. Empty where nobody does.
    """

    start: int
    end: int
    point: int
    held_by: str = ""
    held_records: int = 0


def needs(
    names: Collection[str], cursors: Mapping[str, int], records_needed: int
) -> tuple[Need, ...]:
    """Return what each cluster still needs, the lowest first."""
    found = (Need(name, max(0, cursors.get(name, 0) - records_needed)) for name in names)
    return tuple(sorted(found, key=lambda need: (need.offset, need.name)))


def with_archive(needed: tuple[Need, ...], position: int, records_needed: int) -> tuple[Need, ...]:
    """Return these needs and the archive's, which reads the log as a cluster does.

    ``position``: all below it is archived.
    """
    archive = Need(ARCHIVE, max(0, position - records_needed))
    return tuple(sorted((*needed, archive), key=lambda need: (need.offset, need.name)))


def plan(
    start: int, end: int, needed: tuple[Need, ...], records_needed: int, keep_from: int
) -> Plan:
    """Return what may be deleted. ``keep_from``: what an operator wants kept begins there."""
    lowest = needed[0].offset if needed else start
    point = max(start, min(lowest, keep_from))
    # What could go if everybody had applied everything.
    wanted = min(keep_from, max(0, end - records_needed))
    if not needed or lowest >= wanted:
        return Plan(start, end, point)
    without = min([need.offset for need in needed[1:]] + [wanted])
    return Plan(start, end, point, needed[0].name, max(0, without - max(start, lowest)))


def trims(me: str, ready_peers: Collection[str]) -> bool:
    """Whether this HAProc is the one that trims: of those that are READY the lowest by name."""
    return all(me < peer for peer in ready_peers)


# Trims the log, and knows what keeps it from being trimmed.
#
# Every HAProc looks at the cursors now and then, for its status; the one that trims is, of those
# that are READY, the one with the lowest name, by its own view. Two may believe that at once: that
# does no harm.
#
# Before anything is decided, the log is read up to an end that was asked for first: so whoever had
# joined by then is known, and nobody is forgotten who was a member all the time. The record that
# says who the members are stays in the log: before it would be trimmed, it is said anew, and what
# stands before that goes at a later time.


logger = logging.getLogger(__name__)

HEAR_S: Final = 10.0
"""How long one look may wait for the log to be read to its end; then the next one tries."""
_PAGES_MAX: Final = 16
_PAGE_RECORDS: Final = 64


class Trimmer:
    """See the module. ``ready_peers``: which of the other HAProcs are alive and READY.

    ``archived``: below which offset all is archived, where that is waited for; raises LogError.
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
        """What the last look came to."""

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                await self.look()
            except LogUnavailableError:
                pass  # the state says so, and the next look is soon
            except LogError as error:
                logger.warning("%s did not trim the log: %s", self._core.me, error)
            await asyncio.sleep(self._rules.interval_s)

    async def look(self) -> None:
        """Find out what may go; delete it, if that is this HAProc's to do."""
        core, log = self._core, self._core.log
        end = await log.end()
        known = await self._admission.heard_up_to(end, HEAR_S)
        enrolled = core.members.enrolled
        cursors = {name: cursor.offset for name, cursor in (await log.cursors()).items()}
        start = await log.start()
        configured = [member.name for member in core.identity.founders]
        named = names_needed(
            enrolled.names, configured, cursors.keys(), core.log_state.claims.clusters
        )
        below = records_needed(core.limits.window_records)
        needed = needs(named, cursors, below)
        if self._archived is not None:
            needed = with_archive(needed, await self._archived(), below)
        keep_from = await self._keep_from(start, end)
        self.plan = plan(start, end, needed, below, keep_from)
        self._tell(self.plan)
        mine = core.condition.state is State.READY and trims(core.me, self._ready_peers())
        sure = known and (enrolled.offset < 0 or enrolled.members is not None)
        if self._rules.enabled and mine and sure and self.plan.point > start:
            await self._trim(start, self.plan.point)

    def describe(self) -> Mapping[str, Json]:
        """Tell where the log began and ended at the last look, and what holds trimming back."""
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

    def _tell(self, found: Plan) -> None:
        much = found.held_records > max(self._rules.keep_records, self._core.limits.window_records)
        logged, self._logged = self._logged, found.held_by if much else ""
        if much and self._logged != logged:
            logger.warning(
                "the trimming of %d records is held back by %s: it has not applied them",
                found.held_records,
                found.held_by,
            )

    # -- what an operator wants kept -------------------------------------------------------

    async def _keep_from(self, start: int, end: int) -> int:
        """Return where the newest ``keep_records`` begin, or the younger ones, if that is lower."""
        newest = max(0, end - self._rules.keep_records)
        if newest <= start or not self._rules.keep_s:
            return newest
        return await self._old_up_to(start, newest)

    async def _old_up_to(self, start: int, limit: int) -> int:
        """Return an offset below which, and below the limit, all records are old enough to go.

        By the times in operations and parts; what stands among records without counts as young.
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
        """Return offset and time of the first record with a time from there on; None if none is."""
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
