"""Collects the status of the member and of the ring, for doors, metrics and the status page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NoReturn, Protocol

import msgspec

from dmq import Json
from haproc import __version__
from haproc.config.model import Config
from haproc.doors.connect.server import Figures
from haproc.doors.status import Readiness, StatusSource
from haproc.engine.errors import EngineError
from haproc.jobs.runner import Runner
from haproc.membership import drift
from haproc.membership.peers import PeerStatus, PeerUnavailableError
from haproc.membership.state import SERVING, State
from haproc.metrics import Metrics
from haproc.node.member import LocalMember
from haproc.node.presence import MEASURE_S, Presence
from haproc.replicate.catching_up import Recovery
from haproc.replicate.queue.backlog import CatchUpEstimate
from haproc.replicate.queue.outcomes import Known
from haproc.replicate.replica import Replica
from haproc.route.service import RingService
from haproc.sessions.upkeep import Upkeep

logger = logging.getLogger(__name__)

LOOK_S: Final = 30.0
"""Seconds between two comparisons. Chosen: a server restarts for other settings, which takes about
as long."""
_ANSWER_S: Final = 5.0
SHOWN_MAX: Final = 100
"""The most settings that ``/clusterStatus`` and a line of the program's log name; their number
counts all."""


class Server(Protocol):
    """The Spark server of this cluster: the method that reads its settings."""

    async def server_settings(self, names: Collection[str]) -> Mapping[str, str | None]: ...


class SettingsSource(Protocol):
    """The other HAProcs, which are asked for their servers' settings."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def is_gone(self, peer: str) -> bool: ...

    async def settings(self, peer: str, timeout_s: float) -> Mapping[str, Json]: ...


