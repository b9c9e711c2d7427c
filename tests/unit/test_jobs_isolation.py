"""Tests of job isolation: each attack on HAProc works with `none` and fails in the sandbox.

Real processes, as root and as an unprivileged user; a separate process stands for HAProc.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from haproc.config.jobs import Isolation, Jobs
from haproc.jobs.isolation import IsolationError, check_isolation
from haproc.jobs.process import remove_folder, user_of
from tests.unit.sandboxing import (
    CHECKOUT,
    Trial,
    attacked,
    left_over,
    parent_of,
    private_folder,
    started,
    supervisor_of,
)

PATIENCE_S = 30.0
SLOW = [pytest.mark.thorough] if os.geteuid() == 0 else []
"""As root, both kinds of user are tested; the unprivileged one finds more."""
ABOVE, SHARED = Path("/new-file-of-a-job"), Path("/dev/shm/seen-by-all")
UNPRIVILEGED = pytest.param(
    True,
    id="unprivileged",
    marks=pytest.mark.skipif(os.geteuid() != 0, reason="the other one is unprivileged already"),
)
WHO = [pytest.param(False, id="own"), UNPRIVILEGED]
WHO_SLOWLY = [pytest.param(False, id="own", marks=SLOW), UNPRIVILEGED]

TRIES = """
import ctypes, json, os, resource, signal, socket, sys
haproc, base = int(sys.argv[1]), sys.argv[2]
libc = ctypes.CDLL(None, use_errno=True)
found = {}
def tried(what, call):
    try:
        call()
        found[what] = True
    except OSError:
        found[what] = False
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
def supervisors():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline").read().split("\\0")
            parent = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if any(word.endswith("supervisor.py") for word in words) and parent == haproc:
            return same(int(pid))
    raise ProcessLookupError
def same(pid):
    resource.prlimit(pid, resource.RLIMIT_NOFILE, resource.prlimit(pid, resource.RLIMIT_NOFILE))
def connect(address):
    socket.socket(socket.AF_UNIX).connect(address)
tried("limits of the supervisor", supervisors)
tried("limits of haproc", lambda: same(haproc))
tried("signal", lambda: os.kill(haproc, 0))
tried("ptrace", lambda: checked(libc.ptrace(0x4206, haproc, 0, 0)))
tried("environment", lambda: open(f"/proc/{haproc}/environ").read())
tried("memory", lambda: open(f"/proc/{haproc}/mem", "rb"))
tried("root of haproc", lambda: os.listdir(f"/proc/{haproc}/root/"))
tried("secret", lambda: open(f"{base}/secret").read())
tried("mode", lambda: os.chmod(f"{base}/secret", 0o666))
tried("other jobs", lambda: os.listdir(f"{base}/jobs/2-1"))
tried("socket", lambda: connect(f"{base}/socket"))
tried("outside", lambda: open(f"{base}/new", "w"))
tried("above", lambda: open("/new-file-of-a-job", "w"))
tried("shared memory", lambda: open("/dev/shm/seen-by-all", "w"))
tried("kernel", lambda: os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)))
tried("ended last", lambda: os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"0"))
tried("namespace", lambda: checked(libc.unshare(0x10000000)))
print(json.dumps(found))
"""
REACHED = (
    *("limits of the supervisor", "limits of haproc", "signal", "ptrace", "environment", "memory"),
    *("root of haproc", "secret", "mode", "other jobs", "socket", "outside", "namespace"),
    "ended last",
)

OWN = """
import ctypes, json, os, socket, sys, subprocess, tempfile
libc = ctypes.CDLL(None, use_errno=True)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
found = {key: status[key].strip() for key in ("CapEff", "CapPrm", "CapAmb", "NoNewPrivs")}
def is_open(fd):
    return os.path.exists(f"/proc/self/fd/{fd}")
found["fds"] = sorted(filter(is_open, map(int, os.listdir("/proc/self/fd"))))
found["pids"] = len([pid for pid in os.listdir("/proc") if pid.isdigit()])
found["root"] = os.getuid() == 0
found["ended first"] = int(open("/proc/self/oom_score_adj").read())
found["keys"] = os.path.exists("/etc/ssl/private")
def tried(call):
    try:
        call()
        return True
    except OSError:
        return False
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
found["ptrace of the first process"] = tried(lambda: checked(libc.ptrace(0x4206, 1, 0, 0)))
found["files of the first process"] = tried(lambda: os.listdir("/proc/1/fd"))
found["own"] = tried(lambda: open("own", "w"))
found["tmp"] = tried(lambda: tempfile.NamedTemporaryFile())
found["shm"] = tried(lambda: open("/dev/shm/x", "w"))
found["null"] = tried(lambda: open("/dev/null", "w"))
found["links"] = tried(lambda: open("/usr/new", "w"))
import pyspark.sql, pyarrow, grpc, multiprocessing
with multiprocessing.Pool(2) as pool:
    found["pool"] = pool.map(abs, [-1, -2])
