"""``haproc ring``: a whole ring on this machine."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Coroutine
from typing import Any

from haproc.cli import output
from haproc.cli.nodes import ask_all, print_status
from haproc.membership.state import SERVING
from haproc.ring.access import token_file
from haproc.ring.errors import RingError
from haproc.ring.local import LocalRing, LogChoice


def guarded(work: Coroutine[Any, Any, int]) -> int:
    """Run a command on a local ring; say what went wrong."""
    try:
        return asyncio.run(work)
    except RingError as error:
        output.error(str(error))
        return output.FAILED


def progress_since(began: float) -> Any:
    """Return what shows each step with its time."""

    def show(who: str, what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {who}: {what}", file=sys.stderr, flush=True)

    return show


def up(options: argparse.Namespace) -> int:
    """Start the ring."""
    return guarded(_up(options))


async def _up(options: argparse.Namespace) -> int:
    progress = progress_since(time.monotonic())
    ring = LocalRing.open_or_create(
        options.folder,
        clusters=options.clusters,
        base_port=options.base_port,
        memory=options.memory,
        cores=options.cores,
        spark_settings=dict(options.conf),
        log=LogChoice(
            kind=options.log or "",
            brokers=options.brokers,
            bootstrap_servers=options.bootstrap_servers,
            replication_factor=options.replication_factor,
        ),
        users=options.user,
        jobs=options.jobs,
        progress=progress,
    )
    await ring.up()
    print_status(await ask_all(ring.config))
    print(f"\nclients:  haclient sql --server {ring.urls}")
    if ring.spark_url:
        print(f"spark:    {_pyspark(ring)}")
        print(f"          haclient.spark({ring.spark_url!r})")
    for user in ring.config.users:
        print(f"token:    {ring.folder / token_file(user.name)}")
    if ring.config.connect.ssl_certificate_file is not None:
        print(f"trust:    {ring.config.connect.ssl_certificate_file}")
    if ring.config.log.startswith("kafka:"):
        print(f"log:      {ring.config.log}")
    print(f"folder:   {ring.folder}")
    return 0


def _pyspark(ring: LocalRing) -> str:
    """Return the command that opens PySpark's shell at the ring's first door."""
    door = next(cluster.connect for cluster in ring.config.clusters if cluster.connect is not None)
    url = f"sc://localhost:{door.port}"
    if not ring.config.users:
        return f"pyspark --remote {url}"
    file = ring.folder / token_file(ring.config.users[0].name)
    tls = "use_ssl=true;" * (ring.config.connect.ssl_certificate_file is not None)
    return f'pyspark --remote "{url}/;{tls}token=$(cat {file})"'


def down(options: argparse.Namespace) -> int:
    """Stop the ring."""
    return guarded(_down(options))


async def _down(options: argparse.Namespace) -> int:
    await LocalRing.open(options.folder).down()
    return 0


def status(options: argparse.Namespace) -> int:
    """Show the ring; 0 if all serve, 3 if not."""
    return guarded(_status(options))


async def _status(options: argparse.Namespace) -> int:
    ring = LocalRing.open(options.folder)
    answers = await ask_all(ring.config)
    for name, answer in answers.items():
        answer["pids"] = ring.pids(name)
    brokers = {
        name: {"address": broker.address, "pids": ring.pids(name)}
        for name, broker in ring.brokers.items()
    }
    if options.json:
        output.dump({**answers, **brokers})
    else:
        print_status(answers)
        for name in answers:
            pids = ring.pids(name)
            print(f"{name}: HAProc pid {pids['haproc'] or '-'}, Spark pid {pids['spark'] or '-'}")
        for name, broker in ring.brokers.items():
            print(f"{name}: Kafka pid {broker.pid or '-'}, {broker.address}")
    serving = all(str(answer.get("state")) in SERVING for answer in answers.values())
    return 0 if serving else output.NOT_READY


def kill(options: argparse.Namespace) -> int:
    """Kill a cluster's processes, or a broker, at once."""
    return guarded(_kill(options))


async def _kill(options: argparse.Namespace) -> int:
    ring = LocalRing.open(options.folder)
    parts = ("haproc", "spark") if options.what == "both" else (options.what,)
    for what in ("broker",) if options.name in ring.brokers else parts:
        done = ring.kill(options.name, what)
        print(f"{options.name}: {what} {'killed' if done else 'did not run'}")
    return 0


def restart(options: argparse.Namespace) -> int:
    """Start again what does not run of a cluster (or a broker), and wait until it serves."""
    return guarded(_restart(options))


async def _restart(options: argparse.Namespace) -> int:
    ring = LocalRing.open(options.folder, progress=progress_since(time.monotonic()))
    await ring.start(options.name)
    return 0
