"""The growth of an operation's cost in HAProc with the backlog and with the number of HAProcs.

On clusters that have done at once whatever they are given (`bench.draining`), so that nothing
but HAProc is measured; its log is SQLite's, as ever. A HAProc drains backlogs of INSERTs, of a
mix by key (which it composes) and of UPDATEs that each run alone. Then rings of HAProcs take
one-row INSERTs from many clients, and the processor time for one of them is measured: of the one
that takes it, and of one that only follows. Rings of up to 50 are simulated.

``python -m bench.bench_growth [backlog …]`` (1,000, 10,000 and 100,000 by default).
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
"""Small backlogs are drained at least twice, until they make about this number of operations."""
WARM_UP: Final = 1_000
FLAT: Final = 1.2
MEMORY_BAR_MB: Final = 300.0
TABLES: Final = tuple(f"mix{n}" for n in range(8))


def inserts(count: int) -> list[str]:
    """Return INSERTs of a row into one table."""
    return [insert("queue", number) for number in range(count)]


def mixed(count: int) -> list[str]:
    """Return 70 % INSERTs, 20 % UPDATEs and 10 % DELETEs by key, on 8 tables."""
    return [each.sql for each in mix([*TABLES], count)]


def alone(count: int) -> list[str]:
    """Return UPDATEs that are not by key, on 8 tables."""
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
    """Measure and report."""
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
    """Return what an operation of this kind takes in each backlog, and the largest one's memory."""
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
    """Drain a backlog several times in a new process; return the figures, and the memory in MiB."""
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
    """Drain a copy of a log."""
    with tempfile.TemporaryDirectory(dir=made.parent) as name:
        folder = Path(name)
        shutil.copytree(made, folder, dirs_exist_ok=True)
        return uvloop.run(drain(ring_config(folder, 2), count))


async def filled(folder: Path, kind: str, count: int) -> None:
    """Make a log that another cluster has applied to its end."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "state").mkdir(parents=True)
    log = await open_log(ring_config(folder, 2).log)
    await fill(log, KINDS[kind](count))
    await log.commit_cursor(OTHER, Cursor(count))
    await log.close()


if __name__ == "__main__":
    main()
