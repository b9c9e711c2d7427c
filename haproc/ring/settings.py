"""The settings of a local Spark server and a local Kafka node: small, and quick to start."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from haproc.engine import server

# What can go wrong with a local ring.


class RingError(Exception):
    """A local ring, or a part of it, can't be found, made or started."""


# The settings of a local Spark server: fit for a small machine, and quick to start.
#
# The choices of the Java options were measured on two cores; see each one's comment.


_OPENED_PACKAGES = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio"),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref"),
    *("sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar"),
)

MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)
"""What Spark's own launcher passes (org.apache.spark.launcher.JavaModuleOptions), without the
module jdk.incubator.vector, which small Java runtimes lack."""

CATALOG_OPTIONS = (
    "-Dderby.stream.error.logSeverityLevel=50000",
    "-Dderby.stream.error.extendedDiagSeverityLevel=60000",
)
"""For Derby in the same JVM. Else it writes down the stacks of all threads, with the catalog's lock
held, for each statement that is interrupted in it: 120 clients that left at once kept all others
out of the cluster for 80 s."""

MESSAGE_BYTES_MAX = 128 * 1024 * 1024

SPARK_LOG_SETTINGS = """\
rootLogger.level = warn
rootLogger.appenderRef.stdout.ref = console
logger.hive.name = org.apache.hadoop.hive
logger.hive.level = error
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_OUT
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""
"""Log4j at WARN: at INFO each statement writes dozens of lines."""


def spark_java_options(folder: Path, memory: str) -> list[str]:
    """Return the JVM's options for a server over this folder."""
    return [
        *MODULE_OPTIONS,
        f"-Xmx{memory}",
        # Only the quick compiler: a start with its warm-up took 16 s of CPU instead of 29.
        "-XX:TieredStopAtLevel=1",
        # With that the JVM reserves 48 MB for what it compiles, which Spark filled within 80 s of
        # mixed statements. Then nothing is compiled any more, and soon after the JVM fails.
        "-XX:ReservedCodeCacheSize=256m",
        "-XX:+UseSerialGC",
        f"-Djava.io.tmpdir={folder}/tmp",
        f"-Dderby.system.home={folder}",
        *CATALOG_OPTIONS,
        f"-Dlog4j2.configurationFile={folder}/log4j2.properties",
    ]


EXTENSIONS = f"io.delta.sql.DeltaSparkSessionExtension,{server.CLASS}"
"""What Spark loads: Delta, and HAProc's plugin."""
_KEY = re.compile(r"spark\.[\w.-]+")
_DEFAULTS = {
    # Small tables on few cores: with Spark's own (50 and 200) an INSERT took 17 s, not 2.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "2",
    # Spark keeps 100 pieces of compiled code, fewer than Delta's own queries of a table's state
    # take. With that an UPDATE of a row took 2.4 s, not 1.8: the same was compiled again and again.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # Users' pools take turns at the cores. Beside two cores' worth of another user's queries one of
    # a row took 3.7 s; without, it waited 96 s for their end.
    "spark.scheduler.mode": "FAIR",
    # So many tasks list a table's files for VACUUM, however few they are: with Spark's own (10,000)
    # that of three files took 33 s, not 1.4.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    # Else a session goes on with the files that a table of files had when it first read it: the
    # lanes of one cluster would see different rows, and none what another one wrote.
    "spark.sql.filesourceTableRelationCacheSize": "0",
    # A table that names no format is Delta's: Spark's own choice, Parquet, keeps no transaction
    # marks, by which a write is applied once, and df.writeTo knows no such table.
    "spark.sql.sources.default": "delta",
}


def spark_server_settings(
    name: str, folder: Path, port: int, cores: int, chosen: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return Spark's settings for a server over this folder, with those that the user chose."""
    made = _own_settings(name, folder, port, cores) | _DEFAULTS | dict(chosen or {})
    others = made.get(server.READER_SETTING, "").replace(" ", "").split(",")
    readers = dict.fromkeys([server.READER, *filter(None, others)])
    return made | {server.READER_SETTING: ",".join(readers)}


def check_chosen(chosen: Mapping[str, str]) -> None:
    """Raise RingError for what is no setting of Spark's, or one that a local server needs."""
    own = _own_settings("", Path(), 0, 0)
    for key, value in chosen.items():
        if not _KEY.fullmatch(key):
            raise RingError(f"{key!r} is no setting of Spark: their names begin with spark.")
        if key in own:
            raise RingError(f"{key} can't be chosen: a local ring sets it itself")
        if not value or not value.isprintable() or value != value.strip():
            raise RingError(f"{key}: a value is one line without spaces around it, not {value!r}")


def properties(settings: Mapping[str, str]) -> str:
    """Return settings as a file that Java reads, in which a backslash escapes."""
    lines = (f"{key} {value}\n" for key, value in settings.items())
    return "".join(lines).replace("\\", "\\\\")


def _own_settings(name: str, folder: Path, port: int, cores: int) -> dict[str, str]:
    return {
        "spark.app.name": f"haproc-{name}",
        "spark.master": f"local[{cores}]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.maxInboundMessageSize": str(MESSAGE_BYTES_MAX),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": f"{folder}/local",
        # The catalog: Hive's, kept in an embedded Derby, so that tables survive a restart.
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={folder}/metastore;create=true"
        ),
        # Hive's default pool never gives a connection again once threads that waited for one were
        # interrupted, which is how HAProc stops a statement: the catalog then hangs for good.
        "spark.hadoop.datanucleus.connectionPoolingType": "NONE",
        server.EXTENSION_SETTING: EXTENSIONS,
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


# The settings of a local Kafka node: small, quick to start, quick to notice that another one died.
#
# Each node is broker and controller. It has three listeners, all on loopback: for clients, for the
# other brokers, for the controllers. Clients have one of their own so that a test can put a proxy
# in front of it (``advertised_port``) and cut off clients without cutting off the other brokers.


INTERNAL_PARTITIONS = 2
"""Of the topics for offsets and transactions (50 by default): each is a few files and handles."""

BROKER_LOG_SETTINGS = """\
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


def broker_java_options(folder: Path, memory: str) -> list[str]:
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


def broker_server_settings(folder: Path, number: int, nodes: Sequence[Ports]) -> dict[str, str]:
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
