"""What a member tells of itself: on its status doors, and as metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NoReturn

from dmq import Json
from haproc.config.model import Config
from haproc.doors.connect.figures import Figures
from haproc.doors.status import Readiness
from haproc.jobs.runner import Runner
from haproc.membership.state import SERVING
from haproc.metrics import Metrics
from haproc.node.drift_watch import DriftWatch
from haproc.node.member import LocalMember
from haproc.node.presence import MEASURE_S, Presence
from haproc.route.service import RingService
from haproc.sessions.upkeep import Upkeep


class NodeStatus:
    """See the module; a source for the status doors."""

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
        self._adopted_told = 0
        self._resumed_told = 0
        self._is_open: Callable[[], bool] = lambda: False
        self._connect: Callable[[], Figures] | None = None
        self._jobs: Runner | None = None

    def behind(self, is_open: Callable[[], bool]) -> None:
        """Call the cluster ready only while clients can come in: the door follows the state."""
        self._is_open = is_open

    def tells_of(self, connect: Callable[[], Figures]) -> None:
        """Tell of a Spark Connect door, too."""
        self._connect = connect

    def counts(self, jobs: Runner) -> None:
        """Count jobs, too."""
        self._jobs = jobs

    def readiness(self) -> Readiness:
        """Return whether the cluster serves."""
        core = self._member.core
        serving = core.condition.state in SERVING and self._is_open()
        drained = core.condition.now.drained
        return Readiness(serving, core.condition.state.value, core.condition.reason, drained)

    def cluster_status(self) -> Mapping[str, Json]:
        """Return the body of ``GET /clusterStatus``."""
        member = self._member
        recovery, ahead = member.replica.recovery, member.replica.catch_up_estimate
        return {
            "ring": self._config.ring,
            **member.replica.status(),
            "since": member.members.since,
            "recovery": {
                "applied": recovery.applied,
                "remaining": recovery.remaining,
                "rate_per_s": round(recovery.rate_per_s, 1),
                "seconds_left": round(recovery.seconds_left, 1),
                "replay_s": None if ahead.replay_s is None else round(ahead.replay_s, 1),
                "copy_s": None if ahead.copy_s is None else round(ahead.copy_s, 1),
                "copy_is_faster": ahead.copy_is_faster,
            },
            **self._presence.status(),
            "members": dict(member.replica.admission.describe()),
            "trim": dict(member.trimmer.describe()),
            "settings": dict(self._drift.describe()),
            "sessions": {
                "here": len(self._service.sessions),
                "ring": self._upkeep.total,
                "adopted": self._service.sessions.adopted,
            },
            **({"connect": self._connect().told()} if self._connect is not None else {}),
        }

    async def measure(self, metrics: Metrics) -> NoReturn:
        """Keep the metrics up to date."""
        core, replica, trimmer = self._member.core, self._member.replica, self._member.trimmer
        while True:
            marks = core.watermarks
            metrics.position(core.schedule.low, marks.log_end, marks.lag)
            recovery = replica.recovery
            metrics.recovery(recovery.applied, recovery.remaining, recovery.rate_per_s)
            metrics.catch_up_estimate(copy_is_faster=replica.catch_up_estimate.copy_is_faster)
            sessions = self._service.sessions
            adopted, self._adopted_told = sessions.adopted - self._adopted_told, sessions.adopted
            metrics.sessions(len(sessions), self._upkeep.total, adopted)
            if self._connect is not None:
                self._measure_connect(metrics, self._connect())
            if self._jobs is not None:
                metrics.jobs(self._jobs.running, self._jobs.of_ring, self._jobs.take_ended())
            if (judged := replica.verifier.judged) is not None:
                metrics.verification(judged.finding, judged.tables, judged.at_ms)
            metrics.undecided(core.condition.now.undecided is not None)
            metrics.settings(*self._drift.findings.counts)
            if (plan := trimmer.plan) is not None:
                metrics.trim(plan.start, plan.held_by, plan.held_records)
            await asyncio.sleep(MEASURE_S)

    def _measure_connect(self, metrics: Metrics, found: Figures) -> None:
        resumed, self._resumed_told = found.resumed - self._resumed_told, found.resumed
        metrics.connect(found.statements, found.operations, resumed)
