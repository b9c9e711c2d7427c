"""Tests of a real ring with TLS on all doors and certificates required of all clients."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import haclient
import haclient.cli
from haclient.settings import tls_files
from haproc.cli.main import main
from haproc.config.tls import ClientCertificates
from haproc.ring import making
from haproc.ring.local import LocalRing
from tests.rig import SETTINGS, SPARK_SETTINGS, Rig

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.logs("sqlite")]

WITHIN_S = 60.0
PROGRAM = """
import json, os, urllib.request
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.sql("INSERT INTO kept VALUES (3)").collect()
url = os.environ["HACLIENT_SERVERS"] + "/api/2.0/sql/statements"
body = json.dumps({"statement": "INSERT INTO kept VALUES (4)"}).encode()
token = f"Bearer {os.environ['HACLIENT_TOKEN']}"
headers = {"Authorization": token, "Content-Type": "application/json"}
with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
    assert json.load(answer)["status"]["state"] == "SUCCEEDED"
"""


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRing]:
    """Two clusters; each test continues where the previous one ended."""
    made = LocalRing.open_or_create(
        tmp_path_factory.mktemp("secure"),
        clusters=2,
        spark_settings=SPARK_SETTINGS,
        settings={
            **SETTINGS,
            "tls": {**making.tls_keys(), "client_certificates": ClientCertificates.REQUIRED.value},
        },
        users=["alice"],
    )
    try:
        asyncio.run(made.up())
        yield made
    finally:
        asyncio.run(made.down())


def access(ring: LocalRing) -> dict[str, Any]:
    """Return alice's token and the ring's own certificate as haclient's options."""
    return {"token": ring.config.users[0].token, **files(ring)}


def files(ring: LocalRing) -> dict[str, Any]:
    tls = ring.config.tls
    named = ("ca_file", "certificate_file", "key_file")
    return {name: str(getattr(tls, name)) for name in named}


def commands(ring: LocalRing) -> list[str]:
    return [f"--{name.replace('_', '-')}={file}" for name, file in files(ring).items()]


def rows(client: haclient.Connection) -> list[int]:
    found = client.execute("SELECT id FROM kept ORDER BY id", consistency="linearizable")
    return [id for (id,) in found.fetchall()]


def test_haclient_and_pyspark_write_and_read_over_tls(ring: LocalRing) -> None:
    with haclient.connect(ring.urls, **access(ring)) as client:
        assert client.server.startswith("https://")
        client.execute("CREATE TABLE kept (id INT) USING delta")
        client.execute("INSERT INTO kept VALUES (1)", write_concern="all")
    token = ring.config.users[0].token
    spark = haclient.spark(f"{ring.spark_url}/;use_ssl=true;token={token}", **files(ring))
    try:
        spark.sql("INSERT INTO kept VALUES (2)")
        assert sorted(row.id for row in spark.table("kept").collect()) == [1, 2]
    finally:
        spark.stop()


def test_drain_over_tls_sends_a_client_to_a_discovered_cluster(
    ring: LocalRing,
) -> None:
    config = str(ring.folder / "ring.yaml")
    assert main(["status", "--config", config]) == 0
    with haclient.connect(ring.config.client_url("b"), refresh_s=0.5, **access(ring)) as client:

        def is_discovered() -> bool:
            return rows(client) == [1, 2] and len(client.servers) == 2

        Rig.wait(is_discovered, WITHIN_S)
        assert main(["drain", "b", "--config", config, "--wait"]) == 0
        assert rows(client) == [1, 2]
        assert client.server == ring.config.client_url("a")
    assert main(["undrain", "b", "--config", config, "--wait"]) == 0
    assert main(["classify", "--ring", str(ring.folder), "SELECT 1"]) == 0
    assert main(["ring", "status", "--folder", str(ring.folder)]) == 0


def test_job_reaches_both_kinds_of_doors_over_tls(ring: LocalRing, tmp_path: Path) -> None:
    (program := tmp_path / "program.py").write_text(PROGRAM)
    (token := tmp_path / "token").write_text(ring.config.users[0].token)
    command = ["submit", str(program), "--follow", "--server", ring.urls]
    code = haclient.cli.main([*command, "--token-file", str(token), *commands(ring)])
    assert code == 0
    with haclient.connect(ring.urls, **access(ring)) as client:
        assert rows(client) == [1, 2, 3, 4]


def test_connection_without_a_certificate_is_refused_at_all_doors(ring: LocalRing) -> None:
    trusting = ssl.create_default_context(cafile=ring.config.tls.ca_file)
    for url in (ring.config.client_url("a"), ring.config.peer_url("a")):
        with pytest.raises((urllib.error.URLError, OSError)):
            urllib.request.urlopen(f"{url}/healthz", timeout=10, context=trusting)
        with pytest.raises((urllib.error.URLError, OSError)):
            urllib.request.urlopen(f"{url}/healthz".replace("https", "http"), timeout=10)
        # The certificate alone makes the difference.
        showing = tls_files(**files(ring)).context()
        with urllib.request.urlopen(f"{url}/healthz", timeout=10, context=showing) as found:
            assert found.status == 200
    bare = {**access(ring), "certificate_file": None, "key_file": None}
    with pytest.raises(haclient.OperationalError):
        haclient.connect(ring.urls, outage_s=1.0, **bare).execute("SELECT 1")


def test_new_certificates_are_used_after_sighup(ring: LocalRing) -> None:
    door = ring.config.cluster("a").peer
    old = tls_files(**files(ring)).context()
    kept = http.client.HTTPSConnection(door.host, door.port, context=old, timeout=WITHIN_S)

    def is_answered() -> bool:
        kept.request("GET", "/healthz")
        with kept.getresponse() as answer:
            return bool(answer.read()) and answer.status == 200

    def is_renewed() -> bool:
        return main(["status", "--config", str(ring.folder / "ring.yaml")]) == 0

    with contextlib.closing(kept):
        assert is_answered()
        making.make_certificate(ring.folder)
        for name in ring.names:
            pid = ring.pids(name)["haproc"]
            assert pid is not None
            os.kill(pid, signal.SIGHUP)
        Rig.wait(is_renewed, WITHIN_S)
        assert is_answered()
    with haclient.connect(ring.urls, **access(ring)) as client:
        client.execute("INSERT INTO kept VALUES (5)", write_concern="all")
        assert rows(client)[-1] == 5
    with pytest.raises(ssl.SSLCertVerificationError):
        kept.connect()
    for name in ring.names:
        log_text = (ring.config.state_dir / f"haproc-{name}.log").read_text()
        assert "new connections use" in log_text
