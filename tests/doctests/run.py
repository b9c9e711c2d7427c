"""Runs the examples of a module in a separate process, as PySpark's developers do."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

QUICK = (
    "conf",
    "column",
    "group",
    "window",
    "merge",
    "observation",
    "tvf",
    "udf",
    "udtf",
    "session",
    "functions.partitioning",
)
LONG = ("catalog", "readwriter", "dataframe", "functions.builtin")
MODULES = (*QUICK, *LONG)
TIMEOUT_S = 900.0
_FAILED = re.compile(r'^File ".*", line \d+, in (\S+)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Ran:
    """The numbers of failed examples, by the documented object; and the output."""

    failed: Mapping[str, int]
    output: str


def run(module: str, url: str, folder: Path) -> Ran:
    """Run a module's examples against a Spark Connect server; raise if they could not begin."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None and found.origin is not None
    environment = {
        **os.environ,
        "SPARK_HOME": str(Path(found.origin).parent),
        "SPARK_CONNECT_TESTING_REMOTE": url,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONWARNINGS": "ignore",
    }
    done = subprocess.run(
        [sys.executable, "-m", f"pyspark.sql.connect.{module}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    output = done.stdout + done.stderr
    failed = Counter(_FAILED.findall(output))
    if done.returncode != 0 and not failed:
        raise RuntimeError(f"{module} did not run: {output[-2000:]}")
    return Ran(failed, output)
