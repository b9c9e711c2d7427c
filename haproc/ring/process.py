"""Local server processes: free ports, pid files, and HAProcs that outlive the starting command."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from haproc.config.model import Address, Config
from haproc.config.tls import client_context
from haproc.membership.state import HOPELESS, State
from haproc.ring.settings import RingError

# Free TCP ports for the servers on this machine.


_ANSWER_S = 2.0
_POLL_S = 0.05
_FREE_WITHIN_S = 5.0
"""The time in which a port becomes free: the ports of a killed process can be in use a moment
longer than the process is visible."""
_FIRST = 10_000
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_OUTGOING_FIRST = 32_768
"""The first port of the range for outgoing connections, if the system does not name it."""
_ENOUGH = 1000


def ports_of_servers(outgoing: Path = _OUTGOING) -> range:
    """Return the ports below the range for outgoing connections; all up to 65,535 if few are."""
    try:
        end = int(outgoing.read_text().split()[0])
    except (OSError, ValueError):
        end = _OUTGOING_FIRST
    return range(_FIRST, end if end - _FIRST >= _ENOUGH else 65_536)


def _in_turn() -> Iterator[int]:
    """Yield the ports of `ports_of_servers` for ever; each process begins at another port."""
    ports = ports_of_servers()
    first = secrets.choice(ports)
    return itertools.cycle((*range(first, ports.stop), *range(ports.start, first)))


_candidates = _in_turn()


def free_port() -> int:
    """Return a port that nothing on this machine uses right now, another one each time.

    Ports that the system gives to outgoing connections are left out: an outgoing connection could
    take the port before the server listens.
    """
    while True:
        port = next(_candidates)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def free_ports(count: int) -> list[int]:
    """Return ``count`` ports that nothing listens on right now, in ascending order."""
    return sorted(free_port() for _ in range(count))


def wait_free(host: str, port: int) -> bool:
    """Wait until nothing listens at this address; False if something still does after seconds.

    It blocks the thread.
    """
    end = time.monotonic() + _FREE_WITHIN_S
    while _listens(host, port):
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)
    return True


def _listens(host: str, port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection((host, port), timeout=_ANSWER_S).close()
        return True
    return False


# A server process that outlives the command that started it, known by its pid file.
#
# The file holds the pid *and* the process's start time. So if the system has given the pid to
# another process since, that one gets no signal. Processes get a session of their own: a Ctrl-C in
# the terminal that started a ring does not reach them.


_POLL_INTERVAL_S = 0.02
_children: dict[int, subprocess.Popen[bytes]] = {}
"""Processes that this program started, kept so that they leave no zombies when they end."""
_KILLED_WITHIN_S = 5.0
"""The longest wait for the end of a killed server: it frees its memory first. Chosen, not
measured."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process of this machine; its start time tells it from a later process with the same pid."""

    pid: int
    started: str


