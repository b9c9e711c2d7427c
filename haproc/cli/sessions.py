"""``haproc sessions``: the ring's client sessions, and closing one.

Any HAProc of the ring that answers can tell and do it.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Final

from haproc.cli import output
from haproc.cli.queue import Asker, ask_any

_NEVER: Final = "-"


async def list_sessions(asker: Asker, options: argparse.Namespace) -> int:
    """List the open sessions."""
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
            _time(each["used_ms"]),
        )
        for each in found["sessions"]
    ]
    output.table(("USER", "SESSION", "HAPROC", "STEPS", "BYTES", "ADOPTED", "USED"), rows)
    if len(rows) < found["total"]:
        print(f"{len(rows)} of {found['total']}; --start and --limit show others")
    return 0


async def close(asker: Asker, options: argparse.Namespace) -> int:
    """Close a session for good."""
    body = {"user": options.user, "session_id": options.session}
    await ask_any(asker, options, "POST", "/ha/v1/sessions/close", body)
    print(f"session {options.session} of {options.user} is closed")
    return 0


def _time(unix_ms: int | None) -> str:
    """Return the hour of a use."""
    if unix_ms is None:
        return _NEVER
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:00Z")
