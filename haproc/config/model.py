"""The configuration as values; each field with its unit, its default, and why that.

Read by `haproc.config.load`. Paths are absolute after loading; secrets are resolved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from haproc.classify.model import WriteConcern
from haproc.config.archive import Archive
from haproc.config.cache import Cache
from haproc.config.hosts import is_wildcard
from haproc.config.limits import Limits
from haproc.config.optimize import Optimize
from haproc.engine.confs import ANSI, TIME_ZONE
from haproc.engine.interface import EngineAddress, Settings

LANES_MAX = 16
"""Statements side by side on one cluster. A starting HAProc fences this many lanes, however many
an earlier one was configured with."""


class OnClusterDown(StrEnum):
    """What a HAProc does when its cluster stops answering."""

    WAIT = "wait"
    """Close the client door, probe, recover and open it again."""
    EXIT = "exit"
    """End the process with exit code 4; a supervisor starts it again."""


@dataclass(frozen=True, slots=True)
class Address:
    """A listener's or a peer's host and port."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """The address as an HTTP URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """One cluster of the ring and the HAProc beside it."""

    name: str
    listen: Address
    """The client door."""
    peer: Address
    """The operator door: peers, health, status, metrics."""
    spark: EngineAddress
    connect: Address | None = None
    """The Spark Connect door; none unless set."""
    advertise: str | None = None
    """URL at which clients reach the client door; else that of ``listen``."""

    @property
    def client_url(self) -> str:
        """What clients are told; a door on all addresses is at the host that peers know."""
        if self.advertise is not None:
            return self.advertise
        everywhere = is_wildcard(self.listen.host)
        return Address(self.peer.host, self.listen.port).url if everywhere else self.listen.url


@dataclass(frozen=True, slots=True)
class User:
    """Who may use the client door; the name is what rules see."""

    name: str
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Deadlines and intervals, in seconds."""

    statement_s: float = 300.0
    """A request's own deadline when it names none."""
    apply_s: float = 3600.0
    """One replicated statement on one cluster; then it is an availability error."""
    append_s: float = 5.0
    """A durable append to the log."""
    probe_interval_s: float = 1.0
    probe_timeout_s: float = 5.0
    """A healthy two-core cluster under load answered the probe within 2 s."""
    probes_missed: int = 2
    """Failed probes in a row that make a cluster DOWN; a refused connection does at once."""
    takeover_s: float = 3.0
    """How long who owes a decision, or the rows of a write, may be silent before another acts."""
    peer_s: float = 2.0
    """A short question to a peer."""
    fanout_s: float = 60.0
    """A peer's share in a synchronous operation; after it the peer has it in its queue."""
    drain_s: float = 30.0
    """How long a stopping HAProc waits for what it has under way."""
    retry_first_s: float = 0.1
    retry_max_s: float = 5.0
    """Backoff between attempts to apply an operation that the environment failed."""
    stuck_after_attempts: int = 8
    """Environment failures of one operation that make the cluster STUCK."""
    give_up_after_s: float = 60.0
    """For how long it must have failed, too, before the cluster tells the ring that it cannot apply
    it. Chosen: longer than a storage's or a driver's restart, which all clusters may share."""


@dataclass(frozen=True, slots=True)
class Membership:
    """How HAProcs notice that one of them is gone, and what they tell each other about lag.

    The values are those of ksqlDB's high availability; a dead peer is noticed within half a second.
    """

    heartbeat_interval_s: float = 0.1
    """Sent to every peer; also the length of the window's intervals."""
    window_s: float = 2.0
    """How far back heartbeats are looked at."""
    check_interval_s: float = 0.2
    """How often the window is looked at."""
    missed_in_a_row: int = 3
    """Intervals without a heartbeat at the window's end after which a peer is not heard."""
    received_in_a_row: int = 2
    """Intervals with a heartbeat after which it is heard again."""
    report_interval_s: float = 0.5
    """How often state, cursor and log end are told; at once when the state changes."""
    in_sync_lag_max: int = 1000
    """Records by which a cluster may lag and still count as in sync; chosen, not measured."""


