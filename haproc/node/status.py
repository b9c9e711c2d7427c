"""What a member tells of itself: on its status doors, and as metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NoReturn

from dmq import Json
from haproc.config.model import Config
from haproc.doors.status import Readiness
from haproc.membership.state import SERVING
from haproc.metrics import Metrics
from haproc.node.drift_watch import DriftWatch
from haproc.node.member import LocalMember
from haproc.node.presence import MEASURE_S, Presence
from haproc.route.service import RingService


class Status:
    """See the module; a source for the status doors."""

    def __init__(
        self,
        config: Config,
        member: LocalMember,
        service: RingService,
        presence: Presence,
        drift: DriftWatch,
    ) -> None:
        self._config = config
        self._member = member
        self._service = service
        self._presence = presence
        self._drift = drift

    def readiness(self) -> Readiness:
        """Return whether the cluster serves."""
        core = self._member.core
        serving, drained = core.condition.state in SERVING, core.condition.now.drained
        return Readiness(serving, core.condition.state.value, core.condition.reason, drained)

    def cluster_status(self) -> Mapping[str, Json]:
        """Return the body of ``GET /clusterStatus``."""
        member = self._member
        recovery = member.replica.recovery
        return {
            "ring": self._config.ring,
            **member.replica.status(),
            "since": member.members.since,
            "recovery": {
                "applied": recovery.applied,
                "remaining": recovery.remaining,
                "rate_per_s": round(recovery.rate_per_s, 1),
                "seconds_left": round(recovery.seconds_left, 1),
            },
            **self._presence.status(),
            "members": dict(member.replica.admission.describe()),
            "trim": dict(member.trimmer.describe()),
            "settings": dict(self._drift.describe()),
        }

    async def measure(self, metrics: Metrics) -> NoReturn:
        """Keep the metrics up to date."""
        core, replica, trimmer = self._member.core, self._member.replica, self._member.trimmer
        while True:
            metrics.position(core.schedule.low, replica.core.watermarks.log_end)
            recovery = replica.recovery
            metrics.recovery(recovery.applied, recovery.remaining, recovery.rate_per_s)
            metrics.sessions(len(self._service.sessions))
            metrics.undecided(core.condition.now.undecided_at is not None)
            metrics.settings(*self._drift.findings.counts)
            if (plan := trimmer.plan) is not None:
                metrics.trim(plan.start, plan.held_by, plan.held_records)
            await asyncio.sleep(MEASURE_S)
