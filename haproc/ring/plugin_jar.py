"""The jar of HAProc's Spark plugin, built from the Java sources in `haproc/spark` on first use.

A JDK's own compiler builds it where there is one, else Eclipse's, which needs a Java runtime only
and is fetched like the other jars. What was built once is kept in the cache, under a name that
says what it was built of.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from haproc.engine import plugin
from haproc.ring import runtime
from haproc.ring.runtime import Coordinate, Progress, RuntimeMissingError, silent

_COMPILER = Coordinate("org.eclipse.jdt", "ecj", "3.40.0")
_PACKAGE = "haproc/spark"


def jar(progress: Progress = silent) -> Path:
    """Return the jar, built on first use; raises RuntimeMissingError."""
    packed = plugin.SOURCES / "haproc-spark.jar"
    if _version_in(packed) == plugin.version():
        return packed
    against = runtime.delta_jars(progress)
    built = runtime.cache_folder() / "jars" / f"haproc-spark-{_digest(against)}.jar"
    if _version_in(built) == plugin.version():
        return built
    progress("building HAProc's Spark plugin")
    try:
        with tempfile.TemporaryDirectory(dir=built.parent, prefix=".building-") as name:
            work = Path(name)
            _compile(work / "classes", against, progress)
            _pack(work / "classes", work / built.name)
            (work / built.name).replace(built)
    except OSError as error:
        raise RuntimeMissingError(
            f"HAProc's Spark plugin can't be written to {built}: {error}. Set HAPROC_CACHE to a "
            "folder that you may write to."
        ) from error
    return built


def _digest(against: list[Path]) -> str:
    """Return what tells one build from another: the sources, and the jars they were built with."""
    spark = next((runtime.spark_home() / "jars").glob("spark-sql_*.jar"))
    names = [plugin.version(), spark.name, *(path.name for path in against)]
    return hashlib.sha256("\0".join(names).encode()).hexdigest()[:12]


def _version_in(file: Path) -> str:
    """Return the version that a jar says it has; empty if there is none, or it is damaged."""
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.read(f"{_PACKAGE}/version").decode()
    except (OSError, KeyError, ValueError, zipfile.BadZipFile):
        return ""


def _compile(classes: Path, against: list[Path], progress: Progress) -> None:
    said = ""
    arguments = ["-cp", _class_path(against), "-d", str(classes), "-nowarn"]
    sources = [str(path) for path in sorted(plugin.SOURCES.glob("*.java"))]
    for compiler in _compilers(progress):
        done = runtime.run_java([*compiler, *arguments, *sources])
        if done.returncode == 0:
            return
        said = done.stdout
        shutil.rmtree(classes, ignore_errors=True)
    raise RuntimeMissingError(f"HAProc's Spark plugin can't be built:\n{said[-2000:]}")


def _compilers(progress: Progress) -> Iterator[list[str]]:
    own = runtime.java().resolve().with_name("javac")
    if own.exists():
        yield [str(own), "--release", "17"]
    (eclipse,) = runtime.jars(_COMPILER, progress=progress)
    yield [str(runtime.java()), "-jar", str(eclipse), "-17"]


def _class_path(against: list[Path]) -> str:
    # Of Spark's 300 jars those that its sources name: a compiler opens each one that it is given.
    needed = ("spark-", "scala-", "hadoop-client-", "slf4j-api-", "log4j-api-", "jackson-")
    own = sorted((runtime.spark_home() / "jars").glob("*.jar"))
    used = [path for path in own if path.name.startswith(needed)]
    return os.pathsep.join(map(str, [*used, *against]))


def _pack(classes: Path, file: Path) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(classes.rglob("*.class")):
            archive.write(path, path.relative_to(classes))
        archive.writestr(f"{_PACKAGE}/version", plugin.version())
