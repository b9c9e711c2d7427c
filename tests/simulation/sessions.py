"""Clients' sessions on three HAProcs over one keyed store, on a virtual clock.

The sessions are the real ones. Simulated are the store, whose answers are slow, lost, or come after
the change was given up and lands late; Spark, which notes what was run in it and is restarted now
and then; and the log, which each cluster applies a while later. HAProcs are killed and frozen. Two
clients share each session and go to whichever HAProc answers, so it changes hands all the time.

What a query shows is held against what had been acknowledged when it was asked. A seed fixes
everything.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dmq import LogUnavailableError
from dmq.keyed import Kept
from dmq.keyed_memory import MemoryKeyedStore, MemoryKeys
from haproc.config.limits import Limits
from haproc.config.shares import Shares
from haproc.engine.interface import Restore
from haproc.engine.statement import SqlText, Statement
from haproc.failure import ErrorClass, RequestError
from haproc.sessions.blobs import Blobs
from haproc.sessions.durable import SessionStore
from haproc.sessions.journal import SqlEntry
from haproc.sessions.sessions import Sessions, Surroundings
from tests.simulation import clock
from tests.simulation.violations import Problem, Violation
from tests.unit.session_rig import DEFAULTS, FakeEngine, FakeSpark

T = TypeVar("T")
NAMES = "abc"
SESSIONS, CLIENTS, OPERATIONS = 2, 2, 12
TIMEOUT_S = 3.0
ATTEMPTS_MAX = 200


class AwayError(Exception):
    """A HAProc does not answer."""


@dataclass
class World:
    """What all HAProcs share, and chance."""

    chance: random.Random
    keys: MemoryKeys = field(default_factory=MemoryKeys)
    log: list[str] = field(default_factory=list)
    healed: bool = False
    names: int = 0
    problems: list[Problem] = field(default_factory=list)
    late: set[asyncio.Task[None]] = field(default_factory=set)

    def name(self) -> str:
        self.names += 1
        return f"n{self.names}"

    def happens(self, probability: float) -> bool:
        return not self.healed and self.chance.random() < probability

    def later(self, change: Coroutine[Any, Any, Any]) -> None:
        """Have a change land after it was given up."""

        async def land() -> None:
            await asyncio.sleep(self.chance.uniform(0, 4))
            await change

        self.late.add(asyncio.create_task(land()))


class SlowStore(MemoryKeyedStore):
    """The store as one HAProc reaches it."""

    def __init__(self, world: World, haproc: HAProc) -> None:
        super().__init__(world.keys)
        self._world, self._haproc = world, haproc

    async def put(self, key: str, value: bytes) -> int:
        return await self._change(lambda: MemoryKeyedStore.put(self, key, value))

    async def delete(self, key: str) -> None:
        await self._change(lambda: MemoryKeyedStore.delete(self, key))

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
    """A Spark session that takes its time."""

    def __init__(self, key: str, restore: Restore | None, haproc: HAProc) -> None:
        super().__init__(key, restore, FakeEngine())
        self._haproc = haproc

    async def run(self, statement: Statement, *, timeout_s: float) -> None:
        await self._haproc.pause(0.05)
        assert isinstance(statement, SqlText)
        self.ran.append(statement.sql)
        await self._haproc.pause(0.05)


class HAProc:
    """One HAProc of the three: alive, frozen, killed and started again."""

    def __init__(self, world: World, cluster: str) -> None:
        self._world, self._cluster = world, cluster
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._tasks: set[asyncio.Task[Any]] = set()
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

    async def _caught_up(self) -> None:
        await self.runs()
        await self.applies(len(self._world.log))

    async def ask(self, what: Callable[[HAProc], Awaitable[T]]) -> T:
        """Run a request here; AwayError if there is no answer, RequestError as it says."""

        async def served() -> T:
            return await what(self)

        task = asyncio.create_task(served())
        self._tasks.add(task)
        hurries = self._world.happens(0.25)
        patience_s = self._world.chance.uniform(0, 0.3) if hurries else TIMEOUT_S
        done, _ = await asyncio.wait({task}, timeout=patience_s)
        if not done and self._world.chance.random() < 0.5:
            task.cancel()
        if not done or task.cancelled():
            task.add_done_callback(lambda each: each.cancelled() or each.exception())
            raise AwayError
        self._tasks.discard(task)
        return task.result()


class Session:
    """What the clients of one session know of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.acknowledged: list[str] = []
        self.without_effect: set[str] = set()
        self.written = 0
        """Place in the log behind the last write that was acknowledged."""


