"""A real Kafka on this machine, for local rings and tests: one node (broker), or several.

Each node is one JVM, broker and controller in one, started directly from the jars, bound to
127.0.0.1. The cluster's folder holds ``kafka.yaml`` (its id and ports, written once) and a folder
for each node: data, settings, log, pid file. A new start in the same folder finds the same topics
on the same ports. A node has started when its metadata names it: the quorum has admitted it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import struct
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import yaml

from haproc.ring import runtime
from haproc.ring.process import LocalServer, free_ports, wait_free
from haproc.ring.settings import (
    BROKER_LOG_SETTINGS,
    Ports,
    RingError,
    broker_java_options,
    broker_server_settings,
)

START_TIMEOUT_S = 60.0
"""The longest time until a started node is up. Chosen: one node was up in 1.8 s, three at once on
two cores in 4.7 s."""
STOP_ALL_GRACE_S = 2.0
"""The time for which nodes may end by themselves when all are stopped. The last nodes of a quorum
wait in vain for a controller. A node that is killed then loses no data: it starts again as after
any kill."""
BROKERS_MAX = 5
_POLL_INTERVAL_S = 0.05
_ANSWER_S = 2.0
_FRAME_BYTES_MAX = 1 << 16


class BrokerStartError(RingError):
    """A local Kafka did not start; the message ends with the last lines of a node's log."""


