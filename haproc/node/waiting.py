"""A HAProc while it can't open its log: it is starting, says why, and tries again.

It has no cursor and knows no end of the log yet, so it serves neither clients nor peers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from dmq import Json, LogUnavailableError
from haproc.config.model import Config
from haproc.doors.apps import waiting_app
from haproc.doors.status import Readiness
from haproc.failure import log_away
from haproc.membership.state import State
from haproc.metrics import Metrics
from haproc.node.doors import operator_door
from haproc.node.maintenance import drained_file
from haproc.node.presence import Presence

T = TypeVar("T")
logger = logging.getLogger(__name__)


class WaitingForLog:
    """A source for the status doors; ``reason`` is why the log could not be opened last time."""

    def __init__(self, config: Config, name: str, presence: Presence, reason: str) -> None:
        self._config = config
        self._name = name
        self._presence = presence
        self._drained = drained_file(config, name).exists()
        self.reason = reason

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
            "incarnation": self._presence.members.incarnation,
            "since": self._presence.members.since,
            "log_end": 0,
            "cursor": 0,
            "lag": 0,
            "recovery": {
                "applied": 0,
                "remaining": 0,
                "rate_per_s": 0.0,
                "seconds_left": 0.0,
                "replay_s": 0.0,
                "copy_s": None,
                "copy_is_faster": False,
            },
            **self._presence.status(),
        }


async def wait_for_log(
    config: Config,
    name: str,
    presence: Presence,
    metrics: Metrics,
    open_log: Callable[[], Awaitable[T]],
    stop: asyncio.Event,
) -> T | None:
    """Open the log, however long its keeper is away; None if asked to stop meanwhile."""
    try:
        return await open_log()
    except LogUnavailableError as error:
        waiting = WaitingForLog(config, name, presence, log_away(error))
    logger.warning("%s waits for its log: %s", name, waiting.reason)
    metrics.state(State.STARTING.value)
    app = waiting_app(config, name, waiting, metrics, presence.door)
    door = operator_door(config, name, app, presence)
    await door.open()
    try:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), config.timeouts.retry_max_s)
                return None
            try:
                return await open_log()
            except LogUnavailableError as error:
                waiting.reason = log_away(error)
    finally:
        await door.aclose()
