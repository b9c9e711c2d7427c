"""Measure the log in SQLite and in Kafka: ``python -m bench.bench_log [sqlite|kafka]``."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import uvloop
from kafka.admin import ConfigResource, ConfigResourceType

from bench.report import Row, report
from dmq import Cursor, KafkaOptions, Log, Record, encode, open_log
from dmq.kafka_clients import Clients
from dmq.sqlite import SqliteLog
from haproc.ring.broker import LocalKafka

# What the Kafka log costs, on a real local broker.
#
# The yardstick is kafka-python itself in the same run, on the same topic, with the same settings
# and the same records, encoded for each send: ``send().get()`` for a lone writer, and 64 sends
# outstanding (the oldest is waited for before the next one is sent) for 64 writers. The topic is
# one as the log makes it for a single broker, where each message is on the disk before it is
# acknowledged; the first figures are repeated without that (``flush.messages``), as with replicas.
# The rounds of both sides alternate; on a machine that is busy with other work the log's two more
# changes of thread cost more than their share.


OPTIONS = KafkaOptions(replication_factor=1, min_insync_replicas=1)
KAFKA_ROUNDS = 12
KAFKA_ROUND_S = 0.4
OUTSTANDING = 64
PIPELINED = 20_000
KAFKA_WAKE_UPS = 100
KAFKA_GAP_S = 0.05
IDLE_S = 8.0
SETTLE_S = 0.5
"""For this time after the last record, a log may look for new records more often than usual."""
COMMITS = 200


def plain_alone(producer: Any, topic: str) -> list[float]:
    """Send records to Kafka one after another, for one round; return the seconds of each."""
    took: list[float] = []
    until = time.perf_counter() + KAFKA_ROUND_S
    while (began := time.perf_counter()) < until:
        producer.send(topic, encode(RECORD), partition=0).get(10)
        took.append(time.perf_counter() - began)
    return took


def plain_outstanding(producer: Any, topic: str) -> int:
    """Send records to Kafka for one round, many unanswered at a time; return their number."""
    sent: deque[Any] = deque()
    count = 0
    until = time.perf_counter() + KAFKA_ROUND_S
    while time.perf_counter() < until:
        if len(sent) == OUTSTANDING:
            sent.popleft().get(10)
            count += 1
        sent.append(producer.send(topic, encode(RECORD), partition=0))
    for future in sent:
        future.get(10)
    return count + len(sent)


def plain_pipelined(producer: Any, topic: str) -> float:
    """Send records to Kafka without waiting for their answers; return the number per second."""
    began = time.perf_counter()
    for _ in range(PIPELINED):
        producer.send(topic, encode(RECORD), partition=0)
    producer.flush(30)
    return PIPELINED / (time.perf_counter() - began)


def p50_ms(seconds: list[float]) -> float:
    """Return the median of ``seconds``, in milliseconds."""
    return 1e3 * statistics.median(seconds)


async def appending(log: Log, producer: Any, topic: str) -> Any:
    """Append to the log and send by kafka-python, in turn; return the figures of all rounds.

    In this order: one writer of the log, one plain sender, many writers of the log, many plain
    sends.
    """
    alone: list[float] = []
    alone_plain: list[float] = []
    many = many_plain = 0
    for _ in range(KAFKA_ROUNDS):
        alone_plain += await asyncio.to_thread(plain_alone, producer, topic)
        alone += await appends(log, 1, KAFKA_ROUND_S)
        many_plain += await asyncio.to_thread(plain_outstanding, producer, topic)
        many += len(await appends(log, OUTSTANDING, KAFKA_ROUND_S))
    span_s = KAFKA_ROUNDS * KAFKA_ROUND_S
    return p50_ms(alone), p50_ms(alone_plain), many / span_s, many_plain / span_s


async def reading_and_cursors(log: Log) -> list[Row]:
    """Measure reading all records of the log, and storing a reader's cursor."""
    began, offset = time.perf_counter(), 0
    while entries := await log.read(offset, records_max=4096):
        offset = entries[-1].offset + 1
    read_s = time.perf_counter() - began
    took: list[float] = []
    for number in range(COMMITS):
        at = time.perf_counter()
        await log.commit_cursor("a", Cursor(number, "n" * 200))
        took.append(time.perf_counter() - at)
    took.sort()
    return [
        Row("Kafka: records read", "1/s", offset / read_s),
        Row("Kafka: commit of a cursor, p50", "ms", p50_ms(took)),
        Row("Kafka: commit of a cursor, p99", "ms", 1e3 * took[COMMITS * 99 // 100]),
    ]


def append_rows(figures: Any, what: str) -> list[Row]:
    """Return the lines of the table for these figures; ``what``: the first words of their names."""
    alone, alone_plain, many, many_plain = figures
    awaited, outstanding = "kafka-python, awaited", f"kafka-python, {OUTSTANDING} outstanding"
    return [
        Row(f"{what}: append p50, lone writer", "ms", alone, awaited, alone_plain),
        Row(f"{what}: appends, {OUTSTANDING} writers", "1/s", many, outstanding, many_plain),
    ]


async def kafka_rows(build: Path) -> list[Row]:
    """Start a Kafka broker in a folder below ``build``; return the figures of its log."""
    with tempfile.TemporaryDirectory(dir=build) as folder:
        kafka = LocalKafka.open_or_create(Path(folder) / "kafka")
        await kafka.start()
        try:
            return await _measure(kafka)
        finally:
            await kafka.stop()


async def _measure(kafka: LocalKafka) -> list[Row]:
    topic, servers = "bench", kafka.bootstrap_servers
    url = f"kafka://{servers}/{topic}"
    log = await open_log(url, kafka=OPTIONS)
    clients = Clients(tuple(servers.split(",")), topic, OPTIONS)
    admin = await asyncio.to_thread(clients.admin)
    producer = await asyncio.to_thread(clients.producer)
    rows = append_rows(await appending(log, producer, topic), "Kafka")
    await log.append([RECORD])
    rows += await wake_ups(log, url, "Kafka: ", KAFKA_WAKE_UPS, KAFKA_GAP_S, None)
    rows += await reading_and_cursors(log)
    setting = ConfigResource(ConfigResourceType.TOPIC, topic, {"flush.messages": str(2**63 - 1)})
    await asyncio.to_thread(admin.alter_configs, [setting])
    rows += append_rows(await appending(log, producer, topic), "Kafka without flush")
    pipelined = await asyncio.to_thread(plain_pipelined, producer, topic)
    rows.append(Row("Kafka without flush: kafka-python, nobody waits", "1/s", pipelined))
    await log.close()
    await asyncio.to_thread(producer.close)
    await asyncio.to_thread(admin.close)
    return rows


# What the SQLite log costs.
#
# The yardstick is plain sqlite3 in the same folder and the same run: one connection, one commit per
# append, synchronous=FULL. Short rounds of all sides alternate, so that a machine that is busy with
# something else slows all of them. It still shifts the ratios: where other work holds every
# processor, a sync ends at the scheduler's next tick (4 ms) and grouping pays more than on an idle
# machine. The table therefore says what a bare sync took and how loaded the machine was; figures
# from a loaded one say little about an idle one.


ROOT = Path(__file__).parents[1]
RECORD = Record("sql", "0f" * 16, bytes(350))
ROUNDS = 20
ROUND_S = 0.25
SHARED_S = 3.0
WRITERS = 64
WAKE_UPS = 150
WAKE_UP_BAR_MS = 20.0
IDLE_GAP_S = 0.13
PROCESSES = 4


def plain_commits(folder: Path) -> list[float]:
    """Commit rows by plain sqlite3, one after another for a round; return the seconds."""
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
    """Append to the log by ``writers`` tasks for ``seconds``; return each append's seconds."""
    took: list[float] = []
    until = time.perf_counter() + seconds

    async def writer() -> None:
        while (began := time.perf_counter()) < until:
            await log.append([RECORD])
            took.append(time.perf_counter() - began)

    await asyncio.gather(*(writer() for _ in range(writers)))
    return took


def syncs(folder: Path) -> list[float]:
    """Write a page and sync it to the disk, again and again for a round; return the seconds."""
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
    """Return the median of the samples of all rounds, in microseconds."""
    return 1e6 * statistics.median(seconds for took in rounds for seconds in took)


def rate(rounds: list[list[float]]) -> float:
    """Return the number of samples per second, over all rounds."""
    return sum(map(len, rounds)) / (len(rounds) * ROUND_S)


def spread(many: list[list[float]], plain: list[list[float]]) -> list[Row]:
    """Return how much the ratio of log to plain sqlite3 differs between the rounds."""
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


async def wake_ups(
    log: Log, url: str, what: str, times: int, gap_s: float, bar_ms: float | None
) -> list[Row]:
    """Measure how soon a reader notices another process's record, and its time while it waits."""
    child = spawn("answer", url)
    ask(child)
    delays_ms: list[float] = []
    for number in range(times):
        end = await log.end()
        waiting = asyncio.create_task(log.wait(end, 10))
        # Uneven, so that the polls' phase does not matter.
        await asyncio.sleep(gap_s + number % 17 / 1000)
        answer = asyncio.create_task(asyncio.to_thread(ask, child, "go\n"))
        assert await waiting
        woken_at = time.monotonic()
        delays_ms.append(1e3 * (woken_at - float(await answer)))
    child.communicate()
    assert not await log.wait(await log.end(), SETTLE_S)
    cpu = time.process_time()
    assert not await log.wait(await log.end(), IDLE_S)
    cpu = time.process_time() - cpu
    delays_ms.sort()
    bar = "" if bar_ms is None else "the bar"
    name = f"{what}wake-up from another process"
    return [
        Row(f"{name}, p50", "ms", delays_ms[times // 2], bar, bar_ms),
        Row(f"{name}, p99", "ms", delays_ms[times * 99 // 100], bar, bar_ms),
        Row(f"{what}CPU of a reader that waits", "% of a core", 100 * cpu / IDLE_S, "the bar", 1),
    ]


async def child_writes(path: str) -> None:
    log = await SqliteLog.open(path)
    print("ready", flush=True)
    sys.stdin.readline()
    print(len(await appends(log, WRITERS // PROCESSES, SHARED_S)), flush=True)
    await log.close()


async def child_answers(url: str) -> None:
    log = await open_log(url, kafka=OPTIONS)
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
            log = await SqliteLog.open(folder / "log.db")
            url = f"sqlite://{folder}/log.db"
            rows += await wake_ups(log, url, "", WAKE_UPS, IDLE_GAP_S, WAKE_UP_BAR_MS)
            await log.close()
        report("log", rows)
        say_if_uneven(rows)
    if "kafka" in backends:
        report("log_kafka", await kafka_rows(build))


def say_if_uneven(rows: list[Row]) -> None:
    """Print a warning if the rounds differ so much that the machine cannot have been idle."""
    ratios = [row.value for row in rows if row.unit == "x"]
    if max(ratios) > 2 * min(ratios):
        print(
            "\n  The rounds differ more than twofold: the machine was not quiet, take the median."
        )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", path]:
            uvloop.run(child_writes(path))
        case ["answer", url]:
            uvloop.run(child_answers(url))
        case [("sqlite" | "kafka") as backend]:
            uvloop.run(main(backend))
        case _:
            uvloop.run(main("sqlite", "kafka"))
