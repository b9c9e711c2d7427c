"""What the log costs, in SQLite and in Kafka: ``python -m bench.bench_log [sqlite|kafka]``.

For Kafka see `bench.log_kafka`. For SQLite the yardstick is plain sqlite3 in the same folder and
the same run: one connection, one commit per append, synchronous=FULL. Short rounds of all sides
alternate, so that a machine that is busy with something else slows all of them. It still shifts the
ratios: where other work holds every processor, a sync ends at the scheduler's next tick (4 ms) and
grouping pays more than on an idle machine. The table therefore says what a bare sync took and how
loaded the machine was; figures from a loaded one say little about an idle one.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from bench.log_kafka import OPTIONS, kafka_rows
from bench.report import Row, report
from dmq import Log, Record, encode, open_log
from dmq.sqlite import SqliteLog

ROOT = Path(__file__).parents[1]
RECORD = Record("sql", "0f" * 16, {"class": "asynchronous", "schema": "default"}, bytes(300))
ROUNDS = 20
ROUND_S = 0.25
SHARED_S = 3.0
WRITERS = 64
WAKE_UPS = 150
IDLE_GAP_S = 0.13
IDLE_S = 8.0
PROCESSES = 4


def plain_commits(folder: Path) -> list[float]:
    """Return the seconds each commit of a round of plain sqlite3 took."""
    db = sqlite3.connect(folder / "plain.db", isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE IF NOT EXISTS records (offset INTEGER PRIMARY KEY, data BLOB)")
    took: list[float] = []
    until = time.perf_counter() + ROUND_S
    while (began := time.perf_counter()) < until:
        db.execute("INSERT INTO records (data) VALUES (?)", (encode(RECORD),))
        took.append(time.perf_counter() - began)
    db.close()
    return took


async def appends(log: Log, writers: int, seconds: float) -> list[float]:
    """Return the seconds each append took while this many tasks appended one after another."""
    took: list[float] = []
    until = time.perf_counter() + seconds

    async def writer() -> None:
        while (began := time.perf_counter()) < until:
            await log.append([RECORD])
            took.append(time.perf_counter() - began)

    await asyncio.gather(*(writer() for _ in range(writers)))
    return took


def syncs(folder: Path) -> list[float]:
    """Return the seconds that writing a page and syncing it took, again and again for a round."""
    took: list[float] = []
    fd = os.open(folder / "page", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, bytes(4096), 0)
    os.fsync(fd)
    until = time.perf_counter() + ROUND_S
    while (began := time.perf_counter()) < until:
        os.pwrite(fd, bytes(4096), 0)
        os.fdatasync(fd)
        took.append(time.perf_counter() - began)
    os.close(fd)
    return took


def p50_us(rounds: list[list[float]]) -> float:
    """Return the median over all rounds' samples."""
    return 1e6 * statistics.median(seconds for took in rounds for seconds in took)


def rate(rounds: list[list[float]]) -> float:
    """Return how many a second over all rounds."""
    return sum(map(len, rounds)) / (len(rounds) * ROUND_S)


def spread(many: list[list[float]], plain: list[list[float]]) -> list[Row]:
    """Return how far the neighbouring rounds' ratios lie apart."""
    ratios = sorted(len(ours) / len(theirs) for ours, theirs in zip(many, plain, strict=True))
    name = f"appends, {WRITERS} writers : plain, round by round"
    return [
        Row(f"{name}, lowest", "x", ratios[0]),
        Row(f"{name}, median", "x", statistics.median(ratios)),
        Row(f"{name}, highest", "x", ratios[-1]),
    ]


async def throughput(folder: Path) -> list[Row]:
    load = os.getloadavg()[0]
    log = await SqliteLog.open(folder / "log.db")
    sync: list[list[float]] = []
    plain: list[list[float]] = []
    many: list[list[float]] = []
    lone: list[list[float]] = []
    for _ in range(ROUNDS):
        sync.append(await asyncio.to_thread(syncs, folder))
        plain.append(await asyncio.to_thread(plain_commits, folder))
        many.append(await appends(log, WRITERS, ROUND_S))
        lone.append(await appends(log, 1, ROUND_S))
    began, offset = time.perf_counter(), 0
    while entries := await log.read(offset):
        offset = entries[-1].offset + 1
    read_s = time.perf_counter() - began
    await log.close()
    each, alone = "plain sqlite3, a commit each", "plain sqlite3, alone"
    return [
        Row(f"durable appends, {WRITERS} writers", "1/s", rate(many), each, rate(plain)),
        Row(f"durable appends, {WRITERS} writers", "1/s", rate(many), "the bar", 5000),
        *spread(many, plain),
        Row(f"append p50, {WRITERS} writers", "us", p50_us(many), alone, p50_us(plain)),
        Row("append p50, lone writer", "us", p50_us(lone), alone, p50_us(plain)),
        Row("records read", "1/s", offset / read_s),
        Row("a page written and synced, p50", "us", p50_us(sync)),
        Row("load average when it began", "", load, "processors", os.cpu_count()),
    ]