class Client:
    """Changes its session, writes, and looks."""

    def __init__(self, world: World, haprocs: list[HAProc], session: Session, name: str) -> None:
        self._world, self._haprocs, self._session, self._name = world, haprocs, session, name

    async def run(self) -> None:
        for number in range(OPERATIONS):
            await asyncio.sleep(self._world.chance.uniform(0, 1))
            what = self._world.chance.choice(("step", "step", "write", "query", "query"))
            if what == "step":
                await self._step(f"{self._name}.{number}")
            elif what == "write":
                await self._until_answered(self._write)
            else:
                await self.look()

    async def _until_answered(self, what: Callable[[HAProc], Awaitable[T]]) -> T:
        for _ in range(ATTEMPTS_MAX):
            try:
                return await self._world.chance.choice(self._haprocs).ask(what)
            except (AwayError, RequestError):
                await asyncio.sleep(self._world.chance.uniform(0, 1))
        raise AssertionError("nobody answers")

    async def _step(self, step: str) -> None:
        session, attempts = self._session, 0

        async def change(haproc: HAProc) -> None:
            nonlocal attempts
            attempts += 1
            sessions = haproc.sessions
            found = await sessions.enter("u", session.name, create=True)
            async with sessions.changing(found):
                if found.has_recorded(step):
                    return
                await found.spark.ready()
                assert isinstance(found.spark, SimSpark)
                await found.spark.run(SqlText(step), timeout_s=60)
                await sessions.record(found, SqlEntry(step), step)

        haproc = self._world.chance.choice(self._haprocs)
        try:
            await haproc.ask(change)
        except RequestError as error:
            if error.error_class == ErrorClass.SESSION_MOVED and self._world.happens(0.5):
                session.without_effect.add(step)
                return
            await self._until_answered(change)
        except AwayError:
            await self._until_answered(change)
        session.acknowledged.append(step)

    async def _write(self, haproc: HAProc) -> None:
        await haproc.sessions.enter("u", self._session.name, create=True)
        await haproc.pause(1.0)
        self._world.log.append(self._name)
        place = len(self._world.log)
        await haproc.applies(place)
        await self.look_again(haproc)
        self._session.written = max(self._session.written, place)

    async def look_again(self, haproc: HAProc) -> None:
        """Have whoever took the session over since the write began wait for the log's end again."""
        await haproc.sessions.enter("u", self._session.name, create=False)

    async def look(self) -> None:
        """Hold what the session shows against what was acknowledged before it was asked."""
        session = self._session
        steps, written = tuple(session.acknowledged), session.written

        async def query(haproc: HAProc) -> tuple[list[str], int]:
            found = await haproc.sessions.enter("u", session.name, create=True)
            await found.spark.ready()
            assert isinstance(found.spark, SimSpark)
            return list(found.spark.ran), haproc.applied

        shown, applied = await self._until_answered(query)
        lacking = [step for step in steps if step not in shown]
        self._check(not lacking, Violation.LOST, f"{lacking} not in {shown}")
        self._check(len(set(shown)) == len(shown), Violation.DOUBLED, str(shown))
        undone = session.without_effect.intersection(shown)
        self._check(not undone, Violation.REJECTED, f"{undone} in {shown}")
        self._check(applied >= written, Violation.STALE, f"{applied} < {written}")

    def _check(self, holds: bool, violation: Violation, text: str) -> None:
        if not holds:
            self._world.problems.append(Problem(violation, f"{self._name}: {text}"))


async def _nemesis(world: World, haprocs: list[HAProc]) -> None:
    while True:
        await asyncio.sleep(world.chance.uniform(0, 2))
        haproc = world.chance.choice(haprocs)
        match world.chance.choice(("kill", "freeze", "freeze", "spark")):
            case "kill":
                haproc.kill()
            case "freeze":
                haproc.freeze()
                asyncio.get_running_loop().call_later(world.chance.uniform(0, 6), haproc.thaw)
            case _:
                for spark in haproc.sparks:
                    spark.lose()


async def _run(seed: int) -> list[Problem]:
    world = World(random.Random(seed))
    haprocs = [HAProc(world, name) for name in NAMES]
    sessions = [Session(f"s{number}") for number in range(SESSIONS)]
    clients = [
        Client(world, haprocs, session, f"{session.name}c{number}")
        for session in sessions
        for number in range(CLIENTS)
    ]
    nemesis = asyncio.create_task(_nemesis(world, haprocs))
    await asyncio.gather(*(client.run() for client in clients))
    nemesis.cancel()
    world.healed = True
    for haproc in haprocs:
        haproc.thaw()
    await asyncio.gather(*world.late)
    for client in clients:
        for _ in NAMES:
            await client.look()
    return world.problems


def simulate(seed: int) -> list[Problem]:
    """Run a seed; return what it found wrong."""
    return clock.run(_run(seed))
