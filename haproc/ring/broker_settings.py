"""The settings of a local Kafka node: small, quick to start, quick to notice that another one died.

Each node is broker and controller. It has three listeners, all on loopback: for clients, for the
other brokers, for the controllers. Clients have one of their own so that a test can put a proxy in
front of it (``advertised_port``) and cut off clients without cutting off the other brokers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

INTERNAL_PARTITIONS = 2
"""Of the topics for offsets and transactions (50 by default): each is a few files and handles."""

LOG_SETTINGS = """\
rootLogger.level = warn
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_OUT
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a node listens."""

    client: int
    broker: int
    controller: int
    advertised: int | None = None
    """What clients are told instead of ``client``."""

    @property
    def told_to_clients(self) -> int:
        """The port that clients connect to once they know the cluster."""
        return self.client if self.advertised is None else self.advertised


def copies_of(brokers: int) -> int:
    """Return how many copies of each topic so many brokers keep."""
    return min(3, brokers)


def in_sync_of(copies: int) -> int:
    """Return how many of the copies must have a message: one may be away, if there are several."""
    return max(1, copies - 1)


def java_options(folder: Path, memory: str) -> list[str]:
    """Return the JVM's options for a node over this folder."""
    return [
        f"-Xmx{memory}",
        # Only the quick compiler: a start took 1.8 s of CPU instead of 3.2.
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        # One that is out of memory must die and be seen dead, not limp on.
        "-XX:+ExitOnOutOfMemoryError",
        f"-Djava.io.tmpdir={folder}/tmp",
        f"-Dlog4j2.configurationFile={folder}/log4j2.properties",
    ]


def server_settings(folder: Path, number: int, nodes: Sequence[Ports]) -> dict[str, str]:
    """Return Kafka's settings for node ``number`` (from 1) of these."""
    own = nodes[number - 1]
    copies, in_sync = str(copies_of(len(nodes))), str(in_sync_of(copies_of(len(nodes))))
    return {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "controller.quorum.voters": ",".join(
            f"{n}@127.0.0.1:{node.controller}" for n, node in enumerate(nodes, 1)
        ),
        "listeners": ",".join(
            f"{name}://127.0.0.1:{port}"
            for name, port in (
                ("CLIENT", own.client),
                ("BROKER", own.broker),
                ("CONTROLLER", own.controller),
            )
        ),
        "advertised.listeners": (
            f"CLIENT://127.0.0.1:{own.told_to_clients},BROKER://127.0.0.1:{own.broker}"
        ),
        "listener.security.protocol.map": (
            "CLIENT:PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT"
        ),
        "inter.broker.listener.name": "BROKER",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": f"{folder}/data",
        "auto.create.topics.enable": "false",
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": str(INTERNAL_PARTITIONS),
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": str(INTERNAL_PARTITIONS),
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "1",
        # A ring that rests for longer than the default of 7 days would lose its cursors.
        "offsets.retention.minutes": str(10 * 365 * 24 * 60),
        "num.network.threads": "2",
        "num.io.threads": "4",
        # The default alone is 128 MiB of the heap.
        "log.cleaner.dedupe.buffer.size": "4194304",
        # A killed broker is noticed only by its silence; with the default of 9 s writes that wait
        # for its copy would outlast an append's deadline of 5 s. Chosen.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
    }
