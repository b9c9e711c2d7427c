"""HAProc's interface to a Spark cluster.

One Spark cluster is an `Engine`. It gives *sessions* (a Spark session each: own settings, temporary
views) to readers, and *lanes* to the applier. A lane is a Spark session of HAProc's own that runs
one replicated statement at a time, because Delta's marks and the settings that change a statement's
meaning are session settings.
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
    """Session settings that change what a statement means; replicated with every operation."""

    catalog: str = "spark_catalog"
    schema: str = "default"
    time_zone: str = "UTC"
    ansi: bool = True
    confs: tuple[tuple[str, str], ...] = ()
    """Further settings by name, sorted, as a client's SET statements left them."""


@dataclass(frozen=True, slots=True)
class TransactionMarker:
    """Identifies a replicated write in its very commit on a Delta table.

    ``application`` stands for the ring and its log, ``version`` is the log offset of the (last)
    operation. A table's newest version can be read back (`Engine.offsets_applied`).

    ``guarded``: Delta itself skips the write on a table that holds a version at or above this one.
    That makes it read the table's whole state first: 0.5 s for an INSERT of 0.2 s.
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
"""There is something; what, was not asked."""
UNREADABLE: Final = "unreadable"
"""The catalog knows the table, but it cannot be read."""


SETTINGS_OF_RESULTS: Final = ("spark.sql.", "spark.databricks.")
"""The prefixes of settings that may change a statement's result."""
VERSION: Final = "version."
"""The prefix of versions among the settings: of spark, java and delta."""


class Sort(StrEnum):
    """The kind of object that a name belongs to."""

    TABLE = "table"
    """Or a view."""
    FUNCTION = "function"
    NAMESPACE = "namespace"


@dataclass(frozen=True, slots=True)
class Named:
    """A full name, as operations have them: parts in backquotes only where they need it.

    ``content``: False where it is only asked whether anything stands under it.
    """

    sort: Sort
    name: str
    content: bool = True


@dataclass(frozen=True, slots=True)
class TableState:
    """A table or view as it stood at a moment.

    ``version``: the version of a Delta table, which can be read later. ``checksum``: of all others,
    read at that moment; empty where that failed.
    """

    name: str
    version: int | None = None
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of a write: a small one such as ``num_affected_rows`` (Arrow IPC streams).

    ``observed``: what its observations found, see `Observed`.
    """

    chunks: tuple[bytes, ...] = ()
    affected_rows: int | None = None
    observed: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a result: a whole Arrow IPC stream (schema, batches, end) and its row count."""

    data: bytes
    rows: int


class ResultStream(Protocol):
    """A running query's result; the pieces come as the cluster makes them.

    Iterating raises EngineError. There is always at least one chunk (an empty result has one with
    the schema and no rows). Leave it through ``aclose`` (a stream not read to its end is cancelled
    on the cluster).
    """

    def __aiter__(self) -> AsyncIterator[Chunk]: ...

    async def aclose(self) -> None: ...


class Relay(Protocol):
    """Calls of Spark Connect as a client sent them, made in the session behind the client's.

    Requests keep all but the names of session, user and operation; answers are as the server sent
    them. With ``changes`` the session holds something afterwards that only its owner can bring
    back. Raises EngineError, which is a RelayedError where the server answered.
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
        """Run a plan under this id; leave it through ``aclose``, which stops it.

        ``planned``: as of `Queries.query`.
        """
        ...


@dataclass(frozen=True, slots=True)
class SessionFile:
    """A file of a session by its name there, in pieces of bounded size; at least one."""

    name: str
    pieces: tuple[bytes, ...]


class Fresh(Protocol):
    """A Spark session that was just made: restoring puts its content back.

    Methods raise EngineError. Nobody else uses it before that is done.
    """

    async def configure(self, settings: Settings) -> None:
        """Make the session's settings exactly these (one round trip when they differ)."""
        ...

    async def run(self, statement: Statement, *, timeout_s: float) -> None:
        """Run a statement that leaves something in the session."""
        ...

    async def columns(self, sql: str) -> list[Column]:
        """Return a query's columns without running it."""
        ...

    async def add_files(self, files: Sequence[SessionFile]) -> None:
        """Add files to the session, in one call."""
        ...


