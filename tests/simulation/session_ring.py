"""HAProcs that own clients' sessions, their Sparks and their store, on a virtual clock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from dmq import LogUnavailableError
from dmq.key_value import Kept
from dmq.memory import MemoryKeys, MemoryKeyValueStore
from haproc.config.sections import Limits
from haproc.config.shares import Shares
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import (
    Column,
    Fresh,
    Observed,
    Restore,
    ResultStream,
    SessionFile,
    Settings,
)
from haproc.engine.statement import SqlText, Statement
from haproc.engine.tasks import Planned
from haproc.route.streams import Collected
from haproc.sessions.client import ClientSession
from haproc.sessions.durable import Blobs, Numbered, SessionStore
from haproc.sessions.sessions import Sessions, Surroundings
from tests.simulation.session_spark import (
    Change,
    Held,
    Interpreter,
    Tables,
    differences,
    tables_at,
)
from tests.simulation.violations import Problem, Violation
from tests.unit.session_rig import DEFAULTS, FakeEngine, FakeSpark

T = TypeVar("T")
NAMES = "abc"
"""The names of HAProcs, of tables, and of temporary views that may hide one."""
TIMEOUT_S = 3.0


class AwayError(Exception):
    """A HAProc does not answer."""


@dataclass
class World:
    """The shared parts of all HAProcs, and the random source."""

    chance: random.Random
    keys: MemoryKeys = field(default_factory=MemoryKeys)
    log: list[Change] = field(default_factory=list)
    witnessed: dict[tuple[str, int], Held] = field(default_factory=dict)
    """The content of a session after each entry, by its adoption and ordinal."""
    healed: bool = False
    names: int = 0
    numbers: int = 0
    problems: list[Problem] = field(default_factory=list)
    late: list[asyncio.Task[None]] = field(default_factory=list)

    def name(self) -> str:
        self.names += 1
        return f"n{self.names}"

    def number(self) -> int:
        """Return a new number."""
        self.numbers += 1
        return self.numbers

    def happens(self, probability: float) -> bool:
        return not self.healed and self.chance.random() < probability

    def later(self, change: Coroutine[Any, Any, Any]) -> None:
        """Let a change take effect after it was given up."""

        async def land() -> None:
            await asyncio.sleep(self.chance.uniform(0, 4))
            await change

        self.late.append(asyncio.create_task(land()))


class SlowStore(MemoryKeyValueStore):
    """The store as one HAProc reaches it."""

    def __init__(self, world: World, haproc: HAProc) -> None:
        super().__init__(world.keys)
        self._world, self._haproc = world, haproc

    async def put(self, key: str, value: bytes) -> int:
        return await self._change(lambda: MemoryKeyValueStore.put(self, key, value))

    async def delete(self, key: str) -> None:
        await self._change(lambda: MemoryKeyValueStore.delete(self, key))

    async def scan(self, prefix: str) -> dict[str, Kept]:
        await self._travel()
        found = {k: v for k, v in sorted(self._shared.kept.items()) if k.startswith(prefix)}
        await self._travel()
        return found

    async def keys(self, prefix: str) -> list[str]:
        await self._travel()
        found = await super().keys(prefix)
        await self._travel()
        return found

    async def _change(self, change: Callable[[], Coroutine[Any, Any, T]]) -> T:
        await self._travel()
        if self._world.happens(0.02):
            self._world.later(change())
            raise LogUnavailableError("no answer")
        result = await change()
        await self._travel()
        if self._world.happens(0.02):
            raise LogUnavailableError("the answer was lost")
        return result

    async def _travel(self) -> None:
        await self._haproc.runs()
        await asyncio.sleep(self._world.chance.uniform(0, 0.02))
        await self._haproc.runs()


class SimSpark(FakeSpark):
    """A slow Spark session."""

    session: ClientSession
    """The client's session that it belongs to; set when that is entered."""

    def __init__(self, key: str, restore: Restore | None, haproc: HAProc) -> None:
        super().__init__(key, self._made_anew, FakeEngine())
        self._haproc, self._from_journal = haproc, restore
        self.made, self.truth = Held(DEFAULTS), Held(DEFAULTS)
        self.behind = Held(DEFAULTS)
        """Its content right after the last statement that changed it."""
        self._generation = 0

    def lose(self) -> None:
        super().lose()
        self._generation += 1

    async def query(
        self,
        statement: Statement,
        *,
        timeout_s: float,
        planned: Planned | None = None,
        observed: Observed | None = None,
    ) -> ResultStream:
        await self.ready()
        generation = self._generation
        await self._haproc.pause(0.05)
        if generation != self._generation:
            raise EngineError(ErrorKind.AVAILABILITY, "Spark lost the session")
        chunks: tuple[bytes, ...] = ()
        if isinstance(statement, SqlText) and statement.sql.startswith("USE "):
            now = replace(self.made.settings, schema=statement.sql.removeprefix("USE "))
            self.made.settings = self.truth.settings = now
        elif isinstance(statement, SqlText) and statement.sql.startswith("SELECT "):
            chunks = (self._interpreter().values_of(statement.sql),)
        else:
            self._interpreter().run(statement)
        if not chunks:
            self.behind = self.truth.copy()
            self._haproc.may_lose(self)
        await self._haproc.pause(0.05)
        return Collected(chunks)

    async def settings(self) -> Settings:
        await self.ready()
        return self.made.settings

    async def untouched(self, names: Sequence[str]) -> Mapping[str, str | None]:
        return dict.fromkeys(names)

    async def columns(self, sql: str) -> list[Column]:
        await self.ready()
        return self.columns_now(sql)

    def columns_now(self, sql: str) -> list[Column]:
        """Return the columns of ``SELECT * FROM`` a name, or of variables."""
        if "session." in sql:
            return [Column(each, "bigint") for each in sql.split(",")]
        found = self.made.analysed(sql.rpartition(" ")[2].strip("`"), self._haproc.tables())
        if found is None:
            raise EngineError(ErrorKind.APPLICATION, "not found", error_class="NOT_FOUND")
        return [Column(name, "bigint") for name in found[0]]

    async def _made_anew(self, fresh: Fresh) -> None:
        self._generation += 1
        if self._from_journal is None:
            return
        making = Making(self, self._haproc)
        await self._from_journal(making)
        self.truth = self._haproc.judge(self.made, making)

    def _interpreter(self) -> Interpreter:
        return self._haproc.interpreter(self.made, self.truth)


