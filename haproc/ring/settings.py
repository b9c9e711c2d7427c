"""The settings of a local Spark server and a local Kafka node: small, and quick to start."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from haproc.engine import server

# The error of a local ring.


class RingError(Exception):
    """A local ring, or a part of it, can't be found, made or started."""


# The settings of a local Spark server: fit for a small machine, and quick to start.
#
# The Java options were chosen by measurements on two cores; see their comments.


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
"""The options of Spark's own launcher (org.apache.spark.launcher.JavaModuleOptions), without the
module jdk.incubator.vector, which small Java runtimes lack."""

CATALOG_OPTIONS = (
    "-Dderby.stream.error.logSeverityLevel=50000",
    "-Dderby.stream.error.extendedDiagSeverityLevel=60000",
)
"""JVM options for Derby, the catalog's database in the same JVM. By default it logs the stacks of
all threads for each interrupted statement, and holds the catalog's lock meanwhile: 120 clients that
left at once blocked all others for 80 s."""

MESSAGE_BYTES_MAX = 128 * 1024 * 1024

BROKER_LOG_SETTINGS = """\
rootLogger.level = warn
rootLogger.appenderRef.stdout.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_OUT
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %p %c{1}: %m%n%ex
"""
"""The settings of Log4j for a Kafka node, with level WARN, and the base of those for Spark: at INFO
each statement of Spark writes dozens of lines."""
SPARK_LOG_SETTINGS = (
    BROKER_LOG_SETTINGS
    + """\
logger.hive.name = org.apache.hadoop.hive
logger.hive.level = error
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""
)


def spark_java_options(folder: Path, memory: str) -> list[str]:
    """Return the options of a Spark server's JVM; ``memory``: the heap's size, such as ``1g``."""
    return [
        *MODULE_OPTIONS,
        f"-Xmx{memory}",
        # Only the quick compiler: a start with its warm-up took 16 s of CPU instead of 29.
        "-XX:TieredStopAtLevel=1",
        # With that option the JVM reserves 48 MB for compiled code, which Spark filled within 80 s
        # of mixed statements. Then nothing is compiled any more, and soon the JVM fails.
        "-XX:ReservedCodeCacheSize=256m",
        "-XX:+UseSerialGC",
        f"-Djava.io.tmpdir={folder}/tmp",
        f"-Dderby.system.home={folder}",
        *CATALOG_OPTIONS,
        f"-Dlog4j2.configurationFile={folder}/log4j2.properties",
    ]


EXTENSIONS = f"io.delta.sql.DeltaSparkSessionExtension,{server.CLASS}"
"""Spark's extensions: Delta, and HAProc's plugin."""
_KEY = re.compile(r"spark\.[\w.-]+")
_DEFAULTS = {
    # Small tables on few cores: with Spark's own (50 and 200) an INSERT took 17 s, not 2.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "2",
    # Spark keeps 100 pieces of compiled code; Delta's own queries of a table's state need more.
    # With 100 an UPDATE of a row took 2.4 s, not 1.8: the same code was compiled again and again.
    "spark.sql.codegen.cache.maxEntries": "1000",
    # Users' pools share the cores in turns. While another user's queries filled two cores, a query
    # of one row took 3.7 s; without this it waited 96 s for their end.
    "spark.scheduler.mode": "FAIR",
    # The number of tasks that list a table's files for VACUUM, even if there are few files: with
    # Spark's own (10,000) a VACUUM of three files took 33 s, not 1.4.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    # By default a session keeps the list of files that a file table had when it first read it: the
    # lanes of one cluster would see different rows, and none would see another lane's writes.
    "spark.sql.filesourceTableRelationCacheSize": "0",
    # The format of a table that is created without one. Spark's own choice, Parquet, has no
    # transaction markers, by which a write is applied once; df.writeTo finds no such table.
    "spark.sql.sources.default": "delta",
}


def spark_server_settings(
    name: str, folder: Path, port: int, cores: int, chosen: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return all settings of a Spark server; those that the user chose come in addition."""
    made = _own_settings(name, folder, port, cores) | _DEFAULTS | dict(chosen or {})
    others = made.get(server.READER_SETTING, "").replace(" ", "").split(",")
    readers = dict.fromkeys([server.READER, *filter(None, others)])
    return made | {server.READER_SETTING: ",".join(readers)}


def check_chosen(chosen: Mapping[str, str]) -> None:
    """Raise RingError for a chosen Spark setting that a local server cannot have.

    Either the name is no name of a Spark setting, or the local server sets it itself, or the value
    is not one line of text.
    """
    own = _own_settings("", Path(), 0, 0)
    for key, value in chosen.items():
        if not _KEY.fullmatch(key):
            raise RingError(f"{key!r} is no setting of Spark: their names begin with spark.")
        if key in own:
            raise RingError(f"{key} can't be chosen: a local ring sets it itself")
        if not value or not value.isprintable() or value != value.strip():
            raise RingError(f"{key}: a value is one line without spaces around it, not {value!r}")


def properties(settings: Mapping[str, str]) -> str:
    """Return settings as the text of a Java properties file; backslashes are doubled."""
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
        # HAProc stops a statement by interrupting its threads. If such a thread waits for a
        # connection, Hive's default pool never gives one again: the catalog then hangs for good.
        "spark.hadoop.datanucleus.connectionPoolingType": "NONE",
        server.EXTENSION_SETTING: EXTENSIONS,
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


# The settings of a local Kafka node: small, quick to start, quick to notice that another node died.
#
# Each node is broker and controller. It has three listeners, all on loopback: for clients, for the
# other brokers, for the controllers. The clients' own listener lets a test put a proxy in front of
# it (``advertised_port``) and cut off clients without cutting off the other brokers.


INTERNAL_PARTITIONS = 2
"""The number of partitions of Kafka's internal topics (50 by default): each is a few files and
handles."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a Kafka node."""

    client: int
    broker: int
    controller: int
    advertised: int | None = None
    """The port that is announced to clients instead of ``client``."""

    @property
    def port_for_clients(self) -> int:
        """The port that the node announces to clients, which connect to it from then on."""
        return self.client if self.advertised is None else self.advertised


def copies_of(brokers: int) -> int:
    """Return the number of copies of each topic in a Kafka cluster of ``brokers`` nodes."""
    return min(3, brokers)


def in_sync_of(copies: int) -> int:
    """Return how many of ``copies`` must have a message before it counts as written.

    It is all but one, at least one.
    """
    return max(1, copies - 1)


def broker_java_options(folder: Path, memory: str) -> list[str]:
    """Return the options of a Kafka node's JVM; ``memory``: the heap's size, such as ``256m``."""
    return [
        f"-Xmx{memory}",
        # Only the quick compiler: a start took 1.8 s of CPU instead of 3.2.
        "-XX:TieredStopAtLevel=1",
        "-XX:+UseSerialGC",
        # A node that is out of memory must end visibly, not run on half-dead.
        "-XX:+ExitOnOutOfMemoryError",
        f"-Djava.io.tmpdir={folder}/tmp",
        f"-Dlog4j2.configurationFile={folder}/log4j2.properties",
    ]


def broker_server_settings(folder: Path, number: int, nodes: Sequence[Ports]) -> dict[str, str]:
    """Return Kafka's settings for node ``number`` (from 1) of ``nodes``."""
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
            f"CLIENT://127.0.0.1:{own.port_for_clients},BROKER://127.0.0.1:{own.broker}"
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
        # A ring that is stopped for longer than the default of 7 days would lose its cursors.
        "offsets.retention.minutes": str(10 * 365 * 24 * 60),
        "num.network.threads": "2",
        "num.io.threads": "4",
        # The default alone is 128 MiB of the heap.
        "log.cleaner.dedupe.buffer.size": "4194304",
        # A killed broker is noticed only by its silence. With the default of 9 s, writes that wait
        # for its copy would exceed an append's deadline of 5 s. Chosen.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
    }
