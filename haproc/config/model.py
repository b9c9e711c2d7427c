"""The configuration as values; each field with its unit, its default, and the reason.

Read by `haproc.config.load`. Paths are absolute after loading; secrets are resolved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from haproc.classify.model import WriteConcern
from haproc.config.jobs import Jobs
from haproc.config.sections import Archive, Cache, Limits, Oidc, Optimize, User, is_wildcard
from haproc.config.tls import Tls
from haproc.engine.confs import ANSI, TIME_ZONE
from haproc.engine.interface import EngineAddress, Settings

LANES_MAX = 16
"""The most lanes of a cluster: statements that run there at the same time. A starting HAProc fences
this many lanes, even if an earlier one used fewer."""


class OnClusterDown(StrEnum):
    """What a HAProc does when its cluster stops answering."""

    WAIT = "wait"
    """Close the client door, probe the cluster, let it recover, and open the door again."""
    EXIT = "exit"
    """End the process with exit code 4; a supervisor starts it again."""


class OnDivergence(StrEnum):
    """What a HAProc does when its cluster differs from the others."""

    STOP = "stop"
    """Serve no clients, and wait for an operator."""
    REBUILD = "rebuild"
    """Copy the tables of another cluster, if most of the other clusters serve."""


class OnForeignWrite(StrEnum):
    """What a HAProc does about commits in its cluster's tables that the ring did not make."""

    WARN = "warn"
    """Report them: in the program's log, in the status, in metrics, in verifications."""
    STOP = "stop"
    """Also take the cluster out of service, until a verification finds it equal to the others."""
    IGNORE = "ignore"
    """Don't look for such commits."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address, host and port, of a listener or of a peer."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


Prefixes: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs of a prefix of paths and the text that replaces it."""


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """One cluster of the ring and the HAProc beside it."""

    name: str
    """1 to 63 letters, digits, ``.``, ``_``, ``-``."""
    listen: Address
    """``host:port`` of the client door."""
    peer: Address
    """``host:port`` of the operator door; the other HAProcs connect to it."""
    spark: EngineAddress
    connect: Address | None = None
    """``host:port`` of the Spark Connect door for PySpark. Without it the cluster has no such door.
    """
    advertise: str | None = None
    """URL at which clients reach the client door (``http://host:8080``, or ``https`` with TLS), if
    that is not ``listen``. If ``listen`` is on all addresses, the default is the host of ``peer``.
    """
    storage: Prefixes = ()
    """Access of the other clusters' Sparks to the files of this cluster: prefixes of paths as this
    cluster's Spark has them, each with its replacement elsewhere (``{"file:/data/b":
    "s3a://bucket-b"}``; the same twice for shared storage). With it, a cluster that copies this one
    reads its files directly; without it, the files pass through the HAProcs. Credentials stay in
    the Hadoop configuration of the Sparks."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Deadlines and intervals, in seconds."""

    statement_s: float = 300.0
    """Deadline of a request that names none."""
    apply_s: float = 3600.0
    """Deadline of one replicated statement on one cluster; then it is an availability error."""
    append_s: float = 5.0
    """Deadline of a durable append to the log."""
    probe_interval_s: float = 1.0
    """Interval at which the cluster is probed and the log's end is read."""
    probe_timeout_s: float = 5.0
    """Deadline of one probe; a healthy two-core cluster under load answered within 2 s. A probe
    does not count while the cluster is busy with statements that came through this HAProc."""
    probes_missed: int = 2
    """Failed probes in a row that make a cluster DOWN; a refused connection does so at once."""
    takeover_s: float = 3.0
    """Time for which the HAProc that must send a decision, or the rows of a write, may be silent
    before another one acts."""
    peer_s: float = 2.0
    """Deadline of a short request to a peer."""
    fanout_s: float = 60.0
    """Deadline of a peer's part in a synchronous operation; after it the operation waits in the
    peer's queue."""
    drain_s: float = 30.0
    """Time for which a stopping HAProc waits for the requests that it still serves."""
    retry_first_s: float = 0.1
    """First pause between attempts to apply an operation after an environment error."""
    retry_max_s: float = 5.0
    """Longest pause between attempts to apply an operation."""
    stuck_after_attempts: int = 8
    """Environment errors of one operation after which the cluster is STUCK. As many on every
    cluster also reject a write with a query that cannot run."""
    foreign_look_s: float = 600.0
    """Interval at which the tables are scanned for commits that the ring did not make. A scan
    waits, for one interval at most, until no write waits to be applied. Of more than 1,000 commits
    of one table between two scans only the newest are read."""
    give_up_after_s: float = 60.0
    """Time for which an operation must also have failed before the cluster appends a failure vote;
    once all clusters have voted, the ring rejects the operation. Chosen: longer than a restart of a
    storage or a driver, which all clusters may share."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Heartbeats and reports between HAProcs.

    The values are those of ksqlDB's high availability; a dead peer is noticed within half a second.
    """

    heartbeat_interval_s: float = 0.1
    """Interval of the heartbeats to each peer. It is also the length of the window's intervals. All
    keys of ``membership`` must be the same on every HAProc."""
    window_s: float = 2.0
    """Length of the window in which heartbeats are counted."""
    check_interval_s: float = 0.2
    """Interval at which the window is checked."""
    missed_in_a_row: int = 3
    """Intervals without a heartbeat after which a peer counts as silent."""
    received_in_a_row: int = 2
    """Intervals with a heartbeat after which the peer counts as alive again."""
    report_interval_s: float = 0.5
    """Interval of reports of state, cursor and log end to peers; a new state is reported at once.
    """
    in_sync_lag_max: int = 1000
    """Records by which a cluster may lag and still count as in sync. Chosen, not measured."""


