"""Tests of a Kafka log whose broker dies, hangs, or returns without its data."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from dmq import (
    Cursor,
    KafkaOptions,
    Log,
    LogRegressedError,
    LogUnavailableError,
    Record,
    open_log,
)
from dmq.kafka_clients import close_quietly
from haproc.ring.broker import LocalBroker, LocalKafka
from tests.contract.log_backends import KAFKA_OPTIONS, until_works

# A client of kafka-python that finds no broker ends without closing its sockets.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

DEADLINE_S = 60.0
OPTIONS = KafkaOptions(replication_factor=1, min_insync_replicas=1, append_timeout_s=2.0)
ANSWERS_WITHIN_S = 8.0
"""Reads and appends fail within this time when no broker answers."""

T = TypeVar("T")


@pytest.fixture
def url(kafka: LocalKafka) -> str:
    return f"kafka://{kafka.bootstrap_servers}/log-{uuid.uuid4().hex}"


@pytest.fixture
async def log(url: str) -> AsyncIterator[Log]:
    log = await open_log(url, kafka=OPTIONS)
    yield log
    await log.close()


async def read_all(log: Log, at: int) -> dict[int, str]:
    """Return the keys of all records from here on."""
    stored: dict[int, str] = {}
    while entries := await until_works(partial(log.read, at)):
        stored |= {entry.offset: entry.record.key for entry in entries}
        at = entries[-1].offset + 1
    return stored


async def begin_wait(log: Log, offset: int) -> asyncio.Task[bool]:
    """Return a wait that has begun."""
    assert not await log.wait(offset, 0.05)
    waiting = asyncio.create_task(log.wait(offset, DEADLINE_S))
    await asyncio.sleep(0)
    return waiting


async def check_unavailable(call: Awaitable[object]) -> float:
    """Check that the call raises LogUnavailableError; return the seconds that it took."""
    began = time.monotonic()
    with pytest.raises(LogUnavailableError):
        await call
    return time.monotonic() - began


async def is_lost(
    log: Log, waiting: asyncio.Task[bool], offset: int, why: str | None = None
) -> None:
    """A wait, a read and an append all say that the log is lost."""
    calls: tuple[Awaitable[object], ...] = (
        waiting,
        log.read(offset),
        log.append([Record("test")]),
    )
    for call in calls:
        with pytest.raises(LogRegressedError, match=why):
            await call


async def check_all_calls_fail(log: Log, offset: int) -> None:
    """Check that all calls that need a broker fail in time, side by side."""
    took = await asyncio.gather(
        check_unavailable(log.append([Record("test", "lost")])),
        check_unavailable(log.read(offset)),
        check_unavailable(log.commit_cursor("a", Cursor(offset))),
    )
    assert max(took) < ANSWERS_WITHIN_S


async def check_all_calls_work(log: Log, first: int) -> None:
    """Check that all calls work again on this handle and no acknowledged record is lost."""
    (offset,) = await until_works(lambda: log.append([Record("test", "after")]))
    keys = list((await read_all(log, first)).values())
    assert keys[0] == "before" and keys[-1] == "after"
    assert set(keys) <= {"before", "lost", "after"}
    await until_works(lambda: log.commit_cursor("a", Cursor(offset, "after")))
    assert await until_works(lambda: log.load_cursor("a")) == Cursor(offset, "after")
    # And a waiting reader is woken again.
    end = await until_works(log.end)
    waiting = asyncio.create_task(log.wait(end, DEADLINE_S))
    await asyncio.sleep(0)
    await until_works(lambda: log.append([Record("test", "last")]))
    assert await waiting


@pytest.mark.thorough
async def test_calls_under_a_killed_broker_fail_in_time_and_work_after_its_restart(
    broker: LocalBroker, log: Log
) -> None:
    (first,) = await log.append([Record("test", "before")])
    await log.commit_cursor("a", Cursor(first))
    waiting = await begin_wait(log, first + 1)
    broker.kill()
    await broker.wait_gone()
    await check_all_calls_fail(log, first + 1)
    await broker.start()
    await check_all_calls_work(log, first)
    assert await waiting


@pytest.mark.thorough
async def test_calls_under_a_frozen_broker_fail_in_time_and_work_when_it_continues(
    broker: LocalBroker, log: Log
) -> None:
    (first,) = await log.append([Record("test", "before")])
    await log.commit_cursor("a", Cursor(first))
    broker.signal(signal.SIGSTOP)
    try:
        await check_all_calls_fail(log, first + 1)
    finally:
        broker.signal(signal.SIGCONT)
    await check_all_calls_work(log, first)


async def test_event_loop_is_never_blocked_by_a_frozen_broker(
    broker: LocalBroker, log: Log
) -> None:
    await log.append([Record("test", "before")])
    slowest, ticks, ends = 0, 0, threading.Event()

    def tick() -> None:
        """Count time in another thread: a busy machine delays both threads."""
        nonlocal ticks
        while not ends.wait(0.01):
            ticks += 1

    clock = threading.Thread(target=tick)
    clock.start()
    broker.signal(signal.SIGSTOP)
    try:
        use = asyncio.ensure_future(check_all_calls_fail(log, 1))
        while not use.done():
            began = ticks
            await asyncio.sleep(0.01)
            slowest = max(slowest, ticks - began)
        await use
    finally:
        broker.signal(signal.SIGCONT)
        ends.set()
        clock.join()
    # A call that waits for the broker takes a second at least: a hundred.
    assert slowest < 60
    await until_works(log.end)


@pytest.mark.thorough
async def test_cursor_is_kept_by_a_broker_killed_right_after_the_commit(
    broker: LocalBroker, log: Log, url: str
) -> None:
    for number in range(3):
        await log.commit_cursor("a", Cursor(number, "note", epoch=number))
        broker.kill()
        await broker.wait_gone()
        await broker.start()
        other = await until_works(lambda: open_log(url, kafka=OPTIONS))
        found = await until_works(partial(other.load_cursor, "a"))
        assert found == Cursor(number, "note", epoch=number)
        await other.close()
        # Whatever the broker forgot of it, the next commit goes through.
        began = time.monotonic()
        await until_works(partial(log.commit_cursor, "a", Cursor(9, "again", epoch=number)))
        assert time.monotonic() - began < ANSWERS_WITHIN_S


async def test_acknowledged_appends_are_kept_when_the_broker_is_killed_under_many_writers(
    broker: LocalBroker, log: Log
) -> None:
    acknowledged: dict[int, str] = {}
    stop = asyncio.Event()

    async def writer(name: int) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            key = f"{name} {number}"
            with contextlib.suppress(LogUnavailableError):
                (offset,) = await log.append([Record("test", key)])
                acknowledged[offset] = key

    writers = [asyncio.create_task(writer(name)) for name in range(16)]
    for _ in range(2):
        count = len(acknowledged)
        async with asyncio.timeout(DEADLINE_S):
            while len(acknowledged) < count + 200:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        broker.kill()
        await broker.wait_gone()
        await broker.start()
    stop.set()
    await asyncio.gather(*writers)
    stored = await read_all(log, 0)
    assert acknowledged.items() <= stored.items()
    # Sending again stored nothing twice.
    assert len(set(stored.values())) == len(stored)


async def test_producer_that_is_closed_with_an_unsent_record_ends(
    broker: LocalBroker, kafka: LocalKafka, url: str, log: Log
) -> None:
    """kafka-python's own ``close`` gives up then, and leaves the producer running for ever."""
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    topic = url.rpartition("/")[2]
    producer.send(topic, b"first").get(timeout=DEADLINE_S)
    broker.signal(signal.SIGSTOP)
    try:
        producer.send(topic, b"stays under way")
        close_quietly(producer, timeout=0)
        await asyncio.to_thread(producer._sender.join, DEADLINE_S)
        assert not producer._sender.is_alive()
    finally:
        broker.signal(signal.SIGCONT)


