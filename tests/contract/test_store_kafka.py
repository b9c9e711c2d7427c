"""Promises of the key-value store in Kafka alone: topic, pieces, and brokers that are away."""

from __future__ import annotations

import asyncio
import random
import signal
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from dmq import KeyValueStore, LogError, LogRegressedError, LogUnavailableError, open_store
from dmq.kafka_topic import STORE, needed
from dmq.key_value_index import PIECES_PARTITION
from dmq.key_value_kafka import SMALL_BYTES_MAX, KafkaKeyValueStore
from haproc.ring.broker import LocalBroker, LocalKafka
from tests.contract.log_backends import KAFKA_OPTIONS, until_works

# A client of kafka-python that finds no broker ends without closing its sockets.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

DEADLINE_S = 60.0
OPTIONS = replace(KAFKA_OPTIONS, append_timeout_s=2.0)
ANSWERS_WITHIN_S = 8.0
LARGE = 3 << 20
T = TypeVar("T")


@pytest.fixture
def topic() -> str:
    return f"log-{uuid.uuid4().hex}"


@pytest.fixture
def url(kafka: LocalKafka, topic: str) -> str:
    return f"kafka://{kafka.bootstrap_servers}/{topic}"


@pytest.fixture
async def store(url: str) -> AsyncIterator[KeyValueStore]:
    store = await open_store(url, kafka=OPTIONS)
    yield store
    await store.close()


@pytest.fixture
def admin(kafka: LocalKafka) -> Iterator[Any]:
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    yield admin
    admin.close()


def pieces_left(servers: str, topic: str) -> set[bytes]:
    """Return the keys of the pieces that no later message deletes."""
    consumer = KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
    partition = TopicPartition(f"{topic}.store", PIECES_PARTITION)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    left: set[bytes] = set()
    end = consumer.end_offsets([partition])[partition]
    while consumer.position(partition) < end:
        for record in consumer.poll(timeout_ms=1000).get(partition, ()):
            (left.add if record.value else left.discard)(record.key)
    consumer.close()
    return left


# The topic


@pytest.mark.thorough
async def test_open_creates_a_compacted_topic_beside_the_log(
    store: KeyValueStore, admin: Any, topic: str
) -> None:
    (found,) = admin.describe_topics([f"{topic}.store"])
    assert len(found["partitions"]) == STORE.partitions
    described = admin.describe_configs(
        [ConfigResource(ConfigResourceType.TOPIC, f"{topic}.store")], config_filter="all"
    )["topic"][f"{topic}.store"]
    settings = {name: setting["value"] for name, setting in described.items()}
    assert (needed(OPTIONS, STORE) | dict(STORE.tuning)).items() <= settings.items()
    assert settings["cleanup.policy"] == "compact"
    assert settings["flush.messages"] == "1"


async def test_open_of_a_topic_that_would_lose_values_is_refused_with_a_fix(
    admin: Any, url: str, topic: str
) -> None:
    configs = needed(OPTIONS, STORE) | {"cleanup.policy": "delete"}
    topic_settings = {"num_partitions": 2, "replication_factor": 1, "configs": configs}
    admin.create_topics({f"{topic}.store": topic_settings})
    with pytest.raises(LogError, match=r"keyed store.*--add-config cleanup\.policy=compact"):
        await open_store(url, kafka=OPTIONS)


async def test_open_of_many_handles_at_once_creates_one_topic(url: str) -> None:
    stores = await asyncio.gather(*(open_store(url, kafka=OPTIONS) for _ in range(4)))
    await asyncio.gather(*(store.put(f"{n}", b"") for n, store in enumerate(stores)))
    for store in stores:
        assert await store.keys("") == ["0", "1", "2", "3"]
    await asyncio.gather(*(store.close() for store in stores))


@pytest.mark.parametrize("compression", ["", "gzip"])
async def test_put_of_values_of_all_sizes_in_small_messages_is_read_back_equal(
    url: str, compression: str
) -> None:
    # Megabytes in small messages: a busy broker takes its time.
    options = replace(
        OPTIONS, message_bytes_max=16 << 10, compression=compression, append_timeout_s=20.0
    )
    store = await open_store(url, kafka=options)
    sizes = (0, 1, 14_000, 15_000, 16_000, 17_000, SMALL_BYTES_MAX, SMALL_BYTES_MAX + 1, LARGE)
    sent = {f"{size}": random.Random(size).randbytes(size) for size in sizes}
    sent["k" * 1024] = bytes(15_000)
    for key, value in sent.items():
        await store.put(key, value)
    again = await open_store(url, kafka=options)
    for handle in (store, again):
        assert {key: kept.value for key, kept in (await handle.scan("")).items()} == sent
        await handle.close()


# What is left behind