class Consistency(StrEnum):
    """The read level: the required freshness of a query's answer."""

    ANY = "any"
    """The answer shows the cluster's present tables."""
    BOUNDED = "bounded"
    """The answer lacks at most ``acceptable_offset_lag`` records that the log had at the
    request."""
    SESSION = "session"
    """The answer shows everything that this client wrote or saw before."""
    LINEARIZABLE = "linearizable"
    """The answer shows everything that was in the log when the request came."""


@dataclass(frozen=True, slots=True)
class Reads:
    """The read level of queries that name none."""

    consistency: Consistency = Consistency.ANY
    """Read level of queries that name none: ``any``, ``bounded``, ``session``, ``linearizable``."""
    acceptable_offset_lag: int = 1000
    """Records of the log that an answer of level ``bounded`` may lack. Chosen, not measured."""
    wait_s: float = 5.0
    """Time for which a query waits until its cluster is fresh enough. Then it is forwarded to a
    fresher cluster, waits on while its own cluster makes progress, or is refused. Chosen, not
    measured."""


@dataclass(frozen=True, slots=True)
class Writes:
    """The write concern of requests that name none, and its conditions."""

    concern: WriteConcern = WriteConcern.ONE
    """Write concern of requests that name none, ``one``, ``majority`` or ``all``: the clusters that
    must have applied a write before it is answered. A rule may ask for more."""
    min_insync_clusters: int = 1
    """With fewer clusters in sync, writes of concern ``majority`` and ``all`` are refused."""
    guard_always: bool = False
    """Make Delta look for a write's transaction marker in the table at the first attempt, too, not
    only when the write is repeated. Set it if a Spark address can lead to two live drivers (a load
    balancer, an old and a new driver): a fence reaches only one of them. An INSERT takes 0.7 s
    instead of 0.2 s."""


@dataclass(frozen=True, slots=True)
class Trim:
    """The deletion of records in the ring's log that no cluster needs any more."""

    enabled: bool = True
    """Delete the records of the log that no cluster needs any more."""
    interval_s: float = 60.0
    """Interval at which the clusters' cursors are checked."""
    keep_records: int = 100_000
    """Number of the newest records that are kept. Chosen, not measured."""
    keep_s: float = 604_800.0
    """Age up to which all records are kept (seven days, Kafka's own default). As long as the log
    still begins at 0, a new cluster can be filled from it."""


@dataclass(frozen=True, slots=True)
class Connect:
    """The Spark Connect doors."""

    hold_bytes: int = 4 << 20
    """Results up to this size are sent once they are complete. Chosen, not measured."""
    statement_s: float = 86_400.0
    """Deadline of a statement at this door, unless its session sets ``haproc.timeout_s``."""
    streams_max: int = 100
    """Calls that run at once on one connection, as gRPC advises."""
    artifacts_bytes_max: int = 256 << 20
    """Bytes of files that one call may add to a session."""
    allow_jars: bool = False
    """Let sessions add JVM jars, which run inside Spark's driver."""


class StateWay(StrEnum):
    """The transport of heartbeats and reports between HAProcs."""

    MESH = "mesh"
    """Each HAProc sends to each other one."""
    REDIS = "redis"
    """Through a Redis; directly to each HAProc while Redis cannot be reached."""