Observed = Callable[[bytes], None]
"""Called with what an observation (``df.observe``) of a statement found: a serialized
``spark.connect.ExecutePlanResponse.ObservedMetrics``."""
Restore = Callable[[Fresh], Awaitable[None]]
"""Puts back what a session held, each time its Spark session is made; raises what its users get."""


class Queries(Protocol):
    """A session of which one only asks."""

    async def query(
        self,
        statement: Statement,
        *,
        timeout_s: float,
        planned: Planned | None = None,
        observed: Observed | None = None,
    ) -> ResultStream:
        """Start a statement that only reads, or changes only this session's state.

        ``planned`` is called, once or more often, when the driver has planned it.
        """
        ...

    async def reading(
        self,
        statement: SqlText | SparkPlan,
        *,
        timeout_s: float,
        parsed_only: bool = False,
    ) -> str:
        """Return Spark's parsed and analyzed tree of a statement, which does not run.

        As the plugin gives it: JSON, for `haproc.reading.tree.read`. Large ones (up to 64 MiB) are
        parsed by the process that judges them: a parsed reading takes many times the memory. A
        plan's root is a relation: a DataFrame, or a text with those that it reads. ``parsed_only``:
        the analyzer is not asked, which costs as much as running DDL. Raises EngineError: a
        statement that is wrong gives the error that it would meet itself.
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

    It is made when first used, and anew when the server has lost it. Settings that `configure` gave
    it come back then; what statements left in it comes back through the `Restore` that it was made
    with. Without one, statements must leave nothing in it.

    Spark caches in each session what it has looked up: functions, tables of files, whether a schema
    is there. Another session's DDL changes none of that.
    """

    @property
    def busy(self) -> bool:
        """True if a statement runs in it; it must not be closed then."""
        ...

    @property
    def epoch(self) -> int:
        """Rises whenever the server lost the session, with all that statements left in it."""
        ...

    @property
    def relay(self) -> Relay:
        """Clients' own calls in this session."""
        ...

    async def configure(self, settings: Settings) -> None:
        """Make the session's settings exactly these (one round trip when they differ)."""
        ...

    async def settings(self) -> Settings:
        """Read the session's catalog, schema, time zone and ANSI mode back from the cluster."""
        ...

    async def untouched(self, names: Sequence[str]) -> Mapping[str, str | None]:
        """Return the values that settings have on this cluster where nobody set them."""
        ...

    async def ready(self) -> None:
        """Make the session, if it is not there, and restore it."""
        ...

    @property
    def stands(self) -> bool:
        """True if it exists with all its content, as far as is known here."""
        ...

    def as_it_is(self) -> Queries:
        """Return this session's queries as it is now: they fail if it must be recreated.

        That may take long: the code that recreates it may be waiting for the caller.
        """
        ...

    def outdate(self) -> None:
        """Have it made anew before the next statement: it may hold what its owner doesn't know."""
        ...

    async def cancel(self) -> None:
        """Interrupt what the session runs."""
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
        """Run the write under these settings and mark; raises EngineError.

        After an availability error it may or may not have committed, or may yet commit: `fence`,
        then look at the tables, before it is run again.
        """
        ...

    async def guarded(self, call: Callable[[Any], Awaitable[_Result]]) -> _Result:
        """Call with the lane's session (a RemoteSession); no replaced process ever does.

        Raises EngineError. After an availability error what was asked for may still be under way;
        the next use of the lane ends it first.
        """
        ...

    async def fence(self) -> None:
        """Return when nothing given to this lane before, by any process, runs or will ever run."""
        ...

    def renew(self) -> None:
        """Have the next statement run in a session that has looked nothing up yet."""
        ...

    async def prepare(self) -> None:
        """Make that session now, rather than when a statement waits for it; raises nothing."""
        ...


