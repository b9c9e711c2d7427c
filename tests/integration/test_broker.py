"""Tests of a local Kafka as processes: start, stop, kill, and start over its data."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient

from haproc.ring.broker import BrokerStartError, LocalBroker, LocalKafka
from haproc.ring.process import free_port
from haproc.ring.settings import Ports

pytestmark = [pytest.mark.kafka, pytest.mark.thorough]

TOPIC = "t"


@pytest.fixture
async def started(tmp_path: Path) -> AsyncIterator[Callable[..., LocalKafka]]:
    """A factory of local Kafkas in folders of their own; it ends what is left of them."""
    made: list[LocalKafka] = []

    def make(**options: Any) -> LocalKafka:
        kafka = LocalKafka.open_or_create(tmp_path / f"kafka{len(made)}", **options)
        made.append(kafka)
        return kafka

    yield make
    for kafka in made:
        for broker in kafka.brokers.values():
            broker.kill()
            await broker.wait_gone()


def create_topic(servers: str, copies: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        configs = {"min.insync.replicas": str(max(1, copies - 1))}
        admin.create_topics(
            {TOPIC: {"num_partitions": 1, "replication_factor": copies, "configs": configs}}
        )
    finally:
        admin.close()


def append(servers: str, *values: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=servers, acks="all", request_timeout_ms=20_000)
    try:
        for value in values:
            producer.send(TOPIC, value, partition=0).get(timeout=30)
    finally:
        producer.close()


def content(servers: str, count: int) -> list[bytes]:
    """Read until so many messages are there, or the time is over."""
    consumer = KafkaConsumer(
        bootstrap_servers=servers,
        group_id=None,
        auto_offset_reset="none",
        enable_auto_commit=False,
    )
    try:
        partition = TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        found: list[bytes] = []
        end = time.monotonic() + 30
        while len(found) < count and time.monotonic() < end:
            for records in consumer.poll(timeout_ms=500).values():
                found += [record.value for record in records]
        return found
    finally:
        consumer.close()


async def test_killed_broker_that_is_started_again_keeps_its_port_and_data(
    started: Callable[..., LocalKafka],
) -> None:
    kafka = started()
    broker = kafka.brokers["broker1"]
    await kafka.start()
    pid, servers = broker.pid, kafka.bootstrap_servers
    await kafka.start()
    assert broker.pid == pid  # one that runs is left alone
    await asyncio.to_thread(create_topic, servers, 1)
    await asyncio.to_thread(append, servers, b"1", b"2")
    assert broker.kill()
    assert await broker.wait_gone()
    assert broker.pid is None and not await broker.members()
    again = LocalKafka(kafka.folder)
    await again.start()
    assert again.bootstrap_servers == servers
    await asyncio.to_thread(append, servers, b"3")
    assert await asyncio.to_thread(content, servers, 3) == [b"1", b"2", b"3"]
    await again.stop()
    assert broker.pid is None


async def test_three_brokers_continue_without_one_and_accept_it_again(
    started: Callable[..., LocalKafka],
) -> None:
    kafka = started(brokers=3)
    await kafka.start()
    servers = kafka.bootstrap_servers
    await asyncio.to_thread(create_topic, servers, 3)
    await asyncio.to_thread(append, servers, b"1")
    lost = kafka.brokers["broker1"]
    lost.kill()
    await lost.wait_gone()
    await asyncio.to_thread(append, servers, b"2")
    assert await asyncio.to_thread(content, servers, 2) == [b"1", b"2"]
    await lost.start()
    kafka.brokers["broker2"].kill()
    await asyncio.to_thread(append, servers, b"3")
    assert await asyncio.to_thread(content, servers, 3) == [b"1", b"2", b"3"]


async def test_frozen_broker_is_no_member_until_it_continues(
    started: Callable[..., LocalKafka],
) -> None:
    kafka = started()
    await kafka.start()
    broker = kafka.brokers["broker1"]
    broker.signal(signal.SIGSTOP)
    async with asyncio.timeout(30):
        while await broker.members():  # noqa: ASYNC110 (its threads stop one after another)
            await asyncio.sleep(0)
    broker.signal(signal.SIGCONT)
    await broker.wait_members({1}, time.monotonic() + 30)


async def test_advertised_port_is_the_port_that_clients_receive(
    started: Callable[..., LocalKafka],
) -> None:
    front = free_port()
    kafka = started(advertised_ports=[front])
    await kafka.start()
    (broker,) = kafka.brokers.values()
    assert kafka.bootstrap_servers == f"127.0.0.1:{front}"
    assert broker.ports.client != front

    def advertised() -> list[int]:
        admin = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{broker.ports.client}")
        try:
            return [node["port"] for node in admin.describe_cluster()["brokers"]]
        finally:
            admin.close()

    relay = await asyncio.start_server(
        lambda r, w: _relay(r, w, broker.ports.client), "127.0.0.1", front
    )
    async with relay:
        assert await asyncio.to_thread(advertised) == [front]


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    back_reader, back_writer = await asyncio.open_connection("127.0.0.1", port)

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
        target.close()

    await asyncio.gather(
        copy(reader, back_writer), copy(back_reader, writer), return_exceptions=True
    )


async def test_start_on_a_used_port_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = Ports(taken.getsockname()[1], free_port(), free_port())
        broker = LocalBroker(1, tmp_path, [ports], "MkU3OEVBNTcwNTJENDM2Qg")
        with pytest.raises(BrokerStartError, match=f"can't listen on 127.0.0.1:{ports.client}: "):
            await broker.start()
    assert broker.pid is None
