"""The ring's members: as the log has them, and changes that operators ask for.

A change is a `Roster` record (`replicate.records.control`). Any READY HAProc can append it, and
each HAProc follows it when it reads it. If the record removes its cluster, the HAProc applies
nothing and serves nobody (REMOVED). It still reads the log: the cluster may be added again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from dmq import Json, LogError, TrimmedError
from haproc.config.model import Address
from haproc.failure import ErrorClass, RequestError, log_unavailable, refused
from haproc.membership.peers import Enrolled, Member, disagreement
from haproc.membership.state import State
from haproc.replicate.log_state.members import enrolled_after
from haproc.replicate.member.core import Core
from haproc.replicate.records.control import Change, Roster
from haproc.replicate.records.operation import from_record

logger = logging.getLogger(__name__)

ATTEMPTS_MAX: Final = 5
"""The most attempts to append a change of the members while other processes change them, too."""
CLUSTERS_MAX: Final = 64


class Admission:
    """Follows the changes of the ring's members in the log, and appends new ones.

    ``on_members`` is called with the new members after each change. ``on_wanted_copy`` is called
    if this cluster is a member, and a copy of another cluster to it was requested.
    """

    def __init__(
        self,
        core: Core,
        on_members: Callable[[Sequence[Member]], None],
        on_wanted_copy: Callable[[], None],
    ) -> None:
        self._core = core
        self._on_members = on_members
        self._on_wanted_copy = on_wanted_copy

    # -- records of the log ----------------------------------------------------------------

    async def restore(self, offset: int) -> None:
        """Read the members from the record at ``offset``, which an earlier process had read.

        Do nothing if ``offset`` is -1: that process knew no such record.
        """
        core = self._core
        if offset < 0:
            return
        try:
            entries = await core.own_log.reaching(lambda: core.log.read(offset, records_max=1))
        except TrimmedError:
            # The record is trimmed. A newer one, which is read later, replaces it by its offset.
            core.members.enrol(Enrolled(offset))
            return
        message = from_record(entries[0].record) if entries else None
        if isinstance(message, Roster):
            self._enrol(Enrolled(offset, message.members))

    def follow(self, offset: int, message: Roster) -> None:
        """Take the members from a record of the log.

        A record that was read before, or that does not replace the newest one, changes nothing.
        """
        before = self._core.members.enrolled
        after = enrolled_after(before, offset, message)
        if after != before:
            self._enrol(after)
        elif offset > before.offset:
            logger.info("offset %d: a change of members that came after another one", offset)

    def _enrol(self, enrolled: Enrolled) -> None:
        core = self._core
        core.members.enrol(enrolled)
        members = enrolled.members or ()
        names = [member.name for member in members]
        logger.info("%s: the ring's members are %s", core.me, ", ".join(names))
        out = f"the ring has no cluster {core.me} since offset {enrolled.offset} of its log"
        core.condition.removed("" if core.me in names else out)
        if core.me in names and core.notes.copying is not None:
            self._on_wanted_copy()
        self._on_members(members)

    async def wait_read_to(self, offset: int, timeout_s: float) -> bool:
        """Wait until the log is read up to ``offset``; False if it is not within ``timeout_s``."""
        core = self._core
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await core.news.until(lambda: core.schedule.read_to >= offset)
        return core.schedule.read_to >= offset

    # -- requests of operators -------------------------------------------------------------

    def describe(self) -> Mapping[str, Json]:
        """Return the members, their record's offset, and how the configured members differ."""
        core = self._core
        since = core.members.enrolled.offset
        return {
            "since_offset": since if since >= 0 else None,
            "names": [member.name for member in self._members()],
            "disagreement": disagreement(
                (m.name for m in core.identity.founders), core.members.enrolled
            ),
        }

    async def join(self, name: str, peer: Address, client_url: str) -> Mapping[str, Json]:
        """Make cluster ``name`` a member of the ring, if it is not one already.

        Raises RequestError if that is refused, or the log cannot be reached.
        """
        member = Member(name, peer, client_url)
        for _ in range(ATTEMPTS_MAX):
            await self._up_to_date()
            base, members = self._core.members.enrolled, self._members()
            known = {each.name: each for each in members}.get(name)
            if known is not None and known != member:
                raise _refused(
                    f"cluster {name} is a member already, at {known.peer} and {known.client_url}",
                    "change its addresses in the files and start the HAProcs again",
                )
            if known is not None and base.offset >= 0:
                return self._changed(name)
            if len(members) >= CLUSTERS_MAX:
                raise _refused(f"a ring has {CLUSTERS_MAX} clusters at most")
            await self._no_strangers(name)
            after = members if known is not None else (*members, member)
            await self._append(Roster(Change.JOIN, name, after, base.offset, self._core.me))
        raise _refused("others change the members at the same time", "try again")

    async def leave(self, name: str) -> Mapping[str, Json]:
        """Remove cluster ``name`` from the ring for good.

        Raises RequestError if that is refused, or the log cannot be reached.
        """
        for _ in range(ATTEMPTS_MAX):
            await self._up_to_date()
            base, members = self._core.members.enrolled, self._members()
            after = tuple(each for each in members if each.name != name)
            if base.offset >= 0 and after == members:
                return self._changed(name)
            if after == members and name not in await self._strangers():
                raise _refused(f"the ring has no cluster {name}")
            if not after:
                raise _refused(f"cluster {name} is the only one")
            await self._append(Roster(Change.LEAVE, name, after, base.offset, self._core.me))
        raise _refused("others change the members at the same time", "try again")

    def _changed(self, name: str) -> Mapping[str, Json]:
        return {"cluster": name, **self.describe()}

    def _members(self) -> tuple[Member, ...]:
        core = self._core
        members = core.members.enrolled.members
        return core.identity.founders if members is None else members

    async def _up_to_date(self) -> None:
        """Wait until this process has read the log to its end, so that it knows the newest members.

        Raises RequestError if this cluster is not READY, or the log is not read in time.
        """
        core = self._core
        if core.condition.state is not State.READY:
            raise _refused(
                f"cluster {core.me} is {core.condition.state}: {core.condition.reason}",
                "ask another HAProc",
            )
        try:
            async with asyncio.timeout(core.timeouts.append_s):
                end = await core.log.end()
        except (LogError, TimeoutError) as error:
            raise _unavailable(error) from error
        if not await self.wait_read_to(end, core.timeouts.append_s):
            raise _refused(f"cluster {core.me} has not read the log to its end", "try again")

    async def _strangers(self) -> frozenset[str]:
        """Return the clusters that have a cursor or claim in the log, but are no known members."""
        core = self._core
        named = {each.name for each in self._members()}
        try:
            return (frozenset(await core.log.cursors()) | core.log_state.claims.clusters) - named
        except LogError as error:
            raise _unavailable(error) from error

    async def _no_strangers(self, joining: str) -> None:
        """Raise RequestError if the ring's first `Roster` record would leave out a cluster.

        That is a cluster that took part in the ring, and is not ``joining``, which is added.
        """
        if self._core.members.enrolled.offset >= 0:
            return
        if strangers := sorted(await self._strangers() - {joining}):
            raise _refused(
                f"{', '.join(strangers)} took part in this ring, but the configuration of "
                f"{self._core.me} does not name them",
                "name them in it, or remove them with haproc cluster remove",
            )

    async def _append(self, roster: Roster) -> None:
        """Append a `Roster` record and wait until this process has read it.

        The caller checks if it changed the members. Raises RequestError if it is not read in time.
        """
        core = self._core
        try:
            offset = await core.own_log.append_once(roster)
        except (LogError, TimeoutError) as error:
            raise _unavailable(error) from error
        if not await self.wait_read_to(offset + 1, core.timeouts.append_s):
            raise _unavailable(TimeoutError())


def _refused(message: str, hint: str = "") -> RequestError:
    return refused(ErrorClass.NOT_NOW, message, hint)


def _unavailable(error: Exception) -> RequestError:
    what = "the log did not take or give the record in time"
    return log_unavailable(what, error, "try again: what was done already stays done")
