"""Replaces this cluster's tables with another cluster's: all (rebuild) or some (repair)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from dmq import LogError
from haproc.config.model import OnDivergence
from haproc.engine.copies import CopyTable, Inventory, located
from haproc.engine.errors import EngineError
from haproc.failure import ErrorClass, RequestError, log_unavailable, refused
from haproc.membership.peers import CopyQuestion, PeerUnavailableError
from haproc.membership.state import State
from haproc.replicate.member.core import Core
from haproc.replicate.records.control import Copy
from haproc.replicate.records.progress import CopyRequest, CopyWay, Progress

logger = logging.getLogger(__name__)


async def rebuild(core: Core, wanted: str, way: CopyWay | None = None) -> None:
    """Request that this cluster becomes a copy of another one when its HAProc starts again.

    ``wanted``: the cluster to copy; empty: any. ``way``: how to get its files; None: as configured.
    Raises RequestError if no cluster can be copied.
    """
    check_running(core)
    donor = await _donor(core, wanted)
    found = await held(core, donor)
    if found.others:
        raise refused(ErrorClass.NOT_NOW, uncopied(donor, found.others))
    if way_of(core, donor, way) is CopyWay.STORAGE:
        for table in samples(found.tables):
            place = located(table.location, core.storage.get(donor, ()))
            try:
                await core.engine.copies().state(replace(table, location=place))
            except EngineError as error:
                why = unread(core.me, donor, place, error.message)
                raise refused(ErrorClass.NOT_NOW, why) from error
    await ask_for(core, CopyRequest(wanted, way=way))


def way_of(core: Core, donor: str, wanted: CopyWay | None) -> CopyWay:
    """Return the way to get a donor's files: ``wanted``, or the configured one if that is None."""
    configured = CopyWay.STORAGE if donor in core.storage else CopyWay.STREAM
    return wanted or configured


def samples(tables: Iterable[CopyTable]) -> list[CopyTable]:
    """Return one table of each schema: enough to test if a donor's files can be read."""
    return list({table.schema: table for table in tables}.values())


def unread(me: str, donor: str, place: str, why: str) -> str:
    """Return the error message for a donor's table that cannot be read at ``place``."""
    return (
        f"{me}'s Spark does not read {donor}'s table at {place}: {why}. Correct storage of cluster "
        f"{donor} in the configuration of {me}'s HAProc, or what Spark knows of that place; or run "
        f"haproc cluster rebuild {me} --way stream"
    )


def check_running(core: Core) -> None:
    """Raise RequestError unless this process has claimed its cluster and runs."""
    if core.condition.state in (State.STOPPED, State.FENCED) or core.own_log.epoch < 0:
        raise refused(
            ErrorClass.NOT_NOW,
            f"cluster {core.me} is {core.condition.state}: {core.condition.reason}",
            "start its HAProc first",
        )


async def ask_for(core: Core, request: CopyRequest) -> None:
    """Store the request that this cluster copies its tables from another one at its next start.

    Raises RequestError if the request cannot be stored.
    """

    def with_request(known: Progress) -> Progress:
        asked = request
        if known.copying is not None and not request.source:
            # An earlier copy may have touched tables: so this one cannot be withdrawn.
            asked = replace(request, first=known.copying.first)
        return replace(known, copying=asked)

    core.notes.copy(request)
    try:
        async with asyncio.timeout(core.timeouts.append_s):
            if core.condition.now.started:
                await core.store()
            else:
                await core.own_log.change(with_request)
    except (LogError, TimeoutError) as error:
        core.notes.copy(None)
        raise log_unavailable("the log did not take the request", error, "try again") from error


MEND_AFTER_S: Final = 30.0
"""The time from DIVERGED to the rebuild: operators see it, and other clusters judge themselves."""


