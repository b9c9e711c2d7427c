"""Clients' sessions on three HAProcs over one key-value store, on a virtual clock.

The sessions are the real ones. Simulated are the store, whose answers are slow or lost, and whose
changes may take effect after they were given up; Spark, which holds views and variables and is
restarted now and then (`session_spark`); and the log, whose changes to tables each cluster applies
a while later. HAProcs are killed and frozen. Two clients share each session and go to any HAProc
that answers, so it changes its owner all the time.

The result of a query is compared with the writes acknowledged before it was sent. A rebuilt session
is compared with its content after its last entry: names, values, columns, settings, and the rows of
its views over the tables of this moment. A seed determines everything.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.statement import SparkPlan, SqlText
from haproc.failure import ErrorClass, RequestError
from haproc.sessions import client
from haproc.sessions.client import ClientSession
from haproc.sessions.journal import Entry, SettingsEntry
from tests.simulation import clock
from tests.simulation.session_ring import NAMES, AwayError, HAProc, SimSpark, World
from tests.simulation.session_spark import Change, frame, went_apart
from tests.simulation.violations import Problem, Violation

T = TypeVar("T")
SESSIONS, CLIENTS, OPERATIONS = 2, 2, 12
ATTEMPTS_MAX = 200


@dataclass(frozen=True, slots=True)
class Step:
    """A statement that changes a session: SQL, or a plan."""

    text: str
    plan: bytes = b""

    @property
    def is_plain(self) -> bool:
        """True if it has no name that another step could replace."""
        return "." in self.text


async def _run(session: ClientSession, spark: SimSpark, step: Step) -> Entry:
    """Run a step as the doors do; return its entry."""
    runs = SparkPlan(step.plan) if step.plan else SqlText(step.text)
    run = partial(spark.query, runs, timeout_s=60)
    if step.text.startswith("USE "):
        return SettingsEntry((await session.setting(run))[1])
    if step.plan:
        look: Callable[[], Awaitable[Entry]] = partial(client.left_by_plan, session, step.plan)
    else:
        look = partial(client.left_by, session, step.text, 60)
    return (await session.leaving(run, look))[1]


class Session:
    """The knowledge of one session's clients."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.acknowledged: list[str] = []
        self.without_effect: set[str] = set()
        self.written = 0
        """The end of the log after the last acknowledged write."""


