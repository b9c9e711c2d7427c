"""The process of a job's program: its folder, its sandbox, its limits, its output, its end."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from haproc.config.jobs import Isolation, Jobs
from haproc.jobs.model import JobLimits, Outcome

# A program's working folder: made with its files, and removed whatever the program did in it.


def make_folder(folder: Path, files: Sequence[tuple[str, bytes]], user: str | None) -> None:
    """Make a program's working folder with ``files``: pairs of path and bytes.

    An old folder is removed. ``user``: the user of the system to whom it belongs; None: HAProc's
    own.
    """
    remove_folder(folder)
    folder.mkdir(parents=True, mode=0o700)
    for name in ("tmp", "modules"):
        (folder / name).mkdir(mode=0o700)
    for name, data in files:
        (folder / name).write_bytes(data)
    if user is not None:
        entry = pwd.getpwnam(user)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, entry.pw_uid, entry.pw_gid)
        folder.parent.chmod(0o711)  # the user passes through, whatever HAProc's umask is


def remove_folder(folder: Path) -> None:
    """Remove a working folder and its content; a part that cannot be removed stays.

    Folders inside are moved to the top before they are emptied: a program may have nested them
    deeper than the stack, a path or the number of open files allows.
    """
    try:
        top = _opened(str(folder), None)
    except OSError:
        return
    try:
        below = _cleared(top, top)
        while below:
            name = below.pop()
            with suppress(OSError):
                inside = _opened(name, top)
                try:
                    below += _cleared(inside, top)
                finally:
                    os.close(inside)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    with suppress(OSError):
        folder.rmdir()


def _opened(name: str, within: int | None) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)


def _cleared(folder: int, top: int) -> list[str]:
    """Remove the files in a folder, and move its folders to ``top``; return their new names."""
    found: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=folder)
                    continue
                _open_up(entry.name, folder)
                name = entry.name if folder == top else uuid.uuid4().hex
                if folder != top:
                    os.rename(entry.name, name, src_dir_fd=folder, dst_dir_fd=top)
                found.append(name)
    return found


def _open_up(name: str, within: int) -> None:
    """Make a folder readable again that the program may have closed; never follow a link."""
    there = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)
    try:
        Path(f"/proc/self/fd/{there}").chmod(0o700)
    finally:
        os.close(there)


# The sandbox of a job: its view of the host, as bubblewrap's arguments.
#
# A path that is not listed is missing, and everything except the working folder is read-only. The
# program has its own namespaces for processes, mounts, IPC and users, no capabilities, and no way
# to new privileges. It shares the network, by which it reaches the ring.


SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib64"),
    *("/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf", "/etc/pki/ca-trust"),
    *("/etc/pki/tls/certs", "/etc/pki/tls/cert.pem", "/etc/pki/tls/openssl.cnf"),
    *("/etc/ca-certificates", "/etc/crypto-policies", "/etc/hosts", "/etc/resolv.conf"),
    *("/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/localtime", "/etc/passwd"),
    *("/etc/group", "/etc/ld.so.cache", "/etc/mime.types", "/etc/alternatives"),
)
"""The system's paths that programs see, for Python, gRPC and Arrow; none may have private keys."""
SHARED_MEMORY_BYTES: Final = 64 << 20
"""The size of /dev/shm, as in containers."""
USER_NAMESPACE_FD: Final = 3
"""The file descriptor of the user namespace that the supervisor has made (`NAMESPACE_FD` there)."""
LINKS_MAX: Final = 16

_NAMESPACES: Final = (
    *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"),
)
_AS_USER: Final = ("--unshare-user", "--disable-userns")
_AS_ROOT: Final = (
    *("--userns", str(USER_NAMESPACE_FD)),
    *("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"),
)
"""The bubblewrap options of a HAProc that is root. The first process needs both capabilities to set
the program's user; the program gets none."""
_DEVICES: Final = (
    *("--proc", "/proc", "--dev", "/dev"),
    *("--perms", "1777", "--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"),
)
_TMP: Final = Path("/tmp")


