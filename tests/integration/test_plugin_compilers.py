"""Test of building the Spark plugin's jar with a Java runtime and without javac."""

from __future__ import annotations

from pathlib import Path

import pytest

from haproc.engine import server
from haproc.ring import runtime

pytestmark = pytest.mark.spark


def test_jar_is_built_by_eclipses_compiler_without_javac(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = runtime.cache_folder() / "jars"
    against = runtime.delta_jars()
    cache = tmp_path / "cache"
    (cache / "jars").mkdir(parents=True)
    for path in kept.iterdir():  # all but what was built
        if not path.name.startswith("haproc-spark"):
            (cache / "jars" / path.name).symlink_to(path)
    alone = tmp_path / "bin" / "java"
    alone.parent.mkdir()
    alone.write_text(f'#!/bin/sh\nexec "{runtime.java()}" "$@"\n')
    alone.chmod(0o755)
    monkeypatch.setenv("HAPROC_CACHE", str(cache))
    monkeypatch.setattr(runtime, "java", lambda: alone)
    if (server.SOURCES / "haproc-spark.jar").exists():
        monkeypatch.setattr(runtime, "_version_in", lambda file: "")
    (compiler,) = runtime._compilers(runtime.silent)
    assert "/ecj-" in compiler[2]
    built = runtime.jar()
    assert built.is_relative_to(cache)
    # Java loads it, with all that it is made of: it lacks nothing but a way to be run.
    class_path = f"{built}:{runtime._class_path(against)}"
    output = runtime.run_java([str(alone), "-cp", class_path, server.CLASS]).stdout
    assert "Main method not found in class haproc.spark.Extension" in output, output
