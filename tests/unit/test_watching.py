"""Tests of the status page's data: changes sent at once, reasons, and the rights of viewers."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from haproc.config.model import Membership
from haproc.doors.roles import PAGE
from haproc.membership.peers import PeerStatus, PeerUnavailableError
from haproc.membership.state import State
from haproc.node.doors import WaitingForLog, show_ring
from haproc.node.status import Watching
from haproc.replicate.queue.facts import Form
from haproc.replicate.queue.outcomes import OperationOutcome, Outcomes, OutcomeStatus
from haproc.replicate.records.rows import ApplicationFailure
from tests.presences import OWN, Here, presences, ring_config, until
from tests.unit.operations import arrow, computed, update

RULES = Membership(heartbeat_interval_s=0.05, window_s=1.0, check_interval_s=0.05)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[dict[str, Here]]:
    """Two presences that receive each other, of a ring of two clusters."""
    config = ring_config(tmp_path, None, RULES)
    config = dataclasses.replace(config, clusters=config.clusters[:2])
    async with presences(config, "ab") as made:
        await until(lambda: all(here.receives_all for here in made.values()))
        yield made


class Peers:
    """Peers that report why they do not serve, or do not answer."""

    answers = True
    requests = 0

    async def status(self, peer: str, timeout_s: float) -> PeerStatus:
        self.requests += 1
        if not self.answers:
            raise PeerUnavailableError(f"{peer} does not answer")
        fields = (peer, State.DIVERGED, "tables differ", False, None, "1", 4, 5, 1, False, ())
        return PeerStatus(*fields)


def watching(here: Here, peers: Peers, outcomes: Outcomes | None = None) -> Watching:
    status = WaitingForLog(here.config, here.name, here.presence, "the log is away")
    line = {"offset": 3, "position": "failing", "error": "disk of ann is full"}
    replica = SimpleNamespace(
        core=SimpleNamespace(outcomes=outcomes),
        operators=SimpleNamespace(queue=lambda start, count: {"operations": [line]}),
    )
    given = None if outcomes is None else cast("Any", replica)
    return Watching(here.config, here.presence, status, given, peers.status)


async def test_change_of_a_peers_state_is_recorded_and_reported_at_once(
    pair: dict[str, Here],
) -> None:
    presence, changed = pair["a"].presence, asyncio.Event()
    presence.on_change = changed.set
    pair["b"].own = lambda: dataclasses.replace(OWN, state=State.DOWN)  # type: ignore[method-assign]
    await asyncio.wait_for(changed.wait(), 10)
    change = dict(presence.history.changes[-1])
    assert change.pop("at")
    assert change == {"cluster": "b", "before": "READY", "after": "DOWN"}
    changed.clear()
    await pair["b"].aclose()
    await asyncio.wait_for(changed.wait(), 10)
    assert presence.history.changes[-1]["after"] == ""


async def test_own_change_is_reported_even_if_the_state_follows_later(
    pair: dict[str, Here],
) -> None:
    here, changed = pair["a"], asyncio.Event()
    here.presence.on_change = changed.set
    here.presence.members.state_changed()
    here.own = lambda: dataclasses.replace(OWN, state=State.STUCK)  # type: ignore[method-assign]
    await asyncio.wait_for(changed.wait(), 10)
    assert here.presence.history.changes[-1]["after"] == "STUCK"


async def test_history_has_a_sample_of_every_clusters_lag(pair: dict[str, Here]) -> None:
    here = pair["a"]
    await until(lambda: all(view.lag is not None for view in here.presence.views()))
    here.presence.measure()
    samples = watching(here, Peers()).history()["samples"]
    assert isinstance(samples, list) and isinstance(samples[-1], dict)
    assert samples[-1]["lag"] == {"a": 0, "b": 0}


async def test_reason_of_a_peer_is_requested_only_if_it_does_not_serve(
    pair: dict[str, Here],
) -> None:
    here, peers = pair["a"], Peers()
    seen = watching(here, peers)
    public, more = await seen.snapshot()
    assert (peers.requests, more, public["reason"]) == (0, {}, "the log is away")
    pair["b"].own = lambda: dataclasses.replace(OWN, state=State.DIVERGED)  # type: ignore[method-assign]
    await until(lambda: here.presence.history.changes[-1]["after"] == "DIVERGED")
    for peers.answers, reason in ((True, "tables differ"), (False, None)):
        public, _ = await seen.snapshot()
        clusters = cast("list[dict[str, Any]]", public["clusters"])
        assert [each["state"] for each in clusters] == ["READY", "DIVERGED"]
        assert clusters[1].get("reason") == reason


async def test_snapshot_shows_tables_users_errors_and_queue_only_to_operators(
    pair: dict[str, Here],
) -> None:
    outcomes = Outcomes(100, lambda: 5_000)
    private = {"user": "ann", "created_ms": 2_000}
    outcomes.admit(3, dataclasses.replace(update("x", "secret_table"), **cast("Any", private)))
    failure = ApplicationFailure("NO_SUCH_THING", "", "of ann")
    outcomes.resolve(3, OperationOutcome(OutcomeStatus.FAILED, failure=failure))
    outcomes.admit(4, arrow("y", "other_table"))
    public, more = await watching(pair["a"], Peers(), outcomes).snapshot()
    text = json.dumps(public)
    assert not any(each in text for each in ("ann", "secret_table", "NO_SUCH_THING", "disk"))
    newest, first = cast("list[dict[str, Any]]", public["operations"])
    assert (newest["offset"], newest["form"], newest["outcome"]) == (4, "rows", None)
    assert (first["offset"], first["form"], first["outcome"]) == (3, "text", "failed")
    assert first["ms"] == 3_000
    first = cast("list[dict[str, Any]]", more["operations"])[1]
    assert (first["user"], first["tables"]) == ("ann", ["secret_table"])
    assert first["error"] == "NO_SUCH_THING"
    assert json.dumps(more["queue"]).count("disk of ann is full") == 1


@pytest.mark.parametrize("configured", [False, True])
async def test_page_is_served_to_clients_only_if_configured(
    pair: dict[str, Here], configured: bool
) -> None:
    here = pair["a"]
    config = dataclasses.replace(here.config, ui_for_clients=configured)
    operators, clients = web.Application(), web.Application()
    show_ring(config, here.presence, watching(here, Peers()), operators, clients)
    for app, shown in ((operators, True), (clients, configured)):
        assert (PAGE in {each.canonical for each in app.router.resources()}) is shown


def test_newest_operations_are_listed_first_and_once_each() -> None:
    outcomes = Outcomes(100)
    for offset, operation in enumerate(
        (update("x", "t"), arrow("y", "t"), computed("z", "s", "t"))
    ):
        outcomes.admit(offset, operation)
    outcomes.repeated(3, update("x", "t"))
    assert [known.offset for known in outcomes.newest(10)] == [2, 1, 0]
    assert [known.facts.form for known in outcomes.newest(2)] == [Form.COMPUTED]