class Consistency(StrEnum):
    """How fresh a query's answer must be."""

    ANY = "any"
    """As the cluster has it."""
    BOUNDED = "bounded"
    """Lacks at most so many of the records that the log held when the request came."""
    SESSION = "session"
    """Has all that the client wrote or saw before."""
    LINEARIZABLE = "linearizable"
    """Has all that the log held when the request came."""


@dataclass(frozen=True, slots=True)
class Reads:
    """How fresh queries' answers are that don't say it themselves."""

    consistency: Consistency = Consistency.ANY
    acceptable_offset_lag: int = 1000
    """Records that may lack in an answer of level bounded; chosen like ``in_sync_lag_max``."""
    wait_s: float = 5.0
    """Then a query goes to a fresher cluster, or waits on while its own gets on. Chosen."""


@dataclass(frozen=True, slots=True)
class Writes:
    """Which clusters must have applied a write before it is answered."""

    concern: WriteConcern = WriteConcern.ONE
    """Of requests that ask for none; a rule may ask for more."""
    min_insync_clusters: int = 1
    """With fewer clusters in sync, writes of concern ``majority`` and ``all`` are refused."""
    guard_always: bool = False
    """Whether Delta itself looks for a write's mark in the table at its first attempt, too. For
    clusters whose Spark address can lead to two drivers at once. An INSERT took 0.7 s, not 0.2."""


@dataclass(frozen=True, slots=True)
class Trim:
    """When records of the log that no cluster needs any more are deleted."""

    enabled: bool = True
    interval_s: float = 60.0
    """How often the cursors are looked at."""
    keep_records: int = 100_000
    """The newest so many records stay; chosen, not measured."""
    keep_s: float = 604_800.0
    """So do those of the last seven days, as Kafka keeps its own by default: as long as the log
    still begins at 0, a new cluster can be filled from it."""


@dataclass(frozen=True, slots=True)
class Connect:
    """The Spark Connect doors."""

    ssl_certificate_file: Path | None = None
    """The door's certificate, and those that signed it; PySpark sends a token over TLS only."""
    ssl_key_file: Path | None = None
    """Its key."""
    hold_bytes: int = 4 << 20
    """Results up to this size are sent once they are complete. Chosen, not measured."""
    statement_s: float = 86_400.0
    """A statement's deadline, unless the session sets ``haproc.timeout_s``: a program waits."""
    streams_max: int = 100
    """Calls under way on one connection, as gRPC advises."""
    artifacts_bytes_max: int = 256 << 20
    """What one call may add of files. Chosen, not measured."""
    allow_jars: bool = False
    """Whether sessions may add JVM jars, which run inside Spark's driver."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A job that the ring submits by itself, each time once."""

    name: str
    file: str
    """As in a request: a path in one of the folders."""
    every_s: float | None = None
    """Multiples of this since 1970; or else ``cron``."""
    cron: str | None = None
    """A cron expression, in UTC."""
    args: tuple[str, ...] = ()
    restarts: int | None = None
    user: str | None = None
    """As whom; one of ``users``, where there are any."""


class Isolation(StrEnum):
    """What stands between the programs of jobs and HAProc."""

    BUBBLEWRAP = "bubblewrap"
    """A sandbox: namespaces, and of the files none but those that are listed."""
    USER = "user"
    """Another user of the system, `jobs.user`; HAProc must be root."""
    NONE = "none"
    """Nothing: programs may do whatever HAProc may."""


