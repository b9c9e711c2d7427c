"""A simulated Spark cluster: SQLite for the tables, and Delta's rules for markers and conflicts.

From Delta: a write whose marker's version is not above the table's last one is skipped; the marker
is committed with the data; a statement fails (ConcurrentTransactionException) if another one of the
same application has committed since it began; a DELETE or UPDATE without matching rows leaves no
marker; DDL has no markers. From Spark: a statement goes on when its client dies, and may or may not
have committed when the server dies; a session is made by the first request for it and forgotten
when the server dies; the marker is determined by the session's current settings. The lanes are the
real ones, see `connect`.
"""

from __future__ import annotations

import asyncio
import random
import re
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

from haproc.classify.names import STAGING_SCHEMA
from haproc.engine.errors import REFUSED, SESSION_CHANGED, EngineError, ErrorKind
from haproc.engine.interface import (
    ABSENT,
    PRESENT,
    Applied,
    Column,
    Lane,
    Named,
    Sort,
    TableState,
)
from haproc.engine.lane import Authorise, SparkLane, lane_session_id
from haproc.engine.pieces import CATALOG
from haproc.engine.placeholder import column_names
from haproc.engine.remote import RemoteSession
from haproc.failure import ErrorClass
from tests.simulation.connect import SimChannel, SimSession
from tests.simulation.copies import Shelf, SimCopies, checksum
from tests.simulation.foreign import Past, SimHistories
from tests.simulation.merging import executed
from tests.simulation.places import Places
from tests.simulation.plans import DROP_STAGING, NOTHING, STAGING
from tests.simulation.queries import SimReading

T = TypeVar("T")
_TARGET = re.compile(r"(?:INSERT INTO|UPDATE|DELETE FROM|MERGE INTO)\s+(\w+)")
_MADE = re.compile(r"CREATE TABLE (\w+)")
_WHOLE = frozenset({"k", "n"})
"""Columns of integers; all others are of text."""
_STATES = (
    ("already exists", "42P07"),
    ("no such table", "42P01"),
    ("duplicate column", "42711"),
    ("CHECK constraint", "23001"),
)


