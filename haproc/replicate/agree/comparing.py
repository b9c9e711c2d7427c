"""Compares this cluster's tables (`Verifier`) and outcomes (`Comparison`) with other clusters'."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dmq import Json
from haproc.engine.commits import Newest
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import TableState
from haproc.membership.peers import PeerUnavailableError
from haproc.membership.state import Cause, Divergence, Undecided
from haproc.replicate.agree.findings import Finding, Findings, compare, is_wrong, listed_names, tied
from haproc.replicate.agree.foreign_watch import ForeignWatch, plain, settled_by
from haproc.replicate.member.core import Core
from haproc.replicate.queue.facts import Facts
from haproc.replicate.queue.outcomes import Known, OperationOutcome, OutcomeStatus
from haproc.replicate.records.control import Checksums, Verify
from haproc.replicate.records.operation import FailureReport, Operation
from haproc.replicate.records.progress import shortened
from haproc.replicate.records.rows import ApplicationFailure
from haproc.spark_error import NO_DETAILS

logger = logging.getLogger(__name__)

MARKERS_KEPT_MAX: Final = 16
ATTEMPTS_MAX: Final = 5
"""The most attempts to list the tables, or to read one; then the checksums show a failure."""
JUDGE_WAIT_S: Final = 3600.0
"""The longest wait for the checksums of clusters that still apply the log."""
REPLACED: Final = "the HAProc was started again before it had read its tables; verify again"


@dataclass(slots=True)
class _Marker:
    by: str
    trusted: str = ""
    records: dict[str, Checksums] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of the newest verification for this cluster.

    ``tables``: the number of its tables by finding. ``at_ms``: the Unix time at which this process
    reached the verification point; None if an earlier process reached it.
    """

    finding: Finding
    tables: Mapping[str, int]
    at_ms: int | None


@dataclass(frozen=True, slots=True)
class _ClusterState:
    """A cluster's state, its reason, and its foreign commits (those made past HAProc)."""

    applying: bool
    state: str
    reason: str
    foreign: Mapping[str, Any] = field(default_factory=dict)


