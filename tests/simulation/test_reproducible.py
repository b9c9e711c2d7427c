"""A seed determines a whole run: chance and the hash order of a process have no influence on it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
from tests.simulation.clock import run
from tests.simulation.seeds import one, with_others
from tests.simulation.test_concern_runs import Run
from tests.simulation.test_rests import rests
print(with_others(3), one(38), run(Run(38).main()), rests(0), rests(1))
"""


@pytest.mark.thorough
def test_seed_gives_the_same_run_in_every_process() -> None:
    def started(hash_seed: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", PROGRAM]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    runs = [started("0"), started("1")]
    first, second = (run.communicate()[0] for run in runs)
    assert [run.returncode for run in runs] == [0, 0]
    assert first == second