class SimSpark:
    """One cluster; its tables survive `kill`, its running statements do not."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self.up = True
        self.environment_error_rate = 0.0
        self.statement_s = 0.0
        """The time of each statement, in addition to the little that it always takes."""
        self.query_s = 0.0
        """The same for queries."""
        self.refuses: set[str] = set()
        """Statements with an application error here."""
        self.poison: set[str] = set()
        """Statements with an environment error here, at each attempt."""
        self.torn: set[str] = set()
        """Statements that commit once, and end with `torn_error` each time that they run."""
        self.torn_error = EngineError(ErrorKind.ENVIRONMENT, "out of memory", error_class="OOM")
        """The error of the statements in `torn`."""
        self.deadly: set[str] = set()
        """Statements that crash the server; it is started again."""
        self.held: set[str] = set()
        """Tables whose statements wait as long as the table is in this set."""
        self.storage_away = False
        """No table can be found: probes report the storage, statements a missing table."""
        self.poison_word = ""
        """Statements that contain this word meet the error of `poison`."""
        self.on_commit: Callable[[str, str], None] = lambda cluster, sql: None
        """Called with the cluster's name and the statement at each commit."""
        self._rng = rng
        self._disk = sqlite3.connect(":memory:", isolation_level=None)
        self._disk.create_function("chance", 0, lambda: rng.randrange(1 << 40))
        self._life = 0
        self._versions: dict[str, int] = {}
        self._marks: dict[str, int] = {}
        self._notes: dict[str, int] = {}
        self._sessions: dict[str, SimSession] = {}
        self._spent: set[str] = set()
        self._sessions_made = 0
        self._kept: dict[tuple[str, int], str] = {}
        self.shelf = Shelf()
        self.places = Places()
        self.past = Past()

    def kill(self) -> None:
        """Kill the server: uncommitted statements never commit."""
        self.up = False
        self._life += 1
        self._sessions.clear()
        self._spent.clear()
        self.shelf.parts.clear()

    def restart(self) -> None:
        """Start the server again over the same tables."""
        self.up = True

    def dump(self) -> dict[str, list[tuple[object, ...]]]:
        """Return every table's rows, sorted."""
        return {
            name: sorted(self._disk.execute(f"SELECT * FROM {name}"), key=repr)
            for name in sorted(self._names())
            if not name.startswith(STAGING)
        }

    def staged(self) -> list[str]:
        """Return the existing staging tables."""
        return [name for name in self._names() if name.startswith(STAGING)]

    def _names(self) -> list[str]:
        found = self._disk.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        return [row[0] for row in found]

    # -- Engine ----------------------------------------------------------------------------

    def _check(self, life: int | None = None) -> None:
        if not self.up:
            raise EngineError(ErrorKind.AVAILABILITY, "refused", error_class=REFUSED)
        if life is not None and life != self._life:
            raise EngineError(ErrorKind.AVAILABILITY, "the connection broke")

    async def probe(self, *, timeout_s: float) -> None:
        await asyncio.sleep(self._rng.uniform(0, 0.02))
        self._check()
        self._check_storage()

    def _check_storage(self) -> None:
        if self.storage_away:
            raise EngineError(
                ErrorKind.ENVIRONMENT, "not mounted", error_class=ErrorClass.STORAGE_AWAY
            )

    async def look(self) -> None:
        """Answer a request for the list of tables."""
        await asyncio.sleep(self._rng.uniform(0, 0.05))
        self._check()
        self._check_storage()

    def object_fingerprint(self, named: Named) -> str:
        """Return the present fingerprint of a table."""
        table = named.name.rpartition(".")[2]
        made = self.definition(table)
        if not made:
            return ABSENT
        return f"{made}@{self._versions.get(table, 0)}" if named.content else PRESENT

    async def offsets_applied(self, tables: Sequence[str], application: str) -> Mapping[str, int]:
        await asyncio.sleep(self._rng.uniform(0, 0.2))
        self._check()
        self._check_storage()
        return {table: self._notes[table] for table in tables if table in self._notes}

    async def table_states(self) -> Sequence[TableState]:
        await asyncio.sleep(self._rng.uniform(0, 0.3))
        self._check()
        states = []
        for name, rows in self.dump().items():
            states.append(TableState(name, self._versions.get(name, 0)))
            self._kept[name, self._versions.get(name, 0)] = checksum(rows)
        return states

    async def checksum(self, state: TableState, *, timeout_s: float) -> str:
        await asyncio.sleep(self._rng.uniform(0, 0.5))
        self._check()
        name = state.name.rpartition(".")[2].strip("`")
        if name not in self.dump():
            raise EngineError(ErrorKind.APPLICATION, "dropped meanwhile", sqlstate="42P01")
        assert state.version is not None
        return self.shelf.checksum(name, state.version) or self._kept[name, state.version]

    def columns(self, table: str) -> list[str]:
        """Return a table's columns; empty if there is no such table."""
        return [row[1] for row in self._disk.execute(f"PRAGMA table_info({table})")]

    async def work(self, most_s: float) -> None:
        """Take a moment, like a request that needs some work."""
        life = self._life
        self._check(life)
        await asyncio.sleep(self._rng.uniform(0, most_s))
        self._check(life)
        self._check_storage()

    def definition(self, table: str) -> str:
        """Return what a table was created by; nothing if there is no such table."""
        found = self._disk.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,))
        return str((found.fetchone() or ("",))[0])

    def drop(self, table: str) -> None:
        """Drop a table, with its markers."""
        self._disk.execute(f"DROP TABLE {table}")
        for known in (self._marks, self._notes, self._versions, self.shelf.whole):
            known.pop(table, None)

    def make(self, table: str, made: str, rows: Sequence[Sequence[object]], marker: int) -> None:
        """Make a table of rows, with a marker."""
        self._disk.execute(made)
        self._insert(table, rows)
        self.note(table, marker)

    def _insert(self, table: str, rows: Sequence[Sequence[object]]) -> None:
        if rows:
            values = ", ".join("?" * len(rows[0]))
            self._disk.executemany(f"INSERT INTO {table} VALUES ({values})", rows)

    def mend(self, sql: str) -> None:
        """Run a statement past HAProc; its commit is not in `past` unless a test notes it there."""
        self._disk.execute(sql)

    def note(self, table: str, version: int) -> None:
        """Set the marker of a table's newest commit."""
        self._notes[table] = self._marks[table] = version

    def empty(self) -> None:
        """Drop every table, past HAProc."""
        for name in self.dump():
            self._disk.execute(f"DROP TABLE {name}")
        self._marks, self._notes = {}, {}

    # -- sessions and statements -----------------------------------------------------------

    async def travel(self) -> None:
        """Take the time of a message."""
        await asyncio.sleep(self._rng.uniform(0, 0.005))

    def session(self, session_id: str, observed: str, *, make: bool) -> SimSession:
        """Return a session for a request."""
        self._check()
        if session_id in self._spent:
            raise _lost("SESSION_CLOSED")
        found = self._sessions.get(session_id)
        if found is None and not make:
            raise _lost("SESSION_NOT_FOUND")
        if found is None:
            self._sessions_made += 1
            found = self._sessions[session_id] = SimSession(f"{self.name}{self._sessions_made}")
        if observed and observed != found.server_id:
            raise _lost(SESSION_CHANGED.rpartition(".")[2])
        return found

    def release(self, session_id: str, *, reconnect: bool) -> None:
        """Drop a session and its running statements."""
        self._check()
        found = self._sessions.pop(session_id, None)
        if found is not None:
            self.interrupt(found)
            if not reconnect:
                self._spent.add(session_id)

    def interrupt(self, session: SimSession) -> None:
        """Stop the running statements of a session."""
        for task in list(session.running.values()):
            task.cancel()

    def start(self, session: SimSession, operation_id: str, sql: str) -> asyncio.Task[Applied]:
        """Start a statement that belongs to the cluster, not to its caller."""
        task = asyncio.get_running_loop().create_task(self._execute(session, sql))
        session.running[operation_id] = task
        task.add_done_callback(lambda _: session.running.pop(operation_id, None))
        task.add_done_callback(lambda t: None if t.cancelled() else t.exception())
        return task

    async def _execute(self, session: SimSession, sql: str) -> Applied:
        self._check()
        idle = sql == DROP_STAGING and not self.staged()
        if sql.startswith("USE ") or sql == NOTHING or idle:
            return Applied()
        life = self._life
        await asyncio.sleep(self._rng.expovariate(5))  # in Spark's queue
        self._check(life)
        match = _TARGET.match(sql)
        target = match.group(1) if match else ""
        version = self._versions.get(target, 0)
        made = _MADE.match(sql)
        while (made.group(1) if made else target) in self.held:
            await asyncio.sleep(0.05)
            self._check(life)
        mark = session.mark
        guarded = mark is not None and mark.guarded
        torn = sql in self.torn
        if torn and mark is not None and self._marks.get(target, -1) >= mark.version:
            raise self.torn_error
        if mark is not None and guarded and self._marks.get(target, -1) >= mark.version:
            return Applied()
        await asyncio.sleep(self.statement_s + self._rng.expovariate(5))  # at work
        self._check(life)
        if sql in self.deadly:
            self.kill()
            asyncio.get_running_loop().call_later(1, self.restart)
            self._check(life)
        self._check_memory(sql)
        if guarded and self._versions.get(target, 0) != version:
            raise EngineError(ErrorKind.ENVIRONMENT, "concurrent transaction", error_class="TXN")
        mark = session.mark
        rows = self._commit(sql)
        if target and (rows or sql.startswith("INSERT")):
            self.shelf.whole.pop(target, None)
            self._versions[target] = version + 1
            if mark is not None:
                self._notes[target] = mark.version
            if mark is not None and guarded:
                self._marks[target] = mark.version
        if torn:
            raise self.torn_error
        await asyncio.sleep(self._rng.expovariate(50))
        self._check(life)
        return Applied(affected_rows=rows)

    def _check_memory(self, sql: str) -> None:
        poisoned = sql in self.poison or (self.poison_word and self.poison_word in sql)
        if poisoned or self._rng.random() < self.environment_error_rate:
            raise EngineError(ErrorKind.ENVIRONMENT, "out of memory", error_class="OOM")

    async def read(self, sql: str, table: str = "") -> tuple[list[str], list[tuple[object, ...]]]:
        """Run a query on the tables as of one moment while it runs.

        With ``table``, its result becomes a staging table.
        """
        self._check()
        life = self._life
        await asyncio.sleep(self.query_s + self._rng.expovariate(5))
        self._check(life)
        self._check_memory(sql)
        try:
            cursor = self._disk.execute(sql)
            found = [each[0] for each in cursor.description], cursor.fetchall()
            if table:
                found = self._fill(table, *found)
        except sqlite3.Error as error:
            raise _application_error(error) from error
        await asyncio.sleep(self._rng.expovariate(20))
        self._check(life)
        return found

    def _fill(
        self, table: str, names: list[str], rows: list[tuple[object, ...]]
    ) -> tuple[list[str], list[tuple[object, ...]]]:
        columns = ", ".join(column_names(len(names)))
        self._disk.execute(f"CREATE TABLE {table} ({columns})")
        self._insert(table, rows)
        self.on_commit(self.name, f"CREATE TABLE {table} of {len(rows)} rows")
        return [], []

    def _commit(self, sql: str) -> int:
        if self.storage_away:
            raise EngineError(
                ErrorKind.APPLICATION,
                "no such table",
                error_class="DELTA_TABLE_NOT_FOUND",
                sqlstate="42P01",
            )
        if sql in self.refuses:
            raise EngineError(
                ErrorKind.APPLICATION, "refused", error_class="REFUSED_HERE", sqlstate="42501"
            )
        if sql == DROP_STAGING:
            for name in self.staged():
                self._disk.execute(f"DROP TABLE {name}")
            return 0
        try:
            rows = executed(self._disk, sql)
        except sqlite3.Error as error:
            raise _application_error(error) from error
        self.on_commit(self.name, sql)
        return rows


