"""Programs that attack their HAProc, run like jobs by a process that stands for a HAProc.

`python -m tests.unit.sandboxing FOLDER` is that process: a line of JSON on its standard input has
the program to run (`Trial`); its output is the program's, then the result as a line of JSON. It may
run as root, or as a user without any privileges (`unprivileged`).
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from haproc.config.jobs import Isolation, Jobs
from haproc.jobs.model import JobLimits
from haproc.jobs.process import Plan, Running, homes_of, make_folder, remove_folder, user_of

CHECKOUT = Path(__file__).parents[2]
NOBODY = "nobody"
SECRET = "x" * 40


@dataclass(frozen=True, slots=True)
class Trial:
    """A program and its environment."""

    code: str
    isolation: str
    processes_max: int = 64
    disk_bytes_max: int = 64 << 20
    room_bytes: int = 1 << 40
    """The free space on the disk that the program may use."""
    memory_bytes: int = 4 << 30
    wall_s: float = 30.0
    args: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    python: str = sys.executable


async def run(base: Path, trial: Trial) -> dict[str, Any]:
    """Run a program below a private folder; its output is passed on."""
    isolation, found = Isolation(trial.isolation), os.statvfs(base)
    settings = Jobs(
        isolation=isolation,
        user=NOBODY if isolation is Isolation.USER else None,
        python=Path(trial.python),
        output_bytes_max=1 << 20,
        processes_max=trial.processes_max,
        disk_bytes_max=trial.disk_bytes_max,
        disk_free_bytes_min=max(0, found.f_bavail * found.f_frsize - trial.room_bytes),
        readable=tuple(map(Path, trial.readable)),
    )
    folder = base / "jobs" / "1-1"
    make_folder(folder, [("p.py", trial.code.encode())], user_of(settings))
    command = (trial.python, "-u", str(folder / "p.py"), str(os.getpid()), str(base), *trial.args)
    limits = JobLimits(trial.memory_bytes, cpu_s=60, wall_s=trial.wall_s)
    plan = Plan(command, folder, {"HOME": str(folder)}, settings, limits, (base,))
    running = await Running.start(plan)
    async for piece in running.output():
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    end = await running.ended()
    remove_folder(folder)
    return {"outcome": end.outcome.value, "code": end.code, "why": end.why}


async def attacked(
    base: Path, trial: Trial, as_user: bool = False
) -> tuple[list[str], dict[str, Any]]:
    """Let a separate process run a program; return its output, and how it ended."""
    process = await started(base, trial, as_user)
    assert process.stdout is not None
    async with asyncio.timeout(60):
        lines = (await process.stdout.read()).decode().splitlines()
        await process.wait()
    return lines[:-1], json.loads(lines[-1])


async def started(base: Path, trial: Trial, as_user: bool) -> asyncio.subprocess.Process:
    """Start that process."""
    process = await asyncio.create_subprocess_exec(
        *(unprivileged() if as_user else []),
        *(sys.executable, "-m", "tests.unit.sandboxing", str(base)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "SECRET_OF_HAPROC": SECRET},
        cwd=CHECKOUT,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(trial)).encode() + b"\n")
    return process


def private_folder(folder: Path, as_user: bool) -> Path:
    """Make a folder that is HAProc's alone."""
    folder.mkdir(mode=0o700)
    secret = folder / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    if as_user:
        entry = pwd.getpwnam(NOBODY)
        for path in (folder, secret):
            os.chown(path, entry.pw_uid, entry.pw_gid)
    return folder


def unprivileged() -> Sequence[str]:
    """Return the prefix that runs root's command as a user without any privileges.

    The interpreter may be at a place that this user cannot reach: the folders above it are opened.
    """
    shown = {*homes_of(Path(sys.executable)), CHECKOUT}
    tops = {Path("/", path.parts[1]) for path in shown if not _open_to_all(path)}
    laid = [part for top in tops for part in ("--perms", "0755", "--tmpfs", str(top))]
    for path in sorted(path for path in shown if any(path.is_relative_to(top) for top in tops)):
        for parent in sorted(path.parents):
            if any(parent != top and parent.is_relative_to(top) for top in tops):
                laid += ["--perms", "0755", "--dir", str(parent)]
        laid += ["--bind", str(path), str(path)]
    ids = pwd.getpwnam(NOBODY)
    become = ["setpriv", f"--reuid={ids.pw_uid}", f"--regid={ids.pw_gid}", "--clear-groups"]
    return ["bwrap", "--dev-bind", "/", "/", *laid, "--", *become]


def _open_to_all(path: Path) -> bool:
    return all(each.stat().st_mode & 0o001 for each in (path, *path.parents))


def left_over(base: Path) -> list[int]:
    """Return the living processes of a program."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text().split("\0")
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(base / "jobs" / "1-1" / "p.py") in words and state != "Z":
            found.append(int(process.name))
    return found


def parent_of(pid: int) -> int:
    """Return a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def supervisor_of(pid: int) -> int:
    """Return the supervisor below a process; 0 if there is none."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for child in map(int, children):
        if b"supervisor.py" in Path(f"/proc/{child}/cmdline").read_bytes():
            return child
        deeper = supervisor_of(child)
        if deeper:
            return deeper
    return 0


if __name__ == "__main__":
    given = Trial(**json.loads(sys.stdin.readline()))
    print(json.dumps(asyncio.run(run(Path(sys.argv[1]), given))), flush=True)