class DriftWatch:
    """Compares the settings of the ring's Spark servers every LOOK_S seconds, and logs differences.

    HAProcs request the settings from each other. (They are not in their reports, which are sent
    twice a second and must stay small.) ``up`` is set while this cluster's Spark answers.
    ``defaults``: the settings of new sessions, by Spark's names.
    """

    def __init__(
        self,
        cluster: str,
        secret: str,
        server: Server,
        peers: SettingsSource,
        up: asyncio.Event,
        defaults: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._cluster = cluster
        self._secret = secret
        self._server = server
        self._peers = peers
        self._up = up
        self._defaults = defaults
        self._reported: dict[str, drift.Values] = {}
        self._mine: drift.Values = {}
        self.findings = drift.Findings()

    async def run_forever(self) -> None:
        """Call `look` every LOOK_S seconds while this cluster's Spark answers, until cancelled."""
        while True:
            await self._up.wait()
            try:
                await self.look()
            except EngineError as error:
                logger.info("%s: its settings were not read: %s", self._cluster, error.message)
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Read the settings of this cluster's Spark and the peers', compare them, log news.

        Raises EngineError.
        """
        names = self._peers.names
        asked = [name for name in names if not self._peers.is_gone(name)]
        answers = await asyncio.gather(*(self._ask(name) for name in asked))
        known = {
            name: reported or self._reported.get(name)
            for name, reported in zip(asked, answers, strict=True)
        }
        self._reported = {name: reported for name, reported in known.items() if reported}
        wanted = {*drift.to_look_up(self._reported.values()), *self._defaults}
        values = await self._server.server_settings(sorted(wanted))
        own = {drift.DEFAULTS: drift.text_of(self._defaults)} if self._defaults else {}
        self._mine = drift.as_reported({**values, **own}, self._secret)
        found = drift.compare(self._mine, {name: self._reported.get(name) for name in names})
        self._note(replace(found, overridden=drift.overridden(values, self._defaults)))

    async def _ask(self, peer: str) -> drift.Values | None:
        try:
            return drift.read(await self._peers.settings(peer, _ANSWER_S))
        except PeerUnavailableError:
            return None

    def _note(self, found: drift.Findings) -> None:
        before, self.findings = self.findings, found
        self._log("settings that change results differ", before.differences, found.differences)
        self._log("settings must have other values", before.unfit, found.unfit)
        self._log(
            "settings of its Spark count for nothing in sessions, which have session_defaults",
            before.overridden,
            found.overridden,
        )

    def _log(self, what: str, before: Collection[object], now: Collection[object]) -> None:
        if now and now != before:
            some = "; ".join(str(each) for each in list(now)[:SHOWN_MAX])
            logger.warning("%s: %s (%d): %s", self._cluster, what, len(now), some)
        elif before and not now:
            logger.info("%s: no more: %s", self._cluster, what)

    # -- for the doors -------------------------------------------------------------------------

    def settings(self) -> Mapping[str, Json]:
        """Return the body of ``GET /ha/v1/settings``; without settings before the first look."""
        return {"cluster": self._cluster, "settings": dict(self._mine)}

    def describe(self) -> Mapping[str, Json]:
        """Return the findings for ``GET /clusterStatus``: names of settings without values.

        Everybody may read that page.
        """
        found = self.findings
        return {
            "differing": [
                {"name": each.name, "clusters": [cluster for cluster, _ in each.there]}
                for each in found.differences[:SHOWN_MAX]
            ],
            "differing_count": len(found.differences),
            "unfit": _names(each.requirement.name for each in found.unfit),
            "unknown": _names(found.unknown),
            "session_defaults": dict(self._defaults),
            "overridden": _names(each.name for each in found.overridden),
        }


def _names(names: Iterable[str]) -> list[Json]:
    return [*names]


def recovery_json(recovery: Recovery, estimate: CatchUpEstimate) -> Json:
    """Return the progress of a replay, and the expected times of its end and of a copy, as JSON."""
    return {
        "applied": recovery.applied,
        "remaining": recovery.remaining,
        "rate_per_s": round(recovery.rate_per_s, 1),
        "seconds_left": round(recovery.seconds_left, 1),
        "replay_s": None if estimate.replay_s is None else round(estimate.replay_s, 1),
        "copy_s": None if estimate.copy_s is None else round(estimate.copy_s, 1),
        "copy_is_faster": estimate.copy_is_faster,
    }


class NodeStatus:
    """Collects the status of this member for its doors and as metrics."""

    def __init__(
        self,
        config: Config,
        member: LocalMember,
        service: RingService,
        presence: Presence,
        drift: DriftWatch,
        upkeep: Upkeep,
    ) -> None:
        self._config = config
        self._member = member
        self._service = service
        self._presence = presence
        self._drift = drift
        self._upkeep = upkeep
        self._adopted_reported = 0
        self._resumed_reported = 0
        self._is_open: Callable[[], bool] = lambda: False
        self._connect: Callable[[], Figures] | None = None
        self._jobs: Runner | None = None

    def behind(self, is_open: Callable[[], bool]) -> None:
        """Report the cluster as serving only while its client door is open (``is_open``)."""
        self._is_open = is_open

    def reports_connect(self, connect: Callable[[], Figures]) -> None:
        """Report also the figures of the Spark Connect door, which ``connect`` returns."""
        self._connect = connect

    def counts(self, jobs: Runner) -> None:
        """Report also the numbers of jobs."""
        self._jobs = jobs

    def readiness(self) -> Readiness:
        """Return the state, its reason, and whether the cluster serves clients now."""
        core = self._member.core
        serving = core.condition.state in SERVING and self._is_open()
        drained = core.condition.now.drained
        return Readiness(serving, core.condition.state.value, core.condition.reason, drained)

    def cluster_status(self) -> Mapping[str, Json]:
        """Return the body of ``GET /clusterStatus``."""
        member = self._member
        recovery, estimate = member.replica.recovery, member.replica.catch_up_estimate
        return {
            "ring": self._config.ring,
            **msgspec.to_builtins(member.replica.status()),
            "since": member.members.since,
            "recovery": recovery_json(recovery, estimate),
            **self._presence.status(),
            "members": dict(member.replica.admission.describe()),
            "trim": dict(member.trimmer.describe()),
            "settings": dict(self._drift.describe()),
            "sessions": {
                "here": len(self._service.sessions),
                "ring": self._upkeep.total,
                "adopted": self._service.sessions.adopted,
            },
            **({"connect": self._connect().fields()} if self._connect is not None else {}),
        }

    async def measure(self, metrics: Metrics) -> NoReturn:
        """Set the metrics every MEASURE_S seconds, until cancelled."""
        core, replica, trimmer = self._member.core, self._member.replica, self._member.trimmer
        while True:
            marks = core.watermarks
            metrics.position(core.schedule.low, marks.log_end, marks.lag)
            recovery = replica.recovery
            metrics.recovery(recovery.applied, recovery.remaining)
            copied = replica.taking.progress
            metrics.copied(*((copied.bytes_done, copied.bytes) if copied else (0, 0)))
            metrics.catch_up_estimate(copy_is_faster=replica.catch_up_estimate.copy_is_faster)
            sessions = self._service.sessions
            adopted, self._adopted_reported = (
                sessions.adopted - self._adopted_reported,
                sessions.adopted,
            )
            metrics.sessions(len(sessions), self._upkeep.total, adopted)
            if self._connect is not None:
                self._measure_connect(metrics, self._connect())
            if self._jobs is not None:
                metrics.jobs(self._jobs.running, self._jobs.of_ring, self._jobs.take_ended())
            if (judged := replica.verifier.judged) is not None:
                metrics.verification(judged.finding, judged.tables, judged.at_ms)
            metrics.foreign(replica.foreign.take_counts())
            metrics.undecided(core.condition.now.undecided is not None)
            metrics.settings(*self._drift.findings.counts)
            if (plan := trimmer.plan) is not None:
                metrics.trim(plan.start, plan.held_by, plan.held_records)
            await asyncio.sleep(MEASURE_S)

    def _measure_connect(self, metrics: Metrics, found: Figures) -> None:
        resumed, self._resumed_reported = found.resumed - self._resumed_reported, found.resumed
        metrics.connect(found.statements, found.operations, resumed)


# The content of the status page: facts of this HAProc, and the reasons why peers do not serve.


OPERATIONS_MAX: Final = 25
QUEUE_MAX: Final = 10
"""The most operations of the queue on the page; one that fails or blocks is among the first."""
ASK_S: Final = 0.3
"""Seconds for which a snapshot waits for a peer's answer why it does not serve; chosen, not
measured."""
_OF_STATUS: Final = (
    *("ring", "cluster", "state", "reason", "drained", "undecided", "log_end", "cursor", "lag"),
    *("since", "recovery", "copy", "copy_failed", "in_sync", "high_watermark", "sessions"),
)


class Watching:
    """Collects the data of the status page.

    Without ``replica`` this HAProc still waits for its log. ``status_of`` asks a peer for its
    status within some seconds; raises PeerUnavailableError.
    """

    def __init__(
        self,
        config: Config,
        presence: Presence,
        status: StatusSource,
        replica: Replica | None = None,
        status_of: Callable[[str, float], Awaitable[PeerStatus]] | None = None,
        jobs: Runner | None = None,
    ) -> None:
        self._doors = {each.name: config.url(each.peer) for each in config.clusters}
        self._presence = presence
        self._status = status
        self._replica = replica
        self._status_of = status_of
        self._jobs = jobs

    def history(self) -> Mapping[str, Json]:
        """Return the samples of the last minutes: lags and rates."""
        return {"samples": [*self._presence.history.samples]}

    async def snapshot(self) -> tuple[Mapping[str, Json], Mapping[str, Json]]:
        """Return two objects: what everybody may see, and what operators see instead or too."""
        status, history = self._status.cluster_status(), self._presence.history
        clusters = await asyncio.gather(*(self._cluster(view) for view in _listed(status)))
        public: dict[str, Json] = {
            **{name: status.get(name) for name in _OF_STATUS},
            "version": __version__,
            "clusters": [*clusters],
            "sample": history.samples[-1] if history.samples else None,
            "changes": [*history.changes],
        }
        if self._jobs is not None:
            public["jobs"] = {"here": self._jobs.running, **self._jobs.of_ring}
        if self._replica is None:
            return public, {}
        newest = self._replica.core.outcomes.newest(OPERATIONS_MAX)
        lines = [_line(known) for known in newest]
        more = [{**line, **_more(known)} for line, known in zip(lines, newest, strict=True)]
        queue = self._replica.operators.queue(0, QUEUE_MAX)["operations"]
        return {**public, "operations": [*lines]}, {
            "operations": [*more],
            "queue": queue,
            "doors": dict(self._doors),
        }

    async def _cluster(self, view: dict[str, Json]) -> Json:
        """Return ``view``, with reason and copy of a cluster that is alive and not READY.

        Its HAProc is asked for them.
        """
        name, found = str(view["name"]), dict[str, Json]()
        others = (
            view["state"] not in ("", State.READY.value) and name in self._presence.members.peers()
        )
        if others and self._status_of is not None:
            try:
                answer = await self._status_of(name, ASK_S)
                found = {"reason": answer.reason, "copy": msgspec.to_builtins(answer.copy)}
            except PeerUnavailableError:
                pass  # the heartbeats will show it
        return {**view, **found}


def _listed(status: Mapping[str, Json]) -> list[dict[str, Json]]:
    listed = status["clusters"]
    assert isinstance(listed, list)
    return [each for each in listed if isinstance(each, dict)]


def _line(known: Known) -> dict[str, Json]:
    """Return what everybody may see of an operation, as JSON."""
    facts, outcome, ended = known.facts, known.outcome, known.resolved_ms
    return {
        "offset": known.offset,
        "at": facts.created_ms,
        "class": facts.operation_class.value,
        "kind": facts.kind.value,
        "form": facts.form.value,
        "origin": facts.origin,
        "outcome": outcome.status.value if outcome is not None else None,
        "ms": None if ended is None else max(0, ended - facts.created_ms),
    }


def _more(known: Known) -> dict[str, Json]:
    facts, failure = known.facts, known.outcome.failure if known.outcome is not None else None
    return {
        "user": facts.user,
        "tables": [*sorted(facts.writes)],
        "error": failure.error_class if failure is not None else "",
    }
