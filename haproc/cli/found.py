"""``haproc ring found``: a ring that has lost its log begins anew on one of its clusters."""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

from dmq import KeyValueStore, MovableLog
from haproc.cli import cluster, output
from haproc.cli.logs import carried_out, check_stopped, with_log
from haproc.cli.nodes import read_config
from haproc.cli.rings import progress_since
from haproc.config.model import Config
from haproc.ring.founding import Findings, shown
from haproc.ring.local import LocalRing
from haproc.ring.marks import COMMITS_MAX, marks, not_copied
from haproc.ring.new_log import check_new_log, found
from haproc.ring.settings import RingError


def run(options: argparse.Namespace) -> int:
    """Say what is lost, then begin the new log."""
    path: Path = options.config or options.folder / "ring.yaml"
    config = read_config(path, options.founder)
    return output.USAGE if config is None else carried_out(_run(config, options))


async def _run(config: Config, options: argparse.Namespace) -> None:
    founder = options.founder
    await check_stopped(config)
    show = progress_since(time.monotonic())
    if options.config is None:
        ring = LocalRing.open(options.folder, show)
        await ring.start_brokers()
        await asyncio.gather(*(ring.start_spark(name, warm=False) for name in ring.names))
    if not options.dry_run:

        async def look(log: MovableLog, store: KeyValueStore) -> None:
            await check_new_log(log, store, founder)

        await with_log(config, look)
    findings = Findings.of(await marks(config, show))
    print_findings(findings, founder)
    others = await not_copied(config, founder)
    if others and len(config.clusters) > 1:
        listed = "; ".join(f"{name}: {why}" for name, why in others.items())
        raise RingError(
            f"{founder} holds what the other clusters cannot copy ({listed}): make Delta tables "
            "of it, or drop it. Nothing was changed"
        )
    if not findings.is_best(founder) and not options.force:
        raise RingError(
            f"{findings.best} is more advanced than {founder}: found the ring on {findings.best}, "
            "or say --force. Nothing was changed"
        )
    if options.dry_run:
        return
    if not options.yes and not cluster.confirmed():
        raise RingError("nothing was changed")

    async def act(log: MovableLog, store: KeyValueStore) -> None:
        names = [each.name for each in config.clusters]
        await found(log, store, founder, names, findings.begins_at)

    await with_log(config, act)
    print(
        f"The log begins at offset {findings.begins_at}. Start all HAProcs (haproc start): "
        f"{founder} serves, and the others copy it first (COPYING)."
    )


def print_findings(findings: Findings, founder: str) -> None:
    """Print how far each cluster is, and what is lost with this founder."""
    rows = []
    for name, tables in findings.clusters.items():
        lost = findings.lost(name)
        count = sum(len(each.offsets) for each in lost)
        lacks = f"{count} commits in {len(lost)} tables" if lost else "nothing known"
        standing = "the founder" if name == founder else "becomes a copy"
        rows.append((name, len(tables), _offset(findings.highest(name)), lacks, standing))
    output.table(("CLUSTER", "TABLES", "NEWEST OFFSET", "LACKS", ""), rows)
    print(f"\nMost advanced: {findings.best}")
    lost = findings.lost(founder)
    if lost:
        print(f"\nLost, because {founder} has not applied them:")
        lines = [
            (each.table, _offset(each.applied), shown(each.offsets), ", ".join(each.by))
            for each in lost
        ]
        output.table(("TABLE", f"{founder.upper()} HAS UP TO", "LOST OFFSETS", "APPLIED BY"), lines)
    if elsewhere := findings.only_elsewhere(founder):
        print(
            f"\nTables that {founder} does not have; they are dropped, unless it has dropped them:"
        )
        output.table(("TABLE", "ON"), [(table, ", ".join(by)) for table, by in elsewhere])
    newest = max(map(findings.highest, findings.clusters))
    print("\nNot known:")
    print(f"- Writes behind offset {max(newest, 0)} that no cluster has applied: they are lost.")
    if later := findings.copied_later(founder):
        names = "; ".join(f"{table} (by {', '.join(by)})" for table, by in later)
        print(f"- Whether {founder} has all of what these tables were copied with later: {names}.")
    print("- DDL, views, functions, and tables that are not Delta's: they carry no offsets.")
    print(f"- What lies farther back than {COMMITS_MAX} commits of a table.")


def _offset(offset: int | None) -> str:
    return "-" if offset is None or offset < 0 else str(offset)
