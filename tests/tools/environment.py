"""The virtual environment of the tools that are tried on a ring, and programs in it.

Their versions and ours disagree (dbt's protobuf, ibis's sqlglot), so they have one of their own in
the folder ``.tools`` of the checkout. It is made when it is first needed, which takes a minute or
three, and again when ``requirements.txt`` beside this module has changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
INSTALL_S = 900.0
RUN_S = 600.0
"""On two busy cores a run of dbt took three minutes."""
_FOLDER = HERE.parents[1] / ".tools"


def folder() -> Path:
    """Return the folder with the environment's programs, python among them."""
    wanted = (HERE / "requirements.txt").read_text()
    made_of = _FOLDER / "made_of"
    programs = _FOLDER / "bin"
    if made_of.exists() and made_of.read_text() == wanted:
        return programs
    shutil.rmtree(_FOLDER, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(_FOLDER)], check=True, timeout=INSTALL_S)
    command = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "-r", str(HERE / "requirements.txt")]
    subprocess.run(command, check=True, timeout=INSTALL_S)
    made_of.write_text(wanted)
    return programs


def run(remote: str, program: str, *arguments: str, cwd: Path = PROGRAMS, **variables: str) -> str:
    """Run a program of the environment against a Spark Connect server; return what it printed.

    Raises AssertionError, with its output, if it fails. ``variables``: of its environment.
    """
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYTHONPATH"))}
    done = subprocess.run(
        [str(folder() / program), *arguments],
        cwd=cwd,
        env={**ours, "SPARK_REMOTE": remote, "NO_COLOR": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, f"{program} {' '.join(arguments)} failed:\n{done.stdout[-8000:]}"
    return done.stdout
