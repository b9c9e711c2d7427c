"""A simulated Spark cluster: SQLite for the tables, and Delta's rules for marks and conflicts.

What it takes from Delta: a write whose mark's version is not above the table's last one is
skipped; the mark is committed with the data; a statement that finds at its commit that another
one of the same application committed since it began fails (ConcurrentTransactionException); a
DELETE or UPDATE that matches nothing leaves no mark; DDL knows no marks. What it takes from Spark:
a statement goes on when its client dies, and may or may not have committed when the server dies.
"""

from __future__ import annotations

import asyncio
import random
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence

from haproc.engine.errors import REFUSED, EngineError, ErrorKind
from haproc.engine.interface import Applied, Mark, RowsWrite, Settings, SqlWrite, TableState

_TARGET = re.compile(r"(?:INSERT INTO|UPDATE|DELETE FROM)\s+(\w+)")
_STATES = (("already exists", "42P07"), ("no such table", "42P01"), ("CHECK constraint", "23001"))


class SimSpark:
    """One cluster; its tables survive `kill`, what runs does not."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self.up = True
        self.environment_error_rate = 0.0
        self.refuses: set[str] = set()
        """Statements that meet an application error here."""
        self.poison: set[str] = set()
        """Statements that meet an environment error here, as often as they are tried."""
        self.poison_word = ""
        """A part of such statements."""
        self.on_commit: Callable[[str, str], None] = lambda cluster, sql: None
        """Called with the cluster's name and the statement whenever one commits."""
        self._rng = rng
        self._disk = sqlite3.connect(":memory:", isolation_level=None)
        self._life = 0
        self._versions: dict[str, int] = {}
        self._marks: dict[str, int] = {}
        self._notes: dict[str, int] = {}
        self._generations: dict[int, int] = {}
        self._running: dict[int, set[asyncio.Task[Applied]]] = {}
        self._kept: dict[tuple[str, int], str] = {}

    def kill(self) -> None:
        """The server dies: what has not committed never will."""
        self.up = False
        self._life += 1

    def restart(self) -> None:
        """The server is back over the same tables."""
        self.up = True

    def dump(self) -> dict[str, list[tuple[object, ...]]]:
        """Return every table's rows, sorted."""
        names = [
            row[0]
            for row in self._disk.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return {
            name: sorted(self._disk.execute(f"SELECT * FROM {name}"), key=repr)
            for name in sorted(names)
        }

    # -- Engine ----------------------------------------------------------------------------

    def _check(self, life: int | None = None) -> None:
        if not self.up:
            raise EngineError(ErrorKind.AVAILABILITY, "refused", error_class=REFUSED)
        if life is not None and life != self._life:
            raise EngineError(ErrorKind.AVAILABILITY, "the connection broke")

    async def probe(self, *, timeout_s: float) -> None:
        await asyncio.sleep(self._rng.uniform(0, 0.02))
        self._check()

    async def offsets_applied(self, tables: Sequence[str], application: str) -> Mapping[str, int]:
        await asyncio.sleep(self._rng.uniform(0, 0.2))
        self._check()
        return {table: self._notes[table] for table in tables if table in self._notes}

    async def table_states(self) -> Sequence[TableState]:
        await asyncio.sleep(self._rng.uniform(0, 0.3))
        self._check()
        states = []
        for name, rows in self.dump().items():
            states.append(TableState(name, self._versions.get(name, 0)))
            self._kept[name, self._versions.get(name, 0)] = repr(rows)
        return states

    async def checksum(self, state: TableState, *, timeout_s: float) -> str:
        await asyncio.sleep(self._rng.uniform(0, 0.5))
        self._check()
        if state.name not in self.dump():
            raise EngineError(ErrorKind.APPLICATION, "dropped meanwhile", sqlstate="42P01")
        assert state.version is not None
        return self._kept[state.name, state.version]

    def mend(self, sql: str) -> None:
        """Somebody runs a statement past HAProc."""
        self._disk.execute(sql)

    def note(self, table: str, version: int) -> None:
        """A table's newest commit has this mark."""
        self._notes[table] = self._marks[table] = version

    def empty(self) -> None:
        """Somebody drops every table."""
        for name in self.dump():
            self._disk.execute(f"DROP TABLE {name}")
        self._marks, self._notes = {}, {}

    # -- statements ------------------------------------------------------------------------

    def start(self, lane: int, sql: str, mark: Mark | None) -> asyncio.Task[Applied]:
        """Start a statement that belongs to the cluster, not to who asked for it."""
        task = asyncio.get_running_loop().create_task(self._execute(sql, mark))
        running = self._running.setdefault(lane, set())
        running.add(task)
        task.add_done_callback(running.discard)
        task.add_done_callback(lambda t: None if t.cancelled() else t.exception())
        return task

    async def fence(self, lane: int) -> int:
        """End all that runs in a lane, and refuse what comes late; return its new generation."""
        self._check()
        self._generations[lane] = self._generations.get(lane, 0) + 1
        running = sorted(self._running.get(lane, ()), key=lambda t: t.get_name())
        for task in running:
            task.cancel()
        await asyncio.sleep(self._rng.uniform(0, 0.05))
        self._check()
        return self._generations[lane]

    def generation(self, lane: int) -> int:
        return self._generations.get(lane, 0)

    async def _execute(self, sql: str, mark: Mark | None) -> Applied:
        self._check()
        life = self._life
        await asyncio.sleep(self._rng.expovariate(5))  # in Spark's queue
        self._check(life)
        match = _TARGET.match(sql)
        target = match.group(1) if match else ""
        version = self._versions.get(target, 0)
        guarded = mark is not None and mark.guarded
        if mark is not None and guarded and self._marks.get(target, -1) >= mark.version:
            return Applied()
        await asyncio.sleep(self._rng.expovariate(5))  # at work
        self._check(life)
        poisoned = sql in self.poison or (self.poison_word and self.poison_word in sql)
        if poisoned or self._rng.random() < self.environment_error_rate:
            raise EngineError(ErrorKind.ENVIRONMENT, "out of memory", error_class="OOM")
        if guarded and self._versions.get(target, 0) != version:
            raise EngineError(ErrorKind.ENVIRONMENT, "concurrent transaction", error_class="TXN")
        rows = self._commit(sql)
        if target and (rows or sql.startswith("INSERT")):
            self._versions[target] = version + 1
            if mark is not None:
                self._notes[target] = mark.version
            if mark is not None and guarded:
                self._marks[target] = mark.version
        await asyncio.sleep(self._rng.expovariate(50))
        self._check(life)
        return Applied(affected_rows=rows)

    def _commit(self, sql: str) -> int:
        if sql in self.refuses:
            raise EngineError(
                ErrorKind.APPLICATION, "refused", error_class="REFUSED_HERE", sqlstate="42501"
            )
        try:
            rows = self._disk.execute(sql).rowcount
        except sqlite3.Error as error:
            state = next((s for text, s in _STATES if text in str(error)), "42000")
            raise EngineError(
                ErrorKind.APPLICATION, str(error), error_class="SIM", sqlstate=state
            ) from error
        self.on_commit(self.name, sql)
        return rows


class SimEngine:
    """One incarnation's connection to a cluster; see `haproc.engine.interface.Engine`."""

    def __init__(self, spark: SimSpark) -> None:
        self._spark = spark
        self._lanes: dict[int, SimLane] = {}

    async def probe(self, *, timeout_s: float) -> None:
        await self._spark.probe(timeout_s=timeout_s)

    async def offsets_applied(self, tables: Sequence[str], application: str) -> Mapping[str, int]:
        return await self._spark.offsets_applied(tables, application)

    async def table_states(self) -> Sequence[TableState]:
        return await self._spark.table_states()

    async def checksum(self, state: TableState, *, timeout_s: float) -> str:
        return await self._spark.checksum(state, timeout_s=timeout_s)

    def lane(self, index: int) -> SimLane:
        return self._lanes.setdefault(index, SimLane(self._spark, index))


class SimLane:
    """See `haproc.engine.interface.Lane`."""

    def __init__(self, spark: SimSpark, index: int) -> None:
        self._spark = spark
        self._index = index
        self._generation = spark.generation(index)

    async def apply(
        self,
        write: SqlWrite | RowsWrite,
        settings: Settings,
        mark: Mark | None,
        *,
        timeout_s: float,
    ) -> Applied:
        assert isinstance(write, SqlWrite)
        if self._spark.generation(self._index) != self._generation:
            raise EngineError(ErrorKind.AVAILABILITY, "the session was closed")
        task = self._spark.start(self._index, write.sql, mark)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise EngineError(ErrorKind.AVAILABILITY, "interrupted") from None
            raise

    async def fence(self) -> None:
        self._generation = await self._spark.fence(self._index)
