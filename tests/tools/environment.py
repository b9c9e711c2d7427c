"""The virtual environments of the tools that are tried on a ring, and programs in them.

The versions of the tools conflict with ours (dbt's protobuf, ibis's sqlglot), and some with each
other. So each file in ``requirements`` has its own environment, in the folder ``.tools`` of the
checkout. It is made when it is first needed, which takes one to three minutes, and again when its
file has changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PROGRAMS = HERE / "programs"
SPARK = "spark"
"""The tools that use PySpark: dbt, ibis, splink, sqlmesh."""
CLIENTS = "clients"
"""Tools with a client of their own, or with haclient."""
DATABRICKS_OLDEST = "databricks_oldest"
AIRFLOW = "airflow"
SCHEMATHESIS = "schemathesis"
INSTALL_S = 900.0
RUN_S = 600.0
"""On two busy cores a run of dbt took three minutes."""
_FOLDER = ROOT / ".tools"


def folder(tools: str = SPARK) -> Path:
    """Return the folder with an environment's programs, python among them."""
    requirements = HERE / "requirements" / f"{tools}.txt"
    wanted = requirements.read_text()
    made = _FOLDER / tools
    made_of = made / "made_of"
    programs = made / "bin"
    if made_of.exists() and made_of.read_text() == wanted:
        return programs
    shutil.rmtree(made, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(made)], check=True, timeout=INSTALL_S)
    command = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "-r", str(requirements)]
    subprocess.run(command, check=True, timeout=INSTALL_S)
    made_of.write_text(wanted)
    return programs


def run(
    remote: str,
    program: str,
    *arguments: str,
    tools: str = SPARK,
    cwd: Path = PROGRAMS,
    **variables: str,
) -> str:
    """Run a program of an environment against a Spark Connect server; return its output.

    Raises AssertionError, with its output, if it fails. ``remote``: empty for a program that uses
    another door. ``variables``: of its environment.
    """
    left_out = ("SPARK_", "PYTHONPATH", "AIRFLOW_", "DATABRICKS_")
    ours = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    server = {"SPARK_REMOTE": remote} if remote else {}
    done = subprocess.run(
        [str(folder(tools) / program), *arguments],
        cwd=cwd,
        env={**ours, **server, "NO_COLOR": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, f"{program} {' '.join(arguments)} failed:\n{done.stdout[-8000:]}"
    return done.stdout
