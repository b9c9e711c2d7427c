"""Fixtures of the contract suites."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_backends import BACKENDS, Backend


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """One fresh log of each backend."""
    return BACKENDS[request.param](tmp_path)


@pytest.fixture(params=[name for name, kind in BACKENDS.items() if kind.survives_processes])
def shared_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """One fresh log of each backend that several processes can use."""
    return BACKENDS[request.param](tmp_path)
