"""A server process that outlives the command that started it, known by its pid file.

The file holds the pid *and* the process's start time, so that a pid which the system has given to
another process since is never signalled. Processes get a session of their own: a Ctrl-C in the
terminal that started a ring does not reach them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_POLL_INTERVAL_S = 0.02
_children: dict[int, subprocess.Popen[bytes]] = {}
"""Processes this interpreter started, kept so that they are reaped when they end."""
_KILLED_WITHIN_S = 5.0
"""A killed server gives its memory back first; chosen, not measured."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process, told apart from later ones with the same pid by its start time."""

    pid: int
    started: str


def start_time(pid: int) -> str | None:
    """Return when the process started (in the system's own units); None if it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else _start_time_by_ps(pid)
    except ProcessLookupError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" and not _has_threads(pid) else fields[19]


def _reap() -> None:
    """Let those go that ended while nobody looked, and whose pid file names another by now."""
    for pid, child in list(_children.items()):
        if child.poll() is not None:
            _children.pop(pid, None)


def _has_threads(pid: int) -> bool:
    """Whether others of a process's threads outlive its first one; they hold its ports."""
    try:
        return len(list(Path(f"/proc/{pid}/task").iterdir())) > 1
    except OSError:
        return False


def _start_time_by_ps(pid: int) -> str | None:
    done = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, started = done.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


class DetachedProcess:
    """The process that a pid file names, if it runs."""

    def __init__(self, pid_file: Path) -> None:
        self._pid_file = pid_file

    def start(
        self, command: Sequence[str], *, folder: Path, log: Path, environment: Mapping[str, str]
    ) -> ProcessId:
        """Start the command in its own session; what it prints is appended to the log."""
        self._pid_file.parent.mkdir(parents=True, exist_ok=True)
        _reap()
        with log.open("ab") as output:
            os.fchmod(output.fileno(), 0o600)  # it may be from before, and others' to read
            child = subprocess.Popen(
                command,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        _children[child.pid] = child
        identity = ProcessId(child.pid, start_time(child.pid) or "")
        temporary = self._pid_file.with_suffix(".new")
        temporary.write_text(json.dumps({"pid": identity.pid, "started": identity.started}))
        temporary.replace(self._pid_file)
        return identity

    def identity(self) -> ProcessId | None:
        """Return the running process, or None."""
        try:
            known = json.loads(self._pid_file.read_text())
            identity = ProcessId(int(known["pid"]), str(known["started"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if (child := _children.get(identity.pid)) is not None:
            # The first thread of a killed process may be gone while others still hold its ports;
            # a child is reaped only when all are.
            if child.poll() is None:
                return identity
            _children.pop(identity.pid, None)  # another thread may look at the same time
        return identity if start_time(identity.pid) == identity.started else None

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; False if the process does not run. After SIGKILL it is gone."""
        identity = self.identity()
        if identity is None:
            return False
        try:
            os.kill(identity.pid, number)
        except ProcessLookupError:
            return False
        end = time.monotonic() + (_KILLED_WITHIN_S if number is signal.SIGKILL else 0)
        while time.monotonic() < end and self.identity() == identity:
            time.sleep(_POLL_INTERVAL_S)
        return True

    async def wait_gone(self, timeout_s: float) -> bool:
        """Wait until the process has ended; False if it still runs after the time."""
        end = time.monotonic() + timeout_s
        while self.identity() is not None:
            if time.monotonic() >= end:
                return False
            await asyncio.sleep(_POLL_INTERVAL_S)
        return True

    async def stop(self, grace_s: float) -> None:
        """End the process: asked politely first, killed when the grace is over."""
        if self.signal(signal.SIGTERM):
            self.signal(signal.SIGCONT)  # a frozen process hears SIGTERM only once it goes on
            if not await self.wait_gone(grace_s):
                self.signal(signal.SIGKILL)
                await self.wait_gone(grace_s)
        self._pid_file.unlink(missing_ok=True)
