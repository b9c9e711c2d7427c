"""Fixtures of the contract suites."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from haproc.ring.broker import LocalBroker, LocalKafka
from tests.contract.log_backends import BACKENDS
from tests.contract.store_backends import STORE_BACKENDS


@pytest.fixture(scope="session")
def kafka_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real broker, one for the whole run."""
    kafka = LocalKafka.open_or_create(tmp_path_factory.mktemp("kafka"))
    asyncio.run(kafka.start())
    yield kafka.bootstrap_servers
    asyncio.run(kafka.stop())


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A broker that tests may manipulate, as long as it runs again afterwards."""
    kafka = LocalKafka.open_or_create(tmp_path_factory.mktemp("kafka"))
    asyncio.run(kafka.start())
    yield kafka
    asyncio.run(kafka.stop())


@pytest.fixture
def broker(kafka: LocalKafka) -> LocalBroker:
    """The broker's only node."""
    return kafka.brokers["broker1"]


@pytest.fixture(autouse=True)
def quiet_kafka(caplog: pytest.LogCaptureFixture) -> None:
    """kafka-python logs each lost connection as an error, which some tests cause."""
    caplog.set_level(logging.CRITICAL, "kafka")


def _fresh(kinds: Mapping[str, Any], request: pytest.FixtureRequest, folder: Path) -> Any:
    """Return a new backend of the kind that the parameter of a fixture names."""
    on_kafka = request.param == "kafka"
    place = request.getfixturevalue("kafka_servers") if on_kafka else folder
    return kinds[request.param](place)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """One fresh log of each backend."""
    return _fresh(BACKENDS, request, tmp_path)


@pytest.fixture(params=[name for name, kind in BACKENDS.items() if kind.survives_processes])
def shared_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """One fresh log of each backend that several processes can use."""
    return _fresh(BACKENDS, request, tmp_path)


@pytest.fixture(params=STORE_BACKENDS)
def store_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """One fresh key-value store of each backend."""
    return _fresh(STORE_BACKENDS, request, tmp_path)


@pytest.fixture(params=[name for name, kind in STORE_BACKENDS.items() if kind.survives_processes])
def shared_store_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """One fresh key-value store of each backend that several processes can use."""
    return _fresh(STORE_BACKENDS, request, tmp_path)
