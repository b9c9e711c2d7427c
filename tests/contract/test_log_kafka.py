"""Promises of the Kafka log alone: its topic, its groups, its parts, its settings."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import kafka.codec
import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.structs import OffsetAndMetadata

import haproc.ring.broker
from dmq import (
    FILLER,
    Cursor,
    FencedError,
    KafkaOptions,
    Log,
    LogError,
    LogRegressedError,
    LogUnavailableError,
    Record,
    open_log,
)
from dmq.kafka import KafkaLog
from dmq.kafka_handle import LOOKED_WITHIN_S
from dmq.kafka_topic import cut, needed
from haproc.ring.broker import LocalKafka
from tests.contract.log_backends import KAFKA_OPTIONS, append_message

DEADLINE_S = 20.0
T = TypeVar("T")


@pytest.fixture
def topic() -> str:
    return f"log-{uuid.uuid4().hex}"


@pytest.fixture
def url(kafka_servers: str, topic: str) -> str:
    return f"kafka://{kafka_servers}/{topic}"


@pytest.fixture
async def log(url: str) -> AsyncIterator[Log]:
    log = await open_log(url, kafka=KAFKA_OPTIONS)
    yield log
    await log.close()


@pytest.fixture
def admin(kafka_servers: str) -> Iterator[Any]:
    admin = KafkaAdminClient(bootstrap_servers=kafka_servers)
    yield admin
    admin.close()


def settings(admin: Any, topic: str) -> dict[str, str]:
    found = admin.describe_configs(
        [ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all"
    )
    return {name: setting["value"] for name, setting in found["topic"][topic].items()}


# The topic


async def test_open_creates_a_topic_that_keeps_all_records(
    log: Log, admin: Any, topic: str
) -> None:
    (found,) = admin.describe_topics([topic])
    assert len(found["partitions"]) == 1
    assert await log.identity() == found["topic_id"]
    assert needed(KAFKA_OPTIONS).items() <= settings(admin, topic).items()
    assert settings(admin, topic)["flush.messages"] == "1"


async def test_open_of_many_handles_at_once_creates_one_topic(url: str) -> None:
    logs = await asyncio.gather(*(open_log(url, kafka=KAFKA_OPTIONS) for _ in range(5)))
    assert len({await log.identity() for log in logs}) == 1
    offsets = await asyncio.gather(*(log.append([Record("test")]) for log in logs))
    assert sorted(offsets) == [[number] for number in range(5)]
    await asyncio.gather(*(log.close() for log in logs))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact"),
        ("retention.ms", "604800000"),
        ("retention.bytes", "1000000000"),
        ("max.message.bytes", "100000"),
        ("unclean.leader.election.enable", "true"),
        ("flush.messages", "1000"),
    ],
)
async def test_open_of_a_topic_that_would_lose_records_is_refused_until_its_setting_is_fixed(
    admin: Any, url: str, topic: str, name: str, value: str
) -> None:
    topic_settings = {
        "num_partitions": 1,
        "replication_factor": 1,
        "configs": needed(KAFKA_OPTIONS) | {name: value},
    }
    admin.create_topics({topic: topic_settings})
    with pytest.raises(LogError, match=f"{name} is {value}, but must be") as caught:
        await open_log(url, kafka=KAFKA_OPTIONS)
    assert not caught.value.retriable
    fix = str(caught.value).rpartition("--add-config ")[2]
    fixed_setting = dict([fix.split("=")])
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, fixed_setting)])
    await (await open_log(url, kafka=KAFKA_OPTIONS)).close()


async def test_open_of_a_topic_with_several_partitions_is_refused(
    admin: Any, url: str, topic: str
) -> None:
    topic_settings = {
        "num_partitions": 2,
        "replication_factor": 1,
        "configs": needed(KAFKA_OPTIONS),
    }
    admin.create_topics({topic: topic_settings})
    with pytest.raises(LogError, match="2 partitions"):
        await open_log(url, kafka=KAFKA_OPTIONS)


async def test_open_of_a_topic_with_too_few_replicas_is_refused(log: Log, url: str) -> None:
    with pytest.raises(LogError, match=r"1 copy.*min\.insync\.replicas is 1, but must be"):
        await open_log(url, kafka=KafkaOptions())


async def test_open_with_too_few_brokers_is_unavailable_with_a_reason(url: str) -> None:
    with pytest.raises(LogUnavailableError, match="not so many brokers"):
        await open_log(url, kafka=KafkaOptions())


# Cursors


async def test_cursor_is_the_committed_offset_of_the_readers_group(
    log: Log, admin: Any, topic: str
) -> None:
    await log.append([Record("test")] * 3)
    await log.commit_cursor("a", Cursor(2, "note", epoch=7))
    found = admin.list_group_offsets({f"{topic}.a": None})
    partition = TopicPartition(topic, 0)
    assert found == {f"{topic}.a": {partition: OffsetAndMetadata(2, "1 7 note", -1)}}


async def test_cursors_exclude_those_of_a_topic_whose_name_is_longer(log: Log, url: str) -> None:
    longer = await open_log(f"{url}.x", kafka=KAFKA_OPTIONS)
    await longer.commit_cursor("a", Cursor(1))
    await log.commit_cursor("b", Cursor(2))
    assert await log.cursors() == {"b": Cursor(2)}
    assert await longer.cursors() == {"a": Cursor(1)}
    await longer.close()


async def test_cursor_commits_of_rivals_never_return_to_a_lower_epoch(url: str) -> None:
    logs = [await open_log(url, kafka=KAFKA_OPTIONS) for _ in range(3)]
    fenced: list[int] = []

    async def rival(epoch: int) -> None:
        for number in range(8):
            try:
                await logs[epoch].commit_cursor("a", Cursor(number, epoch=epoch))
            except FencedError:
                fenced.append(epoch)
                return
            except LogUnavailableError:
                continue  # Pushed aside again and again.
            seen = await logs[epoch].load_cursor("a")
            assert seen is not None and seen.epoch >= epoch

    await asyncio.gather(*(rival(epoch) for epoch in range(3)))
    found = await logs[0].load_cursor("a")
    assert found is not None and found.epoch == 2
    assert 2 not in fenced
    for epoch in (0, 1):
        with pytest.raises(FencedError):
            await logs[epoch].commit_cursor("a", Cursor(99, epoch=epoch))
    assert await logs[0].load_cursor("a") == found
    await asyncio.gather(*(log.close() for log in logs))


async def test_cursor_of_a_process_that_died_during_a_commit_is_the_previous_one(
    log: Log, kafka_servers: str, topic: str
) -> None:
    await log.commit_cursor("a", Cursor(1, epoch=1))
    dying = KafkaProducer(bootstrap_servers=kafka_servers, transactional_id=f"{topic}.a")
    dying.init_transactions()
    dying.begin_transaction()
    offsets = {TopicPartition(topic, 0): OffsetAndMetadata(9, "1 9 lost", -1)}
    dying.send_offsets_to_transaction(offsets, f"{topic}.a")
    began = time.monotonic()
    assert await log.load_cursor("a") == Cursor(1, epoch=1)
    await log.commit_cursor("a", Cursor(2, epoch=1))
    assert await log.load_cursor("a") == Cursor(2, epoch=1)
    assert time.monotonic() - began < DEADLINE_S / 2
    dying.close(timeout=0)


# Large records


async def test_parts_of_a_writer_that_died_are_read_as_fillers(
    log: Log, kafka_servers: str, topic: str
) -> None:
    (first,) = await log.append([Record("test", "before")])
    for part in cut(bytes(3000), 1000):
        await asyncio.to_thread(append_message, kafka_servers, topic, part)
    end = await log.end()
    entries = await log.read(first)
    while entries[-1].offset + 1 < end:
        entries += await log.read(entries[-1].offset + 1)
    assert [entry.record.kind for entry in entries] == ["test", FILLER, FILLER, FILLER, FILLER]
    assert await log.read(end) == []
    (after,) = await log.append([Record("test", "after")])
    assert [entry.offset for entry in await log.read(end)] == [after]
    # Their head may still come, so they stay for a while.
    await log.trim(after)
    assert await log.start() == first + 1


@pytest.mark.parametrize("compression", ["", "gzip", "lz4", "snappy", "zstd"])
async def test_records_are_read_back_equal_with_each_compression(
    url: str, compression: str
) -> None:
    options = replace(KAFKA_OPTIONS, compression=compression, message_bytes_max=64 << 10)
    if compression and not getattr(kafka.codec, f"has_{compression}")():
        with pytest.raises(ValueError, match=rf"kafka-python\[{compression}\]"):
            await open_log(url, kafka=options)
        return
    log = await open_log(url, kafka=options)
    records = [Record("test", str(n), payload=bytes(range(256)) * n) for n in (0, 1, 400, 2000)]
    await log.append(records)
    found, at = [], 0
    while entries := await log.read(at):
        found += [entry.record for entry in entries if entry.record.kind != FILLER]
        at = entries[-1].offset + 1
    assert found == records
    await log.close()


# Following


async def test_wait_uses_almost_no_processor_time(log: Log) -> None:
    await log.append([Record("test")])
    assert not await log.wait(1, 0.2)
    cpu = time.process_time()
    assert not await log.wait(1, 4.0)
    # 1 % was measured on an idle machine; this only finds a loop that spins.
    assert time.process_time() - cpu < 0.2


async def test_read_of_records_just_appended_or_followed_fetches_nothing_from_a_broker(
    url: str, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await open_log(url, kafka=KAFKA_OPTIONS)
    # From here on it follows the log's end, and so brings what comes.
    assert not await other.wait(0, 0.05)
    waiting = asyncio.create_task(other.wait(0, DEADLINE_S))
    await asyncio.sleep(0)
    await log.append([Record("test", "a")])
    assert await waiting

    def unexpected(*arguments: object) -> list[tuple[int, bytes]]:
        raise AssertionError("fetched again")

    monkeypatch.setattr("dmq.kafka_reader.TopicReader._fetch", unexpected)
    for handle in (log, other):
        for _ in range(2):
            assert [entry.record.key for entry in await handle.read(0)] == ["a"]
    await other.close()


async def test_read_after_a_freeze_checks_the_topic_first(admin: Any, url: str, topic: str) -> None:
    log = await open_log(url, kafka=KAFKA_OPTIONS)
    assert isinstance(log, KafkaLog)
    await log.append([Record("test", "old")])
    # As if the process had been stopped meanwhile.
    log._handle._looking.cancel()
    log._handle._looked_at -= 10 * LOOKED_WITHIN_S
    admin.delete_topics([topic])
    other = await until(lambda: open_log(url, kafka=KAFKA_OPTIONS))
    await other.append([Record("test", "new")] * 3)
    with pytest.raises(LogRegressedError, match="another one"):
        await log.read(1)
    await other.close()
    await log.close()


# Settings


async def until(call: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            return await call()
        except LogError:
            assert time.monotonic() < deadline, "it did not work in time"
            await asyncio.sleep(0.2)


# A client of kafka-python that is refused ends without closing its sockets.
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_sasl_settings_reach_each_client_and_no_log_shows_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = haproc.ring.broker.broker_server_settings  # type: ignore[attr-defined]
    password = "hunter2-of-the-log"
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"

    def with_sasl(*arguments: Any) -> dict[str, str]:
        return plain(*arguments) | {
            "listener.security.protocol.map": (
                "CLIENT:SASL_PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "listener.name.client.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.client.plain.sasl.jaas.config": f'{login} user_me="{password}";',
        }

    monkeypatch.setattr(haproc.ring.broker, "broker_server_settings", with_sasl)
    ring = LocalKafka.open_or_create(tmp_path / "kafka")
    broker = ring.brokers["broker1"]
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "kafka")
    client = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "me",
        "sasl_plain_password": password,
    }
    url = f"kafka://{ring.bootstrap_servers}/log"
    try:
        # It does not tell strangers when it is ready.
        await asyncio.to_thread(broker._launch)
        options = replace(KAFKA_OPTIONS, client=client)
        log = await until(lambda: open_log(url, kafka=options))
        await log.append([Record("test", "a")])
        assert [entry.record.key for entry in await log.read(0)] == ["a"]
        assert not await log.wait(1, 0.05)
        await log.commit_cursor("a", Cursor(1))
        assert await log.cursors() == {"a": Cursor(1)}
        await log.trim(1)
        await log.close()
        wrong = replace(options, client=client | {"sasl_plain_password": "wrong-one"})
        with pytest.raises(LogError) as caught:
            await open_log(url, kafka=wrong)
    finally:
        await ring.stop()
    assert "SaslHandshake" in caplog.text, "kafka-python's own log is looked at, too"
    for secret in (password, "wrong-one"):
        assert secret not in caplog.text
        assert secret not in str(caught.value) + repr(caught.value) + repr(caught.value.__cause__)
