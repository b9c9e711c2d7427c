"""Tests of a real ring's heartbeats: HAProcs are killed, started again, frozen and thawed."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.rig import Rig

pytestmark = [pytest.mark.spark, pytest.mark.logs("sqlite")]

NOTICED_S = 20.0
"""A bound for a busy machine. `bench.bench_membership` measures the aim."""


def seen(rig: Rig, name: str) -> list[dict[str, Any]]:
    """Return one cluster as the two other HAProcs see it."""
    return [rig.seen(by, name) for by in "abc" if by != name]


def wait_all(rig: Rig, name: str, **values: Any) -> None:
    """Wait until both other HAProcs see these values."""
    rig.wait(
        lambda: all(view.get(k) == v for view in seen(rig, name) for k, v in values.items()),
        NOTICED_S,
    )


@pytest.mark.thorough
def test_killed_haproc_is_dead_for_its_peers_and_returns_as_another_incarnation(rig: Rig) -> None:
    table = rig.table()
    rig.settled()
    wait_all(rig, "b", alive=True, direct=True, state="READY", in_sync=True, lag=0)
    before = rig.seen("a", "b")
    with rig.cursor("cab") as cursor:
        rig.ring.kill("b", "haproc")
        wait_all(rig, "b", alive=False, direct=False, in_sync=False)
        # what it told last stays; clients go on
        assert rig.seen("a", "b")["cursor"] == before["cursor"]
        cursor.execute(f"INSERT INTO {table} VALUES (1, 'x')")
    rig.start("b")
    wait_all(rig, "b", alive=True, direct=True, state="READY", in_sync=True)
    after = rig.seen("a", "b")
    assert after["incarnation"] != before["incarnation"]
    assert after["incarnation"] == rig.status("b")["incarnation"]
    assert rig.everywhere(f"SELECT * FROM {table}") == [(1, "x")]


@pytest.mark.thorough
def test_frozen_haproc_is_dead_for_its_peers_until_it_is_thawed(rig: Rig) -> None:
    wait_all(rig, "c", alive=True, state="READY")
    incarnation = rig.seen("a", "c")["incarnation"]
    rig.ring.signal("c", "haproc", signal.SIGSTOP)
    try:
        wait_all(rig, "c", alive=False)
        # the two that hear each other and reach the log serve on
        assert [rig.status(name)["state"] for name in "ab"] == ["READY", "READY"]
    finally:
        rig.ring.signal("c", "haproc", signal.SIGCONT)
    wait_all(rig, "c", alive=True, direct=True, state="READY", incarnation=incarnation)
    rig.wait(lambda: all(rig.seen("c", name)["alive"] for name in "ab"), NOTICED_S)


@pytest.mark.thorough
def test_peers_report_a_lag_of_zero_after_writes(rig: Rig) -> None:
    table = rig.table()
    for n in range(5):
        rig.run(f"INSERT INTO {table} VALUES ({n}, 'x')")
    end = rig.log_end()
    for name in "abc":
        wait_all(rig, name, cursor=end, log_end=end, lag=0, in_sync=True)
