"""``haproc log`` and ``haproc ring found``: a ring's log moves, or begins anew."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from dmq import KeyValueStore, LogError, MovableLog, MovableStore, open_both, open_log, open_store
from dmq.key_value import MoveState, Origin, origin_of, remember
from dmq.moving import Contents, export_log, import_log
from haproc.cli import cluster, output
from haproc.cli.nodes import ask_all, config_file, read_config
from haproc.cli.rings import progress_since
from haproc.config.model import Config
from haproc.config.services import kafka_options
from haproc.ring.founding import Findings, shown
from haproc.ring.local import LocalRing
from haproc.ring.new_log import COMMITS_MAX, check_new_log, found, marks, not_copied
from haproc.ring.settings import RingError


def run(options: argparse.Namespace) -> int:
    """Run a command on the log of a ring whose HAProcs are stopped; return the exit code."""
    config = read_config(config_file(options))
    if config is None:
        return output.USAGE
    return carried_out(_run(config, options))


def carried_out(work: Coroutine[Any, Any, None]) -> int:
    """Run a command; print its error, if it raises one. Return the exit code."""
    try:
        asyncio.run(work)
    except (LogError, RingError, OSError) as error:
        output.error(str(error))
        return output.FAILED
    return 0


async def _run(config: Config, options: argparse.Namespace) -> None:
    await check_stopped(config)
    if options.config is None:
        await LocalRing.open(options.folder).start_brokers()
    await options.act(config, options)


async def check_stopped(config: Config) -> None:
    """Raise RingError if any HAProc of the ring still answers."""
    answers = await ask_all(config)
    running = [name for name, answer in answers.items() if "error" not in answer]
    if running:
        raise RingError(
            f"{', '.join(running)}: a HAProc runs there; stop all of the ring (haproc stop), and "
            "repeat the command. Nothing was changed"
        )


async def export(config: Config, options: argparse.Namespace) -> None:
    """Write the ring's log into a file; from then on no HAProc starts on that log."""
    file: Path = options.file.absolute()
    log, store = await open_both(config.log, kafka=kafka_options(config))
    try:
        usable = await origin_of(log, store)
        left = Origin(MoveState.LEFT, usable.identity, f"haproc log export to {file}")
        # First, so that no HAProc that is started meanwhile writes to it.
        await remember(log, store, left)
        try:
            contents = await export_log(log, store, file)
        except BaseException:
            await remember(log, store, usable)
            raise
    finally:
        await store.close()
        await log.close()
    print(f"{config.log} is in {file}: {contents_text(contents)}")
    print("No HAProc starts on that log any more. Name the new one in the ring's files, then run:")
    where = f"--folder {options.folder}" if options.config is None else f"--config {options.config}"
    print(f"haproc log import {file} {where}")


async def import_(config: Config, options: argparse.Namespace) -> None:
    """Fill the ring's new, empty log from a file that `export` wrote."""
    await with_log(config, lambda log, store: _import(config, options.file, log, store))


async def _import(config: Config, file: Path, log: MovableLog, store: MovableStore) -> None:
    contents = await import_log(file, log, store)
    print(f"{config.log} goes on with what is in {file}: {contents_text(contents)}")
    print("Start the HAProcs (haproc start).")


async def reopen(config: Config, options: argparse.Namespace) -> None:
    """Let HAProcs start again on a log that was exported and is not replaced after all."""

    async def act(log: MovableLog, store: KeyValueStore) -> None:
        found = await origin_of(log, store)
        if found.standing is not MoveState.LEFT:
            raise RingError(f"{config.log} was not left: there is nothing to reopen")
        await remember(log, store, Origin(MoveState.WHOLE, found.identity, found.by))
        print(f"HAProcs start on {config.log} again. Never start one on a log imported from it.")

    await with_log(config, act)


async def with_log(
    config: Config, act: Callable[[MovableLog, MovableStore], Awaitable[None]]
) -> None:
    """Call ``act`` with the ring's log and key-value store, also if no HAProc may start on them."""
    kafka = kafka_options(config)
    log = await open_log(config.log, kafka=kafka)
    try:
        store = await open_store(config.log, kafka=kafka)
        try:
            await act(log, store)
        finally:
            await store.close()
    finally:
        await log.close()


def contents_text(contents: Contents) -> str:
    """Return what the file of an exported log contains, as a line for people."""
    return (
        f"{contents.records:,} records, offsets from {contents.start} to {contents.end}, "
        f"{contents.cursors} cursors, {contents.keys} keys"
    )


# ``haproc ring found``: a ring that has lost its log begins anew on one of its clusters.


def run_found(options: argparse.Namespace) -> int:
    """Print the writes that are lost, then begin the new log; return the exit code."""
    config = read_config(config_file(options), options.founder)
    return output.USAGE if config is None else carried_out(_found_anew(config, options))


async def _found_anew(config: Config, options: argparse.Namespace) -> None:
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
    """Print each cluster's newest offset, and the writes that this founder has not applied."""
    rows = []
    for name, tables in findings.clusters.items():
        lost = findings.lost(name)
        count = sum(len(each.offsets) for each in lost)
        lacks = f"{count} commits in {len(lost)} tables" if lost else "nothing known"
        role = "the founder" if name == founder else "becomes a copy"
        rows.append((name, len(tables), _offset(findings.highest(name)), lacks, role))
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
    if on_others := findings.only_on_others(founder):
        print(
            f"\nTables that {founder} does not have; they are dropped, unless it has dropped them:"
        )
        output.table(("TABLE", "ON"), [(table, ", ".join(by)) for table, by in on_others])
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
