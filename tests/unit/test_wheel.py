"""Tests that the wheel of `make wheel` works without the checkout.

It is installed into an environment that has nothing else of this repository.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Final

import pytest

from haproc.engine import server

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("haproc", "haclient", "dmq")
pytestmark = pytest.mark.thorough


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tracked(*folders: str) -> list[str]:
    listed = run(
        "git", "ls-files", "--cached", "--others", "--exclude-standard", *folders, cwd=ROOT
    )
    return [file for file in listed.splitlines() if (ROOT / file).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build it from a copy of a fresh clone's files, with one file that must not get into it."""
    copy = tmp_path_factory.mktemp("clone")
    for file in tracked(*PACKAGES, "Makefile", "pyproject.toml", "README.md", "LICENSE"):
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        (copy / file).write_bytes((ROOT / file).read_bytes())
    removed = copy / "build/lib/haproc/removed.py"
    removed.parent.mkdir(parents=True)
    removed.write_text("")
    environment = Path(sys.prefix)
    ready = environment / ".ready"
    run("make", "wheel", f"VENV={environment}", "-o", str(ready), cwd=copy)
    assert not (copy / "haproc/spark/haproc-spark.jar").exists()
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install it into an environment that finds other packages, but not this checkout."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Links to folders in a path file are not followed further: the checkout's own link is not.
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "--quiet")
    run(*pip, "--no-deps", "--no-index", wheel, cwd=folder)
    return folder


def test_wheel_contains_the_files_of_the_packages_and_the_plugin(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {*tracked(*PACKAGES), "haproc/spark/haproc-spark.jar"}


def test_commands_run_from_the_wheel_only(installed: Path, tmp_path: Path) -> None:
    python, haproc = installed / "bin/python", installed / "bin/haproc"
    where = run(python, "-c", "import haproc; print(haproc.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed)
    assert run(haproc, "--version", cwd=tmp_path).startswith("haproc ")
    assert "usage: haclient" in run(installed / "bin/haclient", "--help", cwd=tmp_path)
    jar, *settings = run(haproc, "spark-jar", cwd=tmp_path).splitlines()
    assert Path(jar).is_file() and Path(jar).is_relative_to(installed)
    assert any(server.CLASS in line for line in settings)