def sandboxed(
    bwrap: str,
    command: Sequence[str],
    folder: Path,
    readable: Sequence[Path],
    hidden: Sequence[Path],
    as_root: bool,
) -> list[str]:
    """Return the command that runs ``command`` in a sandbox.

    ``folder`` is writable. ``readable`` paths can be read in addition to the system's files, except
    for those in ``hidden``. ``as_root``: the caller is root and gives a user namespace as a
    descriptor.
    """
    shown = sorted({*map(Path, SYSTEM), *readable})
    covered = _seen(hidden, shown)
    made: list[str] = [bwrap, *_NAMESPACES, *(_AS_ROOT if as_root else _AS_USER)]
    made += [*_open_to_all(_parents([*shown, folder])), *_DEVICES]
    for path in shown:
        made += ["--ro-bind-try", str(path), str(path)]
    for path in covered:
        made += ["--perms", "0755", "--tmpfs", str(path)]
    made += _open_to_all(_parents([folder]) if covered else ())
    made += ["--bind", str(folder), str(folder)]
    if not any(path.is_relative_to(_TMP) for path in (*shown, folder)):
        made += ["--bind", str(folder / "tmp"), str(_TMP)]
    for path in (*covered, Path("/dev"), Path("/proc"), Path("/")):
        made += ["--remount-ro", str(path)]
    return [*made, "--chdir", "/", "--", *command]


def _seen(hidden: Iterable[Path], shown: Sequence[Path]) -> list[Path]:
    """Return the paths in ``hidden`` that a program would see below ``shown``, links followed."""
    found = set()
    for secret in (each.resolve() for each in hidden):
        for path in shown:
            if secret.is_relative_to(real := path.resolve()):
                found.add(path / secret.relative_to(real))
    return sorted(found)


def _parents(paths: Iterable[Path]) -> list[Path]:
    """Return all parent folders of these paths."""
    return sorted({parent for path in paths for parent in path.parents if parent != Path("/")})


def _open_to_all(folders: Iterable[Path]) -> list[str]:
    """Return bubblewrap's options that make these folders, which every user may then read."""
    return [part for each in folders for part in ("--perms", "0755", "--dir", str(each))]


def homes_of(python: Path) -> list[Path]:
    """Return the folders that contain an interpreter and its packages.

    For a virtual environment also those of the interpreter that it is based on.
    """
    found = set()
    for _ in range(LINKS_MAX):
        found.add(python.parent.parent)
        if not python.is_symlink():
            break
        python = Path(os.path.normpath(python.parent / python.readlink()))
    return sorted(home for home in found if home != Path("/"))


# One program's process: its folder, its limits, its output, its end.


SUPERVISOR: Final = Path(__file__).with_name("supervisor.py")
INSIDE: Final = Path(__file__).with_name("inside.py")
BEGIN: Final = (
    "import json, sys; plan = json.loads(sys.stdin.buffer.readline()); "
    "inside = {}; exec(plan.pop('source'), inside); inside['main'](plan)"
)
"""The Python text that a job's interpreter runs first. It reads all else from standard input,
because a sandbox contains no file of HAProc."""
BUBBLEWRAP: Final = "bwrap"
READ_BYTES: Final = 64 << 10
FILES_OPEN_MAX: Final = 1024
REPORT_CHARS_MAX: Final = 1000
"""The longest reported error, in characters."""
UNPRIVILEGED: Final = "nobody"
"""The user of programs in the sandbox of a HAProc that is root, unless `jobs.user` names one."""


def user_of(settings: Jobs) -> str | None:
    """Return the user of the system as whom programs run; None for HAProc's own user."""
    sandboxed = settings.isolation is Isolation.BUBBLEWRAP
    if settings.user is None and sandboxed and os.geteuid() == 0:
        return UNPRIVILEGED
    return settings.user