class UnknownFields(StrEnum):
    """What becomes of fields and settings of a request that cannot be honoured."""

    REFUSE = "refuse"
    IGNORE = "ignore"
    """The job is taken; HAProc logs what was ignored."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """Batch jobs: Python programs that run beside the HAProcs."""

    enabled: bool = False
    """Whether jobs are taken. They run programs of the users' on the HAProcs' machines."""
    folders: tuple[Path, ...] = ()
    """Folders whose files may be run by name; others have to be sent with the request."""
    python: Path | None = None
    """The interpreter, with PySpark; else HAProc's own."""
    isolation: Isolation = Isolation.BUBBLEWRAP
    """What stands between programs and HAProc. Without it no HAProc of the ring starts."""
    user: str | None = None
    """The system's user as whom programs run; HAProc must be root then. Else as HAProc itself, and
    as nobody in the sandbox of a HAProc that is root."""
    readable: tuple[Path, ...] = ()
    """Further files and folders that programs find in a sandbox; read-only."""
    environment: tuple[str, ...] = ()
    """Variables that programs find as HAProc has them, and that a request may set."""
    running_max: int = 4
    """Programs that run beside one HAProc at once; more wait. Chosen, not measured."""
    jobs_max: int = 200
    """Jobs of the ring that have not ended; the next one is answered 429. A user has a share."""
    restarts_max: int = 100
    """What a request may ask for."""
    memory_bytes_max: int = 4 << 30
    """Address space of a process, stacks and libraries included: 1.5 GiB for PySpark's alone. Also
    what all processes of a program hold together, looked at every second or so."""
    cpu_s: float = 86_400.0
    """Time of the CPU."""
    wall_s: float = 86_400.0
    """Time of the wall's clock, for each attempt."""
    processes_max: int = 256
    """Processes and threads of a program; of `user`, all programs together, without a sandbox."""
    disk_bytes_max: int = 4 << 30
    """What its folder may take up, looked at every second or so; no file may be larger."""
    disk_free_bytes_min: int = 1 << 30
    """When the filesystem of the programs' folders has less room, all of them are ended: deleted
    files that a program holds open count nowhere else. Chosen, not measured."""
    output_bytes_max: int = 256 << 20
    """What a program may say; then it is ended."""
    log_bytes: int = 1 << 20
    """The end of what it said, which the ring keeps."""
    unknown_fields: UnknownFields = UnknownFields.REFUSE
    """What becomes of Livy's fields that are for a driver in a JVM, such as executorMemory."""
    files_bytes_max: int = 32 << 20
    """A job's files together. Chosen: the store keeps each as one value."""
    kept_s: float = 604_800.0
    """How long it is known how a job ended."""
    kept_max: int = 1000
    """Jobs that ended; of more the oldest are forgotten."""
    schedules: tuple[Schedule, ...] = ()


class StateWay(StrEnum):
    """How HAProcs tell each other that they live, and how far they are."""

    MESH = "mesh"
    """Each sends to each."""
    REDIS = "redis"
    """Through a Redis; over the mesh while that is away."""


@dataclass(frozen=True, slots=True)
class Redis:
    """The Redis of ``state: redis``. It holds nothing that must not be lost."""

    url: str = ""
    """``redis://host:port/db`` or ``redis+sentinel://host:port,…/NAME/db``; ``rediss`` for TLS."""
    username: str | None = None
    password: str = field(default="", repr=False)
    sentinel_username: str | None = None
    sentinel_password: str = field(default="", repr=False)
    ssl_ca_file: Path | None = None
    """Who may have signed the servers' certificates; else those whom the system trusts."""
    ssl_certificate_file: Path | None = None
    """The HAProc's own certificate, for servers that ask for one."""
    ssl_key_file: Path | None = None
    """Its key, if that is not in the same file."""
    ssl_check_hostname: bool = True
    allow_password_plaintext: bool = False
    """Needed to show a password over a network without TLS."""
    key_ttl_s: float = 10.0
    """How long a HAProc's key outlives its last report; chosen, not measured."""


