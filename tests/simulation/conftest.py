"""Fixtures of the simulation's tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet() -> Iterator[None]:
    """Have hundreds of runs log nothing."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
