"""``haproc ring``: a whole ring on this machine, and its restart under load."""

from __future__ import annotations

import argparse
import asyncio
import functools
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from haproc.cli import clients, output
from haproc.cli.nodes import ask_all, print_status
from haproc.cli.queue import Asker, AskError
from haproc.failure import ErrorClass
from haproc.membership.state import SERVING
from haproc.ring.local import LocalRing, LogChoice, Progress
from haproc.ring.making import token_file
from haproc.ring.settings import RingError

# ``haproc ring``: a whole ring on this machine.


Command = Callable[[argparse.Namespace], Coroutine[Any, Any, int]]


def guarded(command: Command) -> Callable[[argparse.Namespace], int]:
    """Wrap a command on a local ring: it prints its RingError, and returns an exit code."""

    @functools.wraps(command)
    def run(options: argparse.Namespace) -> int:
        try:
            return asyncio.run(command(options))
        except RingError as error:
            output.error(str(error))
            return output.FAILED

    return run


def progress_since(began: float) -> Progress:
    """Return a function that prints each step of a command with the seconds since ``began``."""

    def show(who: str, what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {who}: {what}", file=sys.stderr, flush=True)

    return show


@guarded
async def up(options: argparse.Namespace) -> int:
    """Start the local ring, or make it; return the exit code."""
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
    trust = f" --ca-file {ring.config.tls.ca_file}" if ring.config.tls.enabled else ""
    print(f"\nclients:  haclient sql --server {ring.urls}{trust}")
    if ring.spark_url:
        print(f"spark:    {_pyspark(ring)}")
        print(f"          haclient.spark({ring.spark_url!r})")
    for user in ring.config.users:
        print(f"token:    {ring.folder / token_file(user.name)}")
    if ring.config.tls.enabled:
        print(f"trust:    {ring.config.tls.ca_file}")
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
    tls = "use_ssl=true;" * ring.config.tls.enabled
    return f'pyspark --remote "{url}/;{tls}token=$(cat {file})"'


@guarded
async def down(options: argparse.Namespace) -> int:
    """Stop all processes of the local ring; return the exit code."""
    await LocalRing.open(options.folder).down()
    return 0


@guarded
async def status(options: argparse.Namespace) -> int:
    """Print the state of the local ring; return the exit code, 0 if all serve, otherwise 3."""
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


@guarded
async def kill(options: argparse.Namespace) -> int:
    """Kill a cluster's processes, or a broker, at once (SIGKILL); return the exit code."""
    ring = LocalRing.open(options.folder)
    parts = ("haproc", "spark") if options.what == "both" else (options.what,)
    for what in ("broker",) if options.name in ring.brokers else parts:
        done = ring.kill(options.name, what)
        print(f"{options.name}: {what} {'killed' if done else 'did not run'}")
    return 0


@guarded
async def restart(options: argparse.Namespace) -> int:
    """Start a cluster's stopped processes (or a broker), and wait until the cluster serves.

    Returns the exit code.
    """
    ring = LocalRing.open(options.folder, progress=progress_since(time.monotonic()))
    await ring.start(options.name)
    return 0


# ``haproc ring roll``: restart a local ring under load, one cluster after another.
#
# Each cluster is drained first and undrained afterwards. The next one follows only when it knows
# that this one serves again; so a cluster serves at every moment. An error ends the
# roll, and leaves its cluster drained. The command then prints the state of each cluster, and can
# be run again: clusters that were left drained or stopped come first.


_POLL_S = 0.1


def roll(options: argparse.Namespace) -> int:
    """Restart the ring's HAProcs, Sparks or both, cluster by cluster; return the exit code."""
    show = progress_since(time.monotonic())
    try:
        ring = LocalRing.open(options.folder, show)
    except RingError as error:
        output.error(str(error))
        return output.FAILED
    names = options.name or ring.names
    try:
        asyncio.run(roll_ring(ring, names, options.what, options.timeout_s, show))
    except (AskError, RingError) as error:
        output.error(str(error))
        for line in asyncio.run(_where_it_stands(ring)):
            output.error(line)
        output.error("the roll was not finished; once mended it can be run again")
        return error.code if isinstance(error, AskError) else output.FAILED
    return 0


async def roll_ring(
    ring: LocalRing,
    names: Sequence[str],
    what: str,
    timeout_s: float,
    show: Progress = lambda who, what: None,
) -> None:
    """Restart ``what`` (haproc, spark or both) of these clusters, one after another.

    ``timeout_s``: for each wait: until the others serve, until a cluster is idle, and until it
    serves again. Raises AskError, RingError.
    """
    if unknown := set(names) - set(ring.names):
        raise RingError(f"the ring has no {', '.join(sorted(unknown))}")
    turns = await _turns(ring, names, timeout_s)
    async with Asker(ring.config) as asker:
        for name in turns.order:
            if name not in turns.away:
                await _drain(asker, name, timeout_s)
                show(name, "drained")
                drain_status = await clients.wait(asker, name, clients.is_idle, timeout_s)
                if not clients.is_idle(drain_status):
                    raise RingError(
                        f"{clients.words(drain_status)} after {timeout_s:g} s; it was not restarted"
                    )
            await _restart_cluster(ring, name, what)
            # A HAProc that has just been started may refuse at first.
            await _repeated(partial(clients.end, asker, name), timeout_s)
            drain_status = await clients.wait(asker, name, clients.serves, timeout_s)
            if not clients.serves(drain_status):
                raise RingError(f"{clients.words(drain_status)} {timeout_s:g} s after its restart")
            show(name, "serves again")


@dataclass(frozen=True, slots=True)
class Turns:
    """The clusters in the order of their restarts.

    ``away``: the clusters whose HAProc does not answer.
    """

    order: tuple[str, ...]
    away: frozenset[str]


def turns_of(names: Sequence[str], answers: Mapping[str, Mapping[str, Any]]) -> Turns | str:
    """Return the order of the restarts, or the reason why none may begin.

    ``answers``: the status of each cluster. Clusters that an earlier roll left drained or stopped
    come first, so a roll can be repeated.
    """
    away = {name for name in names if "error" in answers[name]}
    left = [name for name in names if name in away or answers[name].get("drained")]
    lacking = [
        f"{name} does not serve ({answer.get('state')})"
        for name, answer in answers.items()
        if name not in left and str(answer.get("state")) not in SERVING
    ]
    if lacking:
        return ", ".join(lacking)
    rest = [name for name in names if name not in left]
    return Turns((*left, *rest), frozenset(away))


async def _turns(ring: LocalRing, names: Sequence[str], timeout_s: float) -> Turns:
    deadline = time.monotonic() + timeout_s
    while True:
        turns = turns_of(names, await ask_all(ring.config))
        if isinstance(turns, Turns):
            return turns
        if time.monotonic() >= deadline:
            raise RingError(f"{turns}: mend that first")
        await asyncio.sleep(_POLL_S)


async def _drain(asker: Asker, name: str, timeout_s: float) -> None:
    """Drain a cluster as soon as its HAProc knows of another cluster that serves.

    The HAProc decides by the others' heartbeats. So it learns a moment later than this command that
    the cluster which was restarted before serves again.
    """
    await _repeated(partial(clients.begin, asker, name), timeout_s, ErrorClass.NOT_NOW)


async def _repeated(
    act: Callable[[], Awaitable[object]], timeout_s: float, error_class: ErrorClass | None = None
) -> None:
    """Call ``act`` again and again until its request is accepted; AskError after the time.

    ``error_class``: the only refusal after which it is repeated; None: after any.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            await act()
            return
        except AskError as error:
            passes = error_class is None or error.error_class == error_class
            if not passes or time.monotonic() >= deadline:
                raise
        await asyncio.sleep(_POLL_S)


async def _where_it_stands(ring: LocalRing) -> list[str]:
    """Return a line with the state of each cluster, after a roll that was not finished."""
    answers = await ask_all(ring.config)
    lines = []
    for name, answer in answers.items():
        pids = ring.pids(name)
        drained = ", drained" if answer.get("drained") else ""
        parts = ", ".join(f"{part} {pid or 'does not run'}" for part, pid in pids.items())
        why = answer.get("error") or answer.get("reason") or ""
        lines.append(f"{name} is {answer.get('state')}{drained} ({parts})" + f": {why}" * bool(why))
    return lines


async def _restart_cluster(ring: LocalRing, name: str, what: str) -> None:
    haproc, spark = what != "spark", what != "haproc"
    if haproc:
        await ring.stop_haproc(name)
    if spark:
        await ring.stop_spark(name)
        await ring.start_spark(name)
    if haproc:
        await ring.start_haproc(name, ready=False)
