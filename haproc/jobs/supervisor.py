# ruff: noqa: PTH123, PTH208
"""Ends a program, with all processes that it started, at a limit or with its HAProc. Run as a file.

Imports nothing of HAProc, so it starts fast. Its standard input is one line of JSON (`Plan` in
`haproc.jobs.process`) and then stays open while the HAProc lives; when the input ends, the
supervisor ends the program. Its standard output is the program's. It reports the end as one line of
JSON on standard error, in addition to the reports of the job's first process
(`haproc.jobs.inside`).

It stays outside the sandbox, where the program can neither see nor touch it. By a pipe the first
process notices if the supervisor ends. A process that outlives its parent becomes a child of the
supervisor, which kills it. In a process namespace it becomes a child of the first process instead,
and the kernel kills it when the first process ends.
"""

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import sys
import time
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWUSER = 0x10000000
NAMESPACE_FD = 3
"""The file descriptor of the user namespace that root's supervisor makes for bubblewrap."""
ALL_USERS = b"0 0 4294967295"
LOOK_S = 0.2
"""The interval, in seconds, at which the free space of the disk is checked."""
USED_LOOK_S = 1.0
USED_LOOK_SHARE = 20
"""The share of time for measuring folder and processes: they are measured every second, for a
twentieth of the time at most."""
ENTRY_BYTES = 4096
"""The bytes that a file or folder counts at least; so the number of empty ones is bounded, too."""
CLEARING_S = 10.0
"""The time for which the program's remaining processes are killed again and again."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
FIRST_OUT = b"1000"
"""The priority with which the kernel ends programs, before HAProc, if the host has no memory
left."""
EXEC_FAILED = 127

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> int:
    """Run the program that one line on standard input describes; return the exit code."""
    plan = json.loads(_first_line())
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        namespace = _user_namespace() if plan["user_namespace"] else None
    except OSError as error:
        _report({"failed": f"there is no user namespace to be had: {error}"})
        return 1
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            _enter(plan["command"], reading, namespace, parent)
        except BaseException as error:
            _report({"failed": f"{type(error).__name__}: {error}"})
            os._exit(EXEC_FAILED)
    os.close(reading)
    with contextlib.suppress(BrokenPipeError):
        _write(writing, json.dumps(plan["inside"]).encode() + b"\n")
    ending = _wait(child, plan)
    _clear()
    _report(ending)
    return 0


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 65536)
        if not piece:
            sys.exit(1)
        line += piece
    return line


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _user_namespace() -> int:
    """Return a new user namespace with all users of this one, in which no further one can be made.

    Only root can make it. Each job has its own namespace, so its processes are counted separately.
    """
    made, making = os.pipe()
    going, go = os.pipe()
    helper = os.fork()
    if helper == 0:
        failed = _libc.unshare(CLONE_NEWUSER)
        os.write(making, bytes([ctypes.get_errno() if failed else 0]))
        os.close(go)
        os.read(going, 1)
        _put("/proc/sys/user/max_user_namespaces", b"0")
        os._exit(0)
    try:
        failed = os.read(made, 1)[0]
        if failed:
            raise OSError(failed, os.strerror(failed))
        for which in ("uid_map", "gid_map"):
            _put(f"/proc/{helper}/{which}", ALL_USERS)
        return os.open(f"/proc/{helper}/ns/user", os.O_RDONLY)
    finally:
        for fd in (made, making, going, go):
            os.close(fd)
        _, status = os.waitpid(helper, 0)
        if status:
            raise OSError("the helper that makes it failed")


def _put(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, data)
    os.close(fd)


def _enter(command: list[str], reading: int, namespace: int | None, parent: int) -> NoReturn:
    """Turn this process into the job's first process: prepare it, then execute ``command``."""
    os.setsid()
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(EXEC_FAILED)
    _put("/proc/self/oom_score_adj", FIRST_OUT)
    os.dup2(reading, 0)
    if namespace is not None:
        if namespace == NAMESPACE_FD:
            os.set_inheritable(namespace, True)
        else:
            os.dup2(namespace, NAMESPACE_FD)
    os.execve(command[0], command, {})


def _wait(child: int, plan: dict[str, Any]) -> dict[str, Any]:
    """Wait for the first process's end, and return the report of it.

    At a limit of time, disk or memory, or when the HAProc is gone, end it.
    """
    why = _over(os.pidfd_open(child), plan)
    if why:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    cpu_s = usage.ru_utime + usage.ru_stime
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    return {"ended": os.waitstatus_to_exitcode(status), "why": why, "cpu_s": round(cpu_s, 3)}


def _over(pidfd: int, plan: dict[str, Any]) -> str:
    """Wait until the program must be ended, and return the reason; empty if it ended by itself."""
    folder, began = plan["folder"], time.monotonic()
    deadline, look_at = began + plan["wall_s"], began + USED_LOOK_S
    while True:
        left = deadline - time.monotonic()
        readable, _, _ = select.select([0, pidfd], [], [], max(0.0, min(left, LOOK_S)))
        if pidfd in readable:
            return ""
        if readable:
            return "asked"
        now = time.monotonic()
        if now >= deadline:
            return "wall"
        if _free_bytes(folder) < plan["free_bytes"]:
            return "full"
        if now >= look_at:
            if _takes_more(folder, plan["disk_bytes"]):
                return "disk"
            if _hold_more(plan["memory_bytes"]):
                return "memory"
            done = time.monotonic()
            look_at = done + max(USED_LOOK_S, USED_LOOK_SHARE * (done - now))


def _free_bytes(folder: str) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _takes_more(folder: str, most: int) -> bool:
    """True if a folder takes more than ``most`` bytes of disk, or cannot be measured.

    It cannot be measured if it is nested too deep, or if a folder in it may not be listed.
    """
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
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):  # deleted meanwhile
                return True
    return False


def _hold_more(most: int) -> bool:
    """True if all processes of the job together hold more than ``most`` bytes of memory.

    The exact sum counts shared memory once. It is slow, so a quick upper bound comes first.
    """
    pids = _descendants(os.getpid())
    return sum(map(_resident, pids)) > most and sum(map(_proportional, pids)) > most


def _descendants(top: int) -> list[int]:
    found, looking = [], [top]
    while looking:
        pid = looking.pop()
        with contextlib.suppress(OSError):  # the process has ended
            for thread in os.listdir(f"/proc/{pid}/task"):
                below = _children(pid, int(thread))
                found += below
                looking += below
    return found


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def _proportional(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
    except OSError:
        return _resident(pid)


def _clear() -> None:
    """Kill all children of this process, until there is none."""
    until = time.monotonic() + CLEARING_S
    while time.monotonic() < until:
        for pid in _children(os.getpid(), os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def _children(pid: int, thread: int) -> list[int]:
    with open(f"/proc/{pid}/task/{thread}/children") as listing:
        return [int(pid) for pid in listing.read().split()]


def _report(message: dict[str, Any]) -> None:
    os.write(2, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