class Mender:
    """Rebuilds this cluster when it is DIVERGED, if the configuration says so.

    ``rebuilds`` is called after the rebuild is requested.
    """

    def __init__(self, core: Core, rebuilds: Callable[[], None], on: OnDivergence) -> None:
        self._core = core
        self._rebuilds = rebuilds
        self._on = on

    async def run_forever(self) -> None:
        """Request a rebuild whenever this cluster is DIVERGED and may be rebuilt, for ever."""
        core = self._core
        while True:
            await core.news.until(self._differs)
            await asyncio.sleep(MEND_AFTER_S)
            if self._differs() and await self._may():
                logger.warning("%s differs from the others, and is rebuilt", core.me)
                with suppress(RequestError):  # the next check tries again
                    await rebuild(core, "")
                    self._rebuilds()

    def _differs(self) -> bool:
        wanted = self._on is OnDivergence.REBUILD
        return wanted and self._core.condition.state is State.DIVERGED

    async def _may(self) -> bool:
        """True if this cluster may be rebuilt now.

        More than half of its peers are READY and report no undecided difference, no peer copies,
        and no DIVERGED peer comes before this cluster by name.
        """
        core, states = self._core, dict[str, str]()
        for name in core.members.peers:
            try:
                status = await core.peers.status(name, core.timeouts.peer_s)
            except PeerUnavailableError:
                continue
            agrees = status.undecided is None
            states[name] = status.state.value if agrees else ""
        good = sum(state == State.READY.value for state in states.values())
        mended = any(state == State.COPYING.value for state in states.values())
        # Of several DIVERGED clusters the first by name begins.
        first = all(
            core.me < name for name, state in states.items() if state == State.DIVERGED.value
        )
        return 2 * good > len(core.members.peers) and not mended and first


async def repair(core: Core, pattern: str, wanted: str) -> tuple[int, Sequence[str]]:
    """Append a `Copy` record that replaces tables by another cluster's; return its offset.

    Also return the tables' names. ``pattern``: `schema.table`, where ``*`` and ``?`` stand for any
    characters. ``wanted``: the cluster to copy from; empty: any. Raises RequestError if no cluster
    or table fits.
    """
    if not core.condition.applying:
        raise refused(
            ErrorClass.NOT_NOW,
            f"cluster {core.me} is {core.condition.state}: {core.condition.reason}",
            "it must apply its queue to the place of the copy; else rebuild it as a whole",
        )
    donor = await _donor(core, wanted)
    found = [each.full_name for each in (await held(core, donor)).tables]
    named = tuple(name for name in found if fnmatchcase(name.lower(), pattern.lower()))
    if not named:
        raise refused(
            ErrorClass.BAD_REQUEST,
            f"cluster {donor} has no Delta table {pattern[:200]}",
            "name it as schema.table",
        )
    try:
        record = Copy(core.me, donor, core.own_log.epoch, named)
        return await core.own_log.append_once(record), named
    except (LogError, TimeoutError) as error:
        raise log_unavailable("the log did not take the record", error, "try again") from error


async def held(core: Core, donor: str) -> Inventory:
    """Return what cluster ``donor`` has now: its tables, and objects that cannot be copied.

    Raises RequestError if it does not answer.
    """
    try:
        question = CopyQuestion("inventory", -1)
        answer, _ = await core.peers.copy(donor, question, core.timeouts.apply_s)
    except PeerUnavailableError as error:
        raise refused(ErrorClass.NOT_NOW, f"cluster {donor} does not answer: {error}") from error
    if answer.state != "ok" or answer.inventory is None:
        raise refused(ErrorClass.NOT_NOW, f"cluster {donor} does not answer: {answer.message}")
    return answer.inventory


def uncopied(donor: str, others: Sequence[tuple[str, str]]) -> str:
    """Return the error message for objects of cluster ``donor`` that cannot be copied."""
    listed = "; ".join(f"{name}: {why}" for name, why in others[:20])
    return (
        f"{donor} holds what cannot be copied ({len(others)}: {listed}). "
        "Drop it, or make Delta tables of it"
    )


async def _donor(core: Core, wanted: str) -> str:
    """Return the READY cluster to copy: ``wanted``, or any peer if that is empty.

    Raises RequestError if there is none.
    """
    if wanted and wanted not in core.members.peers:
        raise refused(ErrorClass.NOT_NOW, f"cluster {core.me} has no peer {wanted}")
    found = []
    for name in (wanted,) if wanted else core.members.peers:
        state = await state_of_peer(core, name)
        if state == State.READY.value:
            return name
        found.append(f"{name} {state}")
    raise refused(
        ErrorClass.NOT_NOW,
        f"no cluster could be copied: {', '.join(found) or 'there is no other one'}",
        "its tables would be lost: bring another cluster to READY first",
    )


async def ready_peer(core: Core) -> str | None:
    """Return the first READY peer after this cluster in the ring's order; None if none is READY."""
    for name in core.members.peers:
        if await state_of_peer(core, name) == State.READY.value:
            return name
    return None


async def state_of_peer(core: Core, peer: str) -> str:
    """Return a peer's state; the text "does not answer" if it cannot be asked."""
    try:
        status = await core.peers.status(peer, core.timeouts.peer_s)
    except PeerUnavailableError:
        return "does not answer"
    return status.state.value
