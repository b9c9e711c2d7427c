"""``haproc report``: the amount of writes by user and table, and the lag of clusters.

It shows the table ``haproc.usage``, which the pipeline's programs fill (docs/guide/jobs.md).
"""

from __future__ import annotations

import argparse
import os
from typing import Any, Final

from haproc.cli import output

_NONE: Final = "-"


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``haproc report`` and its arguments to the command line."""
    report = commands.add_parser("report", help="show the usage of the last hours")
    report.add_argument(
        "--servers",
        default=os.environ.get("HACLIENT_SERVERS", ""),
        help="client doors' URLs, by commas ($HACLIENT_SERVERS); the token: $HACLIENT_TOKEN",
    )
    report.add_argument(
        "--by", choices=("table", "user", "cluster", "hour"), default="table", help="(table)"
    )
    report.add_argument("--hours", type=int, default=24, help="the newest so many (24)")
    report.add_argument("--json", action="store_true", help="print JSON")
    report.set_defaults(run=report_usage)


def report_usage(options: argparse.Namespace) -> int:
    """Print the usage of the last hours by table, user, cluster or hour; return the exit code."""
    import haclient
    from haclient.settings import tls_options
    from haproc.pipeline.tables import COLUMNS, usage

    servers = [each.strip() for each in options.servers.split(",") if each.strip()]
    if not servers or options.hours < 1:
        output.error("--servers or HACLIENT_SERVERS is needed, and --hours of at least 1")
        return output.USAGE
    token = os.environ.get("HACLIENT_TOKEN") or None
    try:
        access = {"token": token, **tls_options(os.environ)}
        rows = usage(servers, options.by, options.hours, **access)
    except haclient.Error as error:
        output.error(f"{error}; is haproc.usage there? See docs/guide/jobs.md")
        return output.FAILED
    if options.json:
        output.dump([dict(zip((options.by, *COLUMNS), row, strict=True)) for row in rows])
    else:
        names = (options.by, *COLUMNS)
        output.table(
            [name.upper() for name in names], [[_shown(cell) for cell in row] for row in rows]
        )
    return 0


def _shown(cell: Any) -> str:
    if cell is None:
        return _NONE
    return f"{cell:,.0f}" if isinstance(cell, float) else str(cell)
