"""Measure HAProc's own time for an operation: with longer backlogs, and with more HAProcs.

The clusters are simulated: they do every statement at once (`bench.draining`). So only HAProc is
measured; its log is in SQLite. First one HAProc applies backlogs of three kinds: INSERTs, a mix of
statements by key (which HAProc composes), and UPDATEs that it must run one by one. Then many
clients send one-row INSERTs to rings of several sizes, and the processor time of one INSERT is
measured: in the HAProc that receives it, and in the other ones. Rings of up to 50 HAProcs are
simulated in one process.

``python -m bench.bench_growth [backlog …]``: sizes, by default 1,000, 10,000 and 100,000.
"""

from __future__ import annotations

import multiprocessing
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import uvloop

from bench.bench_mix import insert, mix
from bench.draining import OTHER, Drained, drain, fill, ring_config
from bench.growing_rings import ring_rows, simulated_rows
from bench.measures import forget_peak, peak, resident
from bench.report import Row, report
from dmq import Cursor, open_log
from haproc.cli.nodes import prepare_process

BACKLOGS: Final = (1_000, 10_000, 100_000)
ROUNDS_OF: Final = 20_000
"""Small backlogs are applied twice or more, until about so many operations were run."""
WARM_UP: Final = 1_000
FLAT: Final = 1.2
MEMORY_BAR_MB: Final = 300.0
TABLES: Final = tuple(f"mix{n}" for n in range(8))


def inserts(count: int) -> list[str]:
    """Return ``count`` INSERTs of one row into one table."""
    return [insert("queue", number) for number in range(count)]


def mixed(count: int) -> list[str]:
    """Return ``count`` statements on 8 tables: 70 % INSERTs, 20 % UPDATEs, 10 % DELETEs, by key."""
    return [each.sql for each in mix([*TABLES], count)]


def alone(count: int) -> list[str]:
    """Return ``count`` UPDATEs on 8 tables that choose rows by price, not by key."""
    return [
        f"UPDATE {TABLES[n % len(TABLES)]} SET visits = visits + {n} WHERE price < {n}"
        for n in range(count)
    ]


KINDS: Final = {
    "INSERTs of a row": inserts,
    "a mix by key": mixed,
    "UPDATEs that run alone": alone,
}


def main() -> None:
    """Run the benchmark; print its figures and write them to bench/results/growth.json."""
    backlogs = [int(each) for each in sys.argv[1:]] or [*BACKLOGS]
    rows: list[Row] = []
    # Below the project, since /tmp may be memory, where a sync costs nothing.
    build = Path(__file__).parents[1] / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as folder:
        for kind in KINDS:
            rows += drain_rows(Path(folder), kind, backlogs)
            report("growth", rows)
        rows += ring_rows(Path(folder))
        report("growth", rows)
    rows += simulated_rows()
    report("growth", rows)


def drain_rows(folder: Path, kind: str, backlogs: Sequence[int]) -> list[Row]:
    """Return the time of an operation in each backlog, and the memory for the largest backlog."""
    rows: list[Row] = []
    each_us: dict[int, float] = {}
    for count in backlogs:
        drained, memory = _in_a_process(folder, kind, count)
        seconds = statistics.median(found.seconds for found in drained)
        each_us[count] = statistics.median(found.cpu_seconds for found in drained) / count * 1e6
        least = min(each_us)
        compared = f"a backlog of {least:,} (bar {FLAT})"
        rows += [
            Row(
                f"{kind}: processor time of each",
                "us",
                each_us[count],
                compared,
                each_us[least],
                over="operations in the backlog",
                at=count,
            ),
            Row(
                f"{kind}, drained",
                "1/s",
                count / seconds,
                over="operations in the backlog",
                at=count,
            ),
        ]
    name = f"{kind}: memory that draining {count:,} takes"
    return [
        *rows,
        Row(name, "MB", memory, "bar", MEMORY_BAR_MB),
        Row(f"{kind}: statements that {count:,} became", "", float(drained[0].units)),
    ]


def _in_a_process(folder: Path, kind: str, count: int) -> tuple[list[Drained], float]:
    """Apply a backlog several times in a new process; return the times, and the memory in MiB."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_drain, args=(folder, kind, count, theirs))
    child.start()
    theirs.close()
    try:
        found: tuple[list[Drained], float] = ours.recv()
    finally:
        child.join()
    return found


def _drain(folder: Path, kind: str, count: int, pipe: Connection) -> None:
    prepare_process()
    made = folder / f"{kind}-{count}"
    uvloop.run(filled(made, kind, count))
    uvloop.run(filled(folder / "warm-up", kind, WARM_UP))
    _round(folder / "warm-up", WARM_UP)
    before = resident("self")
    forget_peak("self")
    drained = [_round(made, count)]
    memory = peak("self") - before
    drained += [_round(made, count) for _ in range(max(2, ROUNDS_OF // count) - 1)]
    pipe.send((drained, memory))


def _round(made: Path, count: int) -> Drained:
    """Copy the log in folder ``made``, and let a HAProc apply the copy's ``count`` operations."""
    with tempfile.TemporaryDirectory(dir=made.parent) as name:
        folder = Path(name)
        shutil.copytree(made, folder, dirs_exist_ok=True)
        return uvloop.run(drain(ring_config(folder, 2), count))


async def filled(folder: Path, kind: str, count: int) -> None:
    """Make a log with ``count`` operations that only the other cluster has applied, all of them."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "state").mkdir(parents=True)
    log = await open_log(ring_config(folder, 2).log)
    await fill(log, KINDS[kind](count))
    await log.commit_cursor(OTHER, Cursor(count))
    await log.close()


if __name__ == "__main__":
    main()
