"""``haproc log``: a ring's log moves to another file or topic, while its HAProcs are stopped."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from dmq import KeyValueStore, LogError, MovableLog, open_both, open_log, open_store
from dmq.key_value import Origin, Standing, origin_of, remember
from dmq.moving import Contents, export_log, import_log
from haproc.cli import output
from haproc.cli.nodes import ask_all, read_config
from haproc.config.kafka import kafka_options
from haproc.config.model import Config
from haproc.ring.local import LocalRing
from haproc.ring.settings import RingError


def run(options: argparse.Namespace) -> int:
    """Carry out a command on the log of a ring that is stopped."""
    config = read_config(options.config or options.folder / "ring.yaml")
    if config is None:
        return output.USAGE
    return carried_out(_run(config, options))


def carried_out(work: Coroutine[Any, Any, None]) -> int:
    """Run a command, and say what went wrong."""
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
    """Raise RingError if a HAProc of the ring answers."""
    answers = await ask_all(config)
    running = [name for name, told in answers.items() if "error" not in told]
    if running:
        raise RingError(
            f"{', '.join(running)}: a HAProc runs there; stop all of the ring (haproc stop), and "
            "repeat the command. Nothing was changed"
        )


async def export(config: Config, options: argparse.Namespace) -> None:
    """Write the log into a file; from then on no HAProc starts on it."""
    file: Path = options.file.absolute()
    log, store = await open_both(config.log, kafka=kafka_options(config))
    try:
        usable = await origin_of(log, store)
        left = Origin(Standing.LEFT, usable.identity, f"haproc log export to {file}")
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
    print(f"{config.log} is in {file}: {told(contents)}")
    print("No HAProc starts on that log any more. Name the new one in the ring's files, then run:")
    where = f"--folder {options.folder}" if options.config is None else f"--config {options.config}"
    print(f"haproc log import {file} {where}")


async def import_(config: Config, options: argparse.Namespace) -> None:
    """Make the ring's new log what the file says."""
    await with_log(config, lambda log, store: _import(config, options.file, log, store))


async def _import(config: Config, file: Path, log: MovableLog, store: KeyValueStore) -> None:
    contents = await import_log(file, log, store)
    print(f"{config.log} goes on with what is in {file}: {told(contents)}")
    print("Start the HAProcs (haproc start).")


async def reopen(config: Config, options: argparse.Namespace) -> None:
    """Have HAProcs start on a log again that was exported."""

    async def act(log: MovableLog, store: KeyValueStore) -> None:
        found = await origin_of(log, store)
        if found.standing is not Standing.LEFT:
            raise RingError(f"{config.log} was not left: there is nothing to reopen")
        await remember(log, store, Origin(Standing.WHOLE, found.identity, found.by))
        print(f"HAProcs start on {config.log} again. Never start one on a log imported from it.")

    await with_log(config, act)


async def with_log(
    config: Config, act: Callable[[MovableLog, KeyValueStore], Awaitable[None]]
) -> None:
    """Act on the ring's log and store, whatever they are good for."""
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


def told(contents: Contents) -> str:
    """Return what a file holds, for people."""
    return (
        f"{contents.records:,} records, offsets from {contents.start} to {contents.end}, "
        f"{contents.cursors} cursors, {contents.keys} keys"
    )