def interpreter_of(settings: Jobs) -> Path:
    """Return the path of the Python that runs programs, and each job's first process."""
    return settings.python or Path(sys.executable)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is needed to run a program: its command, folder, environment and limits.

    - ``settings``: the isolation of programs, their user, and the limits of all of them;
    - ``limits``: those of this program;
    - ``hidden``: the paths that cannot be read, even below readable ones.
    """

    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    settings: Jobs
    limits: JobLimits
    hidden: Sequence[Path] = ()

    @property
    def cpu_limit_s(self) -> int:
        """The CPU time that each process may use, in whole seconds."""
        return max(1, round(self.limits.cpu_s))

    def fields(self) -> dict[str, Any]:
        """Return the plan as the supervisor's input.

        Raises OSError, or KeyError for an unknown user.
        """
        settings = self.settings
        python, name = interpreter_of(settings), user_of(settings)
        limits = {
            "RLIMIT_AS": self.limits.memory_bytes,
            "RLIMIT_CPU": self.cpu_limit_s,
            "RLIMIT_FSIZE": settings.disk_bytes_max,
            "RLIMIT_NOFILE": FILES_OPEN_MAX,
            "RLIMIT_CORE": 0,
        }
        if settings.isolation is not Isolation.NONE:  # else it would count HAProc's own processes
            limits["RLIMIT_NPROC"] = settings.processes_max
        user = None if name is None else pwd.getpwnam(name)
        isolated = settings.isolation is Isolation.BUBBLEWRAP
        first = [str(python), "-I", "-S", "-c", BEGIN]
        if isolated:
            bwrap = shutil.which(BUBBLEWRAP)
            if bwrap is None:
                raise OSError("there is no program bwrap: install bubblewrap")
            readable = [*homes_of(python), *settings.readable]
            root = user is not None
            first = sandboxed(bwrap, first, self.folder, readable, self.hidden, root)
        groups = [] if user is None else os.getgrouplist(user.pw_name, user.pw_gid)
        return {
            "command": first,
            "user_namespace": isolated and user is not None,
            "folder": str(self.folder),
            "wall_s": self.limits.wall_s,
            "disk_bytes": settings.disk_bytes_max,
            "memory_bytes": self.limits.memory_bytes,
            "free_bytes": settings.disk_free_bytes_min,
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
    """How a program ended; ``code``: its exit code (negative: the signal that ended it)."""

    outcome: Outcome
    code: int | None
    why: str


class Running:
    """A program that was started, and its supervisor."""

    def __init__(self, process: asyncio.subprocess.Process, plan: Plan) -> None:
        self._process = process
        self._plan = plan
        self._over = False
        self._stopped = False

    @classmethod
    async def start(cls, plan: Plan) -> Running:
        """Start the program; raises OSError, or KeyError for an unknown user."""
        message = json.dumps(plan.fields()).encode() + b"\n"
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
        process.stdin.write(message)
        return cls(process, plan)

    def stop(self) -> None:
        """End the program, and all processes that it started."""
        if not self._stopped:
            self._stopped = True
            assert self._process.stdin is not None
            self._process.stdin.close()

    async def output(self) -> AsyncIterator[bytes]:
        """Yield the program's output until it ends; a program with too much output is ended."""
        stdout = self._process.stdout
        assert stdout is not None
        came = 0
        while piece := await stdout.read(READ_BYTES):
            came += len(piece)
            if came > self._plan.settings.output_bytes_max:
                self._over = True
                self.stop()
                continue
            yield piece

    async def ended(self) -> End:
        """Wait for the program's end, and return it; only after all `output` was read."""
        assert self._process.stderr is not None
        report = await self._process.stderr.read()
        await self._process.wait()
        self.stop()
        if self._over:
            most = self._plan.settings.output_bytes_max
            return End(Outcome.LIMIT, None, f"it wrote more than {most} bytes")
        return end_of(report.decode("utf-8", "replace").splitlines(), self._plan.cpu_limit_s)


ENDED_WHY: Final = {
    "wall": (Outcome.LIMIT, "its time is over"),
    "disk": (
        Outcome.LIMIT,
        "its folder takes up more than jobs.disk_bytes_max, or cannot be looked at",
    ),
    "memory": (Outcome.LIMIT, "its processes together hold more memory than it may"),
    "full": (Outcome.LIMIT, "the filesystem of its folder is full (jobs.disk_free_bytes_min)"),
    "asked": (Outcome.LOST, "it was asked to stop"),
}


def end_of(lines: Sequence[str], cpu_limit_s: float) -> End:
    """Return the end of a program from the last lines of its standard error.

    Supervisor, first process and bubblewrap report there.
    """
    words: dict[str, Any] = {}
    others: list[str] = []
    for line in lines:
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
            message = "; ".join(others)[:REPORT_CHARS_MAX]
            return End(Outcome.ERROR, None, f"the program could not be started: {message}")
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
