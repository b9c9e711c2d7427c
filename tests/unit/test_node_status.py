"""Tests of the status that a member reports about itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from haproc.membership.state import State
from haproc.node.status import NodeStatus


def status_of(state: State) -> NodeStatus:
    now = SimpleNamespace(drained=False)
    condition = SimpleNamespace(state=state, reason="", now=now)
    member = SimpleNamespace(core=SimpleNamespace(condition=condition))
    others = cast("tuple[Any, Any, Any, Any]", (None,) * 4)
    return NodeStatus(cast("Any", None), cast("Any", member), *others)


def test_cluster_is_ready_once_its_client_door_is_open() -> None:
    status, door = status_of(State.READY), SimpleNamespace(is_open=False)
    assert not status.readiness().serving
    status.behind(lambda: door.is_open)
    assert not status.readiness().serving
    door.is_open = True
    assert status.readiness().serving
    assert not status_of(State.DOWN).readiness().serving