class LocalBroker(LocalServer):
    """One Kafka node (broker and controller) on this machine, with its folder."""

    def __init__(
        self,
        number: int,
        folder: Path,
        nodes: Sequence[Ports],
        cluster_id: str,
        *,
        memory: str = "256m",
        settings: Mapping[str, str] | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Prepare node ``number`` of ``nodes``; it is not started yet.

        ``settings``: Kafka's settings, which override the defaults of a local node.
        """
        super().__init__("kafka", f"broker{number}", folder, memory, progress)
        self.number = number
        self.ports = nodes[number - 1]
        self._nodes = nodes
        self._cluster_id = cluster_id
        self._settings = dict(settings or {})

    @property
    def address(self) -> str:
        """The node's address for Kafka clients, as ``host:port``."""
        return f"127.0.0.1:{self.ports.port_for_clients}"

    async def start(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the node unless it runs; return once the other nodes have admitted it."""
        if self._process.identity() is None:
            await asyncio.to_thread(self._launch)  # fetches the jars the first time
        began = time.monotonic()
        self._progress("starting")
        await self.wait_members({self.number}, began + timeout_s)
        self._progress(f"answers after {time.monotonic() - began:.1f} s")

    async def members(self) -> frozenset[int]:
        """Return the numbers of the nodes that this node knows; empty if it does not answer."""
        with contextlib.suppress(OSError, TimeoutError, EOFError, struct.error):
            async with asyncio.timeout(_ANSWER_S):
                _, writer = await asyncio.open_connection("127.0.0.1", self.ports.client)
                writer.close()
                # The brokers' own listener is asked: the clients' listener may want TLS or a
                # password.
                return await _members(self.ports.broker)
        return frozenset()

    async def wait_members(self, wanted: Collection[int], end: float) -> None:
        """Wait until this node knows all ``wanted`` nodes; raises BrokerStartError if it does not.

        ``end``: the latest time, of the monotonic clock.
        """
        while not await self.members() >= frozenset(wanted):
            if self._process.identity() is None:
                raise self._failure("ended while it started")
            if time.monotonic() >= end:
                raise self._failure(f"does not serve on port {self.ports.client}")
            await asyncio.sleep(_POLL_INTERVAL_S)

    def _failure(self, what: str) -> BrokerStartError:
        return BrokerStartError(
            f"Kafka {self.name} {what}; the end of {self.log}:\n{self.log_tail()}"
        )

    def _launch(self) -> None:
        # The node's own listener answers before the node finds out that the clients' port is taken.
        for port in (self.ports.client, self.ports.broker, self.ports.controller):
            if not wait_free("127.0.0.1", port):
                raise BrokerStartError(
                    f"Kafka {self.name} can't listen on 127.0.0.1:{port}: another process does; "
                    "end that one, or give the brokers other ports"
                )
        jars = runtime.kafka_jars(self._progress)
        (self.folder / "tmp").mkdir(parents=True, exist_ok=True)
        (self.folder / "log4j2.properties").write_text(BROKER_LOG_SETTINGS)
        properties = self.folder / "server.properties"
        settings = broker_server_settings(self.folder, self.number, self._nodes) | self._settings
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        java = [
            str(runtime.java()),
            *("-cp", f"{jars[0].parent}/*"),
            *broker_java_options(self.folder, self.memory),
        ]
        if not (self.folder / "data" / "meta.properties").exists():
            self._format(java, properties)
        self._process.start(
            [*java, "kafka.Kafka", str(properties)],
            folder=self.folder,
            log=self.log,
            environment=os.environ,
        )

    def _format(self, java: Sequence[str], properties: Path) -> None:
        """Write the cluster's id into the empty data folder; Kafka does not start without it."""
        done = runtime.run_java(
            [
                *java,
                *("kafka.tools.StorageTool", "format", "--ignore-formatted"),
                *("-t", self._cluster_id, "-c", str(properties)),
            ]
        )
        if done.returncode:
            raise BrokerStartError(f"{self.folder}/data can't be set up:\n{done.stdout[-2000:]}")


class LocalKafka:
    """A Kafka cluster on this machine, with all its files in one folder."""

    def __init__(self, folder: Path, progress: Callable[[str, str], None] = lambda *_: None):
        self.folder = folder.resolve()
        known = yaml.safe_load((self.folder / "kafka.yaml").read_text())
        nodes = [Ports(**ports) for ports in known["nodes"]]
        self.brokers: Mapping[str, LocalBroker] = {
            f"broker{number}": LocalBroker(
                number,
                self.folder / f"broker{number}",
                nodes,
                known["cluster_id"],
                memory=known["memory"],
                progress=lambda what, n=number: progress(  # type: ignore[misc]
                    f"broker{n}", f"Kafka {what}"
                ),
            )
            for number in range(1, len(nodes) + 1)
        }

    @classmethod
    def open_or_create(
        cls,
        folder: Path,
        *,
        brokers: int = 1,
        ports: Sequence[int] = (),
        advertised_ports: Sequence[int] = (),
        memory: str = "256m",
        progress: Callable[[str, str], None] = lambda *_: None,
    ) -> LocalKafka:
        """Return the Kafka cluster in the folder; make it if there is none.

        ``ports``: three for each broker; free ones by default. ``advertised_ports``: one for each
        broker, announced to clients instead of its own port (for a proxy in between).
        """
        if not (folder / "kafka.yaml").exists():
            _create(folder, brokers, list(ports), list(advertised_ports), memory)
        return cls(folder, progress)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses for Kafka clients, as ``host:port,host:port``."""
        return ",".join(broker.address for broker in self.brokers.values())

    async def start(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start every node that does not run; return once each node knows all of them."""
        nodes = self.brokers.values()
        await asyncio.gather(*(node.start(timeout_s=timeout_s) for node in nodes))
        end = time.monotonic() + timeout_s
        everybody = {node.number for node in nodes}
        await asyncio.gather(*(node.wait_members(everybody, end) for node in nodes))

    async def stop(self) -> None:
        """End every node; the data stay."""
        nodes = self.brokers.values()
        await asyncio.gather(*(node.stop(grace_s=STOP_ALL_GRACE_S) for node in nodes))


def _create(
    folder: Path, brokers: int, ports: list[int], advertised: list[int], memory: str
) -> None:
    if not 1 <= brokers <= BROKERS_MAX:
        raise ValueError(f"a local Kafka has 1 to {BROKERS_MAX} brokers, not {brokers}")
    ports = ports or free_ports(3 * brokers)
    if len(ports) != 3 * brokers or len(advertised) not in (0, brokers):
        raise ValueError(f"{brokers} brokers need {3 * brokers} ports, and one advertised each")
    nodes = [
        {
            **dict(zip(("client", "broker", "controller"), ports[3 * n : 3 * n + 3], strict=True)),
            **({"advertised": advertised[n]} if advertised else {}),
        }
        for n in range(brokers)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "kafka.yaml.new"
    described = {"cluster_id": _cluster_id(), "memory": memory, "nodes": nodes}
    temporary.write_text(yaml.safe_dump(described, sort_keys=False))
    temporary.replace(folder / "kafka.yaml")


def _cluster_id() -> str:
    """Return a new cluster id in Kafka's form: 22 characters for 16 bytes, no dash at the start."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text


async def _members(port: int) -> frozenset[int]:
    """Return the node ids of the brokers that the broker at ``port`` knows.

    It sends a Kafka Metadata request, version 1, for no topics.
    """
    client = b"haproc"
    request = struct.pack(">hhih", 3, 1, 1, len(client)) + client + struct.pack(">i", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        if not 8 <= size <= _FRAME_BYTES_MAX:
            return frozenset()
        return _node_ids(await reader.readexactly(size))
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _node_ids(answer: bytes) -> frozenset[int]:
    """Read the brokers' node ids from a Kafka Metadata answer.

    After each id come host, port and rack (strings with their length).
    """
    (count,) = struct.unpack_from(">i", answer, 4)
    at, found = 8, set()
    for _ in range(count):
        node, host_length = struct.unpack_from(">ih", answer, at)
        at += 6 + host_length + 4
        (rack_length,) = struct.unpack_from(">h", answer, at)
        at += 2 + max(0, rack_length)
        found.add(node)
    return frozenset(found)
