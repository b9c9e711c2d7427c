"""`haclient status`: the ring's clusters, as the first server that answers sees them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any, Final

from haclient import output
from haclient.exceptions import Error
from haclient.settings import Settings
from haclient.sync.documents import Documents
from haclient.terminal import harmless
from haclient.topology import SERVING

STATUS: Final = """\
Show the ring's clusters: their state, how far they are behind, where clients reach them.

Exit codes: 0 at least one cluster serves, 2 wrong usage, 3 none serves or no server answers.
"""
"""The text of `haclient status --help`."""
EXIT_NONE_SERVES: Final = 3


def add_status_arguments(command: argparse.ArgumentParser) -> None:
    """Add what is this command's own."""
    command.add_argument("--json", action="store_true", help="print JSON, for programs")


def status(
    options: argparse.Namespace,
    settings: Settings,
    report: Callable[[str], None],
    exit_code: Callable[[Error], int],
) -> int:
    """Run the command; return the exit code."""
    with Documents(settings) as documents:
        try:
            found = documents.cluster_status()
        except Error as error:
            print(f"haclient: {harmless(error.message)}", file=sys.stderr)
            return exit_code(error)
    if options.json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        titles = ("cluster", "state", "lag", "in sync", "since", "url")
        output.write_rows(titles, [_row(each) for each in found["clusters"]], sys.stdout)
        report(harmless(f"ring {found['ring']}, as cluster {found['cluster']} sees it"))
    serving = any(each.get("state") in SERVING for each in found["clusters"])
    return 0 if serving else EXIT_NONE_SERVES


def _row(cluster: dict[str, Any]) -> tuple[object, ...]:
    in_sync = {True: "yes", False: "no"}.get(cluster.get("in_sync"))  # type: ignore[arg-type]
    facts = (cluster.get(name) for name in ("lag", "since"))
    lag, since = facts
    return (cluster["name"], cluster.get("state") or None, lag, in_sync, since, cluster["url"])