@dataclass(frozen=True, slots=True)
class Redis:
    """The Redis of ``state: redis``. It holds nothing that must not be lost."""

    url: str = ""
    """``redis://host:port/0``, or ``redis+sentinel://host:port,host:port/NAME/0``; ``rediss`` and
    ``rediss+sentinel`` for TLS. Required with ``state: redis``."""
    username: str | None = None
    """User at Redis. Without it: Redis' own ``default``, if there is a password."""
    password: str = field(default="", repr=False)
    """Secret of the user at Redis."""
    sentinel_username: str | None = None
    """User at the sentinels."""
    sentinel_password: str = field(default="", repr=False)
    """Secret of the user at the sentinels."""
    ssl_ca_file: Path | None = None
    """Certificates (PEM) of the CAs that may sign the servers' certificates. Without it: the
    system's."""
    ssl_certificate_file: Path | None = None
    """The HAProc's own certificate (PEM), for servers that ask for one."""
    ssl_key_file: Path | None = None
    """Key of the certificate, if it is not in the same file."""
    ssl_check_hostname: bool = True
    """Require that a server's certificate is for its host."""
    allow_password_plaintext: bool = False
    """Needed to send a password without TLS to a server that is not on loopback."""
    key_ttl_s: float = 10.0
    """Time for which a HAProc's key outlives its last report. Chosen, not measured."""


