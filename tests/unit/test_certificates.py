"""The files of the section ``tls``: the problems that they can have, and how they are reloaded."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from haproc.cli import nodes
from haproc.config.load import load_text
from haproc.config.model import Config
from haproc.config.tls import (
    CertificateError,
    Certificates,
    ClientCertificates,
    Tls,
    doubt,
    read_contexts,
)
from haproc.config.tree import ConfigError
from haproc.doors.http.access import Access
from haproc.node.node import ExitCode
from haproc.ring import making
from tests.certificates import Authority
from tests.unit.door_rig import make_config, until

RING = """
ring: demo
log: "memory:"
secret: {env: RING}
clusters:
  - {name: a, listen: "127.0.0.1:1", peer: "127.0.0.1:2", spark: {url: "sc://127.0.0.1:3"}}
"""


def problem_of(folder: Path, tls: str, ring: str = RING) -> str:
    """Return the only problem of a ring with this section."""
    with pytest.raises(ConfigError) as found:
        load_text(f"{ring}tls: {{{tls}}}", folder / "ring.yaml", {"RING": "ring-secret"})
    (problem,) = found.value.problems
    return str(problem)


def test_tls_section_is_read_and_gives_the_doors_https(tmp_path: Path) -> None:
    Authority(tmp_path).issue("door")
    text = f"{RING}tls: {{certificate_file: door.pem, key_file: door.key, ca_file: ca.pem}}"
    config = load_text(text, tmp_path / "ring.yaml", {"RING": "ring-secret"})
    assert config.tls.certificate_file == tmp_path / "door.pem"
    assert config.peer_url("a") == "https://127.0.0.1:2"
    assert config.client_url("a") == "https://127.0.0.1:1"


@pytest.mark.parametrize(
    ("tls", "key", "what"),
    [
        ("certificate_file: none.pem, key_file: door.key", "certificate_file", "cannot be read"),
        ("certificate_file: door.pem, key_file: none.key", "key_file", "cannot be read"),
        ("certificate_file: door.pem, key_file: ca.key", "key_file", "is not the key of"),
        ("certificate_file: door.pem, key_file: door.pem", "key_file", "holds no key"),
        ("certificate_file: door.pem, key_file: locked.key", "key_file", "without a password"),
        ("certificate_file: door.key, key_file: door.key", "certificate_file", "no certificate"),
        (
            "certificate_file: door.pem, key_file: door.key, ca_file: door.key",
            "ca_file",
            "holds no certificate",
        ),
        ("certificate_file: door.pem", "key_file", "missing"),
        ("key_file: door.key", "certificate_file", "missing"),
        (
            "certificate_file: door.pem, key_file: door.key, client_certificates: required",
            "ca_file",
            "missing",
        ),
    ],
)
def test_tls_file_that_does_not_fit_is_reported_with_key_and_path(
    tmp_path: Path, tls: str, key: str, what: str
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("door")
    authority.lock(pair.key, tmp_path / "locked.key")
    problem = problem_of(tmp_path, tls)
    assert problem.startswith(f"tls.{key}") and what in problem
    if "missing" not in what:
        assert str(tmp_path) in problem


def test_tls_without_a_certificate_is_reported_as_without_effect(tmp_path: Path) -> None:
    assert "no effect without" in problem_of(tmp_path, "ca_file: ca.pem")


def test_ca_file_of_spark_needs_tls_and_must_exist(tmp_path: Path) -> None:
    ring = RING.replace('spark: {url: "sc://127.0.0.1:3"}', "spark: {%s, ca_file: ca.pem}")
    with pytest.raises(ConfigError, match=r"clusters\[0\]\.spark\.ca_file.*no effect without TLS"):
        Authority(tmp_path)
        load_text(ring % 'url: "sc://h:3"', tmp_path / "r.yaml", {"RING": "ring-secret"})
    text = ring % 'url: "sc://h:3/;use_ssl=true"'
    config = load_text(text, tmp_path / "r.yaml", {"RING": "ring-secret"})
    assert config.clusters[0].spark.ca_file == tmp_path / "ca.pem"
    (tmp_path / "ca.pem").unlink()
    with pytest.raises(ConfigError, match=r"clusters\[0\]\.spark\.ca_file.*cannot be read"):
        load_text(text, tmp_path / "r.yaml", {"RING": "ring-secret"})


@pytest.mark.parametrize(
    ("days", "ca", "why"),
    [(-1, "own", "certificate has expired"), (10, "other", "unable to get local issuer")],
)
def test_certificate_that_peers_would_refuse_is_reported_at_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, days: int, ca: str, why: str
) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    ca_file = (authority if ca == "own" else other).file
    Certificates(authority.tls(days=days, ca_file=ca_file))
    assert "peers and `haproc` will refuse" in caplog.text and why in caplog.text


def test_certificate_that_peers_accept_logs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = Authority(tmp_path).tls(client_certificates=ClientCertificates.REQUIRED)
    assert Certificates(tls).now.doubt == "" and not caplog.records


def test_reloaded_certificate_files_are_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    authority = Authority(tmp_path)
    certificates = Certificates(authority.tls())
    before = certificates.now
    authority.issue("door")
    certificates.reload()
    assert certificates.now.pem != before.pem and certificates.now.server is not before.server
    assert "new connections use" in caplog.text


def unreadable(authority: Authority, tls: Tls) -> None:
    assert tls.certificate_file is not None
    tls.certificate_file.write_text("nothing")


def mismatched(authority: Authority, tls: Tls) -> None:
    assert tls.key_file is not None
    shutil.copy(authority.issue("another").key, tls.key_file)


def expired(authority: Authority, tls: Tls) -> None:
    authority.issue("door", days=-1)


@pytest.mark.parametrize("spoil", [unreadable, mismatched, expired])
def test_unusable_certificate_files_leave_the_current_certificate_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, spoil: object
) -> None:
    authority = Authority(tmp_path)
    tls = authority.tls()
    certificates = Certificates(tls)
    before = certificates.now
    assert callable(spoil)
    spoil(authority, tls)
    certificates.reload()
    assert certificates.now is before
    assert "the certificate in use stays" in caplog.text
    assert str(tmp_path / "door") in caplog.text


def test_sighup_reloads_the_certificates_of_a_haproc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    tls = authority.tls()

    class Node:
        """Runs until the certificates have been reloaded."""

        def __init__(
            self, config: Config, cluster: str, access: Access, certificates: Certificates
        ) -> None:
            self.certificates = certificates

        def stop(self) -> None: ...

        async def run(self) -> ExitCode:
            before = self.certificates.now
            authority.issue("door")
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: self.certificates.now is not before)
            assert self.certificates.now.pem.certificate == (tmp_path / "door.pem").read_bytes()
            assert self.certificates.now.pem.certificate != before.pem.certificate
            return ExitCode.STOPPED

    monkeypatch.setattr(nodes, "Node", Node)
    config = replace(make_config(tmp_path), tls=tls)
    assert asyncio.run(nodes._serve(config, "a", tmp_path / "ring.yaml")) is ExitCode.STOPPED


def test_certificate_of_a_local_ring_passes_strict_verification(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    tls_files = making.make_access(tmp_path, ["ann"])["tls"]
    now = Certificates(Tls(**{key: tmp_path / file for key, file in tls_files.items()})).now
    now.own_relay.verify_flags |= ssl.VERIFY_X509_STRICT
    assert doubt(now.server, now.own_relay) == "" and now.doubt == ""


def test_hostname_is_checked_unless_the_configuration_disables_it(tmp_path: Path) -> None:
    tls = Authority(tmp_path).tls()
    assert read_contexts(tls).client.check_hostname
    assert not read_contexts(replace(tls, check_hostname=False)).client.check_hostname


def test_certificate_error_contains_the_key(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"tls\.key_file: .*cannot be read"):
        read_contexts(replace(Authority(tmp_path).tls(), key_file=tmp_path / "none"))
