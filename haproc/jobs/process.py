"""One program's process: its folder, its limits, what it says, how it ended."""

from __future__ import annotations

import asyncio
import json
import pwd
import resource
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from haproc.jobs.model import Outcome

SUPERVISOR: Final = Path(__file__).with_name("supervisor.py")
WRITABLE: Final = ("/dev/null", "/dev/zero", "/dev/full", "/dev/shm")
SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib64", "/proc", "/sys", "/dev/random", "/dev/urandom"),
    *("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/hosts", "/etc/resolv.conf"),
    *("/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/localtime", "/etc/passwd"),
    *("/etc/group", "/etc/ld.so.cache", "/etc/mime.types", "/etc/alternatives"),
)
"""What Python, gRPC and Arrow read of a system; no folder in which HAProc's files may be."""
READ_BYTES: Final = 64 << 10
FILES_OPEN_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run: an absolute command, in a folder, as whom (None: as HAProc itself)."""

    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    memory_bytes: int
    cpu_s: float
    wall_s: float
    output_bytes_max: int
    processes_max: int
    disk_bytes_max: int
    user: str | None = None
    readable: Sequence[Path] | None = None
    """All files and folders that it may read beside its own folder; None: whatever its user may."""

    def told(self) -> dict[str, Any]:
        """Return what the supervisor is told."""
        limits = {
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_CPU": max(1, round(self.cpu_s)),
            "RLIMIT_FSIZE": self.disk_bytes_max,
            "RLIMIT_NOFILE": FILES_OPEN_MAX,
            "RLIMIT_CORE": 0,
        }
        user = None
        if self.user is not None:
            entry = pwd.getpwnam(self.user)
            user = [self.user, entry.pw_uid, entry.pw_gid]
            limits["RLIMIT_NPROC"] = self.processes_max  # it counts all processes of a user
        return {
            "command": [str(part) for part in self.command],
            "folder": str(self.folder),
            "environment": dict(self.environment),
            "wall_s": self.wall_s,
            "disk_bytes": self.disk_bytes_max,
            "limits": {
                name: _below_hard(getattr(resource, name), value) for name, value in limits.items()
            },
            "user": user,
            "readable": None if self.readable is None else [str(path) for path in self.readable],
            "writable": [str(self.folder), *WRITABLE],
        }


def readable_for(python: Path, more: Sequence[Path]) -> list[Path]:
    """Return all that a program may read: the system, its interpreter with its packages, and more.

    Of an environment the interpreter that it was made from belongs to it, too.
    """
    homes = {python.parent.parent, python.resolve().parent.parent}
    return [*(Path(path) for path in SYSTEM), *sorted(homes), *more]


def _below_hard(which: int, value: int) -> int:
    _, hard = resource.getrlimit(which)
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


@dataclass(frozen=True, slots=True)
class End:
    """How a program ended; ``code`` is its exit code (negative: the signal)."""

    outcome: Outcome
    code: int | None
    why: str


class Running:
    """A program under way."""

    def __init__(self, process: asyncio.subprocess.Process, output_bytes_max: int) -> None:
        self._process = process
        self._output_bytes_max = output_bytes_max
        self._over = False
        self._stopped = False

    @classmethod
    async def start(cls, plan: Plan) -> Running:
        """Start it; raises OSError, and KeyError for a user that there is not."""
        told = json.dumps(plan.told()).encode() + b"\n"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(SUPERVISOR)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={},
            cwd="/",
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(told)
        return cls(process, plan.output_bytes_max)

    def stop(self) -> None:
        """End it, and all that it started."""
        if not self._stopped:
            self._stopped = True
            assert self._process.stdin is not None
            self._process.stdin.close()

    async def output(self) -> AsyncIterator[bytes]:
        """Give what it says until it ends; one that says too much is ended."""
        stdout = self._process.stdout
        assert stdout is not None
        came = 0
        while piece := await stdout.read(READ_BYTES):
            came += len(piece)
            if came > self._output_bytes_max:
                self._over = True
                self.stop()
                continue
            yield piece

    async def ended(self) -> End:
        """Return how it ended, once the output is read."""
        assert self._process.stderr is not None
        told = await self._process.stderr.read()
        await self._process.wait()
        self.stop()
        if self._over:
            return End(Outcome.LIMIT, None, f"it said more than {self._output_bytes_max} bytes")
        return end_of([json.loads(line) for line in told.splitlines() if line.startswith(b"{")])


def end_of(told: Sequence[Mapping[str, Any]]) -> End:
    """Return what a supervisor's last words mean."""
    failed = next((each["failed"] for each in told if "failed" in each), None)
    if failed is not None:
        return End(Outcome.ERROR, None, f"the program could not be started: {failed}")
    ended = next((each for each in told if "code" in each), None)
    if ended is None:
        return End(Outcome.LOST, None, "its supervisor was killed")
    code = int(ended["code"])
    if ended["why"] == "wall":
        return End(Outcome.LIMIT, code, "its time is over")
    if ended["why"] == "disk":
        why = "its folder takes up more than jobs.disk_bytes_max, or is too deep to be looked at"
        return End(Outcome.LIMIT, code, why)
    if ended["why"] == "asked":
        return End(Outcome.LOST, code, "it was told to stop")
    if ended["why"] == "cpu":
        return End(Outcome.LIMIT, code, "it used up its time of the CPU")
    if code == 0:
        return End(Outcome.SUCCESS, 0, "")
    return End(
        Outcome.FAILED, code, f"exit code {code}" if code > 0 else f"killed by signal {-code}"
    )
