"""The sessions that requests share: which ones are closed, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from haproc.engine.interface import Column, Observed, ResultStream, Settings
from haproc.engine.statement import Statement
from haproc.engine.tasks import Planned
from haproc.route.shared_sessions import REPLACED_S, SharedSessions


class _Spark:
    """A session whose ``busy`` the test sets."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.busy = self.closed = False

    async def query(
        self,
        statement: Statement,
        *,
        timeout_s: float,
        planned: Planned | None = None,
        observed: Observed | None = None,
    ) -> ResultStream:
        raise NotImplementedError

    async def configure(self, settings: Settings) -> None:
        raise NotImplementedError

    async def settings(self) -> Settings:
        raise NotImplementedError

    async def columns(self, sql: str) -> list[Column]:
        raise NotImplementedError

    async def cancel(self) -> None:
        raise NotImplementedError

    async def aclose(self) -> None:
        assert not self.busy
        self.closed = True


class _Made(list[_Spark]):
    def make(self, key: str, user: str) -> Any:
        self.append(_Spark(key))
        return self[-1]

    def closed(self) -> Sequence[bool]:
        return [each.closed for each in self]


def _in(schema: str) -> Settings:
    return Settings(schema=schema)


async def test_shared_session_is_created_once_per_schema() -> None:
    made = _Made()
    shared = SharedSessions(made.make, 2)
    first = await shared.get(_in("a"), 0, 0.0)
    assert await shared.get(_in("a"), 0, 1.0) is first
    assert await shared.get(_in("b"), 0, 2.0) is not first
    assert len({each.key for each in made}) == 2


async def test_shared_session_belongs_to_one_user() -> None:
    shared = SharedSessions(_Made().make, 2)
    of_ada = await shared.get(_in("a"), 0, 0.0, "ada")
    assert await shared.get(_in("a"), 0, 1.0, "bob") is not of_ada
    assert await shared.get(_in("a"), 0, 2.0, "ada") is of_ada


async def test_shared_sessions_of_one_user_displace_none_of_another_user() -> None:
    made = _Made()
    shared = SharedSessions(made.make, 2)
    of_ada = await shared.get(_in("a"), 0, 0.0, "ada")
    for schema in "abcdef":
        await shared.get(_in(schema), 0, 0.0, "bob")
    assert await shared.get(_in("a"), 0, 0.0, "ada") is of_ada


async def test_shared_session_beyond_the_limit_is_closed_once_it_is_idle() -> None:
    made = _Made()
    shared = SharedSessions(made.make, 2)
    for schema in ("a", "b"):
        await shared.get(_in(schema), 0, 0.0)
    made[0].busy = True
    await shared.get(_in("c"), 0, 1.0)
    await shared.get(_in("c"), 0, 2 + REPLACED_S)
    assert made.closed() == [False, False, False]
    made[0].busy = False
    await shared.get(_in("c"), 0, 3 + REPLACED_S)
    await asyncio.sleep(0)
    assert made.closed() == [True, False, False]


async def test_shared_session_is_replaced_after_ddl_and_the_old_one_is_closed_later() -> None:
    made = _Made()
    shared = SharedSessions(made.make, 2)
    before = await shared.get(_in("a"), 0, 0.0)
    after = await shared.get(_in("a"), 1, 1.0)
    assert after is not before
    assert made.closed() == [False, False]  # who was just given it may not have begun yet
    assert await shared.get(_in("a"), 1, 1 + REPLACED_S) is after
    await asyncio.sleep(0)
    assert made.closed() == [True, False]


async def test_replaced_sessions_are_closed_even_if_the_noticing_request_is_cancelled() -> None:
    made = _Made()
    shared = SharedSessions(made.make, 9)
    for schema in "abcd":
        await shared.get(_in(schema), 0, 0.0)
    await shared.get(_in("a"), 1, 0.0)
    asking = asyncio.create_task(shared.get(_in("a"), 1, 1 + REPLACED_S))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    await asyncio.sleep(0)
    assert made.closed() == [True] * 4 + [False]
