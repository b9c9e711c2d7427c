"""What the SQLite log costs: ``python -m bench.bench_log``.

The yardstick is plain sqlite3 in the same folder and the same run: one connection, one commit per
append, synchronous=FULL. Rounds of both alternate, and the medians are compared.
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

from bench.report import Row, report
from dmq import Record, encode
from dmq.sqlite import SqliteLog

ROOT = Path(__file__).parents[1]
RECORD = Record("sql", "0f" * 16, {"class": "asynchronous", "schema": "default"}, bytes(300))
ROUNDS = 5
ROUND_S = 1.0
WRITERS = 64
LONE_APPENDS = 1000
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


async def appends(log: SqliteLog, writers: int, seconds: float) -> list[float]:
    """Return the seconds each append took while this many tasks appended one after another."""
    took: list[float] = []
    until = time.perf_counter() + seconds

    async def writer() -> None:
        while (began := time.perf_counter()) < until:
            await log.append([RECORD])
            took.append(time.perf_counter() - began)

    await asyncio.gather(*(writer() for _ in range(writers)))
    return took


async def throughput(folder: Path) -> list[Row]:
    log = await SqliteLog.open(folder / "log.db")
    plain: list[list[float]] = []
    many: list[list[float]] = []
    lone: list[list[float]] = []
    for _ in range(ROUNDS):
        plain.append(await asyncio.to_thread(plain_commits, folder))
        many.append(await appends(log, WRITERS, ROUND_S))
        lone.append(await appends(log, 1, ROUND_S))
    began, offset = time.perf_counter(), 0
    while entries := await log.read(offset):
        offset = entries[-1].offset + 1
    read_s = time.perf_counter() - began
    await log.close()
    plain_rate = statistics.median(len(took) / ROUND_S for took in plain)
    plain_us = statistics.median(1e6 * statistics.median(took) for took in plain)
    return [
        Row(
            f"durable appends, {WRITERS} writers",
            "1/s",
            statistics.median(len(took) / ROUND_S for took in many),
            "plain sqlite3, a commit each",
            plain_rate,
        ),
        Row(
            f"append p50, {WRITERS} writers",
            "us",
            statistics.median(1e6 * statistics.median(took) for took in many),
            "plain sqlite3, alone",
            plain_us,
        ),
        Row(
            "append p50, lone writer",
            "us",
            statistics.median(1e6 * statistics.median(took) for took in lone),
            "plain sqlite3, alone",
            plain_us,
        ),
        Row("records read", "1/s", offset / read_s),
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
            sum(map(int, counts)) / (ROUND_S * 3),
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
    print(len(await appends(log, WRITERS // PROCESSES, ROUND_S * 3)), flush=True)
    await log.close()


async def child_answers(path: str) -> None:
    log = await SqliteLog.open(path)
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        await log.append([RECORD])
        print(time.monotonic(), flush=True)
    await log.close()


async def main() -> None:
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    # Below the project, since /tmp may be memory, where a sync costs nothing.
    with tempfile.TemporaryDirectory(dir=build) as name:
        folder = Path(name)
        rows = await throughput(folder)
        rows += await many_processes(folder, rows[0].value)
        rows += await wake_ups(folder)
    report("log", rows)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", path]:
            uvloop.run(child_writes(path))
        case ["answer", path]:
            uvloop.run(child_answers(path))
        case _:
            uvloop.run(main())
