"""A query in the present session can find it lost while other calls use the session."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from haproc import protos
from haproc.engine import confs
from haproc.engine.channel import Channel, EngineLimits
from haproc.engine.errors import SESSION_CHANGED, EngineError, ErrorKind
from haproc.engine.interface import Fresh, Settings
from haproc.engine.remote import RemoteSession
from haproc.engine.session import SparkSession
from haproc.engine.statement import SqlText
from haproc.sessions.client import LEAVING_ATTEMPTS_MAX, ClientSession

THEIRS = Settings(time_zone="Asia/Tokyo", confs=(("spark.sql.shuffle.partitions", "7"),))
SHOWN = Settings(time_zone="Asia/Tokyo", confs=(("spark.sql.maxPlanStringLength", "9"),))


class Server:
    """A server's sessions by id: the server's own id of each, and its settings."""

    def __init__(self) -> None:
        self.sessions: dict[str, tuple[str, dict[str, str]]] = {}

    def of(self, session_id: str, observed: str) -> tuple[str, dict[str, str]]:
        found = self.sessions.get(session_id)
        if observed and (found is None or found[0] != observed):
            raise EngineError(ErrorKind.AVAILABILITY, "lost", error_class=SESSION_CHANGED)
        return self.sessions.setdefault(session_id, (str(uuid.uuid4()), {}))


class Remote(RemoteSession):
    """A session on such a server; each call takes one turn of the event loop."""

    def __init__(self, server: Server) -> None:
        super().__init__(
            cast(Channel, SimpleNamespace(limits=EngineLimits())), lambda _: uuid.uuid4()
        )
        self._server = server

    async def _answered(self, operation: Any) -> None:
        epoch, sent = self.epoch, (self.id, self._observed)
        await asyncio.sleep(0)
        server_id, given = self._server.of(*sent)
        given.update({pair.key: pair.value for pair in operation.set.pairs})
        for key in operation.unset.keys:
            given.pop(key, None)
        self._learn(SimpleNamespace(server_side_session_id=server_id), epoch)

    async def _config(self, operation: Any) -> Any:
        await self._answered(operation)
        return protos.base.ConfigResponse()

    async def execute(self, *arguments: Any, **named: Any) -> AsyncGenerator[Any, None]:
        await self._answered(protos.base.ConfigRequest.Operation())
        yield None

    async def schema(self, relation: Any) -> Any:
        await self._answered(protos.base.ConfigRequest.Operation())

    async def release(self) -> None:
        self._server.sessions.pop(self.id, None)


async def test_session_found_lost_while_its_settings_change_is_restored_with_all_of_them() -> None:
    server, called, may_answer = Server(), asyncio.Event(), asyncio.Event()

    async def defaults(keys: Sequence[str]) -> Mapping[str, str | None]:
        called.set()
        await may_answer.wait()
        return dict.fromkeys(keys)

    async def restore(fresh: Fresh) -> None:
        await fresh.configure(THEIRS)

    may_answer.set()
    session = SparkSession(Remote(server), defaults, restore)
    await session.configure(SHOWN)
    called.clear()
    may_answer.clear()
    as_it_is = session.as_it_is()
    changing = asyncio.ensure_future(session.configure(THEIRS))
    await called.wait()
    server.sessions.clear()  # Spark begins anew
    with pytest.raises(EngineError):
        await as_it_is.schema(SqlText("SELECT 1"))
    assert not session.stands
    may_answer.set()
    await changing
    await session.ready()
    assert session.stands
    ((_, given),) = server.sessions.values()
    assert given == confs.wanted(THEIRS, None)


class _Reading(SparkSession):
    """A session that reads no settings back, but finds out if the server has it."""

    async def _read_settings(self) -> Settings:
        await self._remote.schema(None)
        return Settings()


@pytest.mark.parametrize("times", [0, 1, 2])
async def test_settings_of_a_rebuilt_session_are_not_attributed_to_a_statement(
    times: int,
) -> None:
    server, ran = Server(), list[int]()

    async def defaults(keys: Sequence[str]) -> Mapping[str, str | None]:
        return dict.fromkeys(keys)

    async def restore(fresh: Fresh) -> None:
        await fresh.configure(SHOWN)

    async def run() -> None:
        ran.append(spark.epoch)
        if len(ran) <= times:
            server.sessions.clear()  # behind a statement that has changed them

    spark = _Reading(Remote(server), defaults, restore)
    await spark.configure(SHOWN)
    session = cast(ClientSession, SimpleNamespace(spark=spark))
    if times < LEAVING_ATTEMPTS_MAX:
        assert await ClientSession.leaving(session, run, spark.settings) == (None, Settings())
        assert len(ran) == times + 1
        return
    with pytest.raises(EngineError) as raised:
        await ClientSession.leaving(session, run, spark.settings)
    assert raised.value.kind is ErrorKind.AVAILABILITY and len(ran) == LEAVING_ATTEMPTS_MAX
