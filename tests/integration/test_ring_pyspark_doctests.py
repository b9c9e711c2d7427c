"""Tests that PySpark's own examples give the same through a ring (see tests/doctests)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctests.exceptions import allowed
from tests.doctests.run import QUICK, run
from tests.rig import Rig

pytestmark = [pytest.mark.logs("sqlite"), pytest.mark.thorough]


@pytest.mark.parametrize("module", QUICK)
def test_examples_of_pyspark_give_the_output_of_plain_spark(
    rig: Rig, tmp_path: Path, module: str
) -> None:
    ran = run(module, f"sc://{rig.door('a')}", tmp_path)
    surprising = {name: n for name, n in ran.failed.items() if n > allowed(name)}
    assert not surprising, ran.output
