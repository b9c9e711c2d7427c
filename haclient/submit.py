"""`haclient submit`: run a Python program as a job of the ring.

Its log goes to standard output, which job it is and how it goes to standard error. With --follow
the exit code is the job's: 0 for success, the program's own if that failed, else 1.
Without, 0 once the job is taken. 2 wrong usage, 3 no server was available and nothing was done, 4
it is not known whether the job was taken, 130 interrupted: the job goes on.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from haclient.exceptions import Error
from haclient.forms import JobFile
from haclient.settings import Settings
from haclient.sync.jobs import Jobs
from haclient.terminal import harmless

FINAL: Final = frozenset({"success", "dead", "killed", "error"})
POLL_S: Final = 0.5
EXIT_FAILED: Final = 1


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add what is this command's own."""
    add = command.add_argument
    add("program", type=Path, help="a Python file of this machine")
    add("--py-files", metavar="FILES", default="", help="modules it imports, with commas")
    add("--files", metavar="FILES", default="", help="data for its working folder, with commas")
    add("--arg", action="append", default=[], metavar="TEXT", help="an argument; may be repeated")
    add("--name", help="what to call the job")
    add(
        "--conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting, such as haproc.restart=3; may be repeated",
    )
    add("--driver-memory", metavar="SIZE", help="what the program may take, such as 2g")
    add("--follow", action="store_true", help="show its log, and end as it ends")


def submit(
    options: argparse.Namespace,
    settings: Settings,
    say: Callable[[str], None],
    exit_code: Callable[[Error], int],
) -> int:
    """Run the command; return the exit code. Raises OSError and ValueError for wrong usage."""
    request, files = read_request(options)
    with Jobs(settings) as jobs:
        try:
            job = jobs.submit(request, files, options.request_id)
            say(f"job {job['id']}")
            return follow(jobs, int(job["id"]), say) if options.follow else 0
        except Error as error:
            print(f"haclient: {error.message}", file=sys.stderr)
            return exit_code(error)
        except KeyboardInterrupt:
            say("the job goes on")
            return 130


def read_request(options: argparse.Namespace) -> tuple[dict[str, Any], list[JobFile]]:
    """Return what is asked for, and the files that go with it."""
    confs: dict[str, str] = {}
    for setting in options.conf:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"--conf {setting!r} is not KEY=VALUE")
        confs[key] = value
    request: dict[str, Any] = {"args": options.arg, "conf": confs}
    if options.name:
        request["name"] = options.name
    if options.driver_memory:
        request["driverMemory"] = options.driver_memory
    named = [("file", options.program)]
    named += [("pyFiles", Path(each)) for each in options.py_files.split(",") if each]
    named += [("files", Path(each)) for each in options.files.split(",") if each]
    return request, [JobFile(part, path.name, path.read_bytes()) for part, path in named]


def follow(jobs: Jobs, job_id: int, say: Callable[[str], None]) -> int:
    """Show a job's log until it ends; return what the command ends with."""
    at, state, attempts = 0, "", 0
    while True:
        job = jobs.job(job_id)
        now, ours = str(job["state"]), job["haproc"]
        if (now, ours["attempts"]) != (state, attempts):
            state, attempts = now, ours["attempts"]
            say(f"{state} · attempt {attempts} on {ours['cluster']}")
        at = _show(jobs, job_id, at)
        if state in FINAL:
            return _ended(ours, say)
        time.sleep(POLL_S)


def _show(jobs: Jobs, job_id: int, at: int) -> int:
    """Print what is new in the log; return the number of the next line."""
    while True:
        page = jobs.log(job_id, at)
        lines = page["log"]
        if lines:
            print("\n".join(map(harmless, lines)), flush=True)
        at = max(at, int(page["from"]) + len(lines))
        if not lines or at >= page["total"]:
            return at


def _ended(ours: dict[str, Any], say: Callable[[str], None]) -> int:
    if ours["why"]:
        say(harmless(str(ours["why"])))
    if ours["outcome"] == "success":
        return 0
    code = ours["exit_code"]
    return code if isinstance(code, int) and 0 < code < 256 else EXIT_FAILED
