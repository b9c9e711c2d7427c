"""What the Kafka log costs, on a real local broker; part of ``python -m bench.bench_log``.

The yardstick is kafka-python itself in the same run, on the same topic, with the same settings and
the same records, encoded for each send: ``send().get()`` for a lone writer, and 64 sends
outstanding (the oldest is waited for before the next one is sent) for 64 writers. The topic is one
as the log makes it for a single broker, where each message is on the disk before it is
acknowledged; the first figures are repeated without that (``flush.messages``), as with replicas.
The rounds of both sides alternate; on a machine that is busy with other work the log's two more
changes of thread cost more than their share.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType

from bench.report import Row
from dmq import Cursor, KafkaOptions, Log, Record, encode, open_log
from dmq.kafka_clients import Clients
from haproc.ring.broker import LocalKafka

OPTIONS = KafkaOptions(replication_factor=1, min_insync_replicas=1)
ROUNDS = 12
ROUND_S = 0.4
OUTSTANDING = 64
PIPELINED = 20_000
WAKE_UPS = 100
IDLE_S = 8.0
COMMITS = 200

Appends = Callable[[Log, int, float], Awaitable[list[float]]]
Spawn = Callable[..., subprocess.Popen[str]]
Ask = Callable[..., str]


def plain_alone(producer: Any, topic: str, record: Record) -> list[float]:
    """Return the seconds each awaited send of a round took."""
    took: list[float] = []
    until = time.perf_counter() + ROUND_S
    while (began := time.perf_counter()) < until:
        producer.send(topic, encode(record), partition=0).get(10)
        took.append(time.perf_counter() - began)
    return took


def plain_outstanding(producer: Any, topic: str, record: Record) -> int:
    """Return how many sends a round had with so many outstanding."""
    sent: deque[Any] = deque()
    count = 0
    until = time.perf_counter() + ROUND_S
    while time.perf_counter() < until:
        if len(sent) == OUTSTANDING:
            sent.popleft().get(10)
            count += 1
        sent.append(producer.send(topic, encode(record), partition=0))
    for future in sent:
        future.get(10)
    return count + len(sent)


def plain_pipelined(producer: Any, topic: str, record: Record) -> float:
    """Return the rate of sends that nobody waits for."""
    began = time.perf_counter()
    for _ in range(PIPELINED):
        producer.send(topic, encode(record), partition=0)
    producer.flush(30)
    return PIPELINED / (time.perf_counter() - began)


def p50_ms(seconds: list[float]) -> float:
    """Return the median in milliseconds."""
    return 1e3 * statistics.median(seconds)


async def appending(log: Log, producer: Any, topic: str, record: Record, appends: Appends) -> Any:
    """Return all rounds' figures, each side by side: alone, alone plain, many, many plain."""
    alone: list[float] = []
    alone_plain: list[float] = []
    many = many_plain = 0
    for _ in range(ROUNDS):
        alone_plain += await asyncio.to_thread(plain_alone, producer, topic, record)
        alone += await appends(log, 1, ROUND_S)
        many_plain += await asyncio.to_thread(plain_outstanding, producer, topic, record)
        many += len(await appends(log, OUTSTANDING, ROUND_S))
    span_s = ROUNDS * ROUND_S
    return p50_ms(alone), p50_ms(alone_plain), many / span_s, many_plain / span_s


async def wake_ups(log: Log, url: str, spawn: Spawn, ask: Ask) -> list[Row]:
    """Measure how soon another process's record wakes a reader, and what waiting costs."""
    child = spawn("answer", url)
    ask(child)
    delays_ms: list[float] = []
    for number in range(WAKE_UPS):
        end = await log.end()
        waiting = asyncio.create_task(log.wait(end, 10))
        await asyncio.sleep(0.05 + number % 17 / 1000)
        answer = asyncio.create_task(asyncio.to_thread(ask, child, "go\n"))
        assert await waiting
        woken_at = time.monotonic()
        delays_ms.append(1e3 * (woken_at - float(await answer)))
    child.communicate()
    assert not await log.wait(await log.end(), 0.5)
    cpu = time.process_time()
    assert not await log.wait(await log.end(), IDLE_S)
    cpu = time.process_time() - cpu
    delays_ms.sort()
    return [
        Row("Kafka: wake-up from another process, p50", "ms", delays_ms[WAKE_UPS // 2]),
        Row("Kafka: wake-up from another process, p99", "ms", delays_ms[WAKE_UPS * 99 // 100]),
        Row("Kafka: CPU of a reader that waits", "% of a core", 100 * cpu / IDLE_S, "the bar", 1),
    ]


async def reading_and_cursors(log: Log) -> list[Row]:
    """Measure a read through all that was appended, and commits of a cursor."""
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
    """Return the rows of one setting."""
    alone, alone_plain, many, many_plain = figures
    awaited, outstanding = "kafka-python, awaited", f"kafka-python, {OUTSTANDING} outstanding"
    return [
        Row(f"{what}: append p50, lone writer", "ms", alone, awaited, alone_plain),
        Row(f"{what}: appends, {OUTSTANDING} writers", "1/s", many, outstanding, many_plain),
    ]


async def kafka_rows(
    build: Path, record: Record, appends: Appends, spawn: Spawn, ask: Ask
) -> list[Row]:
    """Start a broker below this folder, and return what was measured."""
    with tempfile.TemporaryDirectory(dir=build) as folder:
        kafka = LocalKafka.open_or_create(Path(folder) / "kafka")
        await kafka.start()
        try:
            return await _measure(kafka, record, appends, spawn, ask)
        finally:
            await kafka.stop()


async def _measure(
    kafka: LocalKafka, record: Record, appends: Appends, spawn: Spawn, ask: Ask
) -> list[Row]:
    topic, servers = "bench", kafka.bootstrap_servers
    url = f"kafka://{servers}/{topic}"
    log = await open_log(url, kafka=OPTIONS)
    clients = Clients(tuple(servers.split(",")), topic, OPTIONS)
    admin = await asyncio.to_thread(clients.admin)
    producer = await asyncio.to_thread(clients.producer)
    measured = partial(appending, log, producer, topic, record, appends)
    rows = append_rows(await measured(), "Kafka")
    await log.append([record])
    rows += await wake_ups(log, url, spawn, ask)
    rows += await reading_and_cursors(log)
    setting = ConfigResource(ConfigResourceType.TOPIC, topic, {"flush.messages": str(2**63 - 1)})
    await asyncio.to_thread(admin.alter_configs, [setting])
    rows += append_rows(await measured(), "Kafka without flush")
    rate = await asyncio.to_thread(plain_pipelined, producer, topic, record)
    rows.append(Row("Kafka without flush: kafka-python, nobody waits", "1/s", rate))
    await log.close()
    await asyncio.to_thread(producer.close)
    await asyncio.to_thread(admin.close)
    return rows
