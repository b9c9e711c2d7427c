"""An early fingerprint of named objects counts only while nothing has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Named, Sort
from haproc.replicate.apply.doubts import AGE_MS_MAX, LOOKS_MAX, Foreseen
from haproc.replicate.member.core import Core
from tests.simulation.clock import run
from tests.unit.draining_rig import NullEngine, member
from tests.unit.operations import insert

NAMED = (Named(Sort.TABLE, "t"),)


class Engine(NullEngine):
    """Counts fingerprints; each has another value."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.fails = False

    async def object_fingerprint(self, named: Sequence[Named]) -> str:
        self.looks += 1
        found = f"look {self.looks}"
        await asyncio.sleep(0.5)
        if self.fails:
            raise EngineError(ErrorKind.AVAILABILITY, "away")
        return found


def tried(test: Callable[[Foreseen, Engine, Core], Awaitable[None]]) -> None:
    """Run a test in a member that has applied one operation."""

    async def begun() -> None:
        engine = Engine()
        async with member([insert("i", "t")], engine) as replica:
            await replica.core.news.until(lambda: replica.core.schedule.low >= 1)
            await asyncio.sleep(1)
            await test(Foreseen(replica.core), engine, replica.core)

    run(begun())


def test_early_look_is_used_for_one_statement_only() -> None:
    async def test(foreseen: Foreseen, engine: Engine, core: Core) -> None:
        foreseen.look(NAMED)
        assert await foreseen.object_fingerprint(NAMED) == "look 1"
        assert await foreseen.object_fingerprint(NAMED) == "look 2"

    tried(test)


def test_early_look_is_not_used_after_an_operation_has_finished() -> None:
    async def test(foreseen: Foreseen, engine: Engine, core: Any) -> None:
        foreseen.look(NAMED)
        await asyncio.sleep(0.1)
        core.schedule._finished += 1  # before the look is over, or after it
        assert await foreseen.object_fingerprint(NAMED) == "look 2"

    tried(test)


def test_early_look_that_failed_is_repeated() -> None:
    async def test(foreseen: Foreseen, engine: Engine, core: Core) -> None:
        engine.fails = True
        foreseen.look(NAMED)
        await asyncio.sleep(1)
        engine.fails = False
        assert await foreseen.object_fingerprint(NAMED) == "look 2"

    tried(test)


def test_early_look_expires_and_only_a_limited_number_is_kept() -> None:
    async def test(foreseen: Foreseen, engine: Engine, core: Core) -> None:
        foreseen.look(NAMED)
        await asyncio.sleep(1)
        now = core.unix_ms()
        object.__setattr__(core, "unix_ms", lambda: now + AGE_MS_MAX + 1)
        assert await foreseen.object_fingerprint(NAMED) == "look 2"
        for number in range(LOOKS_MAX + 5):
            foreseen.look((Named(Sort.TABLE, f"t{number}"),))
        assert len(foreseen._looks) == LOOKS_MAX

    tried(test)
