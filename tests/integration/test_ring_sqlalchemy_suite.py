"""SQLAlchemy's own suite for dialects on a real ring, as far as Spark has what it asks for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig import Rig

pytestmark = [pytest.mark.spark, pytest.mark.logs("sqlite"), pytest.mark.thorough]

SUITE = Path(__file__).parents[1] / "tools" / "sqlalchemy"
LIMIT_S = 540.0
CHOSEN = """
    BooleanTest DateTest DateTimeTZTest EscapingTest FetchLimitOffsetTest HasTableTest
    InsertBehaviorTest LikeFunctionsTest RowFetchTest StringTest TableDDLTest TrueDivTest
"""
"""What a dialect decides, in half of the time that a test may take. Each of the rest makes tables
for every test."""
NOT = "autoinc no_results_for_non_returning"
"""They leave out a column that counts by itself: Delta fills one only where it is IDENTITY."""
PASSED_MIN = 30
"""Fewer have passed only if something kept the suite from running."""


def test_suite_for_dialects_passes(rig: Rig) -> None:
    for schema in ("sa_suite", "test_schema", "test_schema_2"):
        rig.run(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        rig.run(f"CREATE SCHEMA {schema}")
    address = rig.url("a").removeprefix("http://")
    command = [sys.executable, "-m", "pytest", "-c", "setup.cfg", "--rootdir", "."]
    command += ["-p", "no:cacheprovider", "-W", "ignore", "-q", "-rf", "--tb=short"]
    chosen, left_out = " or ".join(CHOSEN.split()), " or ".join(NOT.split())
    command += ["-k", f"({chosen}) and not ({left_out})"]
    command += ["--dburi", f"haproc://{address}/sa_suite?discover=false"]
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command,
        cwd=SUITE,
        env=ours,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    print(done.stdout[-20_000:])
    assert done.returncode == 0
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= PASSED_MIN
