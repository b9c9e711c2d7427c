"""Tests of finding Java and jars, as far as nothing has to be fetched."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import pytest

from haproc.ring import runtime


def _java_that_says(folder: Path, version: str) -> Path:
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    executable.chmod(0o755)
    return executable


@pytest.mark.parametrize(
    ("output", "version"), [("17.0.15", 17), ("1.8.0_402", 8), ("21", 21), ("25-ea", 25)]
)
def test_java_version_is_parsed_in_all_its_forms(tmp_path: Path, output: str, version: int) -> None:
    assert runtime._java_version(_java_that_says(tmp_path, output)) == version


def test_java_home_with_an_old_java_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    _java_that_says(old, "11.0.2")
    wanted = _java_that_says(new, "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{wanted.parent}:/usr/bin:/bin")
    runtime.java.cache_clear()
    try:
        assert runtime.java() == wanted
    finally:
        runtime.java.cache_clear()


def test_missing_java_raises_an_error_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _java_that_says(tmp_path, "11.0.2")
    monkeypatch.setattr(
        runtime, "_java_candidates", lambda: iter([tmp_path / "bin/java", tmp_path / "none"])
    )
    runtime.java.cache_clear()
    with pytest.raises(runtime.RuntimeMissingError, match=r"is 11.*does not run.*Install a JDK"):
        runtime.java()
    runtime.java.cache_clear()


def test_jars_are_complete_only_while_each_has_its_size(tmp_path: Path) -> None:
    (tmp_path / "a.jar").write_bytes(b"1234")
    assert runtime._complete(tmp_path) is None
    (tmp_path / "manifest.json").write_text(json.dumps({"a.jar": 4}))
    assert runtime._complete(tmp_path) == [tmp_path / "a.jar"]
    (tmp_path / "a.jar").write_bytes(b"123")
    assert runtime._complete(tmp_path) is None


def test_jars_that_are_not_archives_are_refused(tmp_path: Path) -> None:
    coordinate = runtime.Coordinate("org", "a", "1")
    (tmp_path / "a-1.jar").write_bytes(b"<html>sign in</html>")
    with pytest.raises(runtime.RuntimeMissingError, match="damaged"):
        runtime._check(tmp_path, {"a-1.jar": 20}, [coordinate])
    with pytest.raises(runtime.RuntimeMissingError, match=r"did not deliver a-1\.jar"):
        runtime._check(tmp_path, {}, [coordinate])


def test_jars_that_cannot_be_fetched_or_stored_raise_an_error_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HAPROC_CACHE", str(tmp_path / "file"))
    with pytest.raises(runtime.RuntimeMissingError, match="Set HAPROC_CACHE"):
        runtime.delta_jars()


def test_proxies_become_java_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "localhost,.example")
    assert runtime.java_options(tmp_path, java_trusts_only_its_own_list=False) == [
        "-Dhttps.proxyHost=proxy.example",
        "-Dhttps.proxyPort=3128",
        "-Dhttp.nonProxyHosts=localhost|*.example",
    ]


def test_key_store_has_one_entry_per_certificate() -> None:
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)[:2] or [b"der"]
    store = runtime.key_store(certificates)
    assert store[:4] == b"\xfe\xed\xfe\xed"
    assert int.from_bytes(store[8:12], "big") == len(certificates)
    assert all(certificate in store for certificate in certificates)
