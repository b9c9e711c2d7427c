"""The Spark plugin's version, and which jar counts as it; nothing here needs Java."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from haproc.cli.main import main
from haproc.engine import plugin
from haproc.ring import plugin_jar, runtime
from haproc.ring.spark_settings import EXTENSIONS


def a_jar(file: Path, version: str) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("haproc/spark/version", version)


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Copy the plugin's sources to a folder that the package seems to have them in."""
    copied = tmp_path / "spark"
    shutil.copytree(plugin.SOURCES, copied)
    monkeypatch.setattr(plugin, "SOURCES", copied)
    plugin.version.cache_clear()
    yield copied
    plugin.version.cache_clear()


def test_version_is_that_of_the_sources_and_of_nothing_else(sources: Path) -> None:
    before = plugin.version()
    (sources / "haproc-spark.jar").write_text("")
    plugin.version.cache_clear()
    assert plugin.version() == before
    with (sources / "Extension.java").open("a") as file:
        file.write("// changed")
    plugin.version.cache_clear()
    assert plugin.version() != before


def test_class_that_spark_is_told_to_load_is_in_the_sources() -> None:
    package, _, name = plugin.CLASS.rpartition(".")
    text = (plugin.SOURCES / f"{name}.java").read_text()
    assert f"package {package};" in text and f"class {name} " in text
    assert EXTENSIONS.split(",") == ["io.delta.sql.DeltaSparkSessionExtension", plugin.CLASS]


def test_jar_of_the_package_is_taken_and_needs_no_java(
    sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runtime, "java", pytest.fail)
    packed = sources / "haproc-spark.jar"
    a_jar(packed, plugin.version())
    assert main(["spark-jar"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        str(packed),
        f"spark.jars {packed}",
        f"spark.sql.extensions {EXTENSIONS}",
    ]
    assert main(["spark-jar", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == plugin.version()


@pytest.mark.parametrize("content", ["of another version", "damaged", "not there"])
def test_jar_that_is_not_this_version_is_not_taken(
    content: str, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = sources / "haproc-spark.jar"
    if content == "damaged":
        packed.write_bytes(b"PK")
    elif content == "of another version":
        a_jar(packed, "1234")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HAPROC_CACHE", str(tmp_path / "file"))  # so it can be built nowhere
    with pytest.raises(runtime.RuntimeMissingError, match="Set HAPROC_CACHE"):
        plugin_jar.jar()
