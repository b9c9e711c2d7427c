"""One local Spark server for all integration tests of a run, and engines connected to it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from haproc.engine.connect import SparkConnectEngine
from haproc.engine.interface import EngineAddress
from haproc.ring.process import free_port
from haproc.ring.spark import LocalSpark
from tests.integration.engine_calls import rows
from tests.redis_servers import RedisServer, running
from tests.rig import SPARK_SETTINGS


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis of the test's own."""
    server = RedisServer(tmp_path)
    with running(server):
        server.start()
        yield server


def start_spark(name: str, folder: Path, *, warm: bool) -> LocalSpark:
    """Start a server; its progress is shown if the test fails."""
    token = uuid.uuid4().hex
    spark = LocalSpark(name, folder, free_port(), token, settings=SPARK_SETTINGS, progress=print)
    try:
        asyncio.run(spark.start(warm=warm))
    except BaseException:
        spark.kill()
        raise
    return spark


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSpark]:
    """The run's server: warm, shared, never killed or frozen."""
    server = start_spark("shared", tmp_path_factory.mktemp("spark"), warm=True)
    yield server
    asyncio.run(server.stop())


@pytest.fixture(scope="module")
def mortal_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSpark]:
    """A server of one test module's own, to be killed, frozen and started again."""
    server = start_spark("mortal", tmp_path_factory.mktemp("mortal"), warm=False)
    yield server
    server.kill()


def address_of(server: LocalSpark) -> EngineAddress:
    """Return the address of the server for an engine."""
    return EngineAddress("127.0.0.1", server.port, server.token)


@pytest.fixture
async def engine(spark: LocalSpark) -> AsyncIterator[SparkConnectEngine]:
    """An engine connected to the run's server."""
    made = SparkConnectEngine(address_of(spark), ring="ring", cluster="a")
    yield made
    await made.aclose()


@pytest.fixture
async def schema(engine: SparkConnectEngine) -> AsyncIterator[str]:
    """A schema for one test, dropped afterwards."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    session = engine.session("schema")
    await rows(session, f"CREATE SCHEMA {name}")
    yield name
    await rows(session, f"DROP SCHEMA {name} CASCADE")
