"""What a HAProc says about itself while it can't open its log: that it is starting, and why.

It has no cursor and knows no end of the log yet, so it serves neither clients nor peers.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from dmq import Json
from haproc.config.model import Config
from haproc.doors.status import Readiness
from haproc.membership.members import Own
from haproc.membership.state import State
from haproc.node.maintenance import drained_file
from haproc.node.presence import Presence, time_text


class WaitingForLog:
    """A source for the status doors; ``reason`` is why the log could not be opened last time."""

    def __init__(self, config: Config, name: str, presence: Presence, reason: str) -> None:
        self._config = config
        self._name = name
        self._presence = presence
        self._since = time_text(datetime.now(UTC))
        self._drained = drained_file(config, name).exists()
        self.reason = reason
        presence.describe = lambda: Own(State.STARTING, self._since)

    def readiness(self) -> Readiness:
        """Return that the cluster does not serve."""
        return Readiness(False, State.STARTING.value, self.reason, self._drained)

    def cluster_status(self) -> Mapping[str, Json]:
        """Return the body of ``GET /clusterStatus``."""
        return {
            "ring": self._config.ring,
            "cluster": self._name,
            "state": State.STARTING.value,
            "reason": self.reason,
            "drained": self._drained,
            "incarnation": self._presence.incarnation,
            "since": self._since,
            "log_end": 0,
            "cursor": 0,
            "lag": 0,
            "recovery": {"applied": 0, "remaining": 0, "rate_per_s": 0.0, "seconds_left": 0.0},
            **self._presence.in_sync(),
            "transport": self._presence.transport(),
            "clusters": self._presence.clusters(),
        }
