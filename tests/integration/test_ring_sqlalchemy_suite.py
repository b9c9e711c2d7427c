"""Test with SQLAlchemy's own dialect suite on a real ring, without features that Spark lacks."""

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
"""The tests of what a dialect decides, which take half of a test's time limit. Each of the other
tests creates tables for every case.
"""
NOT = "autoinc no_results_for_non_returning"
"""These tests need an autoincrement column; Delta fills one only if it is IDENTITY."""
PASSED_MIN = 30
"""With fewer passed tests the suite did not really run."""


def test_dialect_suite_of_sqlalchemy_passes(rig: Rig) -> None:
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