def spawn(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bench.bench_log", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(child: subprocess.Popen[str], line: str = "") -> str:
    assert child.stdin is not None
    assert child.stdout is not None
    if line:
        child.stdin.write(line)
        child.stdin.flush()
    return child.stdout.readline().strip()


async def many_processes(folder: Path, alone_rate: float) -> list[Row]:
    path = folder / "shared.db"
    children = [spawn("write", str(path)) for _ in range(PROCESSES)]
    for child in children:
        ask(child)
    counts = await asyncio.gather(*(asyncio.to_thread(ask, child, "go\n") for child in children))
    for child in children:
        child.wait()
    return [
        Row(
            f"durable appends, {PROCESSES} processes x {WRITERS // PROCESSES} writers",
            "1/s",
            sum(map(int, counts)) / SHARED_S,
            f"one process x {WRITERS}",
            alone_rate,
        )
    ]


async def wake_ups(folder: Path) -> list[Row]:
    log = await SqliteLog.open(folder / "log.db")
    child = spawn("answer", str(folder / "log.db"))
    ask(child)
    delays_ms: list[float] = []
    for number in range(WAKE_UPS):
        end = await log.end()
        waiting = asyncio.create_task(log.wait(end, 10))
        # Uneven, so that the polls' phase does not matter.
        await asyncio.sleep(IDLE_GAP_S + number % 17 / 1000)
        answer = asyncio.create_task(asyncio.to_thread(ask, child, "go\n"))
        assert await waiting
        woken_at = time.monotonic()
        delays_ms.append(1e3 * (woken_at - float(await answer)))
    child.communicate()
    cpu = time.process_time()
    assert not await log.wait(await log.end(), IDLE_S)
    cpu = time.process_time() - cpu
    await log.close()
    delays_ms.sort()
    bar = "the bar"
    return [
        Row("wake-up from another process, p50", "ms", delays_ms[WAKE_UPS // 2], bar, 20),
        Row("wake-up from another process, p99", "ms", delays_ms[WAKE_UPS * 99 // 100], bar, 20),
        Row("CPU of a reader that waits", "% of a core", 100 * cpu / IDLE_S, bar, 1),
    ]


async def child_writes(path: str) -> None:
    log = await SqliteLog.open(path)
    print("ready", flush=True)
    sys.stdin.readline()
    print(len(await appends(log, WRITERS // PROCESSES, SHARED_S)), flush=True)
    await log.close()


async def child_answers(path: str) -> None:
    kafka = path.startswith("kafka:")
    log = await (open_log(path, kafka=OPTIONS) if kafka else SqliteLog.open(path))
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        await log.append([RECORD])
        print(time.monotonic(), flush=True)
    await log.close()


async def main(*backends: str) -> None:
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    # Below the project, since /tmp may be memory, where a sync costs nothing.
    if "sqlite" in backends:
        with tempfile.TemporaryDirectory(dir=build) as name:
            folder = Path(name)
            rows = await throughput(folder)
            rows += await many_processes(folder, rows[0].value)
            rows += await wake_ups(folder)
        report("log", rows)
        say_if_uneven(rows)
    if "kafka" in backends:
        report("log_kafka", await kafka_rows(build, RECORD, appends, spawn, ask))


def say_if_uneven(rows: list[Row]) -> None:
    """Print a warning if the machine was not quiet."""
    ratios = [row.value for row in rows if row.unit == "x"]
    if max(ratios) > 2 * min(ratios):
        print(
            "\n  The rounds differ more than twofold: the machine was not quiet, take the median."
        )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", path]:
            uvloop.run(child_writes(path))
        case ["answer", path]:
            uvloop.run(child_answers(path))
        case [("sqlite" | "kafka") as backend]:
            uvloop.run(main(backend))
        case _:
            uvloop.run(main("sqlite", "kafka"))
