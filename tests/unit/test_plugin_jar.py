"""Tests of the Spark plugin's version and of the choice of its jar; none of them needs Java."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from haproc.cli.main import main
from haproc.engine import server
from haproc.ring import runtime
from haproc.ring.settings import EXTENSIONS, check_chosen, spark_server_settings


def a_jar(file: Path, version: str) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("haproc/spark/version", version)


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Copy the plugin's sources to a folder that the package then takes them from."""
    copied = tmp_path / "spark"
    shutil.copytree(server.SOURCES, copied)
    monkeypatch.setattr(server, "SOURCES", copied)
    server.version.cache_clear()
    yield copied
    server.version.cache_clear()


def test_version_depends_on_the_sources_only(sources: Path) -> None:
    before = server.version()
    (sources / "haproc-spark.jar").write_text("")
    server.version.cache_clear()
    assert server.version() == before
    with (sources / "Extension.java").open("a") as file:
        file.write("// changed")
    server.version.cache_clear()
    assert server.version() != before


@pytest.mark.parametrize("known", [server.CLASS, server.READER])
def test_class_that_spark_has_to_load_is_in_the_sources(known: str) -> None:
    package, _, name = known.rpartition(".")
    text = (server.SOURCES / f"{name}.java").read_text()
    assert f"package {package};" in text and f"class {name} " in text
    assert EXTENSIONS.split(",") == ["io.delta.sql.DeltaSparkSessionExtension", server.CLASS]


def test_jar_of_the_package_is_used_without_java(
    sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runtime, "java", pytest.fail)
    packed = sources / "haproc-spark.jar"
    a_jar(packed, server.version())
    assert main(["spark-jar"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        str(packed),
        f"spark.jars {packed}",
        f"spark.sql.extensions {EXTENSIONS}",
        f"spark.connect.extensions.relation.classes {server.READER}",
    ]
    assert main(["spark-jar", "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["version"] == server.version()
    assert described["settings"] == {
        "spark.jars": str(packed),
        "spark.sql.extensions": EXTENSIONS,
        "spark.connect.extensions.relation.classes": server.READER,
    }


@pytest.mark.parametrize("content", ["of another version", "damaged", "not there"])
def test_jar_of_another_version_or_damaged_is_not_used(
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
        runtime.jar()


def test_local_spark_loads_the_reader_beside_the_users_own_classes() -> None:
    def readers(chosen: str) -> str:
        settings = {server.READER_SETTING: chosen}
        check_chosen(settings)
        return spark_server_settings("a", Path("/x"), 1, 2, settings)[server.READER_SETTING]

    assert spark_server_settings("a", Path("/x"), 1, 2)[server.READER_SETTING] == server.READER
    assert readers("a.B") == f"{server.READER},a.B"
    assert readers(f"a.B,{server.READER}") == f"{server.READER},a.B"


def test_spark_version_of_the_plugin_is_the_installed_one() -> None:
    assert metadata.version("pyspark").startswith(f"{server.SPARK}.")


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({}, ""),
        ({"spark": f"{server.SPARK}.9-of-ours"}, ""),
        ({"version": "1234"}, "version 1234"),
        ({"spark": "4.20.1"}, "it is 4.20.1"),
        ({"delta": ""}, "Delta Lake"),
    ],
)
def test_missing_names_the_component_of_a_wrong_version(
    changes: dict[str, str], lacks: str
) -> None:
    found = {"version": server.version(), "spark": f"{server.SPARK}.1", "delta": "4.4.0"} | changes
    message = server.missing(found)
    assert lacks in message if lacks else not message