class Engine(Protocol):
    """One Spark cluster."""

    async def probe(self, *, timeout_s: float) -> None:
        """Run a statement that needs the whole path to the executors; raises EngineError.

        Once `storage` has returned the cluster's marker, the statement reads that.
        """
        ...

    async def storage(self, known: str) -> str:
        """Return the id of the marker in the cluster's storage, from which on `probe` reads it.

        If none is ``known`` yet, it is made where there is none. Raises EngineError; of class
        STORAGE_AWAY if the marker is not the known one.
        """
        ...

    def session(self, key: str, restore: Restore | None = None, pool: str = "") -> Session:
        """Return the session of this key; ``restore`` counts for one that is new, and ``pool``.

        ``pool``: Spark's scheduler's, in which its statements run; empty: that of short looks.
        """
        ...

    def lane(self, index: int, authorise: Callable[[], Awaitable[None]]) -> Lane:
        """Return the applier's lane of this index; every incarnation finds the same one.

        ``authorise`` is awaited before a fence, and between the making of a session and its first
        statement: it returns only if no other incarnation has claimed the cluster.
        """
        ...

    async def table_columns(self, table: str) -> list[Column]:
        """Return a table's columns (for the rows door); EngineError if there is no such table."""
        ...

    async def plain_columns(self, table: str) -> Sequence[Column] | None:
        """Return the columns of a Delta table that stores what it is given, and keeps no more.

        None if the catalog has no such table, or if something in it is computed, padded, filled in
        or recorded beside the rows. Raises EngineError if that cannot be found out.
        """
        ...

    async def offsets_applied(self, tables: Sequence[str], application: str) -> Mapping[str, int]:
        """Return the highest mark version each Delta table holds; tables without one are absent.

        Absent means: it was read and holds none, it has another format, or the catalog does not
        know it. Raises EngineError if that cannot be found out.
        """
        ...

    async def check_tables(self, tables: Sequence[str]) -> None:
        """Return if the storage is there and each of the tables can be read or does not exist.

        Raises EngineError otherwise.
        """
        ...

    async def standing(self, named: Sequence[Named]) -> str:
        """Return a text that is another one once anything under these names has changed.

        Made of a part for each name, with slashes between; see `objects.standing`. Raises
        EngineError if the storage is away.
        """
        ...

    async def keeps_marks(self, table: str) -> bool:
        """Return whether a name stands for a Delta table, which keeps the marks of statements.

        Answered also while statements hold all cores; raises EngineError.
        """
        ...

    async def default_place(self, table: str) -> str:
        """Return the place of the files of a managed table of this name; empty if unknown."""
        ...

    async def server_settings(self, names: Collection[str]) -> Mapping[str, str | None]:
        """Return the server's versions, and its settings as a fresh session has them.

        Those that it was given below SETTINGS_OF_RESULTS, and the named ones, if only by default;
        None: it has none. Versions go by VERSION and `spark`, `java`, `delta`. Raises EngineError.
        """
        ...

    def copies(self, lane: Lane | None = None) -> Copies:
        """Return the copier of this cluster's tables to others, and, with a lane, of theirs."""
        ...

    def histories(self) -> Histories:
        """Return the reader of its tables' commits."""
        ...

    async def staged(self) -> Collection[str]:
        """Return the full names of the staging tables that there are; raises EngineError."""
        ...

    async def table_states(self) -> Sequence[TableState]:
        """Return all tables and views as they stand now; raises EngineError."""
        ...

    async def checksum(self, state: TableState, *, timeout_s: float) -> str:
        """Return a checksum of a table's content; raises EngineError."""
        ...

    async def aclose(self) -> None:
        """Close the connection; sessions of clients are released."""
        ...


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """The address of a cluster's Spark Connect server, and the credentials it needs."""

    host: str
    port: int
    token: str = field(default="", repr=False)
    tls: bool = False
    ca_file: Path | None = None
    """Certificates (PEM) that may have signed the server's; None: those that gRPC trusts."""
