"""One HAProc in this process that applies a backlog, on a simulated cluster without any work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from dmq import Log, open_log
from haproc.classify.insert import plain_insert
from haproc.classify.model import Kind
from haproc.classify.names import Context, qualified
from haproc.classify.rules import DEFAULT_CLASSES
from haproc.config.model import Address, ClusterConfig, Config
from haproc.engine.commits import Commit, Newest
from haproc.engine.copies import Copies
from haproc.engine.interface import (
    ABSENT,
    Applied,
    Column,
    EngineAddress,
    Named,
    Restore,
    Session,
    Settings,
    TableState,
    TransactionMarker,
)
from haproc.engine.statement import SqlText, Statement
from haproc.membership.drift import REQUIRED
from haproc.node.node import Node
from haproc.replicate.records.operation import Operation, to_record
from haproc.ring.process import free_ports

# Operations in a log, as clients' statements leave them there, made without a ring.


WINDOW: Final = 65_536
_AT_ONCE: Final = 2_000
_FIRST_MS: Final = 1_700_000_000_000
_KINDS: Final = {
    "INSERT": Kind.INSERT,
    "UPDATE": Kind.UPDATE,
    "DELETE": Kind.DELETE,
    "CREATE": Kind.CREATE_TABLE,
}


def operation(number: int, sql: str) -> Operation:
    """Return the operation of a statement that cluster a received; ``number``: about its offset."""
    found = plain_insert(sql, Context())
    words = sql.split()
    table = words[1 if words[0] == "UPDATE" else 2]
    return Operation(
        f"request-{number}",
        DEFAULT_CLASSES[_KINDS[words[0]]],
        _KINDS[words[0]],
        "a",
        "f",
        SqlText(sql),
        user="etl",
        writes=frozenset({qualified(table.split("."), Context())}),
        insert=None if found is None else found.shape,
        created_ms=_FIRST_MS + number,
        since=max(0, number - 1000),
        window=WINDOW,
    )


async def fill(log: Log, statements: Sequence[str]) -> None:
    """Append an operation for each of these statements to the log."""
    for start in range(0, len(statements), _AT_ONCE):
        few = statements[start : start + _AT_ONCE]
        await log.append([to_record(operation(start + n, sql)) for n, sql in enumerate(few)])


# A cluster that has done at once whatever it is given: what is measured before it is HAProc's own.
#
# It holds nothing, so nothing can be queried, and of every table it says the same columns.


COLUMNS: Final = (
    Column("id", "bigint"),
    Column("name", "string"),
    Column("price", "double"),
    Column("visits", "int"),
)


T = TypeVar("T")


class NullLane:
    """A lane whose statements succeed in the event loop's next turn; nothing is run."""

    def __init__(self, on_applied: Callable[[TransactionMarker | None], None]) -> None:
        self._on_applied = on_applied

    async def apply(
        self,
        write: Statement,
        settings: Settings,
        marker: TransactionMarker | None,
        *,
        timeout_s: float,
    ) -> Applied:
        """Let the event loop make one turn, then return success; no statement is run."""
        await asyncio.sleep(0)
        self._on_applied(marker)
        return Applied()

    async def guarded(self, call: Callable[[Any], Awaitable[T]]) -> T:
        """Raise NotImplementedError: this lane has no session for ``call``."""
        raise NotImplementedError

    async def fence(self) -> None:
        """Do nothing: no statement runs that could be stopped."""

    def renew(self) -> None:
        """Do nothing: the lane has nothing cached."""

    async def prepare(self) -> None:
        """Do nothing: the lane needs no preparation."""


class NullHistories:
    """The commits of no table at all; implements Histories."""

    async def newest(self) -> Mapping[str, Newest]:
        """Return an empty mapping: no table has commits."""
        return {}

    async def commits(self, table: str, count: int) -> Sequence[Commit]:
        """Return no commits: no table has any."""
        return ()