def _application_error(error: sqlite3.Error) -> EngineError:
    state = next((s for text, s in _STATES if text in str(error)), "42000")
    return EngineError(ErrorKind.APPLICATION, str(error), error_class="SIM", sqlstate=state)


def _lost(what: str) -> EngineError:
    return EngineError(
        ErrorKind.AVAILABILITY, "the session is lost", error_class=f"INVALID_HANDLE.{what}"
    )


class SimEngine:
    """One process's connection to a cluster; see `haproc.engine.interface.Engine`.

    ``check`` returns while the process lives and is not frozen.
    """

    def __init__(self, spark: SimSpark, check: Callable[[], Awaitable[None]]) -> None:
        self._spark = spark
        self._check = check
        self._channel = SimChannel(spark, check)
        self._lanes: dict[int, SparkLane] = {}

    async def _answer_of(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the cluster's answer; wait while this process is frozen, for ever if dead."""
        await self._check()
        found = await ask()
        await self._check()
        return found

    async def _seen(self, see: Callable[[SimSpark], T]) -> T:
        """Return what a look at the cluster's tables shows."""

        async def look() -> T:
            await self._spark.look()
            return see(self._spark)

        return await self._answer_of(look)

    async def probe(self, *, timeout_s: float) -> None:
        await self._answer_of(lambda: self._spark.probe(timeout_s=timeout_s))

    async def storage(self, known: str) -> str:
        return await self._seen(lambda spark: f"storage of {spark.name}")

    async def check_tables(self, tables: Sequence[str]) -> None:
        await self._answer_of(self._spark.look)

    async def object_fingerprint(self, named: Sequence[Named]) -> str:
        return await self._seen(lambda spark: "/".join(map(spark.object_fingerprint, named)))

    async def keeps_marks(self, table: str) -> bool:
        await self._answer_of(self._spark.look)
        return self._spark.object_fingerprint(Named(Sort.TABLE, table)) != ABSENT

    async def default_place(self, table: str) -> str:
        return ""

    async def plain_columns(self, table: str) -> Sequence[Column] | None:
        names = await self._seen(lambda spark: spark.columns(table))
        return [Column(n, "int" if n in _WHOLE else "string") for n in names] or None

    async def server_settings(self, names: Collection[str]) -> Mapping[str, str | None]:
        return dict.fromkeys(names)

    async def offsets_applied(self, tables: Sequence[str], application: str) -> Mapping[str, int]:
        return await self._answer_of(lambda: self._spark.offsets_applied(tables, application))

    def copies(self, lane: Lane | None = None) -> SimCopies:
        return SimCopies(self._spark, self._check, lane)

    def histories(self) -> SimHistories:
        return SimHistories(self._spark, self._check)

    async def staged(self) -> Collection[str]:
        prefix = f"{CATALOG}.{STAGING_SCHEMA}."
        found = await self._seen(lambda spark: spark.staged())
        return {prefix + name.removeprefix(STAGING) for name in found}

    async def table_states(self) -> Sequence[TableState]:
        return await self._answer_of(self._spark.table_states)

    async def checksum(self, state: TableState, *, timeout_s: float) -> str:
        return await self._answer_of(lambda: self._spark.checksum(state, timeout_s=timeout_s))

    def lane(self, index: int, authorise: Authorise) -> SparkLane:
        if index not in self._lanes:
            name = self._spark.name
            remote = RemoteSession(self._channel, lambda n: lane_session_id("ring", name, index, n))
            self._lanes[index] = SparkLane(remote, self._defaults, authorise)
        return self._lanes[index]

    def session(self, key: str, restore: object = None, pool: str = "") -> SimReading:
        return SimReading(self._spark, self._check)

    async def _defaults(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        return dict.fromkeys(keys)