class Verifier:
    """Compares the clusters' tables at one place in the log.

    The offset of a *verify* record is a verification point (``marker``). Every cluster reaches it
    with everything before it applied and nothing after it. It notes its tables' versions there,
    which is quick, and reads the tables while it goes on applying. Only DDL waits, because it
    could remove tables. Each cluster appends a *checksums* record, and judges itself by
    `haproc.replicate.agree.findings`: a cluster that is proven wrong goes out of service; one that
    differed before and is equal now returns. Without a proof all clusters go on serving and report
    the difference, until a verify record names a trusted cluster. The log has that record, so a
    late cluster judges by it, too.

    Only the newest point counts. If a process is killed between the point and its checksums, the
    next one appends an error in their place.
    """

    def __init__(self, core: Core, foreign: ForeignWatch) -> None:
        self._core = core
        self._foreign = foreign
        self.judged: Judged | None = None
        self._came_to: tuple[int, int] | None = None
        """The newest verification point that this process reached, and the Unix time in ms."""
        self._markers: OrderedDict[int, _Marker] = OrderedDict()
        self._judging: set[int] = set()
        self._concluded = -1

    # -- records of the log ----------------------------------------------------------------

    def handle_verify_record(self, offset: int, message: Verify | Checksums) -> None:
        """Note a verify or checksums record; one that was read before changes nothing."""
        if isinstance(message, Verify):
            self._markers.setdefault(offset, _Marker(message.by, message.trusted))
            if len(self._markers) > MARKERS_KEPT_MAX:
                del self._markers[min(self._markers)]
            return
        core, marker = self._core, self._markers.get(message.marker)
        if marker is None or core.log_state.claims.void(offset, message.cluster, message.epoch):
            return
        marker.records.setdefault(message.cluster, message)
        old = message.marker < core.notes.born or message.marker in self._judging
        if core.me in marker.records and not old:
            self._judging.add(message.marker)
            core.tasks.spawn(self._judge(message.marker))

    @property
    def newest(self) -> int | None:
        """The newest verification point read so far."""
        return max(self._markers, default=None)

    def pending(self, offset: int) -> bool:
        """True if the newest verification point is before ``offset``, and not judged here yet."""
        newest = self.newest
        return newest is not None and max(self._concluded, self._core.notes.born) < newest < offset

    async def resume(self) -> None:
        """Append an error instead of the checksums that an earlier process still had to append.

        It died between the newest verification point and its checksums. Otherwise do nothing.
        """
        core, offset = self._core, self.newest
        if offset is None or not core.notes.born <= offset < core.schedule.low:
            return
        if core.me not in self._markers[offset].records:
            await core.own_log.append(
                Checksums(offset, core.me, core.own_log.epoch, {}, error=REPLACED)
            )

    # -- checksums of this cluster ---------------------------------------------------------

    async def at(self, offset: int) -> None:
        """Note the versions of all tables at the verification point ``offset``; read them later.

        Do nothing if a newer verification point is known.
        """
        core = self._core
        if offset != self.newest or offset < core.notes.born:
            return
        self._came_to = offset, core.unix_ms()
        marked = core.condition.now.diverged is not None
        newest = await self._foreign.newest()  # first: so the compared versions contain these
        try:
            states = await self._survey()
        except EngineError as error:
            error_text = f"the tables cannot be listed: {error.message}"
            core.tasks.spawn(
                self._append_checksums(
                    Checksums(offset, core.me, core.own_log.epoch, {}, marked, error_text)
                )
            )
            return
        core.schedule.hold(held=True)
        core.tasks.spawn(self._sum(offset, states, marked, newest))

    async def _survey(self) -> Sequence[TableState]:
        core, pauses = self._core, self._core.backoff()
        for attempt in range(1, ATTEMPTS_MAX + 1):
            await core.condition.allowed()
            try:
                return await core.engine.table_states()
            except EngineError as error:
                logger.warning("verification: %s: %s", error.kind, error.message)
                if error.kind is ErrorKind.AVAILABILITY:
                    core.health.suspect(error.message)
                if attempt == ATTEMPTS_MAX:
                    raise
            await asyncio.sleep(pauses.pause_s())
        raise AssertionError("the last attempt returns or raises")

    async def _sum(
        self,
        offset: int,
        states: Sequence[TableState],
        marked: bool,
        newest: Mapping[str, Newest] | None,
    ) -> None:
        core, tables = self._core, dict[str, str]()
        try:
            if newest is not None:
                await self._foreign.look(newest, offset)
            for state in states:
                if offset != self.newest:
                    return  # only the newest counts, and it reads all tables again
                tables[plain(state.name)] = await self._checksum(state)
        finally:
            core.schedule.hold(held=False)
            core.news.changed()
        await self._append_checksums(Checksums(offset, core.me, core.own_log.epoch, tables, marked))

    async def _checksum(self, state: TableState) -> str:
        """Return a table's checksum; empty if it cannot be read."""
        core = self._core
        for _ in range(ATTEMPTS_MAX):
            await core.condition.allowed()
            try:
                return await core.engine.checksum(state, timeout_s=core.timeouts.apply_s)
            except EngineError as error:
                logger.warning("verification of %s: %s", state.name, error.message)
                if error.kind is not ErrorKind.AVAILABILITY:
                    break
                core.health.suspect(error.message)
            await asyncio.sleep(core.timeouts.retry_first_s)
        return ""

    async def _append_checksums(self, checksums: Checksums) -> None:
        await self._core.own_log.append(checksums)

    # -- judging ---------------------------------------------------------------------------

    async def _judge(self, offset: int) -> None:
        """Judge this cluster as soon as all clusters that apply the log have appended checksums."""
        core, clock = self._core, asyncio.get_running_loop().time
        end = clock() + JUDGE_WAIT_S
        try:
            await core.news.until(lambda: core.condition.now.started)
            while clock() < end:
                if not await self._awaited(offset):
                    break
                await asyncio.sleep(core.timeouts.probe_interval_s)
        finally:
            self._judging.discard(offset)
        mine = [at for at, marker in self._markers.items() if core.me in marker.records]
        if offset == max(mine, default=None):
            await self._conclude(offset)

    async def _awaited(self, offset: int) -> list[str]:
        """Return the clusters whose checksums are missing, but may still come."""
        marker = self._markers.get(offset)
        if marker is None:
            return []
        missing = [n for n in self._core.members.order if n not in marker.records]
        return [name for name in missing if (await self._status(name)).applying]

    async def _status(self, name: str) -> _ClusterState:
        core = self._core
        if name == core.me:
            now = core.condition
            return _ClusterState(now.applying, now.state.value, now.reason, self._foreign.json())
        try:
            status = await core.peers.status(name, core.timeouts.peer_s)
        except PeerUnavailableError as error:
            return _ClusterState(False, "-", f"no answer: {error}")
        return _ClusterState(status.applying, status.state.value, status.reason, status.foreign)

    def _findings(self, offset: int) -> Findings:
        marker = self._markers[offset]
        return compare(marker.records, self._core.members.order, marker.trusted)

    async def _conclude(self, offset: int) -> None:
        core, findings = self._core, self._findings(offset)
        mine, diverged = findings.clusters[core.me], core.condition.now.diverged
        logger.info("verification at offset %d: this cluster is %s", offset, mine)
        came_to, at_ms = self._came_to or (None, 0)
        self.judged = Judged(mine, findings.counted(core.me), at_ms if came_to == offset else None)
        if mine is Finding.DIFFERENT:
            names = listed_names(findings.different(core.me))
            core.diverge(Divergence(offset, Cause.TABLES, applies=True, tables=names))
        if findings.tied:
            what = "; ".join(
                _difference_text(table, findings.differing[table]) for table in findings.tied
            )
            logger.error(
                "offset %d: clusters differ, nothing shows which is wrong: %s", offset, what
            )
            brief = what if what == shortened(what) else listed_names(findings.tied)
            core.undecided(Undecided(offset, Cause.TABLES, brief))
        elif mine in (Finding.EQUAL, Finding.DIFFERENT):
            core.decided(offset)
        if mine is Finding.EQUAL:
            core.watermarks.verified(offset)
            core.notes.mark_verified(offset)
            self._foreign.verified(offset)
        await core.store()
        self._concluded = max(self._concluded, offset)
        if mine is Finding.EQUAL and diverged is not None and diverged.offset <= offset:
            core.condition.mended(core.notes.diverged)

    # -- requests of operators -------------------------------------------------------------

    async def describe(self, offset: int) -> Mapping[str, Json] | None:
        """Return the results so far of the newest verification, as JSON.

        None if ``offset`` is not a known verification point.
        """
        if offset not in self._markers or self.newest is None:
            return None
        offset = self.newest
        marker, findings = self._markers[offset], self._findings(offset)
        awaited = await self._awaited(offset)
        clusters: dict[str, Json] = {}
        for name, finding in findings.clusters.items():
            record = marker.records.get(name)
            reason, foreign = record.error if record is not None else "", list[Json]()
            if record is None or not awaited:
                status = await self._status(name)
                foreign = settled_by(status.foreign, offset)
                if record is None:
                    reason = f"{status.state} {status.reason}".strip()
            clusters[name] = {"finding": finding.value, "reason": reason, "foreign": foreign}
        return {
            "marker": offset,
            "by": marker.by,
            "trusted": marker.trusted,
            "complete": not awaited,
            "clusters": clusters,
            "tables": {
                table: {name: found.value for name, found in by.items()}
                for table, by in findings.tables.items()
            },
            "differing": {table: {**held} for table, held in findings.differing.items()},
        }