@pytest.mark.thorough
async def test_open_without_a_broker_fails_in_time(broker: LocalBroker, url: str) -> None:
    for end, go_on in ((signal.SIGSTOP, True), (signal.SIGKILL, False)):
        broker.signal(end)
        try:
            took = await check_unavailable(open_log(url, kafka=OPTIONS))
            assert took < 2 * ANSWERS_WITHIN_S
        finally:
            if go_on:
                broker.signal(signal.SIGCONT)
    await broker.wait_gone()
    await broker.start()
    log = await until_works(lambda: open_log(url, kafka=OPTIONS))
    assert await log.append([Record("test")]) == [0]
    await log.close()


async def test_topic_deleted_under_a_handle_is_a_lost_log_and_is_not_created_again(
    kafka: LocalKafka, log: Log, url: str
) -> None:
    (offset,) = await log.append([Record("test")])
    waiting = await begin_wait(log, offset + 1)
    topic = url.rpartition("/")[2]
    admin = await asyncio.to_thread(KafkaAdminClient, bootstrap_servers=kafka.bootstrap_servers)
    await asyncio.to_thread(admin.delete_topics, [topic])
    await is_lost(log, waiting, offset, "gone")
    assert topic not in await asyncio.to_thread(admin.list_topics)
    await asyncio.to_thread(admin.close)


async def test_topic_recreated_under_a_handle_is_a_different_log(
    kafka: LocalKafka, log: Log, url: str
) -> None:
    await log.append([Record("test", "old")] * 3)
    waiting = await begin_wait(log, 3)
    topic = url.rpartition("/")[2]
    admin = await asyncio.to_thread(KafkaAdminClient, bootstrap_servers=kafka.bootstrap_servers)
    await asyncio.to_thread(admin.delete_topics, [topic])
    await asyncio.to_thread(admin.close)
    other = await until_works(lambda: open_log(url, kafka=OPTIONS))
    assert await other.identity() != await log.identity()
    await other.append([Record("test", "new")] * 10)
    await is_lost(log, waiting, 3)
    await other.close()


@pytest.mark.thorough
async def test_broker_that_lost_its_disk_is_a_lost_log(tmp_path: Path) -> None:
    kafka = LocalKafka.open_or_create(tmp_path / "kafka")
    await kafka.start()
    broker = kafka.brokers["broker1"]
    try:
        log = await open_log(f"kafka://{kafka.bootstrap_servers}/log", kafka=KAFKA_OPTIONS)
        await log.append([Record("test")] * 3)
        waiting = await begin_wait(log, 3)
        broker.kill()
        await broker.wait_gone()
        shutil.rmtree(broker.folder / "data")
        await broker.start()
        await is_lost(log, waiting, 3)
        await log.close()
    finally:
        await kafka.stop()
