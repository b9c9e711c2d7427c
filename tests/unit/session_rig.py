"""A ring's sessions over a key-value store in memory; a fake Spark records its input."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dmq.memory import MemoryKeys, MemoryKeyValueStore
from haproc import protos
from haproc.config.sections import Limits
from haproc.config.shares import Shares
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import (
    Column,
    Observed,
    Queries,
    Relay,
    Restore,
    ResultStream,
    SessionFile,
    Settings,
)
from haproc.engine.statement import SparkPlan, SqlText, Statement
from haproc.engine.tasks import Planned
from haproc.route.streams import Collected
from haproc.sessions.durable import Blobs, SessionStore
from haproc.sessions.sessions import Sessions, Surroundings
from haproc.sessions.upkeep import Listing, Upkeep

DEFAULTS = Settings()


class FakeSpark:
    """A Spark session: the statements that were run in it since it was last made."""

    def __init__(self, key: str, restore: Restore | None, around: FakeEngine) -> None:
        self.key = key
        self.busy = self.closed = False
        self.epoch = 0
        self.ran: list[str] = []
        self.files: list[SessionFile] = []
        self.given = DEFAULTS
        self._restore = restore
        self._restored = False
        self._around = around
        self._lock = asyncio.Lock()

    @property
    def relay(self) -> Relay:
        raise NotImplementedError

    async def ready(self) -> None:
        async with self._lock:
            if self._restore is not None and not self._restored:
                self.ran, self.files, self.given = [], [], DEFAULTS
                await self._restore(self)
                self._restored = True

    @property
    def stands(self) -> bool:
        return self._restored

    def as_it_is(self) -> Queries:
        raise NotImplementedError

    def outdate(self) -> None:
        self._restored = False

    def lose(self) -> None:
        """Restart Spark."""
        self.epoch += 1
        self._restored = False

    async def run_change(self, statement: Statement, *, timeout_s: float) -> None:
        await asyncio.sleep(0)
        if isinstance(statement, SparkPlan):
            view = protos.base.Plan.FromString(statement.plan).command.create_dataframe_view
            text = f"frame {view.name}: {view.input.sql.query}"
        else:
            assert isinstance(statement, SqlText)
            text = statement.sql
        if text in self._around.fails:
            raise EngineError(ErrorKind.APPLICATION, "no such table", error_class="NOT_FOUND")
        self.ran.append(f"{self.given.schema}: {text}")

    async def configure(self, settings: Settings) -> None:
        await asyncio.sleep(0)
        self.given = settings

    async def add_files(self, files: Sequence[SessionFile]) -> None:
        self.files += files

    async def query(
        self,
        statement: Statement,
        *,
        timeout_s: float,
        planned: Planned | None = None,
        observed: Observed | None = None,
    ) -> ResultStream:
        await self.ready()
        assert isinstance(statement, SqlText)
        await self.run_change(statement, timeout_s=timeout_s)
        if statement.sql.startswith("USE "):
            self.given = replace(self.given, schema=statement.sql.removeprefix("USE "))
        if self._around.lost_behind[statement.sql]:
            self._around.lost_behind[statement.sql] -= 1
            self.lose()
        return Collected(())

    async def settings(self) -> Settings:
        await self.ready()
        return self.given

    async def untouched(self, names: Sequence[str]) -> Mapping[str, str | None]:
        return {name: self._around.untouched.get(name) for name in names}

    async def columns(self, sql: str) -> list[Column]:
        return list(self._around.columns.get(sql.rpartition(" ")[2].strip("`"), ()))

    async def schema(self, query: Statement) -> bytes:
        raise NotImplementedError

    async def reading(
        self,
        statement: SqlText | SparkPlan,
        *,
        timeout_s: float,
        paths: Sequence[str] = (),
        parsed_only: bool = False,
    ) -> str:
        raise NotImplementedError

    async def cancel(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        assert not self.busy
        self.closed = True


@dataclass
class FakeEngine:
    """Makes fake sessions."""

    made: list[FakeSpark] = field(default_factory=list)
    fails: set[str] = field(default_factory=set)
    columns: dict[str, list[Column]] = field(default_factory=dict)
    """The columns of temporary views, by name."""
    lost_behind: Counter[str] = field(default_factory=Counter)
    """Statements after which Spark is restarted, and how many times."""
    untouched: dict[str, str] = field(default_factory=dict)
    """Values of settings that nobody set."""

    def session(self, key: str, restore: Restore | None = None, pool: str = "") -> FakeSpark:
        self.made.append(FakeSpark(key, restore, self))
        return self.made[-1]


@dataclass
class Member:
    """One HAProc's sessions, and the parts that they use."""

    sessions: Sessions
    engine: FakeEngine
    store: MemoryKeyValueStore
    blobs: Blobs
    upkeep: Upkeep
    listing: Listing
    caught_up: int = 0


@dataclass
class Ring:
    """A few HAProcs on one store."""

    limits: Limits = field(default_factory=Limits)
    keys: MemoryKeys = field(default_factory=MemoryKeys)
    now_s: float = 1000.0
    _names: itertools.count[int] = field(default_factory=itertools.count)

    def name(self) -> str:
        return f"n{next(self._names)}"

    def unix_ms(self) -> int:
        return int(self.now_s * 1000)

    def member(self, cluster: str = "a", store: MemoryKeyValueStore | None = None) -> Member:
        engine, store = FakeEngine(), store or MemoryKeyValueStore(self.keys)
        durable = SessionStore(store, cluster, self.name, self.unix_ms)
        blobs = Blobs(store, self.name, self.unix_ms)

        async def caught_up() -> None:
            member.caught_up += 1

        around = Surroundings(
            "ring", engine, DEFAULTS, self.limits, 60.0, caught_up, lambda: self.now_s
        )
        room = Shares(self.limits.sessions_max)
        sessions = Sessions(around, durable, blobs, room)
        upkeep = Upkeep(store, durable, sessions, self.limits.session_idle_s, self.unix_ms)
        listing = Listing(store, durable, sessions)
        member = Member(sessions, engine, store, blobs, upkeep, listing)
        return member
