"""HAProc's interface to a Spark cluster.

One Spark cluster is an `Engine`. It gives *sessions* to readers (each a Spark session with its own
settings and temporary views), and *lanes* to the applier. A lane is a Spark session of HAProc's own
that runs one replicated statement at a time, because Delta's transaction markers, and the settings
that change a statement's meaning, are session settings.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from haproc.engine.statement import SparkPlan, SqlText, Statement
from haproc.engine.tasks import Planned

if TYPE_CHECKING:
    from haproc.engine.commits import Histories
    from haproc.engine.copies import Copies

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Settings:
    """Session settings that change the meaning of a statement; each operation carries them."""

    catalog: str = "spark_catalog"
    schema: str = "default"
    time_zone: str = "UTC"
    ansi: bool = True
    confs: tuple[tuple[str, str], ...] = ()
    """Further Spark settings by name, sorted, as the client's SET statements made them."""


@dataclass(frozen=True, slots=True)
class TransactionMarker:
    """A transaction marker: the identity of a write, stored in the write's own Delta commit.

    ``application`` stands for the ring and its log, ``version`` is the log offset of the operation
    (of the last one, if several are combined). A table's newest version can be read back
    (`Engine.offsets_applied`).

    ``guarded``: Delta itself skips the write if the table holds this version or a higher one. For
    that it reads the table's whole state first: 0.5 s for an INSERT of 0.2 s.
    """

    application: str
    version: int
    guarded: bool = True


@dataclass(frozen=True, slots=True)
class Column:
    """A result column: its name and Spark's type text (``bigint``, ``decimal(10,2)`` …)."""

    name: str
    type_text: str
    nullable: bool = True


ABSENT: Final = "absent"
PRESENT: Final = "present"
"""Part of a fingerprint: the object exists; its content was not asked for."""
UNREADABLE: Final = "unreadable"
"""Part of a fingerprint: the catalog has the table, but it cannot be read."""


SETTINGS_OF_RESULTS: Final = ("spark.sql.", "spark.databricks.")
"""The prefixes of settings that may change a statement's result."""
VERSION: Final = "version."
"""The prefix of keys for versions (of spark, java and delta) among the server's settings."""


class Sort(StrEnum):
    """The kind of object that a name belongs to."""

    TABLE = "table"
    """A table or a view."""
    FUNCTION = "function"
    NAMESPACE = "namespace"


@dataclass(frozen=True, slots=True)
class Named:
    """The full name of an object, as operations have it: backquotes only where necessary.

    ``content``: True if changes of the object's content matter, False if only its existence does.
    """

    sort: Sort
    name: str
    content: bool = True


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of a table or view at one moment.

    ``version``: the version of a Delta table; this version can be read later. ``checksum``: of any
    other table or view, read at that moment; empty if it could not be read.
    """

    name: str
    version: int | None = None
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class Applied:
    """The small result of a write, such as ``num_affected_rows``, as Arrow IPC streams.

    ``observed``: the results of the write's observations, see `Observed`.
    """

    chunks: tuple[bytes, ...] = ()
    affected_rows: int | None = None
    observed: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a query's result: a whole Arrow IPC stream, and its number of rows."""

    data: bytes
    rows: int


class ResultStream(Protocol):
    """A running query's result; the pieces come as the cluster makes them.

    Iterating raises EngineError. There is always at least one chunk: an empty result has one with
    the schema and no rows. Leave it through ``aclose``, which stops an unfinished statement on the
    cluster.
    """

    def __aiter__(self) -> AsyncIterator[Chunk]: ...

    async def aclose(self) -> None: ...