found["run"] = subprocess.run(["/bin/echo", "hello"], capture_output=True, text=True).stdout
listening = socket.create_server(("127.0.0.1", 0))
found["network"] = tried(lambda: socket.create_connection(listening.getsockname()))
print(json.dumps(found))
"""

LEAVES = """
import ctypes, os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        os.closerange(0, 3)
        time.sleep(1234567)
    os._exit(0)
os.wait()
print("left", flush=True)
"""
WAITS = "time.sleep(1000)\n"


@pytest.fixture
def base(as_user: bool) -> Iterator[Path]:
    """A folder that is HAProc's alone, at a place that the user can reach."""
    above = Path(tempfile.mkdtemp(dir="/tmp"))
    above.chmod(0o755)
    try:
        yield private_folder(above / "state", as_user)
    finally:
        remove_folder(above)


def is_there(path: Path) -> bool:
    return path.exists()


def remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def tries(base: Path, isolation: Isolation, code: str, as_user: bool) -> dict[str, Any]:
    lines, end = await attacked(base, Trial(code, isolation.value), as_user)
    assert end["outcome"] == "success", (lines, end)
    return dict(json.loads(lines[-1]))


@pytest.mark.parametrize("as_user", WHO)
async def test_sandboxed_program_reaches_nothing_of_haproc(base: Path, as_user: bool) -> None:
    (base / "jobs" / "2-1").mkdir(parents=True)
    (base / "jobs").chmod(0o700)  # as HAProc's umask has it
    (base / "jobs" / "2-1").chmod(0o755)
    if as_user:
        shutil.chown(base / "jobs", "nobody")
        shutil.chown(base / "jobs" / "2-1", "nobody")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(base / "socket"))
        (base / "socket").chmod(0o777)
        listening.listen()
        free = await tries(base, Isolation.NONE, TRIES, as_user)
        remove(ABOVE, SHARED)
        assert {what: free[what] for what in REACHED} == dict.fromkeys(REACHED, True)
        assert mode_of(base / "secret") == 0o666
        (base / "secret").chmod(0o600)
        (base / "new").unlink()
        shut = await tries(base, Isolation.BUBBLEWRAP, TRIES, as_user)
    assert {what for what, reached in shut.items() if reached} == {"shared memory"}
    assert not is_there(SHARED)
    assert mode_of(base / "secret") == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
@pytest.mark.parametrize("as_user", [False])
async def test_program_of_another_user_reaches_only_what_is_open_to_all(
    base: Path, as_user: bool
) -> None:
    os.chmod(base, 0o711)  # noqa: PTH101
    (base / "jobs" / "2-1").mkdir(parents=True)
    (base / "jobs").chmod(0o700)  # as HAProc's umask has it
    (base / "jobs" / "2-1").chmod(0o755)
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    assert python is not None, "an interpreter that other users may run: apt install python3"
    trial = Trial(TRIES, "user", python=python)
    lines, end = await attacked(base, trial)
    assert end["outcome"] == "success", (lines, end)
    found = json.loads(lines[-1])
    remove(SHARED)
    # The first hangs on the kernel's settings, the other on root's capabilities.
    reached = {what for what, reached in found.items() if reached} - {"namespace", "ended last"}
    assert reached == {"shared memory", "other jobs"}


@pytest.mark.parametrize("as_user", WHO)
async def test_sandboxed_program_has_everything_that_a_pyspark_program_needs(
    base: Path, as_user: bool
) -> None:
    found = await tries(base, Isolation.BUBBLEWRAP, OWN, as_user)
    assert found == {
        **dict.fromkeys(("CapEff", "CapPrm", "CapAmb"), "0" * 16),
        "NoNewPrivs": "1",
        "fds": [0, 1, 2],
        "pids": 2,
        "root": False,
        "ended first": 1000,
        "keys": False,
        "ptrace of the first process": False,
        "files of the first process": False,
        **dict.fromkeys(("own", "tmp", "shm", "null", "network"), True),
        "links": False,
        "pool": [1, 2],
        "run": "hello\n",
    }


