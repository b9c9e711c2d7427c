"""``haproc ring adopt``: clusters that have tables already become a ring.

First the command reads the objects of each cluster's Spark, and reports the differences from the
named source. This changes nothing and needs no HAProc. Then each cluster that differs becomes a
copy of the source as a whole (`haproc cluster rebuild`), and a verification compares all. The
command may be repeated until the first write is in the log.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping
from typing import Any

from dmq import Log, LogError, TrimmedError, open_log
from haproc.cli import cluster, output
from haproc.cli.nodes import ask_all, config_file, read_config
from haproc.cli.queue import Asker, AskError, verify
from haproc.cli.rings import guarded, progress_since
from haproc.config.model import Config
from haproc.config.services import kafka_options
from haproc.membership.state import SERVING
from haproc.replicate.records.operation import OPERATION
from haproc.ring.adopting import Difference, Differing, Report, Sort, compare
from haproc.ring.holdings import holdings
from haproc.ring.local import LocalRing
from haproc.ring.settings import RingError


@guarded
async def adopt(options: argparse.Namespace) -> int:
    """Print the differences between the clusters, then make all clusters equal to the source.

    Returns the exit code.
    """
    config = read_config(config_file(options), options.source)
    if config is None:
        return output.USAGE
    if options.json and not options.dry_run:
        output.error("--json goes with --dry-run")
        return output.USAGE
    show = progress_since(time.monotonic())
    answering = [name for name, answer in (await ask_all(config)).items() if "error" not in answer]
    # Without a HAProc there may be no log yet, and opening it would make one.
    if answering and (written := await _written(config)):
        output.error(written)
        return output.FAILED
    if options.config is None and not options.dry_run:
        ring = LocalRing.open(options.folder, show)
        await asyncio.gather(*(ring.start_spark(name, warm=False) for name in ring.names))
    report = compare(options.source, await holdings(config, show))
    if options.json:
        output.dump(report.json())
    else:
        print_report(report)
    for why in report.refusals:
        output.error(why)
    if report.refusals:
        return output.FAILED
    if options.dry_run:
        return 0
    return await _make_equal(config, report, options)


async def _make_equal(config: Config, report: Report, options: argparse.Namespace) -> int:
    if report.copies and not options.yes and not cluster.confirmed():
        return output.FAILED
    if options.config is None:
        await LocalRing.open(options.folder, progress_since(time.monotonic())).up()
    lacking = lacking_of(report, await ask_all(config))
    if lacking:
        output.error(
            f"{', '.join(lacking)}: no HAProc serves there: start it (haproc start --config "
            f"{config_file(options)} --cluster NAME --ready), then "
            "repeat this command"
        )
        return output.NOT_READY
    if written := await _written(config):
        output.error(written)
        return output.FAILED
    try:
        async with Asker(config) as asker:
            copies = (
                cluster.rebuild_one(asker, name, report.source, options.timeout_s)
                for name in report.copies
            )
            codes = await asyncio.gather(*copies)
            if any(codes):
                return next(code for code in codes if code)
            checked = argparse.Namespace(
                ring=config, cluster=None, trust="", wait_s=options.timeout_s, json=False
            )
            return await verify(asker, checked)
    except AskError as error:
        output.error(str(error))
        return error.code


def lacking_of(report: Report, answers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the clusters whose HAProc must answer or serve before the adoption can go on.

    ``answers``: the status of each cluster. A cluster that becomes a copy must answer, but need not
    serve: an earlier copy may have failed.
    """
    return [
        name
        for name, status in answers.items()
        if str(status["state"]) not in SERVING and ("error" in status or name not in report.copies)
    ]


async def _written(config: Config) -> str:
    """Return the reason why it is too late to adopt; empty if the log has no operation."""
    try:
        log = await open_log(config.log, kafka=kafka_options(config))
        try:
            offset = await first_operation(log)
        finally:
            await log.close()
    except LogError as error:
        raise RingError(f"the ring's log cannot be read: {error}") from error
    if offset is None:
        return ""
    return (
        f"the ring's log holds writes already (the first at offset {offset}), so its clusters are "
        "one ring by now: compare them with haproc verify, and replace one that differs with "
        "haproc cluster rebuild NAME --from CLUSTER"
    )


async def first_operation(log: Log) -> int | None:
    """Return the offset of the log's first operation; None if the log has none.

    It is 0 if the log was trimmed: then it had operations.
    """
    start, end = await log.start(), await log.end()
    if start > 0:
        return 0
    while start < end:
        try:
            entries = await log.read(start)
        except TrimmedError:
            return 0
        if not entries:
            return None
        for entry in entries:
            if entry.record.kind == OPERATION:
                return entry.offset
        start = entries[-1].offset + 1
    return None


# -- what is printed -------------------------------------------------------------------------


def print_report(report: Report) -> None:
    """Print the objects of each cluster, the differences, and the planned copies."""
    header = ("CLUSTER", "TABLES", "VIEWS", "FUNCTIONS", "ROWS", "")
    rows = []
    for name, each in report.clusters.items():
        counts = [each.counts.get(sort, 0) for sort in (Sort.TABLE, Sort.VIEW, Sort.FUNCTION)]
        rows.append((name, *counts, each.rows, _plan_text(report, name)))
    output.table(header, rows)
    differing = [
        (name, one.sort.value, one.name, one.difference.value, _rows(one))
        for name, each in report.clusters.items()
        for one in each.differing
    ]
    if differing:
        print()
        output.table(("CLUSTER", "WHAT", "NAME", "DIFFERENCE", "ROWS"), differing)
    not_copied = [
        (name, what, why)
        for name, each in report.clusters.items()
        for what, why in each.holdings.not_copied
    ]
    if not_copied:
        print("\nA copy does not take these, and writes to other formats are not exactly-once:")
        output.table(("CLUSTER", "NAME", "WHY"), not_copied)
    for name in report.copies if not report.refusals else ():
        _print_loss(name, report)


def _plan_text(report: Report, name: str) -> str:
    if name == report.source:
        return "the source"
    differing = len(report.clusters[name].differing)
    return f"differs in {differing}: becomes a copy" if differing else "equal: is not touched"


def _rows(one: Differing) -> str:
    shown = ["-" if rows is None else str(rows) for rows in (one.rows, one.source_rows)]
    return f"{shown[0]}, source {shown[1]}" if shown != ["-", "-"] else ""


def _print_loss(name: str, report: Report) -> None:
    """Print the objects on a cluster that will be lost when it becomes a copy."""
    lost = [
        one.name
        for one in report.clusters[name].differing
        if one.difference is Difference.EXTRA and one.sort is not Sort.CATALOG
    ]
    kept = f" What only {name} has is lost: {', '.join(lost)}." if lost else ""
    print()
    output.line(
        f"All tables, views and functions of {name} are dropped, and made anew as "
        f"{report.source} has them.{kept}"
    )
