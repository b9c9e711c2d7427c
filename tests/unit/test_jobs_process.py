"""Tests of a program's process: its limits, its end, and the cleanup after it."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from haproc.config.jobs import Isolation, Jobs
from haproc.jobs.inside import NICE
from haproc.jobs.model import JobLimits, Outcome
from haproc.jobs.process import End, Plan, Running, make_folder, remove_folder

ENOUGH_S = 120.0
LIMITS = JobLimits(memory_bytes=1 << 30, cpu_s=20, wall_s=ENOUGH_S)
SETTINGS = Jobs(
    isolation=Isolation.NONE,
    output_bytes_max=1 << 20,
    processes_max=100,
    disk_bytes_max=64 << 20,
    disk_free_bytes_min=0,
)


def plan(folder: Path, code: str) -> Plan:
    (folder / "p.py").write_text(code)
    return Plan(
        (sys.executable, "-u", str(folder / "p.py")),
        folder,
        {"GIVEN": "yes"},
        SETTINGS,
        LIMITS,
    )


async def run(made: Plan) -> tuple[str, End]:
    async with asyncio.timeout(ENOUGH_S):
        running = await Running.start(made)
        printed = b"".join([piece async for piece in running.output()])
        return printed.decode(), await running.ended()


async def test_program_runs_in_its_folder_with_its_own_environment_only(tmp_path: Path) -> None:
    os.environ["SECRET_OF_HAPROC"] = "x"
    code = """
import os, sys
print(os.getcwd(), sorted(os.environ))
print('e', file=sys.stderr)
print(os.nice(0))
"""
    printed, end = await run(plan(tmp_path, code))
    del os.environ["SECRET_OF_HAPROC"]
    assert end == End(Outcome.SUCCESS, 0, "")
    lines = printed.splitlines()
    assert lines[0].startswith(f"{tmp_path} ['GIVEN'") and "SECRET" not in printed
    assert lines[1] == "e"
    assert int(lines[2]) == min(19, os.nice(0) + NICE)


async def test_program_that_fails_reports_its_exit_code_or_signal(tmp_path: Path) -> None:
    assert await run(plan(tmp_path, "raise SystemExit(3)")) == (
        "",
        End(Outcome.FAILED, 3, "exit code 3"),
    )
    _, end = await run(plan(tmp_path, "import os; os.kill(os.getpid(), 9)"))
    assert (end.outcome, end.code) == (Outcome.FAILED, -9)


async def test_program_at_a_limit_is_ended(tmp_path: Path) -> None:
    waits = plan(tmp_path, "import time; time.sleep(100)")
    waits = replace(waits, limits=replace(LIMITS, wall_s=0.3))
    _, end = await run(waits)
    assert (end.outcome, end.why) == (Outcome.LIMIT, "its time is over")
    burns = plan(tmp_path, "while True: pass")
    burns = replace(burns, limits=replace(LIMITS, cpu_s=1))
    _, end = await run(burns)
    assert end.outcome is Outcome.LIMIT and "time of the CPU" in end.why
    eats = plan(tmp_path, "b = bytearray(2 << 30)")
    printed, end = await run(eats)
    assert "MemoryError" in printed and end.outcome is Outcome.FAILED
    says = plan(tmp_path, "while True: print('x' * 1000)")
    assert (await run(says))[1].outcome is Outcome.LIMIT


@pytest.mark.parametrize(
    "fills",
    [
        "for n in range(40): open(f'f{n}', 'wb').write(bytes(1 << 20))",
        "for n in range(9000): open(f'tmp/{n}', 'w').close()",
        "for n in range(2100): os.mkdir('d'); os.chdir('d')",
    ],
    ids=["bytes", "files", "depth"],
)
async def test_program_that_fills_the_disk_is_ended(tmp_path: Path, fills: str) -> None:
    (tmp_path / "tmp").mkdir()
    filling = plan(tmp_path, f"import os, time\n{fills}\ntime.sleep(100)")
    try:
        printed, end = await run(
            replace(filling, settings=replace(SETTINGS, disk_bytes_max=32 << 20))
        )
    finally:
        remove_folder(tmp_path)  # pytest could not
    assert (printed, end.outcome) == ("", Outcome.LIMIT)
    assert "disk_bytes_max" in end.why


async def test_program_cannot_write_a_file_larger_than_its_folders_limit(
    tmp_path: Path,
) -> None:
    writes = plan(tmp_path, "open('f', 'wb').truncate(65 << 20)")
    printed, end = await run(writes)
    assert "File too large" in printed and end.outcome is Outcome.FAILED


async def test_program_that_cannot_be_started_ends_with_an_error_not_a_failure(
    tmp_path: Path,
) -> None:
    nowhere = replace(plan(tmp_path, ""), command=("/nowhere/python",))
    assert (await run(nowhere))[1].outcome is Outcome.ERROR


LEAVES = """
import os, subprocess, sys, time
inner = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(1000)"
subprocess.Popen([sys.executable, "-c", f"import os\\nif os.fork() == 0:\\n  exec({inner!r})"])
time.sleep(1000)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError:
        return False


