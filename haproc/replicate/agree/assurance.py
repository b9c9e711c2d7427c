"""Waits until enough clusters have applied a write; delays DDL that has to wait for a table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from dmq import LogUnavailableError
from haproc.classify.model import WriteConcern
from haproc.config.model import Membership, Writes
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome, busy
from haproc.membership.clusters import ClusterProgress
from haproc.membership.peers import PeerProgress, PeerUnavailableError
from haproc.membership.state import SERVING
from haproc.replicate.member.core import Core
from haproc.replicate.records.operation import Operation

# The decision that a write may be answered: enough clusters have applied it. Values in, decisions
# out.
#
# The rules are those of Kafka's acknowledgements, for whole clusters. The write is in the log, so
# it is durable already. The wait is only for clusters that show it.
#
# - ``one``: the cluster that received it has applied it.
# - ``majority``: more than half of the ring's clusters have applied it, in sync or not.
# - ``all``: every cluster that is in sync now has applied it. A cluster that leaves the in-sync set
#   during the wait does not count any more; one that enters it counts.
#
# ``min_insync`` is the least number for both: a write is refused before it is appended while fewer
# clusters than it needs are in sync, and is answered only when as many have applied it.


@dataclass(frozen=True, slots=True)
class ConcernJudgement:
    """Whether a write concern is met for one write.

    ``waiting_for``: the in-sync clusters that have not applied the write. ``possible``: True if the
    concern is met once these have applied it.
    """

    fulfilled: bool
    waiting_for: frozenset[str] = frozenset()
    possible: bool = True


@dataclass(frozen=True, slots=True)
class Requirement:
    """The number of clusters that a write concern needs, in a ring of ``clusters`` clusters."""

    concern: WriteConcern
    clusters: int
    min_insync: int = 1

    @property
    def needed(self) -> int:
        """The least number of clusters that must have applied a write."""
        match self.concern:
            case WriteConcern.ONE:
                return 1
            case WriteConcern.MAJORITY:
                return max(self.clusters // 2 + 1, self.min_insync)
            case WriteConcern.ALL:
                return self.min_insync

    def permits(self, in_sync: Set[str]) -> bool:
        """True if enough clusters are in sync (``in_sync``) that a write may be appended."""
        return self.concern is WriteConcern.ONE or len(in_sync) >= self.needed

    def judge(self, in_sync: Set[str], applied: Set[str]) -> ConcernJudgement:
        """Judge if the concern is met for a write which the clusters ``applied`` have applied."""
        missing = frozenset(in_sync - applied)
        enough = len(applied) >= self.needed
        if enough and (self.concern is not WriteConcern.ALL or not missing):
            return ConcernJudgement(True)
        return ConcernJudgement(False, missing, len(applied | missing) >= self.needed)


_UNFINISHED_MAX: Final = 1000
"""The most unfinished operations that one answer names; all later ones count as not applied."""
_ALL_PROGRESS_S: Final = 0.01
"""How long one view of all clusters' progress is used again: many writes are judged at once."""