def _difference_text(table: str, held: Mapping[str, str]) -> str:
    return f"{table}: " + ", ".join(f"{name} has {what}" for name, what in held.items())


REPORTS_KEPT_MAX = 1000
"""The most kept error reports of other clusters, on operations that are unfinished here."""
ROUNDS_MAX = 60
"""The most rounds of asking peers for their outcomes; after them the known outcomes decide."""


def _word(error_class: object, sqlstate: object) -> str:
    return f"failed {error_class} {sqlstate}"


def _mine(outcome: OperationOutcome) -> str:
    if outcome.failure is not None and outcome.status is OutcomeStatus.FAILED:
        return _word(outcome.failure.error_class, outcome.failure.sqlstate)
    return outcome.status.value


class Comparison:
    """Compares this cluster's outcomes with the others'; takes it out of service if one is wrong.

    A difference is noticed in two ways: another cluster reports an application error on an
    operation that succeeded here, or an operation failed here. In both cases the peers are asked
    for their outcomes, and `haproc.replicate.agree.findings` decides which cluster is wrong. Each
    cluster judges only itself. Without a majority no cluster is wrong, and the difference is
    reported.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._reports: OrderedDict[int, ApplicationFailure] = OrderedDict()
        self._reported: dict[int, dict[str, str]] = {}
        """Peers' outcomes that the log showed again after a restart: by offset, then by peer."""

    def resume(self) -> None:
        """Judge the operations whose outcomes an earlier process had not compared to the end."""
        core = self._core
        for offset in core.notes.judging:
            if (known := core.outcomes.at(offset)) is not None:
                core.tasks.spawn(self._judge_again(known))
            else:
                core.notes.judged(offset)

    async def _judge_again(self, known: Known) -> None:
        """Judge an operation of an earlier process, once its outcome is known here again."""
        outcome = await self._core.outcomes.outcome(known)
        await self._judge(known.offset, known.facts, outcome)

    def reported(self, report: FailureReport) -> None:
        """Compare another cluster's report of an error with the outcome here; keep it for later.

        It is kept only if this cluster has no outcome of that operation yet.
        """
        if not self._core.condition.now.started and report.offset in self._core.notes.judging:
            word = _word(report.failure.error_class, report.failure.sqlstate)
            self._reported.setdefault(report.offset, {})[report.cluster] = word
        known = self._core.outcomes.at(report.offset)
        if known is None or known.outcome is None:
            self._reports[report.offset] = replace(report.failure, message="", details=NO_DETAILS)
            if len(self._reports) > REPORTS_KEPT_MAX:
                self._reports.popitem(last=False)
            return
        self._compare(report.offset, known.facts, known.outcome, report.failure)

    def ran(self, offset: int, operation: Operation, outcome: OperationOutcome) -> None:
        """Compare this cluster's new outcome with a report that was kept for it.

        If there is none, and the outcome is an error, ask the peers for theirs.
        """
        theirs = self._reports.pop(offset, None)
        if theirs is not None:
            self._compare(offset, Facts.of(operation), outcome, theirs)
        elif outcome.status is OutcomeStatus.FAILED:
            self._judge_soon(offset, Facts.of(operation), outcome)

    def _compare(
        self, offset: int, facts: Facts, outcome: OperationOutcome, theirs: ApplicationFailure
    ) -> None:
        same = outcome.failure is not None and outcome.failure.same_as(theirs)
        comparable = outcome.status not in (OutcomeStatus.REJECTED, OutcomeStatus.SKIPPED)
        if not same and comparable and not outcome.assumed:
            self._judge_soon(offset, facts, outcome)

    def _judge_soon(self, offset: int, facts: Facts, outcome: OperationOutcome) -> None:
        if offset not in self._core.notes.judging:
            self._core.notes.judge(offset)
            self._core.store.soon()
            self._core.tasks.spawn(self._judge(offset, facts, outcome))

    async def _judge(self, offset: int, facts: Facts, outcome: OperationOutcome) -> None:
        core = self._core
        words = {**self._reported.pop(offset, {}), core.me: _mine(outcome)}
        missing = set(core.members.peers) - words.keys()
        for _ in range(ROUNDS_MAX):
            for peer in sorted(missing):
                word = await self._outcome_of(peer, offset, facts)
                if word is not None:
                    missing.discard(peer)
                if word:
                    words[peer] = word
            if not missing:
                break
            await asyncio.sleep(core.timeouts.probe_interval_s)
        await self._conclude(offset, words, len(missing))

    async def _conclude(self, offset: int, words: dict[str, str], absent: int) -> None:
        core = self._core
        core.notes.judged(offset)
        if offset < core.watermarks.verified_below:
            pass  # the tables were found equal after it
        elif is_wrong(core.me, words, absent):
            logger.error("offset %d: outcomes differ: %s; this cluster is wrong", offset, words)
            core.diverge(Divergence(offset, Cause.OUTCOME))
        elif tied(words, absent):
            what = "; ".join(f"{name} {word}" for name, word in sorted(words.items()))
            logger.error("offset %d: outcomes differ: %s; run haproc verify", offset, what)
            core.undecided(Undecided(offset, Cause.OUTCOME, shortened(what)))
        await core.store()

    async def _outcome_of(self, peer: str, offset: int, facts: Facts) -> str | None:
        """Return a peer's outcome; None if it is not known yet, empty if the peer skipped it."""
        try:
            outcome = await self._core.peers.outcome(peer, offset, self._core.timeouts.peer_s)
        except PeerUnavailableError:
            return None
        if outcome.assumed and facts.unmarked:
            return None  # not proven: DDL that was in doubt may have failed ("already exists")
        match outcome.status:
            case OutcomeStatus.APPLIED.value:
                return OutcomeStatus.APPLIED.value
            case OutcomeStatus.FAILED.value:
                return _word(outcome.error_class, outcome.sqlstate)
            case OutcomeStatus.SKIPPED.value:
                return ""
            case _:
                return None
