"""Runs one program under limits, and ends with everything that it started. Started as a file.

Imports nothing of HAProc, so that it is there at once. Its standard input is one line of JSON
(`Plan` in `haproc.jobs.process` says what) and then stays open for as long as the HAProc lives:
when it ends, so does the program. Its output is the program's; how that ended is one line of JSON
on standard error.

The program is the leader of a session of its own, dies with its supervisor (PR_SET_PDEATHSIG), and
whatever it leaves behind becomes a child of the supervisor, which kills it.

Where it is to be confined, it finds no files but those listed, and can neither look into processes
that are not its own nor send them signals: Landlock, which needs no privileges and holds for root.
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import signal
import stat
import struct
import sys
import time
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
DISK_LOOK_S = 1.0
DISK_LOOK_SHARE = 20
"""What the folder takes up is looked at every second, and for a twentieth of the time at most."""
ENTRY_BYTES = 4096
"""What a file or folder takes up at least, as it is counted: so empty ones are bounded, too."""
CPU_GRACE_S = 1
"""Between SIGXCPU and SIGKILL."""
CLEARING_S = 10.0
"""How long what the program left behind is killed again and again."""
EXEC_FAILED = 127
NICE = 5
"""Where the CPU is short, a program gets a third of what its HAProc gets, which others wait for.
Chosen, not measured."""

CAPABILITIES_MAX = 64
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
LANDLOCK_VERSION, PATH_BENEATH = 1, 1
RIGHTS_OF_VERSION = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""How many kinds of access each version knows; they are the lowest bits."""
READING = 0b1101
"""Execute, read files, read folders."""
OF_FILES = 0b1100_0000_0000_0111
"""Those that a single file may be given: also write, truncate, ioctl."""
SCOPED_FROM_VERSION = 6
SCOPES = 0b11
"""No abstract sockets and no signals to those outside."""

_libc = ctypes.CDLL(None, use_errno=True)
_prctl, _syscall = _libc.prctl, _libc.syscall


def main() -> int:
    """Run what standard input says."""
    plan = json.loads(_first_line())
    _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            _become(plan, parent)
        except BaseException as error:
            _tell({"failed": f"{type(error).__name__}: {error}"})
            os._exit(EXEC_FAILED)
    ending = _wait(child, time.monotonic() + plan["wall_s"], plan["folder"], plan["disk_bytes"])
    used_up = ending["cpu_s"] >= plan["limits"]["RLIMIT_CPU"]
    if ending["code"] == -signal.SIGXCPU or (ending["code"] < 0 and used_up):
        ending["why"] = ending["why"] or "cpu"
    _clear()
    _tell(ending)
    return 0


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 65536)
        if not piece:
            sys.exit(1)
        line += piece
    return line


def _wait(child: int, deadline: float, folder: str, disk_bytes: int) -> dict[str, Any]:
    """Wait for the program; end it at a limit of its time or folder, or when the HAProc is gone."""
    why = _over(os.pidfd_open(child), deadline, folder, disk_bytes)
    if why:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    cpu_s = usage.ru_utime + usage.ru_stime
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    return {"code": os.waitstatus_to_exitcode(status), "why": why, "cpu_s": round(cpu_s, 3)}


def _over(pidfd: int, deadline: float, folder: str, disk_bytes: int) -> str:
    """Return why the program is to be ended, once it is; empty: it has ended by itself."""
    pause = DISK_LOOK_S
    while True:
        left = deadline - time.monotonic()
        readable, _, _ = select.select([0, pidfd], [], [], max(0.0, min(left, pause)))
        if pidfd in readable:
            return ""
        if readable:
            return "asked"
        if left <= pause:
            return "wall"
        began = time.monotonic()
        if _takes_more(folder, disk_bytes):
            return "disk"
        pause = max(DISK_LOOK_S, DISK_LOOK_SHARE * (time.monotonic() - began))


def _takes_more(folder: str, most: int) -> bool:
    """Whether what is in a folder takes up more; so does what is too deep to be looked at."""
    taken, folders = 0, [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    taken += max(ENTRY_BYTES, 512 * entry.stat(follow_symlinks=False).st_blocks)
                    if taken > most:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError as error:  # otherwise it is gone again
            if error.errno == errno.ENAMETOOLONG:
                return True
    return False


def _clear() -> None:
    """Kill whatever has become a child of ours, until there is none."""
    until = time.monotonic() + CLEARING_S
    while time.monotonic() < until:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as listing:  # noqa: PTH123
        return [int(pid) for pid in listing.read().split()]


def _become(plan: dict[str, Any], parent: int) -> NoReturn:
    """Be the program."""
    os.setsid()
    os.nice(NICE)
    for name, value in plan["limits"].items():
        most = value + CPU_GRACE_S if name == "RLIMIT_CPU" else value
        resource.setrlimit(getattr(resource, name), (value, most))
    if plan["user"]:
        name, uid, gid = plan["user"]
        os.initgroups(name, gid)
        os.setgid(gid)
        os.setuid(uid)
    _prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # behind setuid, which forgets it
    if os.getppid() != parent:
        os._exit(EXEC_FAILED)
    if plan["readable"] is not None:
        _confine(plan["readable"], plan["writable"])
    os.umask(0o077)
    os.chdir(plan["folder"])
    telling = os.dup(2)
    os.set_inheritable(telling, False)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(1, 2)
    try:
        os.execve(plan["command"][0], plan["command"], plan["environment"])
    except OSError as error:
        os.dup2(telling, 2)
        raise error


def _confine(readable: list[str], writable: list[str]) -> None:
    """Leave this process, and all that it starts, nothing of the files but these.

    Root loses its capabilities with the program's start: one of them (CAP_PERFMON) looks into
    processes past Landlock.
    """
    for capability in range(CAPABILITIES_MAX):
        _prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # refused to others, who have none
    version = _syscall(LANDLOCK_CREATE, None, 0, LANDLOCK_VERSION)
    if version < 1:
        raise OSError("this kernel has no Landlock: set jobs.confined to false to do without")
    every = (1 << RIGHTS_OF_VERSION[min(version, 5)]) - 1
    asked = struct.pack("QQQ", every, 0, SCOPES)[: None if version >= SCOPED_FROM_VERSION else 8]
    rules = _checked(_syscall(LANDLOCK_CREATE, asked, len(asked), 0))
    for paths, rights in ((readable, READING), (writable, every)):
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                _allow(rules, path, rights & every)
    _checked(_syscall(LANDLOCK_RESTRICT, rules, 0))
    os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    there = os.open(path, os.O_PATH | os.O_CLOEXEC)
    if not stat.S_ISDIR(os.fstat(there).st_mode):
        rights &= OF_FILES
    _checked(_syscall(LANDLOCK_ADD, rules, PATH_BENEATH, struct.pack("=Qi", rights, there), 0))
    os.close(there)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _tell(said: dict[str, Any]) -> None:
    os.write(2, json.dumps(said).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