class NullEngine:
    """An engine whose statements succeed at once; implements Engine.

    ``on_applied`` is called with the transaction marker of each write.
    """

    def __init__(
        self, on_applied: Callable[[TransactionMarker | None], None] = lambda marker: None
    ) -> None:
        self._on_applied = on_applied

    async def probe(self, *, timeout_s: float) -> None:
        """Do nothing: the cluster always answers."""

    def copies(self, lane: object = None) -> Copies:
        """Raise NotImplementedError: this engine has no tables to copy."""
        raise NotImplementedError

    async def storage(self, known: str) -> str:
        """Return ``known``, the storage's name; for an empty text return ``null``."""
        return known or "null"

    def session(self, key: str, restore: Restore | None = None, pool: str = "") -> Session:
        """Raise NotImplementedError: this engine has nothing to query."""
        _nothing()

    def lane(self, index: int, authorise: Callable[[], Awaitable[None]]) -> NullLane:
        """Return a lane whose statements succeed at once."""
        return NullLane(self._on_applied)

    async def table_columns(self, table: str) -> list[Column]:
        """Return the same columns for every table."""
        return [*COLUMNS]

    async def plain_columns(self, table: str) -> Sequence[Column] | None:
        """Return the same columns for every table: each stores its values unchanged."""
        return COLUMNS

    async def offsets_applied(self, tables: Sequence[str], application: str) -> Mapping[str, int]:
        """Return an empty mapping: no table has a transaction marker."""
        return {}

    async def check_tables(self, tables: Sequence[str]) -> None:
        """Do nothing: all tables can be used."""

    async def object_fingerprint(self, named: Sequence[Named]) -> str:
        """Return the fingerprint that says that all these objects are absent."""
        return "/".join(ABSENT for _ in named)

    async def keeps_marks(self, table: str) -> bool:
        """Return True: every table keeps transaction markers."""
        return True

    async def default_place(self, table: str) -> str:
        """Return an empty text: tables have no folder."""
        return ""

    async def server_settings(self, names: Collection[str]) -> Mapping[str, str | None]:
        """Return for each setting the value that HAProc requires; None if it requires none."""
        return {**dict.fromkeys(names), **{each.name: each.values[0] for each in REQUIRED}}

    def histories(self) -> NullHistories:
        """Return table histories without any table."""
        return NullHistories()

    async def staged(self) -> Collection[str]:
        """Return nothing: there are no staging tables."""
        return ()

    async def table_states(self) -> Sequence[TableState]:
        """Return nothing: there are no tables."""
        return ()

    async def checksum(self, state: TableState, *, timeout_s: float) -> str:
        """Return an empty text as the checksum of every table."""
        return ""

    async def aclose(self) -> None:
        """Do nothing: there is no connection to close."""


def _nothing() -> NoReturn:
    raise NotImplementedError("the null engine holds nothing")


# One HAProc in this process that drains a backlog, on a cluster that has everything done at once.
#
# The HAProc is the real one, with its doors and its log in SQLite. What is taken is the time from
# its first look at its cluster, just before it begins to read, until its cursor is stored behind
# the last operation; and what its process holds in memory meanwhile.


POLL_S: Final = 0.001
WAIT_S: Final = 900.0
NAMES: Final = "abcde"
OTHER, DRAINING = NAMES[0], NAMES[1]


@dataclass(frozen=True, slots=True)
class Drained:
    """The times of one applied backlog; ``units``: the number of statements sent to the cluster."""

    seconds: float
    cpu_seconds: float
    units: int


def ring_config(folder: Path, size: int) -> Config:
    """Return the configuration of a ring of ``size`` clusters whose log is in ``folder``."""
    ports = iter(free_ports(2 * size))
    here = "127.0.0.1"
    clusters = tuple(
        ClusterConfig(
            name,
            Address(here, next(ports)),
            Address(here, next(ports)),
            EngineAddress(here, 1),
        )
        for name in NAMES[:size]
    )
    return Config(
        "bench",
        f"sqlite://{folder}/log.db",
        clusters,
        "a-secret-of-usual-length",
        folder / "state",
        allow_anonymous=True,
    )


class _Watched(NullEngine):
    """A NullEngine that notes the time of its first lane, and the end of the last operation."""

    def __init__(self, count: int) -> None:
        super().__init__(self._applied)
        self._left = count
        self.last = asyncio.Event()
        self.began: tuple[float, float] | None = None
        self.units = 0

    def lane(self, index: int, authorise: object) -> NullLane:
        """Return a lane; with the first one the measured time begins."""
        if self.began is None:
            self.began = time.perf_counter(), time.process_time()
        return NullLane(self._applied)

    def _applied(self, marker: TransactionMarker | None) -> None:
        self.units += 1
        if marker is not None and marker.version >= self._left - 1:
            self.last.set()


async def drain(config: Config, count: int) -> Drained:
    """Run a HAProc until it has applied a log of ``count`` operations; return the times."""
    engine: _Watched | None = None

    def null(config: Config, name: str) -> _Watched:
        nonlocal engine
        engine = _Watched(count)
        return engine

    node = Node(config, DRAINING, null)
    running = asyncio.ensure_future(node.run())
    log = await open_log(config.log)
    try:
        async with asyncio.timeout(WAIT_S):
            while engine is None:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
            await engine.last.wait()
            await _stored(log, count)
            seconds, cpu = time.perf_counter(), time.process_time()
    finally:
        await log.close()
        node.stop()
        await running
    assert engine.began is not None
    began_s, began_cpu_s = engine.began
    return Drained(seconds - began_s, cpu - began_cpu_s, engine.units)


async def _stored(log: Log, offset: int) -> None:
    while (cursor := await log.load_cursor(DRAINING)) is None or cursor.offset < offset:  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
