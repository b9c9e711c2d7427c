"""The Spark plugin's version, and which jar counts as it; nothing here needs Java."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from haproc.cli.main import main
from haproc.engine import plugin
from haproc.ring import plugin_jar, runtime
from haproc.ring.spark_settings import EXTENSIONS, check_chosen, server_settings


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


@pytest.mark.parametrize("known", [plugin.CLASS, plugin.READER])
def test_class_that_spark_is_told_to_load_is_in_the_sources(known: str) -> None:
    package, _, name = known.rpartition(".")
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
        f"spark.connect.extensions.relation.classes {plugin.READER}",
    ]
    assert main(["spark-jar", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["version"] == plugin.version()
    assert told["settings"] == {
        "spark.jars": str(packed),
        "spark.sql.extensions": EXTENSIONS,
        "spark.connect.extensions.relation.classes": plugin.READER,
    }


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


def test_local_spark_loads_the_reader_beside_what_its_user_chose() -> None:
    def readers(chosen: str) -> str:
        settings = {plugin.READER_SETTING: chosen}
        check_chosen(settings)
        return server_settings("a", Path("/x"), 1, 2, settings)[plugin.READER_SETTING]

    assert server_settings("a", Path("/x"), 1, 2)[plugin.READER_SETTING] == plugin.READER
    assert readers("a.B") == f"{plugin.READER},a.B"
    assert readers(f"a.B,{plugin.READER}") == f"{plugin.READER},a.B"


def test_spark_that_it_is_built_for_is_the_one_that_is_installed() -> None:
    assert metadata.version("pyspark").startswith(f"{plugin.SPARK}.")


@pytest.mark.parametrize(
    ("told", "lacks"),
    [
        ({}, ""),
        ({"spark": f"{plugin.SPARK}.9-of-ours"}, ""),
        ({"version": "1234"}, "version 1234"),
        ({"spark": "4.20.1"}, "it is 4.20.1"),
        ({"delta": ""}, "Delta Lake"),
    ],
)
def test_server_lacks_what_its_versions_say(told: dict[str, str], lacks: str) -> None:
    found = {"version": plugin.version(), "spark": f"{plugin.SPARK}.1", "delta": "4.4.0"} | told
    said = plugin.missing(found)
    assert lacks in said if lacks else not said