@pytest.mark.parametrize("as_user", WHO_SLOWLY)
async def test_sandboxed_program_that_signals_its_first_process_ends_only_itself(
    base: Path, as_user: bool
) -> None:
    code = (
        LEAVES
        + """
import resource
try:
    resource.prlimit(1, resource.RLIMIT_CPU, (1, 1))
    resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))
except OSError:
    pass
for number in (9, 15, 19, 2):
    os.kill(1, number) if os.getuid() == os.stat("/proc/1").st_uid else None
"""
        + WAITS
    )
    lines, end = await attacked(base, Trial(code, "bubblewrap", wall_s=2.0), as_user)
    assert lines[0] == "left"
    assert end["outcome"] in ("limit", "failed")
    assert not left_over(base)


async def all_gone(base: Path) -> None:
    """Wait until no process is left."""
    until = time.monotonic() + PATIENCE_S
    while left_over(base):
        assert time.monotonic() < until
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("as_user", WHO)
@pytest.mark.parametrize("killed", ["supervisor", "haproc"])
async def test_no_process_of_a_program_outlives_its_supervisor_or_haproc(
    base: Path, as_user: bool, killed: str
) -> None:
    process = await started(base, Trial(LEAVES + WAITS, "bubblewrap"), as_user)
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        assert await process.stdout.readline() == b"left\n"
        assert len(left_over(base)) == 2
        supervisor = supervisor_of(process.pid)
        os.kill(supervisor if killed == "supervisor" else parent_of(supervisor), 9)
        await all_gone(base)
        last = await process.stdout.read()
        await process.wait()
    if killed == "supervisor":
        assert json.loads(last)["outcome"] == "lost"


@pytest.mark.parametrize("as_user", [False])
async def test_program_without_isolation_outlives_its_supervisor(base: Path, as_user: bool) -> None:
    process = await started(base, Trial(LEAVES + WAITS, "none"), as_user)
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        assert await process.stdout.readline() == b"left\n"
        os.kill(supervisor_of(process.pid), 9)
        await process.stdout.read()
        await process.wait()
    left = left_over(base)
    assert len(left) == 1
    os.kill(left[0], 9)


@pytest.mark.parametrize("as_user", WHO_SLOWLY)
async def test_sandboxed_program_that_ends_leaves_no_process(base: Path, as_user: bool) -> None:
    lines, end = await attacked(base, Trial(LEAVES, "bubblewrap"), as_user)
    assert (lines, end["outcome"]) == (["left"], "success")
    assert not left_over(base)


FORKS = """
import os, sys, time
made = 0
try:
    for made in range(300):
        if os.fork() == 0:
            time.sleep(1000)
except BlockingIOError:
    print("no more", flush=True)
print(made, flush=True)
"""


@pytest.mark.parametrize("as_user", WHO_SLOWLY)
async def test_fork_bomb_is_bounded_for_each_job_separately(base: Path, as_user: bool) -> None:
    free, _ = await attacked(base, Trial(FORKS, "none"), as_user)
    assert free == ["299"]
    shut, _ = await attacked(base, Trial(FORKS, "bubblewrap"), as_user)
    assert shut[0] == "no more" and 50 < int(shut[1]) < 64
    assert not left_over(base)


HOLD = """
import os, sys, time
apart, shared = 100 << 20, 300 << 20
held = os.urandom(1 << 20) * (shared >> 20)
for _ in range(4):
    if os.fork() == 0:
        break
if sys.argv[-1] == "apart":
    own = os.urandom(1 << 20) * (apart >> 20)
    time.sleep(60)  # until it is noticed: one look after another, each after 20 times its own time
time.sleep(4)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("as_user", WHO_SLOWLY)
async def test_memory_of_all_processes_is_summed_and_shared_memory_counts_once(
    base: Path, as_user: bool
) -> None:
    """Five processes with 300 MiB in common, and then with 100 MiB each in addition."""
    for how, outcome in (("shared", "success"), ("apart", "limit")):
        trial = Trial(HOLD, "bubblewrap", memory_bytes=600 << 20, args=(how,))
        _, end = await attacked(base, trial, as_user)
        assert end["outcome"] == outcome, (how, end)
    assert "memory" in end["why"]


SHUT = """
os.mkdir('d')
for n in range(40):
    open(f'd/{n}', 'wb').write(bytes(1 << 20))
os.chmod('d', 0)
"""
DELETED = """
f = open('f', 'wb')
os.unlink('f')
for n in range(400):
    f.write(bytes(1 << 20))