class Making:
    """A Spark session while it is rebuilt from its journal."""

    def __init__(self, spark: SimSpark, haproc: HAProc) -> None:
        self._spark, self._haproc = spark, haproc
        self._begun = False
        self.last: Numbered | None = None
        """The last entry of the journal that it is rebuilt from."""
        self.began = 0
        """The offset that the cluster had applied then."""

    def _begin(self) -> None:
        if self._begun:
            return
        self._begun, self.began = True, self._haproc.applied
        entries = self._spark.session.entries
        self.last = entries[-1] if entries else None
        self._spark.made, self._spark.truth = Held(DEFAULTS), Held(DEFAULTS)

    async def configure(self, settings: Settings) -> None:
        self._begin()
        await asyncio.sleep(0)
        self._spark.made.settings = settings

    async def run_change(self, statement: Statement, *, timeout_s: float) -> None:
        self._begin()
        await self._haproc.pause(0.02)
        self._haproc.interpreter(self._spark.made, self._spark.truth).run(statement)

    async def columns(self, sql: str) -> list[Column]:
        self._begin()
        await self._haproc.pause(0.02)
        return self._spark.columns_now(sql)

    async def add_files(self, files: Sequence[SessionFile]) -> None:
        raise NotImplementedError


class HAProc:
    """One HAProc of the three: alive, frozen, killed and started again."""

    def __init__(self, world: World, cluster: str) -> None:
        self._world, self._cluster = world, cluster
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.applied = 0
        self.start()

    def start(self) -> None:
        world = self._world
        self.sparks: list[SimSpark] = []
        store = SlowStore(world, self)
        loop = asyncio.get_running_loop()

        def unix_ms() -> int:
            return int(loop.time() * 1000)

        durable = SessionStore(store, self._cluster, world.name, unix_ms)
        around = Surroundings("ring", self, DEFAULTS, Limits(), 60.0, self._caught_up, loop.time)
        self.sessions = Sessions(around, durable, Blobs(store, world.name, unix_ms), Shares(1000))

    def session(self, key: str, restore: Restore | None = None, pool: str = "") -> SimSpark:
        self.sparks.append(SimSpark(key, restore, self))
        return self.sparks[-1]

    async def enter(self, name: str) -> tuple[ClientSession, SimSpark]:
        """Return a session; begin it if there is none."""
        found = await self.sessions.enter("u", name, create=True)
        assert isinstance(found.spark, SimSpark)
        found.spark.session = found
        return found, found.spark

    def may_lose(self, spark: SimSpark) -> None:
        """Restart Spark now and then right after a statement."""
        if self._world.happens(0.02):
            spark.lose()

    def kill(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        self.thaw()
        self.start()

    def freeze(self) -> None:
        self._thawed.clear()

    def thaw(self) -> None:
        self._thawed.set()

    async def runs(self) -> None:
        await self._thawed.wait()

    async def pause(self, seconds: float) -> None:
        await self.runs()
        await asyncio.sleep(self._world.chance.uniform(0, seconds))
        await self.runs()

    async def applies(self, end: int) -> None:
        await self.pause(0.2)
        self.applied = max(self.applied, end)

    def tables(self, end: int | None = None) -> Tables:
        """Return the cluster's tables, now or after so many changes."""
        return tables_at(NAMES, self._world.log[: self.applied if end is None else end])

    def interpreter(self, made: Held, truth: Held) -> Interpreter:
        """Return a runner of statements in a session now."""
        return Interpreter(made, truth, self.tables(), lambda: self._world.chance.randrange(10**9))

    def judge(self, made: Held, making: Making) -> Held:
        """Compare a rebuilt session with its earlier content; return that."""
        last = making.last
        if last is None:
            before = Held(DEFAULTS)
        else:
            before = self._world.witnessed[last.adoption, last.ordinal]
        seen = [self.tables(end) for end in range(making.began, self.applied + 1)]
        for text in differences(made, before, seen):
            self._world.problems.append(Problem(Violation.ANOTHER, text))
        return before.copy()

    async def _caught_up(self) -> None:
        await self.runs()
        await self.applies(len(self._world.log))

    async def ask(self, what: Callable[[HAProc], Awaitable[T]]) -> T:
        """Run a request here; AwayError if there is no answer, RequestError as raised."""

        async def served() -> T:
            return await what(self)

        task = asyncio.create_task(served())
        self._tasks[task] = None
        hurries = self._world.happens(0.25)
        patience_s = self._world.chance.uniform(0, 0.3) if hurries else TIMEOUT_S
        done, _ = await asyncio.wait({task}, timeout=patience_s)
        if not done and self._world.chance.random() < 0.5:
            task.cancel()
        if not done or task.cancelled():
            task.add_done_callback(lambda each: each.cancelled() or each.exception())
            raise AwayError
        self._tasks.pop(task, None)
        return task.result()
