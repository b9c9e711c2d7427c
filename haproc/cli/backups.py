"""``haproc backup`` and ``haproc restore``: a ring's tables, stored outside the ring."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from haproc.cli import clients, output
from haproc.cli.queue import Asker, AskError, serving
from haproc.membership.state import State
from haproc.replicate.backing_up import BackupState
from haproc.replicate.restoring import RestoreState

_RESTORE: Final = "/ha/v1/restore"
_POLL_S: Final = 0.5
_FAILED_S: Final = 5.0
"""The time for which a failure must be reported before it counts: until then it may be that of an
earlier attempt."""
_SILENT_S: Final = 120.0
"""The longest time for which a HAProc may not answer; one that starts again answers sooner."""


async def backup(asker: Asker, options: argparse.Namespace) -> int:
    """Make a backup of one cluster's tables; return the exit code, 0 once it is done."""
    name, place = options.cluster or await serving(options.ring), options.destination
    body = {"cluster": name, "destination": place}
    found = await asker.ask(name, "POST", "/ha/v1/backup", body)
    end, shown = time.monotonic() + options.timeout_s, ""
    answered_s = time.monotonic()
    while found["state"] == BackupState.RUNNING and time.monotonic() < end:
        if shown != (shown := _far(found)) and not options.json:
            print(shown, flush=True)
        await asyncio.sleep(_POLL_S)
        try:
            found = await asker.ask(name, "GET", "/ha/v1/backup")
            answered_s = time.monotonic()
        except AskError as error:
            if error.code != output.NOT_READY or time.monotonic() - answered_s > _SILENT_S:
                raise
    if options.json:
        output.dump(found)
    match found["state"]:
        case BackupState.DONE:
            if not options.json:
                print(f"{_far(found)}\noffset {found['offset']} is in {place}")
            return 0
        case BackupState.RUNNING:
            output.error(f"{name} still makes the backup after {options.timeout_s} s")
            return output.NOT_READY
        case BackupState.FAILED:
            output.error(f"{name}: {found['message']}")
        case _:
            output.error(f"the HAProc of {name} was started again meanwhile: there is no backup")
    print("What was copied stays: run the command again, it goes on.")
    return output.FAILED


def _far(found: dict[str, Any]) -> str:
    if found["offset"] < 0:
        return f"{found['cluster']} notes what it holds"
    return (
        f"{found['cluster']}, offset {found['offset']}: {found['tables_done']} of "
        f"{found['tables']} tables, {found['files']} files and {found['bytes']} bytes copied"
    )


async def restore(asker: Asker, options: argparse.Namespace) -> int:
    """Restore a backup on all clusters of a new ring; return the exit code, 0 once they serve."""
    names = [cluster.name for cluster in options.ring.clusters]
    end = time.monotonic() + options.timeout_s
    body: dict[str, Any] = {"source": options.source, "verify": options.verify}
    if options.offset is not None:
        body["offset"] = options.offset
    # Before anything is drained: a ring that is in use refuses this, and goes on.
    for name in names:
        found = await asker.ask(name, "POST", _RESTORE, {"cluster": name, **body})
        body["offset"] = found["offset"]  # all restore the same backup, even if a newer one appears
    try:
        for name in names:
            await clients.begin(asker, name, force=True)
        print(f"no client is let in: {', '.join(names)} are drained", flush=True)
        done = await asyncio.gather(*(_restored(asker, name, body, end) for name in names))
    except AskError as error:
        output.error(str(error))
        done = [False]
    if not all(done):
        print("Clusters stay drained. Mend the cause and run the command again.")
        return output.FAILED
    for name in names:
        await clients.end(asker, name)
    for name in names:
        left_s = max(0.0, end - time.monotonic())
        drain_status = await clients.wait(asker, name, clients.serves, left_s)
        print(clients.words(drain_status))
        if not clients.serves(drain_status):
            return output.NOT_READY
    print(f"{', '.join(names)} hold what {options.source} does, of offset {body['offset']}")
    return 0


async def _restored(asker: Asker, name: str, body: dict[str, Any], end: float) -> bool:
    """Wait until a cluster is restored, and print its progress; False if the restore failed."""
    shown, answered_s, failed_s = "", time.monotonic(), 0.0
    while time.monotonic() < end:
        await asyncio.sleep(_POLL_S)
        try:
            status = await asker.ask(name, "GET", "/ha/v1/status")
            failed_s = failed_s + _POLL_S if status["state"] == State.TOO_FAR_BEHIND else 0.0
            if failed_s > _FAILED_S:
                output.error(f"{name}: {status['reason']}")
                return False
            if failed_s:
                pass  # perhaps by an earlier attempt: it has not begun anew yet
            elif status["copy"] is None:
                asked = {"cluster": name, **body}
                found = await asker.ask(name, "POST", _RESTORE, asked)
                if found["state"] == RestoreState.RESTORED:
                    print(f"{name} is restored", flush=True)
                    return True
            elif shown != (shown := _restoring(status["copy"])):
                print(f"{name}: {shown}", flush=True)
            answered_s = time.monotonic()
        except AskError as error:  # it begins anew, or its Spark does
            if time.monotonic() - answered_s > _SILENT_S:
                output.error(str(error))
                return False
    output.error(f"{name} is not restored in time")
    return False


def _restoring(copy: Mapping[str, Any]) -> str:
    return (
        f"{copy['tables_done']} of {copy['tables']} tables, "
        f"{copy['bytes_done']} of {copy['bytes']} bytes"
    )
