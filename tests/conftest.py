"""One real ring for all tests of a run that need one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig import Rig


@pytest.fixture(scope="session")
def started_ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Three Spark clusters and three HAProcs; started once."""
    folder: Path = tmp_path_factory.mktemp("ring")
    rig = Rig(folder)
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