"""


@pytest.mark.parametrize("as_user", WHO_SLOWLY)
@pytest.mark.parametrize(
    ("fills", "most", "why"),
    [(DELETED, 1 << 30, "disk_free_bytes_min"), (SHUT, 32 << 20, "disk_bytes_max")],
    ids=["deleted", "shut"],
)
async def test_program_that_fills_the_disk_with_hidden_files_is_ended(
    base: Path, as_user: bool, fills: str, most: int, why: str
) -> None:
    code = f"import os, time\n{fills}\ntime.sleep(100)"
    room = 100 << 20 if fills == DELETED else 1 << 40
    trial = Trial(code, "bubblewrap", room_bytes=room, disk_bytes_max=most)
    _, end = await attacked(base, trial, as_user)
    assert end["outcome"] == "limit" and why in end["why"]
    assert not (base / "jobs" / "1-1").exists()


@pytest.mark.parametrize("as_user", WHO_SLOWLY)
async def test_hidden_folder_is_not_found_below_a_shown_folder_by_any_path(
    base: Path, as_user: bool
) -> None:
    above, link = base.parent, base.parent.parent / f"{base.parent.name}-link"
    (above / "shown").write_text("yes")
    (above / "shown").chmod(0o644)
    code = """
import json, os, sys
ways = sys.argv[3:]
found = [os.path.exists(f"{way}/state/secret") for way in ways]
print(json.dumps([found, [open(f"{way}/shown").read() for way in ways]]))
open("own", "w")
"""
    link.symlink_to(above)
    try:
        ways = (str(above), str(link))
        trial = Trial(code, "bubblewrap", args=ways, readable=ways)
        lines, end = await attacked(base, trial, as_user)
    finally:
        link.unlink()
    assert end["outcome"] == "success", (lines, end)
    assert json.loads(lines[-1]) == [[False, False], ["yes", "yes"]]


@pytest.mark.parametrize("as_user", WHO_SLOWLY)
async def test_links_in_the_working_folder_lead_cleanup_to_no_other_folder(
    base: Path, as_user: bool
) -> None:
    code = """
import os, shutil, sys
base = sys.argv[2]
shutil.rmtree("modules")
for name in ("modules", "other"):
    os.symlink(base, name)
os.symlink("/", "root")
os.symlink(f"{base}/secret", "file")
"""
    _, end = await attacked(base, Trial(code, "bubblewrap"), as_user)
    assert end["outcome"] == "success"
    assert (base / "secret").exists()
    assert mode_of(base) == 0o700
    assert not (base / "jobs" / "1-1").exists()


async def test_isolation_that_does_not_work_here_is_refused_with_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_isolation(Jobs(enabled=True), tmp_path / "jobs", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(IsolationError, match="apt install bubblewrap"):
        await check_isolation(Jobs(enabled=True), tmp_path / "jobs", tmp_path)
    refuses = tmp_path / "bwrap"
    refuses.write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1"
    )
    refuses.chmod(0o755)
    with pytest.raises(IsolationError, match="No permissions to create new namespace"):
        await check_isolation(Jobs(enabled=True), tmp_path / "jobs", tmp_path)
    await check_isolation(Jobs(enabled=True, isolation=Isolation.NONE), tmp_path / "jobs", tmp_path)
    assert list((tmp_path / "jobs").iterdir()) == []


def test_haproc_does_not_start_where_its_job_isolation_does_not_work(tmp_path: Path) -> None:
    config = tmp_path / "ring.yaml"
    config.write_text(
        "{ring: r, log: 'sqlite:///log.db', secret: {env: RING_SECRET}, state_dir: state, "
        "clusters: [{name: a, listen: '127.0.0.1:1', peer: '127.0.0.1:2', "
        "connect: '127.0.0.1:3', spark: {url: 'sc://127.0.0.1:4'}}], jobs: {enabled: true}}"
    )
    command = [sys.executable, "-m", "haproc", "serve", "--config", str(config), "--cluster", "a"]
    environment = {"PATH": str(tmp_path), "PYTHONPATH": str(CHECKOUT), "RING_SECRET": "x" * 40}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "jobs.isolation bubblewrap does not work here: there is no program bwrap" in done.stderr
    assert "apt install bubblewrap" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
@pytest.mark.parametrize("user", ["root", "no-such-user"])
async def test_programs_run_as_nobody_and_not_as_root_or_an_unknown_user(
    tmp_path: Path, user: str
) -> None:
    assert user_of(Jobs()) == "nobody"
    with pytest.raises(IsolationError, match=user):
        await check_isolation(Jobs(enabled=True, user=user), tmp_path / "jobs", tmp_path)