def start_time(pid: int) -> str | None:
    """Return the process's start time (in the system's units); None if it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else _start_time_by_ps(pid)
    except ProcessLookupError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" and not _has_threads(pid) else fields[19]


def _reap() -> None:
    """Collect all child processes that have ended, also those that no pid file names any more."""
    for pid, child in list(_children.items()):
        if child.poll() is not None:
            _children.pop(pid, None)


def _has_threads(pid: int) -> bool:
    """True if the process's other threads outlive its first one; they still hold its ports."""
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
    """A process in the background that a pid file names; it may run or not."""

    def __init__(self, pid_file: Path) -> None:
        self._pid_file = pid_file

    def start(
        self, command: Sequence[str], *, folder: Path, log: Path, environment: Mapping[str, str]
    ) -> ProcessId:
        """Start the command as a session of its own; append its output to the file ``log``."""
        self._pid_file.parent.mkdir(parents=True, exist_ok=True)
        _reap()
        with log.open("ab") as output:
            os.fchmod(output.fileno(), 0o600)  # an older file may be readable by others
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
        """Return the process that runs; None if it does not run."""
        try:
            known = json.loads(self._pid_file.read_text())
            identity = ProcessId(int(known["pid"]), str(known["started"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if (child := _children.get(identity.pid)) is not None:
            # The first thread of a killed process may be gone while others still hold its ports. A
            # child is reaped only when all threads are gone.
            if child.poll() is None:
                return identity
            _children.pop(identity.pid, None)  # another thread may do the same
        return identity if start_time(identity.pid) == identity.started else None

    def signal(self, number: signal.Signals) -> bool:
        """Send the process a signal; False if it does not run. After SIGKILL, wait for the end."""
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
        """End the process: SIGTERM first, SIGKILL after ``grace_s``."""
        if self.signal(signal.SIGTERM):
            self.signal(signal.SIGCONT)  # a frozen process receives SIGTERM only once it continues
            if not await self.wait_gone(grace_s):
                self.signal(signal.SIGKILL)
                await self.wait_gone(grace_s)
        self._pid_file.unlink(missing_ok=True)


# The common part of the local servers: one JVM with a folder, a pid file and a log.


_SERVER_LOG_LINES = 20


class LocalServer:
    """A server process in the background, with its folder; ``kind``: begins its files' names."""

    def __init__(
        self, kind: str, name: str, folder: Path, memory: str, progress: Callable[[str], None]
    ) -> None:
        self.name = name
        self.folder = folder.resolve()
        self.memory = memory
        self.log = self.folder / f"{kind}.log"
        self._progress = progress
        self._process = DetachedProcess(self.folder / f"{kind}.pid")

    @property
    def pid(self) -> int | None:
        """The server's process id; None if it does not run."""
        identity = self._process.identity()
        return identity.pid if identity else None

    async def stop(self, *, grace_s: float = 10.0) -> None:
        """End the server: SIGTERM first, SIGKILL after ``grace_s``."""
        await self._process.stop(grace_s)

    def kill(self) -> bool:
        """End the server at once (SIGKILL); False if it did not run."""
        return self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> bool:
        """Send the server a signal, such as SIGSTOP; False if it did not run."""
        return self._process.signal(number)

    async def wait_gone(self, timeout_s: float = 10.0) -> bool:
        """Wait until the process has ended; False if it still runs after the time."""
        return await self._process.wait_gone(timeout_s)

    def log_tail(self, lines: int = _SERVER_LOG_LINES) -> str:
        """Return the last lines of the server's log, without the frames of stack traces."""
        with contextlib.suppress(OSError):
            text_lines = self.log.read_text(errors="replace").splitlines()
            return "\n".join([line for line in text_lines if not line.startswith("\tat ")][-lines:])
        return ""


# A HAProc as a background process on this machine, known by its pid file.


_HAPROC_LOG_LINES = 15


class StartError(RingError):
    """A HAProc did not start; the message ends with the last lines of its program's log."""


class DrainedError(StartError):
    """A HAProc runs, but does not serve because an operator drained it."""


def process_of(config: Config, cluster: str) -> DetachedProcess:
    """Return the process of a cluster's HAProc on this machine."""
    return DetachedProcess(config.state_dir / f"haproc-{cluster}.pid")


def launch(
    config: Config, file: Path, cluster: str, environment: Mapping[str, str] | None = None
) -> None:
    """Start a HAProc in the background unless it runs; raises StartError."""
    process = process_of(config, cluster)
    if process.identity() is None:
        _check_free(config.cluster(cluster).peer, cluster)
        config.state_dir.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "haproc", "serve"]
        command += ["--config", str(file.resolve()), "--cluster", cluster]
        process.start(
            command,
            folder=Path.cwd(),
            log=log_of(config, cluster),
            environment={**os.environ, **(environment or {})},
        )


def _check_free(address: Address, cluster: str) -> None:
    """Raise StartError if another process has the port: its answers would seem the HAProc's."""
    if not wait_free(address.host, address.port):
        raise StartError(
            f"another process already listens on {address}: a HAProc of {cluster} that was "
            "started otherwise, or a port that is taken"
        )


def log_of(config: Config, cluster: str) -> Path:
    """Return the path of the program's log of a HAProc in the background."""
    return config.state_dir / f"haproc-{cluster}.log"


async def wait_answering(config: Config, cluster: str, timeout_s: float, *, ready: bool) -> None:
    """Wait until a HAProc answers, or with ``ready`` until it serves.

    Raises StartError; DrainedError at once if the HAProc is drained.
    """
    process, log = process_of(config, cluster), log_of(config, cluster)
    end = time.monotonic() + timeout_s
    url = config.peer_url(cluster) + ("/readyz" if ready else "/healthz")
    connector = aiohttp.TCPConnector(ssl=client_context(config.tls))
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        while time.monotonic() < end:
            if process.identity() is None:
                raise StartError(f"the HAProc of {cluster} ended, see {log}:\n{_tail(log)}")
            status = await _status_unless_ok(session, url)
            if status is None:
                return
            state, reason = str(status.get("state", "")), str(status.get("reason", ""))
            if state in HOPELESS - {State.REMOVED}:  # it may not have read yet that it was added
                raise StartError(f"the HAProc of {cluster} is {state}: {reason}")
            if status.get("drained"):
                raise DrainedError(f"the HAProc of {cluster} runs, and is drained: haproc undrain")
            await asyncio.sleep(_POLL_S)
    what = "does not serve" if ready else "does not answer"
    raise StartError(f"the HAProc of {cluster} {what} after {timeout_s:g} s, see {log}")


async def _status_unless_ok(session: aiohttp.ClientSession, url: str) -> Mapping[str, Any] | None:
    """Return None if the HAProc answers 200, otherwise the status that it reports.

    The status is empty if the HAProc does not answer.
    """
    try:
        async with session.get(url) as response:
            if response.status == 200:
                return None
            body = await response.json()
            return body if isinstance(body, dict) else {}
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return {}


def _tail(log: Path) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-_HAPROC_LOG_LINES:])
    except OSError:
        return ""
