"""The fixtures and settings of all tests.

The main one is a real ring for those that need one; its log is in Kafka, unless a test's marker
``logs`` names other kinds.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka.net.inet
import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from haproc.ring.local import LocalRing
from tests.rig import SPARK_SETTINGS, Rig

# A busy machine is no finding.
settings.register_profile("patient", settings.default, deadline=None)
settings.load_profile("patient")

RING = re.compile(r"tests/(fault/|integration/test_ring_)")
"""The folders of the tests that need a ring of real Sparks."""
SPARK = re.compile("tests/integration/")
ORDER = (RING, SPARK, re.compile("tests/contract/"), re.compile(""))
"""The distribution of tests over processes.

One process has the ring, another the single Spark, and the first to finish takes the rest. A Spark
takes a minute to start, and is slow for some more: none is started twice.
"""

ANOTHER_USER = re.compile(r"tests/unit/test_jobs_(isolation|process)")
"""Tests that run programs as one other user, whose processes have a common limit."""

THREADS_END_WITHIN_S = 20.0
"""A client that waits for an unreachable broker notices its closing late."""


class KafkaSocket(socket.socket):
    """A socket of kafka-python.

    kafka-python leaves some sockets to the collector: of a connection that was refused, or whose
    client was closed meanwhile. The warning comes whenever the collector runs, in any test; by its
    name this class lets pyproject.toml ignore these and no others.
    """


def _kafka_socket(_: Any, family: int, kind: int, protocol: int) -> KafkaSocket:
    return KafkaSocket(family, kind, protocol)


kafka.net.inet.KafkaNetSocket.socket = _kafka_socket


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Order the tests by the ring that they need, so that each kind is started once."""
    if "started_ring" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("logs")
        logs = marker.args if marker is not None else ("kafka",)
        metafunc.parametrize("started_ring", logs, indirect=True, scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first.

    A test that reads everything in a ring comes first there: each other test leaves tables behind.
    Tests of rules that are broken on purpose check the tests, and are marked thorough by their
    name.
    """
    for item in items:
        if "broken_on_purpose" in item.name:
            item.add_marker("thorough")
    items.sort(key=lambda item: item.get_closest_marker("early") is None)
    for item in items:
        needs = "sparks" in getattr(item, "fixturenames", ())
        assert not needs or RING.match(item.nodeid), f"{item.nodeid} needs the ring: see RING"
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(
            key=lambda item: next(at for at, each in enumerate(ORDER) if each.match(item.nodeid))
        )


def pytest_collection_finish() -> None:
    """Exclude thousands of tests from each garbage collection, which is a tenth of the time."""
    gc.collect()
    gc.freeze()


class Sharing(LoadScopeScheduling):
    """Gives a ring's tests to one process, a single Spark's to another, the rest to idle ones."""

    def _split_scope(self, nodeid: str) -> str:
        if RING.match(nodeid):
            return "ring"
        if ANOTHER_USER.match(nodeid):
            return "another user"
        return "spark" if SPARK.match(nodeid) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Sharing:
    """Spread the tests over processes (`make test`) by `Sharing`."""
    return Sharing(config, log)


@pytest.fixture(scope="session")
def sparks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRing]:
    """A ring of three clusters with only the Spark servers running, for one ring after another."""
    made = LocalRing.open_or_create(
        tmp_path_factory.mktemp("sparks"), memory="1g", cores=2, spark_settings=SPARK_SETTINGS
    )

    async def start() -> None:
        await asyncio.gather(*(spark.start() for spark in made.sparks.values()))

    try:
        asyncio.run(start())
        yield made
    finally:
        asyncio.run(made.down())


@pytest.fixture(scope="session")
def started_ring(
    request: pytest.FixtureRequest, sparks: LocalRing, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rig]:
    """Three Spark clusters, three HAProcs and their log; started once for each kind of log."""
    folder: Path = tmp_path_factory.mktemp("ring")
    rig = Rig(folder, sparks, request.param)
    try:
        rig.up()
        yield rig
    finally:
        rig.down()


@pytest.fixture
def rig(started_ring: Rig) -> Rig:
    """The ring, with everything running again that an earlier test stopped."""
    started_ring.up()
    return started_ring


@pytest.fixture(autouse=True)
def no_client_stays() -> Iterator[None]:
    """A closed log leaves no client of Kafka behind, in any state of its broker.

    A client would go on drawing random numbers, which Hypothesis notices in other tests. (A thread
    of ours that waits for kafka-python may stay; it does nothing any more.)
    """
    before = set(threading.enumerate())
    yield
    end = time.monotonic() + THREADS_END_WITHIN_S
    while left := [
        thread.name
        for thread in threading.enumerate()
        if thread not in before and thread.name.startswith("kafka-")
    ]:
        assert time.monotonic() < end, f"still running: {left}"
        time.sleep(0.01)
