"""Tests of a ring's own Kafka in commands, and of a HAProc that starts without its log.

No Spark runs here: the HAProc stays STARTING, and reports the reason.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from haproc.cli.main import main
from haproc.ring.local import LocalRing, LogChoice
from haproc.ring.process import launch, process_of

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]
WAIT_S = 120.0


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[LocalRing]:
    """A ring that was created, but not started."""
    made = LocalRing.open_or_create(tmp_path / "ring", clusters=1, log=LogChoice("kafka"))
    yield made
    made.kill("a", "haproc")
    made.kill("broker1", "broker")


def ask(ring: LocalRing, path: str) -> tuple[int, dict[str, Any]]:
    """Return the operator door's answer; its status is 0 if there is none."""
    url = ring.config.peer_url("a") + path
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
    except OSError:
        return 0, {}


def wait_reason(ring: LocalRing, part: str) -> dict[str, Any]:
    """Wait until the HAProc reports such a reason for its state."""
    end = time.monotonic() + WAIT_S
    while True:
        _, body = ask(ring, "/clusterStatus")
        if part in str(body.get("reason", "")):
            return body
        assert time.monotonic() < end, f"waited for {part!r}, was told {body}"
        time.sleep(0.05)


def test_haproc_started_without_its_log_waits_and_reports_the_reason(ring: LocalRing) -> None:
    launch(ring.config, ring.file, "a")
    body = wait_reason(ring, "cannot be reached")
    assert (body["state"], body["lag"]) == ("STARTING", 0)
    assert ask(ring, "/healthz")[0] == 200
    assert ask(ring, "/readyz")[0] == 503
    asyncio.run(ring.start_brokers())
    # The topic is made, the log read; what is missing now is the cluster.
    end = time.monotonic() + WAIT_S
    while "cannot be reached" in str(ask(ring, "/clusterStatus")[1].get("reason", "")):
        assert time.monotonic() < end
        time.sleep(0.05)
    end = time.monotonic() + WAIT_S
    while not ask(ring, "/clusterStatus")[1].get("log_end"):
        assert time.monotonic() < end
        time.sleep(0.05)
    asyncio.run(ring.stop_haproc("a"))


def test_haproc_that_waits_for_its_log_stops_on_request(ring: LocalRing) -> None:
    launch(ring.config, ring.file, "a")
    wait_reason(ring, "cannot be reached")
    process = process_of(ring.config, "a")
    asyncio.run(process.stop(grace_s=30))
    assert process.identity() is None
    assert "Traceback" not in (ring.config.state_dir / "haproc-a.log").read_text()


def test_ring_commands_restart_show_and_kill_its_brokers(
    ring: LocalRing, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ("--folder", str(ring.folder))
    assert main(["ring", "restart", "broker1", *folder]) == 0
    capsys.readouterr()
    assert main(["ring", "status", *folder, "--json"]) == 3
    shown = json.loads(capsys.readouterr().out)["broker1"]
    broker = ring.brokers["broker1"]
    assert shown == {"address": broker.address, "pids": {"broker": broker.pid}}
    assert broker.pid is not None
    assert main(["ring", "status", *folder]) == 3
    assert f"broker1: Kafka pid {broker.pid}, {broker.address}" in capsys.readouterr().out
    assert main(["ring", "kill", "broker1", *folder]) == 0
    assert capsys.readouterr().out == "broker1: broker killed\n"
    assert asyncio.run(broker.wait_gone())
    assert main(["ring", "kill", "broker1", *folder]) == 0
    assert capsys.readouterr().out == "broker1: broker did not run\n"
    asyncio.run(ring.start_brokers())
    assert main(["ring", "down", *folder]) == 0
    assert broker.pid is None