class Compression(StrEnum):
    """The compression of a Kafka log's messages."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class SecurityProtocol(StrEnum):
    """The protocol of Kafka's brokers, by Kafka's own names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def tls(self) -> bool:
        """True if the protocol encrypts the whole connection (TLS)."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def sasl(self) -> bool:
        """True if the protocol has the client send a user and a password (SASL)."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class SaslMechanism(StrEnum):
    """How the user authenticates at Kafka's brokers; only mechanisms with a password."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True)
class Kafka:
    """A log in Kafka: the settings of its topic, and of the connections to its brokers."""

    replication_factor: int = 3
    """Copies of the topic, when HAProc creates it."""
    min_insync_replicas: int = 2
    """Copies that must have a write before it is acknowledged."""
    compression: Compression = Compression.NONE
    """Compression of messages: ``none``, ``gzip`` or, where its Python package is installed,
    ``snappy``, ``lz4``, ``zstd``."""
    message_bytes_max: int = 1 << 20
    """A larger record is stored in several messages; at least 16384."""
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    """Protocol of the brokers: ``PLAINTEXT``, ``SSL``, ``SASL_SSL``, ``SASL_PLAINTEXT``."""
    ssl_ca_file: Path | None = None
    """Certificates (PEM) of the CAs that may sign the brokers' certificates. Without it: the
    system's."""
    ssl_certificate_file: Path | None = None
    """The HAProc's own certificate (PEM), for brokers that ask for one."""
    ssl_key_file: Path | None = None
    """Key of the certificate, if it is not in the same file."""
    ssl_key_password: str = field(default="", repr=False)
    """Secret that opens the key."""
    ssl_check_hostname: bool = True
    """Require that a broker's certificate is for its host."""
    sasl_mechanism: SaslMechanism | None = None
    """Authentication of the user: ``PLAIN``, ``SCRAM-SHA-256``, ``SCRAM-SHA-512``."""
    sasl_username: str | None = None
    """User at the brokers."""
    sasl_password: str = field(default="", repr=False)
    """Secret of the user at the brokers."""
    allow_sasl_plaintext: bool = False
    """Needed for ``SASL_PLAINTEXT`` to a broker that is not on loopback."""


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of one ring."""

    ring: str
    """Name of the ring: 1 to 63 letters, digits, ``.``, ``_``, ``-``. It is part of the transaction
    markers in Delta, so it must never change."""
    log: str
    """URL of the log: ``sqlite:///absolute/path``, ``sqlite:relative/path``,
    ``kafka://host:port,host:port/RING``, or ``memory:`` (one cluster, nothing is kept)."""
    clusters: tuple[ClusterConfig, ...]
    """The clusters, 1 to 64. A HAProc asks its peers in this order."""
    secret: str = field(repr=False)
    """Secret by which HAProcs authenticate to each other."""
    state_dir: Path = Path("haproc-state")
    """Folder for pid files, logs of HAProcs in the background, results kept for clients, large
    bodies of rows before they enter the log, folders of jobs, and the list of drained clusters."""
    rules: Path | None = None
    """File of rules that come before the built-in ones."""
    paths: tuple[str, ...] = ()
    """Path prefixes of files that statements may name, such as ``s3a://bucket/in``."""
    users: tuple[User, ...] = ()
    """The users. Without any (and without ``users_file`` and ``oidc``): everybody who reaches the
    client door, under the name ``anonymous``."""
    users_file: Path | None = None
    """File with further ``users``, in the same form. After SIGHUP a HAProc reads ``users`` and this
    file again; if either is wrong, the HAProc keeps its present users and logs the problem."""
    oidc: Oidc = Oidc()  # noqa: RUF009 - it is frozen
    audit_file: Path | None = None
    """File of the audit log, with a JSON object in each line: refused requests, and operators'
    commands. Without it the lines go into the HAProc's log."""
    allow_anonymous: bool = False
    """Needed to have no users while a client door is not on loopback."""
    ui_for_clients: bool = False
    """Offer the status page (``/ui``) at the client doors, too. There it shows no operation's
    tables or user, and cannot change anything."""
    time_zone: str = "UTC"
    """Session time zone of requests and sessions that set none; the same on every cluster."""
    session_defaults: tuple[tuple[str, str], ...] = ()
    """Spark settings of requests and sessions that set none, by name (``spark.sql.ansi.enabled:
    false``): any setting that travels with a session's writes. They go with each write, so its
    result is the same on every cluster, whatever its Spark has; RESET returns to them. Without them
    sessions have ``time_zone`` and ANSI mode, and the values of each Spark for the rest. Give all
    HAProcs of a ring the same: the log and ``haproc status`` name a Spark or a HAProc that differs.
    """
    fanout_parallel: bool = False
    """Order of DDL on the other clusters: ``serial`` (one after the other), or ``parallel`` (all
    run it after the decision)."""
    on_cluster_down: OnClusterDown = OnClusterDown.WAIT
    """Reaction of a HAProc when its cluster stops answering. ``wait``: close the client door,
    probe, recover; ``exit``: end with exit code 4, for a supervisor."""
    on_divergence: OnDivergence = OnDivergence.STOP
    """Reaction of a HAProc when its cluster is DIVERGED. ``stop``: wait for an operator;
    ``rebuild``: after half a minute copy another cluster's tables. It does so only while more than
    half of the other clusters are READY and agree, and one cluster at a time."""
    on_foreign_write: OnForeignWrite = OnForeignWrite.WARN
    """Reaction of a HAProc when a table has a commit that the ring did not make. ``warn``: report
    it in the log, in ``haproc status``, ``haproc verify`` and the metrics; ``stop``: also set the
    cluster DIVERGED, unless the commit cannot have changed rows; ``ignore``: don't look."""
    limits: Limits = Limits()  # noqa: RUF009 - it is frozen
    timeouts: Timeouts = Timeouts()
    tls: Tls = Tls()  # noqa: RUF009 - it is frozen
    membership: Membership = Membership()
    reads: Reads = Reads()
    writes: Writes = Writes()
    trim: Trim = Trim()
    archive: Archive = Archive()  # noqa: RUF009 - it is frozen
    cache: Cache = Cache()  # noqa: RUF009 - it is frozen
    optimize: Optimize = Optimize()  # noqa: RUF009 - it is frozen
    connect: Connect = Connect()
    jobs: Jobs = Jobs()  # noqa: RUF009 - it is frozen
    state: StateWay = StateWay.MESH
    """Way of heartbeats and reports between HAProcs: ``mesh`` (each sends to each), or ``redis``
    (through a Redis; over the mesh while Redis is away)."""
    redis: Redis = Redis()
    kafka: Kafka = Kafka()

    @property
    def authenticates(self) -> bool:
        """True if requests at the client doors need a user's token."""
        return bool(self.users or self.users_file or self.oidc.issuer)

    @property
    def defaults(self) -> Settings:
        """The Spark settings with which a session begins."""
        given = dict(self.session_defaults)
        zone, ansi = given.pop(TIME_ZONE, self.time_zone), given.pop(ANSI, "true")
        return Settings(time_zone=zone, ansi=ansi == "true", confs=tuple(sorted(given.items())))

    def cluster(self, name: str) -> ClusterConfig:
        """Return the cluster of this name; raises KeyError if the ring has none."""
        for cluster in self.clusters:
            if cluster.name == name:
                return cluster
        raise KeyError(name)

    def url(self, address: Address) -> str:
        """Return the URL of a client door or an operator door at this address."""
        return f"{'https' if self.tls.enabled else 'http'}://{address}"

    def peer_url(self, name: str) -> str:
        """Return the URL of a cluster's operator door; raises KeyError for an unknown cluster."""
        return self.url(self.cluster(name).peer)

    def client_url(self, name: str) -> str:
        """Return the URL of a cluster's client door for clients.

        That is ``advertise``; without it, the URL is made from the addresses ``listen`` and
        ``peer``.
        """
        cluster = self.cluster(name)
        if cluster.advertise is not None:
            return cluster.advertise
        everywhere = is_wildcard(cluster.listen.host)
        host = cluster.peer.host if everywhere else cluster.listen.host
        return self.url(Address(host, cluster.listen.port))
