"""Processes that are identified by their pid files."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from haproc.ring.process import DetachedProcess

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
WITHIN_S = 20.0


def started(folder: Path) -> tuple[DetachedProcess, int]:
    process = DetachedProcess(folder / "pid")
    identity = process.start(SLEEP, folder=folder, log=folder / "log", environment=os.environ)
    return process, identity.pid


def ended(pid: int) -> bool:
    """True if a process has ended; its parent may not have read the exit code yet."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_ended_process_is_reaped_when_another_one_is_started(tmp_path: Path) -> None:
    _, first = started(tmp_path)
    os.kill(first, signal.SIGKILL)
    end = time.monotonic() + WITHIN_S
    while not ended(first):
        assert time.monotonic() < end
        time.sleep(0.01)
    process, second = started(tmp_path)
    try:
        assert not Path(f"/proc/{first}").exists()
        identity = process.identity()
        assert identity is not None and identity.pid == second
    finally:
        assert process.signal(signal.SIGKILL)
    assert process.identity() is None