async def progress(core: Core, seen: str, timeout_s: float) -> PeerProgress:
    """Return this cluster's progress as soon as it differs from ``seen``, or after ``timeout_s``.

    ``seen``: the field of this name in the caller's last answer; empty: return at once.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await core.news.until(lambda: _seen(core) != seen)
    if core.condition.now.copying:  # its tables are not those at its cursor
        return PeerProgress(_seen(core), core.condition.state, 0, frozenset())
    schedule = core.schedule
    found = (each.offset for each in schedule.unfinished() if schedule.expects(each.offset))
    unfinished = frozenset(islice(found, _UNFINISHED_MAX))
    known_to = next(found, schedule.read_to)
    return PeerProgress(_seen(core), core.condition.state, known_to, unfinished)


def _seen(core: Core) -> str:
    schedule = core.schedule
    return f"{core.identity.incarnation}.{schedule.low}.{schedule.finished}.{core.condition.state}"


@dataclass(eq=False, slots=True)
class _Wait:
    """A write whose request waits until other clusters (``waiting_for``) have applied it."""

    offset: int
    waiting_for: frozenset[str] = field(default_factory=frozenset)


class Assurance:
    """Waits until the clusters that a write concern asks for have applied a write.

    While writes wait, each peer is asked for its progress by one long poll at a time: `progress`
    answers as soon as the peer has finished an operation. ``all_progress`` returns what is known
    of every cluster's progress without such polls. It is used, too, so a lost poll delays no write.

    ``on_waited`` is called after each wait: the concern, True if it was met, and the seconds.
    """

    def __init__(
        self,
        core: Core,
        writes: Writes,
        membership: Membership,
        all_progress: Callable[[], Mapping[str, ClusterProgress]],
        on_waited: Callable[[WriteConcern, bool, float], None] = lambda concern, met, seconds: None,
    ) -> None:
        self._core = core
        self.default = writes.concern
        self._min_insync = writes.min_insync_clusters
        self._interval_s = membership.check_interval_s
        self._patience_s = membership.window_s
        self._read_all_progress = all_progress
        self._on_waited = on_waited
        self._clock = asyncio.get_running_loop().time
        self._all_progress: Mapping[str, ClusterProgress] = {}
        self._all_progress_at = float("-inf")
        self._reported: dict[str, PeerProgress] = {}
        self._waits: set[_Wait] = set()
        self._asking: set[str] = set()
        self._news = asyncio.Event()

    def check(self, concern: WriteConcern, key: tuple[str, str]) -> None:
        """Raise RequestError if too few clusters are in sync to append a write of this concern.

        ``key``: of the request. If its operation is known already, nothing is raised.
        """
        requirement = self._requirement(concern)
        in_sync = self._in_sync()
        if requirement.permits(in_sync) or self._core.outcomes.find(key) is not None:
            return
        self._on_waited(concern, False, 0.0)
        raise RequestError(
            FailureKind.AVAILABILITY,
            f"write concern {concern} needs {_clusters(requirement.needed)} in sync; in sync now: "
            f"{_names(in_sync) or 'none'}",
            error_class=ErrorClass.TOO_FEW_IN_SYNC,
            outcome=WriteOutcome.NOT_SENT,
            hint="ask again once more clusters are in sync (/clusterStatus), or ask for less",
        )

    async def fulfil(
        self, offset: int, concern: WriteConcern, deadline_s: float
    ) -> Mapping[str, str]:
        """Wait until a write that this cluster has applied meets its concern.

        Return "applied" for each cluster that has applied it; nothing for concern ``one``, which
        needs no wait. ``deadline_s`` is a time of the loop's clock. Raises RequestError when it has
        passed, when too few clusters have been in sync for a while, and when this cluster leaves
        service.
        """
        if concern is WriteConcern.ONE:
            return {}
        began = self._clock()
        met = False
        wait = _Wait(offset)
        self._waits.add(wait)
        try:
            applied = await self._fulfil(wait, self._requirement(concern), deadline_s)
            met = True
        finally:
            self._waits.discard(wait)
            self._on_waited(concern, met, self._clock() - began)
        return dict.fromkeys(applied, "applied")

    async def _fulfil(
        self, wait: _Wait, requirement: Requirement, deadline_s: float
    ) -> frozenset[str]:
        patient_until = float("inf")
        while True:
            applied = self._applied(wait.offset)
            judged = requirement.judge(self._in_sync(), applied)
            if judged.fulfilled and await self._believable(requirement, applied, deadline_s):
                return applied
            wait.waiting_for = judged.waiting_for
            now = self._clock()
            hopeful = now + self._patience_s
            patient_until = float("inf") if judged.possible else min(patient_until, hopeful)
            if now >= min(deadline_s, patient_until) or self._core.condition.out_of_service:
                raise self._not_met(wait, requirement, judged)
            for peer in sorted(judged.waiting_for - self._asking):
                self._asking.add(peer)
                self._core.tasks.spawn(self._ask(peer))
            await self._next(min(now + self._interval_s, deadline_s))

    async def _believable(
        self, requirement: Requirement, applied: frozenset[str], deadline_s: float
    ) -> bool:
        """True if the concern may count as met although some clusters have not applied the write.

        They are left out because they are not in sync. But a HAProc that is cut off also finds no
        other cluster in sync. It does not reach the log either. So the log must answer now.
        """
        if requirement.concern is not WriteConcern.ALL or len(applied) == requirement.clusters:
            return True
        with suppress(LogUnavailableError, TimeoutError):
            async with asyncio.timeout_at(deadline_s):
                await self._core.own_log.once(self._core.log.end)
                return True
        return False

    async def _next(self, until_s: float) -> None:
        """Wait until a peer has reported its progress, at most until ``until_s``.

        The limit is needed: nothing reports that a cluster enters or leaves the in-sync set.
        """
        self._news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await self._news.wait()

    async def _ask(self, peer: str) -> None:
        """Ask a peer for its progress for as long as a write waits for it."""
        core = self._core
        try:
            while any(peer in wait.waiting_for for wait in self._waits):
                known = self._reported.get(peer)
                seen = known.seen if known is not None else ""
                try:
                    answer = await core.peers.progress(peer, seen, core.timeouts.peer_s)
                    self._reported[peer] = answer
                except PeerUnavailableError:
                    await asyncio.sleep(self._interval_s)
                    continue
                self._news.set()
                await asyncio.sleep(0)  # first the writes check if they still wait
        finally:
            self._asking.discard(peer)

    def _requirement(self, concern: WriteConcern) -> Requirement:
        return Requirement(concern, len(self._core.members.order), self._min_insync)

    def _look(self) -> Mapping[str, ClusterProgress]:
        now = self._clock()
        if now - self._all_progress_at > _ALL_PROGRESS_S:
            self._all_progress, self._all_progress_at = self._read_all_progress(), now
        return self._all_progress

    def _in_sync(self) -> frozenset[str]:
        return frozenset(name for name, each in self._look().items() if each.in_sync)

    def _applied(self, offset: int) -> frozenset[str]:
        """Return the clusters (with this one) that are known to have applied an operation."""
        applied = {self._core.me}
        for name, each in self._look().items():
            reported = self._reported.get(name)
            below = each.cursor is not None and offset < each.cursor
            sound = each.sound and (reported is None or reported.sound)
            if sound and (below or (reported is not None and reported.applied(offset))):
                applied.add(name)
        return frozenset(applied)

    def _not_met(
        self, wait: _Wait, requirement: Requirement, judged: ConcernJudgement
    ) -> RequestError:
        core, applied = self._core, self._applied(wait.offset)
        if core.condition.out_of_service:
            why = f"this cluster is {core.condition.state.value} meanwhile"
        elif judged.fulfilled:
            why = "the log does not answer: the others may run, but their reports do not arrive"
        elif judged.possible:
            why = f"{_names(wait.waiting_for)} did not apply it in time"
        else:
            in_sync = _names(self._in_sync()) or "none"
            why = f"it needs {_clusters(requirement.needed)} in sync; in sync now: {in_sync}"
        return RequestError(
            FailureKind.AVAILABILITY,
            f"the write stands at offset {wait.offset} and {_names(applied)} applied it, but write "
            f"concern {requirement.concern} is not met: {why}",
            error_class=ErrorClass.WRITE_CONCERN,
            outcome=WriteOutcome.UNKNOWN,
            hint="all clusters will apply it; ask again with the same request_id to wait on",
            offset=wait.offset,
        )


def _names(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


def _clusters(count: int) -> str:
    return f"{count} cluster" + ("s" if count != 1 else "")


# Keeps DDL out of the log while it has to wait for a table that is being computed.
#
# In the log, this DDL would wait for the table (CREATE TABLE AS, maybe for hours) on every cluster,
# and all operations after it would wait, too. So the DDL waits before it is appended. DDL that
# touches more than it names waits for every such table; other DDL waits only for tables that it
# touches. A DDL that is appended at the same moment as the computation waits in the log after all.
# Clusters that do not serve are not waited for.


async def nothing_computes(core: Core, timeout_s: float, ddl: Operation | None = None) -> None:
    """Wait until no serving cluster computes a table (CREATE TABLE AS).

    ``ddl``: wait only for computations that conflict with this DDL. The wait also ends when this
    cluster takes no writes any more. Raises RequestError after ``timeout_s``.
    """
    offset: int | None = None
    try:
        async with asyncio.timeout(timeout_s):
            while (offset := _first(core, ddl)) is not None and core.condition.takes_writes:
                await _over_everywhere(core, offset)
                if core.condition.takes_writes:
                    core.schedule.computations.pop(offset, None)
    except TimeoutError as error:
        raise busy(
            f"the operation at offset {offset} computes a table, and this has to wait for it, but "
            "would hold up all others meanwhile. Nothing was changed. That one can be taken back: "
            f"haproc queue revoke {offset}"
        ) from error


def _first(core: Core, ddl: Operation | None) -> int | None:
    for offset, (reads, writes) in core.schedule.computations.items():
        if ddl is None or not ddl.named:
            return offset
        if ddl.writes & (reads | writes) or ddl.reads & writes:
            return offset
    return None


async def _over_everywhere(core: Core, offset: int) -> None:
    schedule, condition = core.schedule, core.condition
    await core.news.until(lambda: not (schedule.expects(offset) and condition.takes_writes))
    others = (name for name in core.members.order if name != core.me)
    await asyncio.gather(*(_over_at(core, name, offset) for name in others))


async def _over_at(core: Core, peer: str, offset: int) -> None:
    seen = ""
    with suppress(PeerUnavailableError):
        while True:
            answer = await core.peers.progress(peer, seen, core.timeouts.peer_s)
            if answer.state not in SERVING or answer.applied(offset):
                return
            seen = answer.seen
