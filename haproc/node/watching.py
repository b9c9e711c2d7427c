"""What the status page shows: of what this HAProc has in memory, and why peers do not serve."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from dmq import Json
from haproc import __version__
from haproc.config.model import Config
from haproc.doors.status import StatusSource
from haproc.jobs.runner import Runner
from haproc.membership.peers import PeerStatus, PeerUnavailableError
from haproc.membership.state import State
from haproc.node.presence import Presence
from haproc.replicate.queue.outcomes import Known
from haproc.replicate.replica import Replica

OPERATIONS_MAX: Final = 25
QUEUE_MAX: Final = 10
"""What fails or blocks stands at the queue's head."""
ASK_S: Final = 0.3
"""How long a snapshot waits for why a peer does not serve; chosen, not measured."""
_OF_STATUS: Final = (
    *("ring", "cluster", "state", "reason", "drained", "undecided", "log_end", "cursor", "lag"),
    *("since", "recovery", "copy", "copy_failed", "in_sync", "high_watermark", "sessions"),
)


class Asked(Protocol):
    """The other HAProcs."""

    async def status(self, peer: str, timeout_s: float) -> PeerStatus: ...


class Watching:
    """See the module. Without a replica, this HAProc waits for its log."""

    def __init__(
        self,
        config: Config,
        presence: Presence,
        status: StatusSource,
        replica: Replica | None = None,
        peers: Asked | None = None,
        jobs: Runner | None = None,
    ) -> None:
        self._doors = {each.name: config.url(each.peer) for each in config.clusters}
        self._presence = presence
        self._status = status
        self._replica = replica
        self._peers = peers
        self._jobs = jobs

    def history(self) -> Mapping[str, Json]:
        """Return the last minutes."""
        return {"samples": [*self._presence.history.samples]}

    async def snapshot(self) -> tuple[Mapping[str, Json], Mapping[str, Json]]:
        """Return what everybody may see, and what operators see beside or instead."""
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
        """Return a cluster's view with what it says of itself, if it lives and does not serve."""
        name, found = str(view["name"]), dict[str, Json]()
        others = (
            view["state"] not in ("", State.READY.value) and name in self._presence.members.peers()
        )
        if others and self._peers is not None:
            try:
                told = await self._peers.status(name, ASK_S)
                found = {"reason": told.reason, "copy": msgspec.to_builtins(told.copy)}
            except PeerUnavailableError:
                pass  # the heartbeats will tell
        return {**view, **found}


def _listed(status: Mapping[str, Json]) -> list[dict[str, Json]]:
    listed = status["clusters"]
    assert isinstance(listed, list)
    return [each for each in listed if isinstance(each, dict)]


def _line(known: Known) -> dict[str, Json]:
    """Return what everybody may see of an operation."""
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
