"""``haproc sessions``, ``jobs``, ``drain`` and ``undrain``: clients of the ring and their work."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from haproc.cli import output
from haproc.cli.queue import Asker, ask_any
from haproc.membership.state import SERVING

# ``haproc drain`` and ``haproc undrain``: a cluster without clients, for maintenance.


_POLL_S: Final = 0.2
_PATH: Final = "/ha/v1/drain"

DrainStatus = dict[str, Any]
"""A HAProc's answer about its drain, with the fields in docs/reference/http.md."""


async def drain(asker: Asker, options: argparse.Namespace) -> int:
    """Drain a cluster: it takes no new requests. Return the exit code, 0 once that is done.

    With ``--wait`` the exit code is 0 only once no client has anything left there.
    """
    if options.undo:
        return await undrain(asker, options)
    status = await begin(asker, options.cluster, force=options.force)
    if options.wait:
        status = await wait(asker, options.cluster, is_idle, options.timeout_s)
    print(words(status))
    return output.NOT_READY if options.wait and not is_idle(status) else 0


async def undrain(asker: Asker, options: argparse.Namespace) -> int:
    """Undrain a cluster: it takes requests again. Return the exit code, 0 once that is done.

    With ``--wait`` the exit code is 0 only once the cluster serves.
    """
    status = await end(asker, options.cluster)
    if options.wait:
        status = await wait(asker, options.cluster, serves, options.timeout_s)
    print(words(status))
    return output.NOT_READY if options.wait and not serves(status) else 0


async def begin(asker: Asker, name: str, *, force: bool = False) -> DrainStatus:
    """Send the request to drain a cluster; return its drain status. Raises AskError."""
    return await asker.ask(name, "POST", _PATH, {"cluster": name, "force": force})


async def end(asker: Asker, name: str) -> DrainStatus:
    """Send the request to undrain a cluster; return its drain status. Raises AskError."""
    return await asker.ask(name, "POST", "/ha/v1/undrain", {"cluster": name})


async def wait(
    asker: Asker, name: str, wanted: Callable[[DrainStatus], bool], timeout_s: float
) -> DrainStatus:
    """Wait until ``wanted`` is True for a cluster's drain status, and return that status.

    When the time is over, return the status as it is then. Raises AskError.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        status = await asker.ask(name, "GET", _PATH)
        if wanted(status) or time.monotonic() >= deadline:
            return status
        await asyncio.sleep(_POLL_S)


def is_idle(status: DrainStatus) -> bool:
    """True if no client has a request or an unfetched result at a HAProc: it may be stopped."""
    return not status["under_way"] and not status["unfetched"]


def serves(status: DrainStatus) -> bool:
    """True if the status says that the cluster serves clients."""
    return status["state"] in SERVING


def words(status: DrainStatus) -> str:
    """Return a drain status as one line for people."""
    reason = f": {status['reason']}" if status["reason"] else ""
    left = [
        f"{count} {what}"
        for count, what in (
            (status["under_way"], "requests under way"),
            (status["unfetched"], "results that their clients have not fetched"),
        )
        if count and status["drained"]
    ]
    still = f"; it has {' and '.join(left)}" if left else ""
    idle = "; clients have nothing left here" if status["drained"] and not left else ""
    return f"{status['cluster']} is {status['state']}{reason}{still}{idle}"


# ``haproc jobs``: the ring's jobs, their logs, and a command that ends one.
#
# Any HAProc of the ring that answers can do it.


PAGE: Final = 1000
_NEVER: Final = "-"


async def list_jobs(asker: Asker, options: argparse.Namespace) -> int:
    """Print a line for each job of the ring, newest last; return the exit code."""
    path = f"/ha/v1/jobs?from={options.start}&size={options.limit}"
    found = await ask_any(asker, options, "GET", path)
    if options.json:
        output.dump(found)
        return 0
    head = ("JOB", "USER", "NAME", "STATE", "HAPROC", "ATTEMPTS", "SUBMITTED", "ENDED")
    return _print_page(head, [_row(each) for each in found["sessions"]], found["total"])


def _print_page(head: Sequence[str], rows: Sequence[Sequence[object]], total: int) -> int:
    output.table(head, rows)
    if len(rows) < total:
        print(f"{len(rows)} of {total}; --start and --limit show others")
    return 0


def _row(job: dict[str, Any]) -> tuple[object, ...]:
    ours = job["haproc"]
    name = job["name"] or ours["program"]
    times = (_time(ours["submitted_ms"]), _time(ours["ended_ms"]))
    return (job["id"], job["owner"], name, job["state"], ours["cluster"], ours["attempts"], *times)


async def show(asker: Asker, options: argparse.Namespace) -> int:
    """Print what is known of one job; return the exit code."""
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
    """Print the end of a job's output that the ring keeps; return the exit code."""
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
    """Kill a job of the ring; return the exit code."""
    await ask_any(asker, options, "DELETE", f"/ha/v1/jobs/{options.job}")
    print(f"job {options.job} is ended")
    return 0


def _time(unix_ms: int | None) -> str:
    return _moment(unix_ms, "%Y-%m-%d %H:%M:%SZ")


def _moment(unix_ms: int | None, form: str) -> str:
    return _NEVER if unix_ms is None else datetime.fromtimestamp(unix_ms / 1000, UTC).strftime(form)


# ``haproc sessions``: the ring's client sessions, and a command that closes one.
#
# Any HAProc of the ring that answers can do it.


async def list_sessions(asker: Asker, options: argparse.Namespace) -> int:
    """Print a line for each open session of the ring's clients; return the exit code."""
    path = f"/ha/v1/sessions?start={options.start}&limit={options.limit}"
    found = await ask_any(asker, options, "GET", path)
    if options.json:
        output.dump(found)
        return 0
    rows = [
        (
            each["user"],
            each["session_id"],
            each["owner"],
            each["steps"],
            each["bytes"] + each["files_bytes"],
            each["adoptions"],
            _moment(each["used_ms"], "%Y-%m-%d %H:00Z"),
        )
        for each in found["sessions"]
    ]
    head = ("USER", "SESSION", "HAPROC", "STEPS", "BYTES", "ADOPTED", "USED")
    return _print_page(head, rows, found["total"])


async def close(asker: Asker, options: argparse.Namespace) -> int:
    """Close a client's session for good: its content is lost. Return the exit code."""
    body = {"user": options.user, "session_id": options.session}
    await ask_any(asker, options, "POST", "/ha/v1/sessions/close", body)
    print(f"session {options.session} of {options.user} is closed")
    return 0