class Compression(StrEnum):
    """What a Kafka log's messages are compressed with."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class SecurityProtocol(StrEnum):
    """How Kafka's brokers are reached; by Kafka's own names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def tls(self) -> bool:
        """Whether everything on the way is encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def sasl(self) -> bool:
        """Whether a user and a password are shown."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class SaslMechanism(StrEnum):
    """How the user is shown to Kafka's brokers; those that need no more than a password."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True)
class Kafka:
    """A log in Kafka: how its topic is made, how its brokers are reached."""

    replication_factor: int = 3
    """Copies of the topic, when it is made."""
    min_insync_replicas: int = 2
    """Copies that must have a write before it is acknowledged."""
    compression: Compression = Compression.NONE
    message_bytes_max: int = 1 << 20
    """A larger record is stored in several messages; Kafka's own default bound is as much."""
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    ssl_ca_file: Path | None = None
    """Who may have signed the brokers' certificates; else those whom the system trusts."""
    ssl_certificate_file: Path | None = None
    """The HAProc's own certificate, for brokers that ask for one."""
    ssl_key_file: Path | None = None
    """Its key, if that is not in the same file."""
    ssl_key_password: str = field(default="", repr=False)
    ssl_check_hostname: bool = True
    sasl_mechanism: SaslMechanism | None = None
    sasl_username: str | None = None
    sasl_password: str = field(default="", repr=False)
    allow_sasl_plaintext: bool = False
    """Needed to show user and password over a network without TLS."""


@dataclass(frozen=True, slots=True)
class Config:
    """One ring."""

    ring: str
    log: str
    """URL of the log: ``sqlite:///absolute/path``, ``kafka://host:port,…/RING`` or ``memory:``."""
    clusters: tuple[ClusterConfig, ...]
    secret: str = field(repr=False)
    """What peers show each other."""
    state_dir: Path = Path("haproc-state")
    """Pid files, kept results, logs of local clusters."""
    rules: Path | None = None
    paths: tuple[str, ...] = ()
    """Prefixes below which statements may name files, such as ``s3a://bucket/in``."""
    users: tuple[User, ...] = ()
    """Empty: anybody who reaches the client door, under the name ``anonymous``."""
    allow_anonymous: bool = False
    """Needed to leave ``users`` empty while a listener is not on loopback."""
    time_zone: str = "UTC"
    """Session time zone of requests and sessions that set none; the same on every cluster."""
    session_defaults: tuple[tuple[str, str], ...] = ()
    """Spark's settings of requests and sessions that set none, by name: any that a session may set.
    They are the same on every cluster, whatever its Spark has."""
    fanout_parallel: bool = False
    on_cluster_down: OnClusterDown = OnClusterDown.WAIT
    limits: Limits = Limits()  # noqa: RUF009 - it is frozen
    timeouts: Timeouts = Timeouts()
    membership: Membership = Membership()
    reads: Reads = Reads()
    writes: Writes = Writes()
    trim: Trim = Trim()
    archive: Archive = Archive()  # noqa: RUF009 - it is frozen
    cache: Cache = Cache()  # noqa: RUF009 - it is frozen
    optimize: Optimize = Optimize()  # noqa: RUF009 - it is frozen
    connect: Connect = Connect()
    jobs: Jobs = Jobs()
    state: StateWay = StateWay.MESH
    redis: Redis = Redis()
    kafka: Kafka = Kafka()

    @property
    def defaults(self) -> Settings:
        """The settings of a session that has set none."""
        given = dict(self.session_defaults)
        zone, ansi = given.pop(TIME_ZONE, self.time_zone), given.pop(ANSI, "true")
        return Settings(time_zone=zone, ansi=ansi == "true", confs=tuple(sorted(given.items())))

    def cluster(self, name: str) -> ClusterConfig:
        """Return the cluster of this name; KeyError if the ring has none."""
        for cluster in self.clusters:
            if cluster.name == name:
                return cluster
        raise KeyError(name)