async def test_pieces_of_replaced_values_and_dead_writers_are_removed(
    kafka: LocalKafka, url: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dmq.key_value_kafka.CLEAR_EVERY_S", 0.1)
    monkeypatch.setattr("dmq.key_value_index.UNOWNED_KEPT_S", 0.5)
    store = await open_store(url, kafka=OPTIONS)
    assert isinstance(store, KafkaKeyValueStore)
    kept = random.Random(1).randbytes(LARGE)
    await store.put("kept", kept)
    pieces = await asyncio.to_thread(pieces_left, kafka.bootstrap_servers, topic)
    await store.put("replaced", bytes(LARGE))
    await store.put("replaced", b"small")
    await store.put("deleted", bytes(LARGE))
    await store.delete("deleted")
    # As a writer does that dies before the head.
    manifest = store._manifest("died", bytes(LARGE))
    await store._put_manifest(manifest)
    await store._put_pieces(manifest, bytes(LARGE))
    deadline = time.monotonic() + DEADLINE_S
    while await asyncio.to_thread(pieces_left, kafka.bootstrap_servers, topic) != pieces:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    found = await store.get("kept")
    assert found is not None and found.value == kept
    assert await store.keys("") == ["kept", "replaced"]
    await store.close()


@pytest.mark.thorough
async def test_compaction_removes_no_current_value(
    kafka: LocalKafka, admin: Any, url: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker compacts while an older handle looks up values by its known offsets."""
    monkeypatch.setattr("dmq.key_value_index.CACHE_BYTES_MAX", 0)
    store, old = [await open_store(url, kafka=OPTIONS) for _ in range(2)]
    changes = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "1048576"}
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, f"{topic}.store", changes)])
    partition = TopicPartition(f"{topic}.store", 0)
    large = random.Random(2).randbytes(LARGE)
    await store.put("a/large", large)
    for number in range(40):
        await store.put(f"a/{number}", b"%d" % number)
    before = await old.scan("a/")
    deadline = time.monotonic() + DEADLINE_S
    number = 0
    while True:
        await asyncio.gather(*(store.put(f"b/{n}", b"%d" % number * 9000) for n in range(5)))
        number += 1
        if await asyncio.to_thread(lowest_kept, kafka.bootstrap_servers, partition, "b/0") > 200:
            break
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    again = await open_store(url, kafka=OPTIONS)
    for handle in (store, old, again):
        assert await handle.scan("a/") == before
        found = await handle.get("b/4")
        assert found is not None and found.value == b"%d" % (number - 1) * 9000
        await handle.close()


def lowest_kept(servers: str, partition: TopicPartition, key: str) -> int:
    """Return the lowest offset at which the topic still holds a message of this key."""
    consumer = KafkaConsumer(bootstrap_servers=servers, enable_auto_commit=False)
    consumer.assign([partition])
    consumer.seek(partition, 0)
    try:
        while records := consumer.poll(timeout_ms=1000).get(partition, ()):
            for record in records:
                if record.key == key.encode():
                    return int(record.offset)
        return 0
    finally:
        consumer.close()


async def test_handle_that_was_idle_for_long_reads_the_whole_topic_again(
    store: KeyValueStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction may have removed the deletions that the handle did not read."""
    frozen = await open_store(url, kafka=OPTIONS)
    await store.put("a", b"1")
    await store.put("b", b"2")
    assert await frozen.keys("") == ["a", "b"]
    revision = await frozen.revision()
    waiting = asyncio.create_task(frozen.wait("a", revision, DEADLINE_S))
    await asyncio.sleep(0.05)
    monkeypatch.setattr("dmq.key_value_kafka_reader.REBUILT_AFTER_S", 0.0)
    await store.delete("a")
    assert await waiting
    assert await frozen.keys("") == ["b"]
    await frozen.close()


# Brokers that are away


async def check_all_calls_fail(store: KeyValueStore) -> None:
    """Check that all calls that need a broker fail in time, side by side."""
    began = time.monotonic()
    looks = (*(store.get("before") for _ in range(20)), store.scan(""), store.revision())
    calls = (store.put("lost", b""), store.delete("none"), *looks)
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, LogUnavailableError)
    assert time.monotonic() - began < ANSWERS_WITHIN_S


async def check_all_calls_work(store: KeyValueStore, revision: int) -> None:
    """Check that all calls work again on this handle and no acknowledged value is lost."""
    await until_works(lambda: store.put("after", b"2"))
    found = await until_works(lambda: store.scan(""))
    assert found["before"].value == b"1" and found["after"].value == b"2"
    assert set(found) <= {"before", "large", "lost", "after"}
    assert found["large"].value == bytes(LARGE)
    assert await store.wait("after", revision, DEADLINE_S)


@pytest.mark.thorough
async def test_calls_under_a_killed_broker_fail_and_work_after_its_restart(
    store: KeyValueStore, broker: LocalBroker
) -> None:
    await store.put("before", b"1")
    revision = await store.put("large", bytes(LARGE))
    await asyncio.to_thread(broker.kill)
    await check_all_calls_fail(store)
    await broker.start()
    await check_all_calls_work(store, revision)


async def test_calls_under_a_frozen_broker_fail_and_work_when_it_continues(
    store: KeyValueStore, broker: LocalBroker
) -> None:
    await store.put("before", b"1")
    revision = await store.put("large", bytes(LARGE))
    broker.signal(signal.SIGSTOP)
    try:
        await check_all_calls_fail(store)
    finally:
        broker.signal(signal.SIGCONT)
    await check_all_calls_work(store, revision)


@pytest.mark.thorough
async def test_open_without_a_broker_is_unavailable(
    url: str, kafka: LocalKafka, broker: LocalBroker
) -> None:
    await asyncio.to_thread(broker.kill)
    with pytest.raises(LogUnavailableError):
        await open_store(url, kafka=OPTIONS)
    await broker.start()
    await (await until_works(lambda: open_store(url, kafka=OPTIONS))).close()


async def test_topic_deleted_under_an_open_handle_is_a_lost_log(
    store: KeyValueStore, admin: Any, topic: str
) -> None:
    await store.put("a", b"1")
    revision = await store.revision()
    waiting = asyncio.create_task(store.wait("a", revision, DEADLINE_S))
    await asyncio.sleep(0)
    await asyncio.to_thread(admin.delete_topics, [f"{topic}.store"])
    with pytest.raises(LogRegressedError):
        await waiting
    for call in (store.get("a"), store.put("a", b""), store.scan("")):
        with pytest.raises(LogRegressedError):
            await call
