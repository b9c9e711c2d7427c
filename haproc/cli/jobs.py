"""``haproc jobs``: the ring's jobs, their logs, and ending one.

Any HAProc of the ring that answers can tell and do it.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any, Final

from haproc.cli import output
from haproc.cli.queue import Asker, ask_any

PAGE: Final = 1000
_NEVER: Final = "-"


async def list_jobs(asker: Asker, options: argparse.Namespace) -> int:
    """List the jobs, newest last."""
    path = f"/ha/v1/jobs?from={options.start}&size={options.limit}"
    found = await ask_any(asker, options, "GET", path)
    if options.json:
        output.dump(found)
        return 0
    rows = [_row(each) for each in found["sessions"]]
    head = ("JOB", "USER", "NAME", "STATE", "HAPROC", "ATTEMPTS", "SUBMITTED", "ENDED")
    output.table(head, rows)
    if len(rows) < found["total"]:
        print(f"{len(rows)} of {found['total']}; --start and --limit show others")
    return 0


def _row(job: dict[str, Any]) -> tuple[object, ...]:
    ours = job["haproc"]
    name = job["name"] or ours["program"]
    times = (_time(ours["submitted_ms"]), _time(ours["ended_ms"]))
    return (job["id"], job["owner"], name, job["state"], ours["cluster"], ours["attempts"], *times)


async def show(asker: Asker, options: argparse.Namespace) -> int:
    """Show one job."""
    job = await ask_any(asker, options, "GET", f"/ha/v1/jobs/{options.job}")
    if options.json:
        output.dump(job)
        return 0
    ours = job.pop("haproc")
    lines = job.pop("log")
    for name, value in {**job, **ours}.items():
        shown = _time(value) if name.endswith("_ms") else value
        output.line(f"{name.removesuffix('_ms')}: {_NEVER if shown is None else shown}")
    for line in lines:
        output.line(f"  {line}")
    return 0


async def log(asker: Asker, options: argparse.Namespace) -> int:
    """Print what is kept of a job's output."""
    start = 0
    while True:
        path = f"/ha/v1/jobs/{options.job}/log?from={start}&size={PAGE}"
        found = await ask_any(asker, options, "GET", path)
        for line in found["log"]:
            output.line(line)
        start = found["from"] + len(found["log"])
        if not found["log"] or start >= found["total"]:
            return 0


async def kill(asker: Asker, options: argparse.Namespace) -> int:
    """End a job."""
    await ask_any(asker, options, "DELETE", f"/ha/v1/jobs/{options.job}")
    print(f"job {options.job} is ended")
    return 0


def _time(unix_ms: int | None) -> str:
    if unix_ms is None:
        return _NEVER
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