class Relay(Protocol):
    """Makes calls that a client sent to a Spark Connect door, in the client's session on Spark.

    In requests only the names of session, user and operation are replaced; answers are as the
    server sent them. ``changes``: True if the call may change the session. Methods raise
    EngineError, which is a RelayedError if the server answered.
    """

    async def unary(
        self, rpc: str, request: bytes, *, timeout_s: float, changes: bool = False
    ) -> bytes:
        """Make a call with one request and one answer."""
        ...

    async def upload(
        self, rpc: str, requests: Sequence[bytes], *, timeout_s: float, changes: bool = False
    ) -> bytes:
        """Make a call with several requests and one answer."""
        ...

    def execute(
        self,
        request: bytes,
        operation_id: str,
        *,
        timeout_s: float,
        changes: bool = False,
        planned: Planned | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Run a plan with this Spark Connect operation id, and yield the server's messages.

        Leave it through ``aclose``, which stops the plan. ``planned``: as in `Queries.query`.
        """
        ...


@dataclass(frozen=True, slots=True)
class SessionFile:
    """A file that a client added to its session: its name there, and its bytes in pieces."""

    name: str
    pieces: tuple[bytes, ...]


class Fresh(Protocol):
    """A new Spark session, used only to restore content into it. Methods raise EngineError."""

    async def configure(self, settings: Settings) -> None:
        """Give the session exactly these settings, in one round trip; none if it has them."""
        ...

    async def run_change(self, statement: Statement, *, timeout_s: float) -> None:
        """Run a statement that changes the content of the session."""
        ...

    async def columns(self, sql: str) -> list[Column]:
        """Return a query's columns without running it."""
        ...

    async def add_files(self, files: Sequence[SessionFile]) -> None:
        """Add files to the session, in one call."""
        ...


Observed = Callable[[bytes], None]
"""Receives the result of an observation (``df.observe``) of a statement: a serialized
``spark.connect.ExecutePlanResponse.ObservedMetrics``."""
Restore = Callable[[Fresh], Awaitable[None]]
"""Restores a session's content whenever its Spark session is new. Its errors go to users."""


class Queries(Protocol):
    """Runs queries in a session of the cluster, and describes them without running them."""

    async def query(
        self,
        statement: Statement,
        *,
        timeout_s: float,
        planned: Planned | None = None,
        observed: Observed | None = None,
    ) -> ResultStream:
        """Start a statement that changes nothing but this session; return its rows as they come.

        ``planned`` is called, once or more often, with the phases of the statement. ``observed``
        receives the results of its observations.
        """
        ...

    async def reading(
        self,
        statement: SqlText | SparkPlan,
        *,
        timeout_s: float,
        parsed_only: bool = False,
    ) -> str:
        """Return the plan reading of a statement: Spark's parsed and analyzed trees. Nothing runs.

        The result is the plugin's JSON, for `haproc.reading.tree.read`, of up to 64 MiB. The
        process that judges it parses it, because a parsed reading takes many times the memory. A
        plan's root is a relation: a DataFrame, or a text with DataFrames that it reads.
        ``parsed_only``: without the analyzer, which costs as much as running DDL. Raises
        EngineError: a wrong statement raises its own.
        """
        ...

    async def columns(self, sql: str) -> list[Column]:
        """Return a query's columns without running it."""
        ...

    async def schema(self, query: Statement) -> bytes:
        """Return a query's schema, a serialized ``spark.connect.DataType``, without running it."""
        ...


class Session(Queries, Protocol):
    """A Spark session on this cluster for queries and session statements.

    The session is made at the first use, and again after the server has lost it. Then it gets the
    settings of `configure` again, and its `Restore` puts back the content that statements made.
    Without a `Restore`, statements must leave nothing in it.

    Spark caches in each session the results of look-ups: functions, tables of files, existing
    schemas. The DDL of another session does not change this cache.
    """

    @property
    def busy(self) -> bool:
        """True if a statement runs in the session; then it must not be closed."""
        ...

    @property
    def epoch(self) -> int:
        """A number that rises whenever the server has lost the session and its content."""
        ...

    @property
    def relay(self) -> Relay:
        """The object that makes clients' own Spark Connect calls in this session."""
        ...

    async def configure(self, settings: Settings) -> None:
        """Give the session exactly these settings, in one round trip; none if it has them."""
        ...

    async def settings(self) -> Settings:
        """Read the session's catalog, schema, time zone and ANSI mode back from the cluster."""
        ...

    async def untouched(self, names: Sequence[str]) -> Mapping[str, str | None]:
        """Return the values that settings have on this cluster as long as no client sets them."""
        ...

    async def ready(self) -> None:
        """Make the session, if it does not exist, and restore its content."""
        ...

    @property
    def stands(self) -> bool:
        """True if the Spark session exists with all its content, as far as this HAProc knows."""
        ...

    def as_it_is(self) -> Queries:
        """Return the queries of the present Spark session; they fail if it must be recreated.

        They do not wait for that: the code that recreates it may be waiting for the caller.
        """
        ...

    def outdate(self) -> None:
        """Have the session recreated before its next statement: its content may be unknown."""
        ...

    async def cancel(self) -> None:
        """Interrupt all statements that run in the session."""
        ...

    async def aclose(self) -> None:
        """Release the session on the cluster; errors are ignored."""
        ...


class Lane(Protocol):
    """A Spark session of HAProc's own that applies one replicated statement at a time."""

    async def apply(
        self,
        write: Statement,
        settings: Settings,
        marker: TransactionMarker | None,
        *,
        timeout_s: float,
    ) -> Applied:
        """Run the write under these settings and this transaction marker; raises EngineError.

        After an availability error it may or may not have committed, or may commit later: call
        `fence`, then check the tables, before it is run again.
        """
        ...

    async def guarded(self, call: Callable[[Any], Awaitable[_Result]]) -> _Result:
        """Call ``call`` with the lane's session (a RemoteSession); return the result.

        A process that was replaced never gets the session. Raises EngineError. After an
        availability error the request may still run; the next use of the lane ends it first.
        """
        ...

    async def fence(self) -> None:
        """Return when no statement of this lane, from any process, runs or can run later."""
        ...

    def renew(self) -> None:
        """Have the lane's next statement run in a new Spark session, which has nothing cached."""
        ...

    async def prepare(self) -> None:
        """Make the lane's new Spark session now, so that no statement waits for it; no errors."""
        ...


class Engine(Protocol):
    """One Spark cluster."""

    async def probe(self, *, timeout_s: float) -> None:
        """Run a statement through driver and executors; EngineError if it fails.

        It reads the storage, too, once `storage` has returned the storage id.
        """
        ...

    async def storage(self, known: str) -> str:
        """Return the storage id, which is in a file in the cluster's storage.

        From then on `probe` reads that file. ``known``: the id that this HAProc knows; empty: none
        yet, so a missing id is made. Raises EngineError; of class STORAGE_AWAY if the id is not the
        known one.
        """
        ...

    def session(self, key: str, restore: Restore | None = None, pool: str = "") -> Session:
        """Return the session of this key; ``restore`` and ``pool`` matter only if it is new.

        ``pool``: that of Spark's scheduler for the session's statements; empty for HAProc's short
        ones.
        """
        ...

    def lane(self, index: int, authorise: Callable[[], Awaitable[None]]) -> Lane:
        """Return the applier's lane of this index; every incarnation finds the same one.

        ``authorise`` is awaited before a fence, and between the making of a session and its first
        statement: it returns only if no other incarnation has claimed the cluster.
        """
        ...

    async def table_columns(self, table: str) -> list[Column]:
        """Return a table's columns; raises EngineError if there is no such table."""
        ...

    async def plain_columns(self, table: str) -> Sequence[Column] | None:
        """Return a table's columns if it is a Delta table that stores rows exactly as given.

        None if the catalog has no such table, or if the table computes, pads or fills in values, or
        records something besides the rows. Raises EngineError if that cannot be found out.
        """
        ...

    async def offsets_applied(self, tables: Sequence[str], application: str) -> Mapping[str, int]:
        """Return, by table, the highest version in the transaction markers of ``application``.

        A table without a marker is absent, as is one that is no Delta table, or one that the
        catalog does not have. Raises EngineError if that cannot be found out.
        """
        ...

    async def check_tables(self, tables: Sequence[str]) -> None:
        """Raise EngineError if the storage is away, or a table exists but is unreadable."""
        ...

    async def object_fingerprint(self, named: Sequence[Named]) -> str:
        """Return the fingerprint of the objects: a text that changes when any of them changes.

        It has one part for each name, with slashes between; see `objects.fingerprint`. Raises
        EngineError if the storage is away.
        """
        ...

    async def keeps_marks(self, table: str) -> bool:
        """True if the name is that of a Delta table, which can keep transaction markers.

        Works also while statements hold all cores; raises EngineError.
        """
        ...

    async def default_place(self, table: str) -> str:
        """Return the folder that a managed table of this name would get; empty if unknown."""
        ...

    async def server_settings(self, names: Collection[str]) -> Mapping[str, str | None]:
        """Return the server's versions, and the settings of a fresh session on it.

        The settings: those given to the server that begin with SETTINGS_OF_RESULTS, and those in
        ``names``, also if they have only a default (None: no value). Keys of versions: VERSION and
        `spark`, `java`, `delta`. Raises EngineError.
        """
        ...

    def copies(self, lane: Lane | None = None) -> Copies:
        """Return the object that reads copies of tables, and with a ``lane`` also writes them."""
        ...

    def histories(self) -> Histories:
        """Return the object that reads the histories of the cluster's tables."""
        ...

    async def staged(self) -> Collection[str]:
        """Return the full names of the existing staging tables; raises EngineError."""
        ...

    async def table_states(self) -> Sequence[TableState]:
        """Return all tables and views with their present states; raises EngineError."""
        ...

    async def checksum(self, state: TableState, *, timeout_s: float) -> str:
        """Return a checksum of the rows and columns that the table has in this state.

        Raises EngineError.
        """
        ...

    async def aclose(self) -> None:
        """Close the connection to Spark, and release the sessions of clients there."""
        ...


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """The address of a cluster's Spark Connect server, and the credentials it needs."""

    host: str
    port: int
    token: str = field(default="", repr=False)
    tls: bool = False
    ca_file: Path | None = None
    """File with the CA certificates (PEM) that may have signed the server's; None: gRPC's own
    CAs."""
