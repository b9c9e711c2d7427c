"""A short run of `job_kills`: HAProcs are killed and frozen under a job, and its program killed."""

from __future__ import annotations

import pytest

from tests.fault.job_kills import Deed, Killing
from tests.rig import Rig

pytestmark = [pytest.mark.fault, pytest.mark.logs("sqlite"), pytest.mark.thorough]

SEED = 1313


def test_job_under_kills_writes_each_row_once(rig: Rig) -> None:
    print(f"python -m tests.fault.job_kills --seed {SEED}: more of it")
    result = Killing(rig, SEED, [Deed.APPEND]).run(1, minutes=3)
    assert result.wrong == [], str(result)
    assert result.attempts > 1 and result.batches > 0
    assert result.stopped >= 1, str(result)
    print(result)