async def test_program_that_is_stopped_leaves_no_process_behind(tmp_path: Path) -> None:
    running = await Running.start(plan(tmp_path, LEAVES))
    pid = 0
    async with asyncio.timeout(ENOUGH_S):
        async for piece in running.output():
            pid = pid or int(piece)
            running.stop()
        assert (await running.ended()).outcome is Outcome.LOST
    assert pid and not is_alive(pid)


async def test_program_ends_with_the_haproc_that_started_it(tmp_path: Path) -> None:
    """A killed HAProc reports nothing: the kernel closes its end of the supervisor's input."""
    plan(tmp_path, LEAVES)
    haproc = f"""
import asyncio
from pathlib import Path
from tests.unit.test_jobs_process import LEAVES, plan
from haproc.jobs.process import Running

async def main():
    running = await Running.start(plan(Path({str(tmp_path)!r}), LEAVES))
    async for piece in running.output():
        print(piece.decode(), end="", flush=True)

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", haproc), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(ENOUGH_S):
        pid = int(await process.stdout.readline())
    assert is_alive(pid)
    process.kill()
    await process.wait()
    until = time.monotonic() + ENOUGH_S
    while is_alive(pid):
        assert time.monotonic() < until
        await asyncio.sleep(0.02)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become somebody else")
async def test_program_runs_as_another_user_that_cannot_read_private_files(tmp_path: Path) -> None:
    for part in (tmp_path, *tmp_path.parents):
        if part == Path(tempfile.gettempdir()):
            break
        part.chmod(0o711)
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o600)
    code = f"import os; print(os.getuid() != 0); open('mine', 'w'); open({str(secret)!r})"
    folder = tmp_path / "work"
    make_folder(folder, [("p.py", code.encode())], "nobody")
    made = replace(
        plan(tmp_path, ""),
        command=("/usr/bin/env", "python3", "p.py"),
        folder=folder,
        environment={"PATH": "/usr/local/bin:/usr/bin:/bin"},
        settings=replace(SETTINGS, isolation=Isolation.USER, user="nobody"),
    )
    printed, end = await run(made)
    if "No such file" in printed:
        pytest.skip("no interpreter that other users may run")
    assert printed.startswith("True") and "PermissionError" in printed and end.code == 1


def test_folder_with_deep_unreadable_and_linked_entries_is_removed_without_the_links_targets(
    tmp_path: Path,
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    folder = tmp_path / "job"
    make_folder(folder, [("p.py", b"pass")], None)
    (folder / "link").symlink_to(outside)
    (folder / "dangling").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
    (folder / "shut" / "in").mkdir(parents=True)
    (folder / "shut").chmod(0)
    at = os.open(folder, os.O_RDONLY)
    for _ in range(sys.getrecursionlimit() + 100):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    remove_folder(folder)
    assert not folder.exists()
    assert (outside / "kept").read_text() == "x"
