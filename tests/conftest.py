"""One real ring for all tests of a run that need one.

Its log is in Kafka, unless a test's marker ``logs`` names other kinds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.rig import Rig

# A busy machine is no finding.
settings.register_profile("patient", settings.default, deadline=None)
settings.load_profile("patient")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Order the tests by the ring that they need, so that each kind is started once."""
    if "started_ring" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("logs")
        logs = marker.args if marker is not None else ("kafka",)
        metafunc.parametrize("started_ring", logs, indirect=True, scope="session")


@pytest.fixture(scope="session")
def started_ring(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rig]:
    """Three Spark clusters, three HAProcs and their log; started once for each kind of log."""
    folder: Path = tmp_path_factory.mktemp("ring")
    rig = Rig(folder, log=request.param)
    try:
        rig.up()
        yield rig
    finally:
        rig.down()


@pytest.fixture
def rig(started_ring: Rig) -> Rig:
    """The ring, with everything that an earlier test stopped running again."""
    started_ring.up()
    return started_ring