class Client:
    """Changes its session, writes, and queries."""

    def __init__(self, world: World, haprocs: list[HAProc], session: Session, name: str) -> None:
        self._world, self._haprocs, self._session, self._name = world, haprocs, session, name

    async def run(self) -> None:
        for number in range(OPERATIONS):
            await asyncio.sleep(self._world.chance.uniform(0, 1))
            what = self._world.chance.choice(("step", "named", "named", "write", "query", "query"))
            if what == "step":
                await self._step(Step(f"{self._name}.{number}"))
            elif what == "named":
                await self._step(self._named())
            elif what == "write":
                await self._until_answered(self._write)
            else:
                await self.look()

    def _named(self) -> Step:
        """Return a statement that makes, changes or drops a named object."""
        choice, number = self._world.chance.choice, self._world.number()
        name, base, variable = choice(NAMES), choice(NAMES), choice("xy")
        more = number if number % 4 else variable
        chosen = choice(
            ("SELECT 7 AS id", "over", "over", "frame", "drop", "declare", "set", "use")
        )
        match chosen:
            case "over":
                query = f"SELECT * FROM {base} WHERE id > {more}"
                return Step(f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {query}")
            case "frame":
                return Step(name, frame(name, f"SELECT * FROM {base} WHERE id > {more}"))
            case "drop":
                text = choice((f"VIEW {name}", f"TEMPORARY VARIABLE {variable}"))
                return Step(f"DROP {text}")
            case "declare":
                default = choice((str(number), "rand()"))
                return Step(f"DECLARE OR REPLACE VARIABLE {variable} BIGINT DEFAULT {default}")
            case "set":
                value = choice(("DEFAULT", "rand()", f"(SELECT max(id) FROM {base})"))
                return Step(f"SET VAR {variable} = {value}")
            case "use":
                return Step(f"USE d{number}")
            case _:
                query = f"SELECT {number} AS id"
                return Step(f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {query}")

    async def _until_answered(self, what: Callable[[HAProc], Awaitable[T]]) -> T:
        for _ in range(ATTEMPTS_MAX):
            try:
                return await self._world.chance.choice(self._haprocs).ask(what)
            except RequestError as error:
                if error.error_class == ErrorClass.SESSION_NOT_REBUILT:
                    raise
            except EngineError as error:
                if error.kind is ErrorKind.APPLICATION:
                    raise
            except AwayError:
                pass
            await asyncio.sleep(self._world.chance.uniform(0, 1))
        raise AssertionError("nobody answers")

    async def _step(self, step: Step) -> None:
        """Run a step; one that Spark refuses has no effect."""
        session, request_id = self._session, self._world.name()

        async def change(haproc: HAProc) -> None:
            sessions = haproc.sessions
            found, spark = await haproc.enter(session.name)
            async with sessions.changing(found):
                if found.has_recorded(request_id):
                    return
                entry = await _run(found, spark, step)
                self._compare(haproc, spark)
                # The first of a place: who fails with one leaves the session, and adopts it anew.
                place = found.owner.name, found.next_ordinal
                self._world.witnessed.setdefault(place, spark.behind)
                await sessions.record(found, entry, request_id)

        haproc = self._world.chance.choice(self._haprocs)
        try:
            try:
                await haproc.ask(change)
            except RequestError as error:
                if error.error_class == ErrorClass.SESSION_MOVED and self._world.happens(0.5):
                    session.without_effect.add(step.text)
                    return
                await self._until_answered(change)
            except (AwayError, EngineError):
                await self._until_answered(change)
        except EngineError:
            return
        session.acknowledged += [step.text] * step.is_plain

    async def _write(self, haproc: HAProc) -> None:
        await haproc.enter(self._session.name)
        await haproc.pause(1.0)
        chance = self._world.chance
        kind = chance.choice(("rows", "rows", "create", "drop", "column"))
        self._world.log.append(Change(kind, chance.choice(NAMES), self._world.number()))
        place = len(self._world.log)
        await haproc.applies(place)
        await self.look_again(haproc)
        self._session.written = max(self._session.written, place)

    async def look_again(self, haproc: HAProc) -> None:
        """Let a HAProc that has adopted the session meanwhile wait for the log's end again."""
        await haproc.sessions.enter("u", self._session.name, create=False)

    async def look(self) -> None:
        """Compare the session's content with the writes acknowledged before the query."""
        session = self._session
        steps, written = tuple(session.acknowledged), session.written

        async def query(haproc: HAProc) -> tuple[list[str], int]:
            _, spark = await haproc.enter(session.name)
            await spark.ready()
            self._compare(haproc, spark)
            return list(spark.made.ran), haproc.applied

        shown, applied = await self._until_answered(query)
        lacking = [step for step in steps if step not in shown]
        self._check(not lacking, Violation.LOST, f"{lacking} not in {shown}")
        self._check(len(set(shown)) == len(shown), Violation.DOUBLED, str(shown))
        undone = session.without_effect.intersection(shown)
        self._check(not undone, Violation.REJECTED, f"{undone} in {shown}")
        self._check(applied >= written, Violation.STALE, f"{applied} < {written}")

    def _compare(self, haproc: HAProc, spark: SimSpark) -> None:
        for text in went_apart(spark.made, spark.truth, haproc.tables()):
            self._check(False, Violation.ANOTHER, text)

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


async def _simulated(seed: int) -> list[Problem]:
    world = World(random.Random(seed))
    haprocs = [HAProc(world, name) for name in NAMES]
    sessions = [Session(f"s{number}") for number in range(SESSIONS)]
    clients = [
        Client(world, haprocs, session, f"{session.name}c{number}")
        for session in sessions
        for number in range(CLIENTS)
    ]
    nemesis = asyncio.create_task(_nemesis(world, haprocs))
    try:
        try:
            await asyncio.gather(*(client.run() for client in clients))
        finally:
            nemesis.cancel()
        world.healed = True
        for haproc in haprocs:
            haproc.thaw()
        await asyncio.gather(*world.late)
        for client in clients:
            for _ in NAMES:
                await client.look()
    except RequestError as error:
        return [*world.problems, Problem(Violation.GONE, str(error))]
    return world.problems


def simulate(seed: int) -> list[Problem]:
    """Run a seed; return the problems found."""
    return clock.run(_simulated(seed))
