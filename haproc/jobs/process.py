"""One program's process: its folder, its limits, what it says, how it ended."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from haproc.config.jobs import Isolation
from haproc.jobs.model import Outcome
from haproc.jobs.sandbox import homes_of, sandboxed

SUPERVISOR: Final = Path(__file__).with_name("supervisor.py")
INSIDE: Final = Path(__file__).with_name("inside.py")
BEGIN: Final = (
    "import json, sys; plan = json.loads(sys.stdin.buffer.readline()); "
    "inside = {}; exec(plan.pop('source'), inside); inside['main'](plan)"
)
"""What the interpreter of jobs is given: inside of a sandbox it has no file of HAProc's."""
BUBBLEWRAP: Final = "bwrap"
READ_BYTES: Final = 64 << 10
FILES_OPEN_MAX: Final = 1024
SAID_MAX: Final = 1000
"""Characters of an error that is passed on."""
UNPRIVILEGED: Final = "nobody"
"""As whom programs run in the sandbox of a HAProc that is root, unless `jobs.user` says."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run: an absolute command, in a folder, how far from HAProc, and as whom.

    ``python`` runs the job's first process. ``readable`` and ``hidden`` as in
    `haproc.jobs.sandbox`. ``user``: None for HAProc's own.
    """

    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    memory_bytes: int
    cpu_s: float
    wall_s: float
    output_bytes_max: int
    processes_max: int
    disk_bytes_max: int
    disk_free_bytes_min: int
    isolation: Isolation
    python: Path
    user: str | None = None
    readable: Sequence[Path] = ()
    hidden: Sequence[Path] = ()

    @property
    def cpu_limit_s(self) -> int:
        """Of each process."""
        return max(1, round(self.cpu_s))

    def told(self) -> dict[str, Any]:
        """Return what the supervisor is told; raises OSError, KeyError for an unknown user."""
        limits = {
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_CPU": self.cpu_limit_s,
            "RLIMIT_FSIZE": self.disk_bytes_max,
            "RLIMIT_NOFILE": FILES_OPEN_MAX,
            "RLIMIT_CORE": 0,
        }
        if self.isolation is not Isolation.NONE:  # else it would count HAProc's own processes
            limits["RLIMIT_NPROC"] = self.processes_max
        user = None if self.user is None else pwd.getpwnam(self.user)
        isolated = self.isolation is Isolation.BUBBLEWRAP
        first = [str(self.python), "-I", "-S", "-c", BEGIN]
        if isolated:
            bwrap = shutil.which(BUBBLEWRAP)
            if bwrap is None:
                raise OSError("there is no program bwrap: install bubblewrap")
            readable = [*homes_of(self.python), *self.readable]
            root = user is not None
            first = sandboxed(bwrap, first, self.folder, readable, self.hidden, root)
        groups = [] if user is None else os.getgrouplist(user.pw_name, user.pw_gid)
        return {
            "command": first,
            "user_namespace": isolated and user is not None,
            "folder": str(self.folder),
            "wall_s": self.wall_s,
            "disk_bytes": self.disk_bytes_max,
            "memory_bytes": self.memory_bytes,
            "free_bytes": self.disk_free_bytes_min,
            "inside": {
                "source": INSIDE.read_text(),
                "command": [str(part) for part in self.command],
                "folder": str(self.folder),
                "environment": dict(self.environment),
                "limits": limits,
                "user": None if user is None else [user.pw_uid, user.pw_gid, groups],
            },
        }


@dataclass(frozen=True, slots=True)
class End:
    """How a program ended; ``code`` is its exit code (negative: the signal)."""

    outcome: Outcome
    code: int | None
    why: str


class Running:
    """A program under way."""

    def __init__(self, process: asyncio.subprocess.Process, plan: Plan) -> None:
        self._process = process
        self._plan = plan
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
        return cls(process, plan)

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
            if came > self._plan.output_bytes_max:
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
            most = self._plan.output_bytes_max
            return End(Outcome.LIMIT, None, f"it said more than {most} bytes")
        return end_of(told.decode("utf-8", "replace").splitlines(), self._plan.cpu_limit_s)


ENDED_WHY: Final = {
    "wall": (Outcome.LIMIT, "its time is over"),
    "disk": (
        Outcome.LIMIT,
        "its folder takes up more than jobs.disk_bytes_max, or cannot be looked at",
    ),
    "memory": (Outcome.LIMIT, "its processes together hold more memory than it may"),
    "full": (Outcome.LIMIT, "the filesystem of its folder is full (jobs.disk_free_bytes_min)"),
    "asked": (Outcome.LOST, "it was told to stop"),
}


def end_of(told: Sequence[str], cpu_limit_s: float) -> End:
    """Return what the last words of supervisor, first process and bubblewrap mean."""
    words: dict[str, Any] = {}
    others: list[str] = []
    for line in told:
        if line.startswith("{"):
            words.update(json.loads(line))
        elif line.strip():
            others.append(line.strip())
    if "failed" in words:
        return End(Outcome.ERROR, None, f"the program could not be started: {words['failed']}")
    if "ended" not in words:
        return End(Outcome.LOST, None, "its supervisor was killed")
    if words["why"]:
        outcome, why = ENDED_WHY[words["why"]]
        return End(outcome, words.get("code", -signal.SIGKILL), why)
    if "code" not in words:
        if others and "began" not in words:
            said = "; ".join(others)[:SAID_MAX]
            return End(Outcome.ERROR, None, f"the program could not be started: {said}")
        return End(Outcome.FAILED, None, "its first process was killed")
    code = int(words["code"])
    used_up = words["cpu_s"] >= cpu_limit_s
    if code == -signal.SIGXCPU or (code < 0 and used_up):
        return End(Outcome.LIMIT, code, "it used up its time of the CPU")
    if code == 0:
        return End(Outcome.SUCCESS, 0, "")
    return End(
        Outcome.FAILED, code, f"exit code {code}" if code > 0 else f"killed by signal {-code}"
    )
