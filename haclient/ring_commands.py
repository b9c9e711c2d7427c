"""The commands `haclient status`, `submit` and `jobs`: the ring's clusters and its jobs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from haclient import output
from haclient.output import EXIT_INTERRUPTED, EXIT_REJECTED, EXIT_UNAVAILABLE, Report, harmless
from haclient.protocol import JobFile
from haclient.settings import Settings
from haclient.sync.documents import Documents, Jobs
from haclient.topology import SERVING

# `haclient status`: the ring's clusters, as the first server that answers sees them.


STATUS: Final = """\
Show the ring's clusters: their state, how far they are behind, where clients reach them.

Exit codes: 0 at least one cluster serves, 2 wrong usage, 3 none serves or no server answers.
"""
"""The text of `haclient status --help`."""


def add_status_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments that only `haclient status` has."""
    command.add_argument("--json", action="store_true", help="print JSON, for programs")


def status(options: argparse.Namespace, settings: Settings, report: Report) -> int:
    """Run `haclient status`; return the exit code. Raises DatabaseError."""
    with Documents(settings) as documents:
        found = documents.cluster_status()
    if options.json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        titles = ("cluster", "state", "lag", "in sync", "since", "url")
        output.write_rows(titles, [_cluster_row(each) for each in found["clusters"]], sys.stdout)
        report(harmless(f"ring {found['ring']}, as cluster {found['cluster']} sees it"))
    serving = any(each.get("state") in SERVING for each in found["clusters"])
    return 0 if serving else EXIT_UNAVAILABLE


def _cluster_row(cluster: dict[str, Any]) -> tuple[object, ...]:
    in_sync = {True: "yes", False: "no"}.get(cluster.get("in_sync"))  # type: ignore[arg-type]
    state, lag, since = cluster.get("state") or None, cluster.get("lag"), cluster.get("since")
    return (cluster["name"], state, lag, in_sync, since, cluster["url"])


# `haclient submit` and `haclient jobs`: Python programs that the ring runs.


SUBMIT: Final = """\
Run a Python program as a job of the ring.

Its log goes to standard output, its id and its state to standard error. With --follow the exit code
is the job's: 0 for success, the program's own if that failed, else 1. Without, 0 once the job is
accepted. 2 wrong usage, 3 no server was available and nothing was done, 4 it is not known whether
the job was accepted, 130 interrupted: the job goes on.
"""
"""The text of `haclient submit --help`."""
JOBS: Final = """\
List, show or end the jobs of one user, or print a job's log.

Exit codes: 0 done, 1 there is no such job, 2 wrong usage, 3 no server was available, 130
interrupted. With log --follow the exit code is the job's, as for submit.
"""
"""The text of `haclient jobs --help`."""
PAGE: Final = 100
FINAL: Final = frozenset({"success", "dead", "killed", "error"})
POLL_S: Final = 0.5


def add_submit_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments that only `haclient submit` has."""
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


def add_jobs_arguments(command: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """Add the actions of `haclient jobs`; return their parsers.

    The caller adds the options that every command has to each of them.
    """
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="show the jobs, the newest last")
    show = actions.add_parser("show", help="show one job, and the end of its log")
    log = actions.add_parser("log", help="print what is kept of its output")
    kill = actions.add_parser("kill", help="end it")
    listing.add_argument("--start", type=int, default=0, metavar="N", help="pass over so many")
    listing.add_argument("--limit", type=int, default=PAGE, metavar="N", help=f"show N ({PAGE})")
    for each in (show, log, kill):
        each.add_argument("job", type=int, help="its id")
    for each in (listing, show):
        each.add_argument("--json", action="store_true", help="print JSON, for programs")
    log.add_argument("--follow", action="store_true", help="go on until it ends, and end as it")
    return [listing, show, log, kill]


def submit(options: argparse.Namespace, settings: Settings, report: Report) -> int:
    """Run `haclient submit`; return the exit code.

    Raises OSError and ValueError for wrong usage, and DatabaseError.
    """
    request, files = read_request(options)
    with Jobs(settings) as jobs:
        try:
            job = jobs.submit(request, files, options.request_id)
            report(f"job {job['id']}")
            return follow(jobs, int(job["id"]), report) if options.follow else 0
        except KeyboardInterrupt:
            report("the job goes on")
            return EXIT_INTERRUPTED


def jobs(options: argparse.Namespace, settings: Settings, report: Report) -> int:
    """Run an action of `haclient jobs` (list, …); return the exit code. Raises DatabaseError."""
    with Jobs(settings) as ring:
        match options.action:
            case "list":
                _print_list(ring.listed(options.start, options.limit), options.json, report)
            case "show":
                _print_job(ring.job(options.job), options.json)
            case "kill":
                ring.kill(options.job)
                report(f"job {options.job} is ended")
            case _ if options.follow:
                return follow(ring, options.job, report)
            case _:
                _show(ring, options.job, 0)
    return 0


def _print_list(found: Mapping[str, Any], as_json: bool, report: Report) -> None:
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    titles = ("job", "name", "state", "haproc", "attempts", "submitted", "ended")
    output.write_rows(titles, [_job_row(each) for each in found["sessions"]], sys.stdout)
    if len(found["sessions"]) < found["total"]:
        report(f"{len(found['sessions'])} of {found['total']}; --start and --limit show others")


def _job_row(job: Mapping[str, Any]) -> tuple[object, ...]:
    ours = job["haproc"]
    times = (_time(ours["submitted_ms"]), _time(ours["ended_ms"]))
    name = job["name"] or ours["program"]
    return (job["id"], name, job["state"], ours["cluster"], ours["attempts"], *times)


def _print_job(job: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(job, ensure_ascii=False))
        return
    facts = {name: value for name, value in job.items() if name not in ("haproc", "log", "appInfo")}
    for name, value in {**facts, **job["haproc"]}.items():
        shown = _time(value) if name.endswith("_ms") else value
        print(harmless(f"{name.removesuffix('_ms')}: {'-' if shown is None else shown}"))
    for line in job["log"]:
        print(harmless(f"  {line}"))


def _time(unix_ms: int | None) -> str | None:
    if unix_ms is None:
        return None
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def read_request(options: argparse.Namespace) -> tuple[dict[str, Any], list[JobFile]]:
    """Return the request to submit a job, and the files that go with it. Raises ValueError."""
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


def follow(jobs: Jobs, job_id: int, report: Report) -> int:
    """Print a job's output until the job ends; return the exit code for its end."""
    at, state, attempts = 0, "", 0
    while True:
        job = jobs.job(job_id)
        now, ours = str(job["state"]), job["haproc"]
        if (now, ours["attempts"]) != (state, attempts):
            state, attempts = now, ours["attempts"]
            report(f"{state} · attempt {attempts} on {ours['cluster']}")
        at = _show(jobs, job_id, at)
        if state in FINAL:
            return _ended(ours, report)
        time.sleep(POLL_S)


def _show(jobs: Jobs, job_id: int, at: int) -> int:
    """Print the lines of the job's output from line ``at`` on; return the next line's number."""
    while True:
        page = jobs.log(job_id, at)
        lines = page["log"]
        if lines:
            print("\n".join(map(harmless, lines)), flush=True)
        at = max(at, int(page["from"]) + len(lines))
        if not lines or at >= page["total"]:
            return at


def _ended(ours: dict[str, Any], report: Report) -> int:
    if ours["why"]:
        report(harmless(str(ours["why"])))
    if ours["outcome"] == "success":
        return 0
    code = ours["exit_code"]
    return code if isinstance(code, int) and 0 < code < 256 else EXIT_REJECTED
