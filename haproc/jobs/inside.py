"""The first process of a job: starts the program under its limits, and reports its end.

The interpreter of jobs runs it as text, so it needs no file of HAProc and imports nothing of
HAProc. Its standard input is one line of JSON (`Plan` in `haproc.jobs.process`) and then stays open
while the supervisor lives: this process ends when its input ends. It reports by lines of JSON on
standard error. Its standard output is the program's.

With bubblewrap this is the first process of a process namespace. It adopts the processes that the
program leaves behind, and the kernel kills all others when it ends. It is not dumpable, so that the
program, which may have the same user, can neither trace it nor open its files. A program that
changes the limits of this process or stops it ends only itself.
"""

import ctypes
import json
import os
import resource
import select
import signal
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38
CPU_GRACE_S = 1
"""The seconds between SIGXCPU, the signal at the CPU limit, and SIGKILL."""
EXEC_FAILED = 127
FDS_LEFT_OPEN = 64
"""The upper bound of the file descriptors that are closed: bubblewrap may leave some open, such as
its user namespace."""
NICE = 5
"""The niceness of a program: it gets a third of its HAProc's share of a busy CPU, because clients
wait for HAProc. Chosen."""

_prctl = ctypes.CDLL(None, use_errno=True).prctl


def main(plan: dict[str, Any]) -> NoReturn:
    """Start the program; end this process when the program or the supervisor ends."""
    _prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    os.closerange(3, FDS_LEFT_OPEN)
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking)
    first = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            _become(plan, first)
        except BaseException as error:
            _report({"failed": f"{type(error).__name__}: {error}"})
            os._exit(EXEC_FAILED)
    _report({"began": True})
    while True:
        readable, _, _ = select.select([0, woken], [], [])
        if 0 in readable:
            os._exit(0)
        os.read(woken, 4096)
        _reap(child)


def _reap(program: int) -> None:
    """Collect all child processes that have ended; if the program is one, report that and exit."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == program:
            _report({"code": os.waitstatus_to_exitcode(status)})
            os._exit(0)
        if pid == 0:
            return


def _become(plan: dict[str, Any], parent: int) -> NoReturn:
    """Turn this process into the program: set user and limits, then execute it."""
    os.setsid()
    os.nice(NICE)
    for name, value in plan["limits"].items():
        _limit(getattr(resource, name), value, CPU_GRACE_S if name == "RLIMIT_CPU" else 0)
    if plan["user"]:
        uid, gid, groups = plan["user"]
        os.setgroups(groups)
        os.setgid(gid)
        os.setuid(uid)
    _prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # after setuid, which resets it
    if os.getppid() != parent:
        os._exit(EXEC_FAILED)
    os.umask(0o077)
    os.chdir(plan["folder"])
    report_fd = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(1, 2)
    try:
        os.execve(plan["command"][0], plan["command"], plan["environment"])
    except OSError:
        os.dup2(report_fd, 2)
        raise


def _limit(which: int, value: int, grace: int) -> None:
    _, hard = resource.getrlimit(which)
    most = value + grace
    if hard != resource.RLIM_INFINITY:
        value, most = min(value, hard), min(most, hard)
    resource.setrlimit(which, (value, most))


def _report(message: dict[str, Any]) -> None:
    os.write(2, json.dumps(message).encode() + b"\n")
