"""Other versions of HAProc and Spark than those of this checkout, to upgrade from.

They are in the folder ``.versions`` of the checkout, and are made when they are first needed: an
earlier HAProc is a commit of this repository, an earlier Spark a package of 450 MB.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
HAPROC: Final = "0e9a29380afdbec052da63aa0bb3d7507f1054d8"
"""The newest commit before clusters could be copied: it does not know the records of copies."""
SPARK: Final = "4.2.0"
MAKE_S: Final = 900.0
RUN_S: Final = 600.0
_FOLDER: Final = ROOT / ".versions"


@dataclass(frozen=True, slots=True)
class Version:
    """The software of a host: folders to import from, this checkout's environment behind them.

    ``haproc``: the folder of its code; ``spark``: the folder of another pyspark, if not this one's.
    """

    haproc: Path = ROOT
    spark: Path | None = None

    def run(self, *arguments: str) -> str:
        """Run ``haproc`` of this version; return its output. AssertionError if it fails."""
        done = self.started(*arguments)
        assert done.returncode == 0, f"haproc {' '.join(arguments)} failed:\n{done.stdout[-6000:]}"
        return done.stdout

    def started(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``haproc`` of this version to its end."""
        paths = [str(path) for path in (self.haproc, self.spark) if path is not None]
        return subprocess.run(
            [sys.executable, "-m", "haproc", *arguments],
            cwd=self.haproc,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_S,
            check=False,
        )


def earlier() -> Version:
    """Return the version to upgrade from."""
    return Version(_made(f"haproc-{HAPROC}", _unpack), _made(f"pyspark-{SPARK}", _install))


def _made(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder; make it if it does not exist completely."""
    folder, making = _FOLDER / name, _FOLDER / f".making-{name}"
    if not folder.exists():
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        make(making)
        making.rename(folder)
    return folder


def _unpack(folder: Path) -> None:
    archive = subprocess.run(
        ["git", "archive", HAPROC], cwd=ROOT, capture_output=True, timeout=MAKE_S, check=True
    )
    subprocess.run(
        ["tar", "-x", "-C", str(folder)], input=archive.stdout, timeout=MAKE_S, check=True
    )


def _install(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--disable-pip-version-check", "--target", str(folder), f"pyspark=={SPARK}"]
    subprocess.run(command, timeout=MAKE_S, check=True)
