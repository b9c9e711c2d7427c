"""The configuration as values; each field with its unit, its default, and why that.

Read by `haproc.config.load`. Paths are absolute after loading; secrets are resolved.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from haproc.classify.bounds import Bounds
from haproc.classify.model import WriteConcern
from haproc.config.archive import Archive
from haproc.config.cache import Cache
from haproc.config.hosts import is_wildcard
from haproc.config.optimize import Optimize
from haproc.engine.interface import EngineAddress

LANES_MAX = 16
"""Statements side by side on one cluster. A starting HAProc fences this many lanes, however many
an earlier one was configured with."""


ENVELOPE_BYTES = 1 << 20
"""What a JSON body may hold beside a statement of the largest size."""


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
class Limits:
    """Bounds on what one HAProc takes on."""

    operation_bytes_max: int = 64 << 20
    """A larger operation is refused; chosen, not measured."""
    statement_bytes_max: int = Bounds().chars_max
    """Text of a statement, with its parameters. Each copy of 16 MiB that is made on its way keeps
    everybody else waiting for 5 to 40 ms; large values travel better as rows."""
    statement_tokens_max: int = Bounds().tokens_max
    """Words, literals and symbols of a statement. An INSERT of 480,000 was measured to work with a
    driver's heap of 1 GiB, one of a million to exhaust it; raise it with the heap."""
    statement_depth_max: int = Bounds().depth_max
    """How deeply a statement may nest: brackets, CASE, operators in a row, joins, subqueries. Spark
    4.2.1 with default stacks read and analysed all kinds of 200, and overflowed at 400 to 800."""
    statements_max: int = 256
    """Requests under way at once; the next ones wait in line."""
    planned_max: int = 8
    """Statements that a driver plans at once: of more than a few, two cores get no more done."""
    statement_queue_s: float = 30.0
    """Then they are answered 429; 0: at once. Chosen: as long as a client looks for servers."""
    writes_waiting_max: int = 2000
    """Writes that wait for what becomes of them; further ones count among those. Chosen."""
    sessions_max: int = 1000
    """Client sessions of the ring; the next one is refused."""
    session_entries_max: int = 1000
    """Steps of a session's journal; each takes Spark some 20 ms when the session is taken over."""
    session_bytes_max: int = 32 << 20
    """A session's journal, without files. Chosen: it is read as a whole."""
    session_files_bytes_max: int = 256 << 20
    """Files that a session was given. Chosen, not measured."""
    session_here_s: float = 3600.0
    """An unused session leaves this cluster's Spark; it is taken over again when asked for."""
    session_idle_s: float = 86_400.0
    """An unused session is closed; to within an hour. Chosen: a night."""
    connections_max: int = 1000
    """Open at a time on each listener; beyond it idle ones give way. Chosen, not measured."""
    requests_bytes_max: int = 512 << 20
    """Requests and answers in memory at a time; the next one is answered 429. Chosen: eight
    operations of the largest size."""
    user_share: float = 0.5
    """How much of connections, statements, sessions, results kept and bytes of requests one user
    may take, where there are several: so nobody takes all. Chosen, not measured."""
    staged_bytes_max: int = 16 << 30
    """Rows of one write whose query is run once, and of one body of rows. Chosen: as many records
    of a Kafka log (1 MiB each) are a quarter of the window of request ids."""
    spooled_bytes_max: int = 32 << 30
    """Bodies of rows on disk at a time, in state_dir, while they go into the log. Chosen: two of
    the largest."""
    part_bytes_max: int = 8 << 20  # a write's rows in one record, and given to a cluster at once
    part_rows_max: int = 200_000
    """Chosen: rows of next to no bytes take a driver some 100 bytes each all the same."""
    inline_bytes_max: int = 25 << 20
    """A larger result needs EXTERNAL_LINKS or a stream (Databricks' limit)."""
    results_kept_bytes_max: int = 512 << 20
    """Results kept on disk for clients that fetch them in chunks."""
    results_kept_s: float = 900.0
    batch_operations_max: int = 10_000
    """INSERTs combined into one statement."""
    batch_bytes_max: int = 8 << 20
    batch_rows_max: int = 20_000
    """Of VALUES; 50,000 were measured to work."""
    batch_arrow_bytes_max: int = 56 << 20
    """Rows, as Arrow, in one statement; in all that run side by side twice that. Measured: 232 MiB
    took 25, 20, 14 s by 12, 24, 48; with a heap of 1 GiB 128 at once were slow, 192 too much."""
    lanes: int = 4
    """Statements applied side by side; on two cores more gave nothing."""
    look_ahead_records_max: int = 16_384
    """Records read ahead of the cursor."""
    look_ahead_bytes_max: int = 128 << 20
    window_records: int = 65_536
    """How far back a repeated request id is recognised, in records."""

    @property
    def bounds(self) -> Bounds:
        """What a statement's text may be like."""
        chars_max = min(self.statement_bytes_max, self.operation_bytes_max)
        return Bounds(chars_max, self.statement_tokens_max, self.statement_depth_max)

    @property
    def statement_body_bytes_max(self) -> int:
        """What the body of a request may hold that brings a statement."""
        return self.bounds.chars_max + ENVELOPE_BYTES


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


@dataclass(frozen=True, slots=True)
class Jobs:
    """Batch jobs: Python programs that run beside the HAProcs."""

    enabled: bool = False
    """Whether jobs are taken. They run programs of the users' on the HAProcs' machines."""
    folders: tuple[Path, ...] = ()
    """Folders whose files may be run by name; others have to be sent with the request."""
    python: Path | None = None
    """The interpreter, with PySpark; else HAProc's own."""
    user: str | None = None
    """The system's user as whom programs run; HAProc must be root then. Else as HAProc itself."""
    confined: bool = True
    """Whether programs find no files but their own, the interpreter's and some of the system's, and
    cannot look into other processes. Needs Linux 5.13 with Landlock; without it no job starts."""
    readable: tuple[Path, ...] = ()
    """Further files and folders that confined programs may read."""
    environment: tuple[str, ...] = ()
    """Variables that programs find as HAProc has them, and that a request may set."""
    running_max: int = 4
    """Programs that run beside one HAProc at once; more wait. Chosen, not measured."""
    jobs_max: int = 200
    """Jobs of the ring that have not ended; the next one is answered 429. A user has a share."""
    restarts_max: int = 100
    """What a request may ask for."""
    memory_bytes_max: int = 4 << 30
    """Address space of a process, stacks and libraries included: 1.5 GiB for PySpark's alone."""
    cpu_s: float = 86_400.0
    """Time of the CPU."""
    wall_s: float = 86_400.0
    """Time of the wall's clock, for each attempt."""
    processes_max: int = 256
    """Processes and threads of `user`, all programs together; counts only where that is set."""
    disk_bytes_max: int = 4 << 30
    """What its folder may take up, looked at every second or so; no file may be larger."""
    output_bytes_max: int = 256 << 20
    """What a program may say; then it is ended."""
    log_bytes: int = 1 << 20
    """The end of what it said, which the ring keeps."""
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
    fanout_parallel: bool = False
    on_cluster_down: OnClusterDown = OnClusterDown.WAIT
    limits: Limits = Limits()
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

    def cluster(self, name: str) -> ClusterConfig:
        """Return the cluster of this name; KeyError if the ring has none."""
        for cluster in self.clusters:
            if cluster.name == name:
                return cluster
        raise KeyError(name)
