"""Tests of TLS between HAProcs: heartbeats, requests, and refused peers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from haproc.cli.nodes import ask_all
from haproc.cli.queue import Asker
from haproc.config.model import Address, Config
from haproc.config.tls import Certificates, ClientCertificates, Tls, read_certificates
from haproc.membership.connections import HttpPeers, Links, PeerDoors
from haproc.membership.peers import PeerUnavailableError
from tests.certificates import Authority
from tests.unit.door_rig import Rig, door, make_config
from tests.unit.test_links import BEAT, RULES, until

Loop = Callable[[Coroutine[Any, Any, None]], None]
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
REQUIRED = ClientCertificates.REQUIRED


def seen_by_b(folder: Path, rig: Rig, tls: Tls) -> Config:
    """Return the configuration of b, whose peer a is at the rig's door."""
    config = make_config(folder)
    a = dataclasses.replace(config.clusters[0], peer=Address("127.0.0.1", rig.listener.port))
    clusters = (a, config.clusters[1])
    return dataclasses.replace(config, clusters=clusters, tls=tls, membership=RULES)


async def request_status(config: Config, certificates: Certificates | None) -> None:
    """Ask the peer for its status; raise PeerUnavailableError."""
    async with contextlib.aclosing(PeerDoors(config, "b", certificates)) as doors:
        assert await HttpPeers(doors).status("a", 5.0)


@LOOPS
def test_heartbeats_and_requests_use_tls_with_certificates_of_both_sides(
    tmp_path: Path, run: Loop
) -> None:
    async def both() -> None:
        authority = Authority(tmp_path)
        tls = authority.tls("a", client_certificates=REQUIRED)
        async with door(tmp_path, operator=True, tls=tls) as rig:
            config = seen_by_b(tmp_path, rig, authority.tls("b", client_certificates=REQUIRED))
            certificates = read_certificates(config.tls)
            async with contextlib.aclosing(Links(config, "b", certificates)) as links:
                await until(lambda: len(rig.members.beats) >= 5, links)
                assert set(rig.members.beats) == {BEAT}
                assert len(rig.listener._permits) == 1 and links.silent() == frozenset()
                await request_status(config, certificates)

    run(both())


@LOOPS
@pytest.mark.parametrize(
    ("of_peer", "why"),
    [
        ("stranger", "unable to get local issuer"),
        ("expired", "certificate has expired"),
        ("elsewhere", "IP address mismatch"),
        ("plain", "WRONG_VERSION_NUMBER"),
    ],
)
def test_peer_with_a_wrong_certificate_gets_no_heartbeats_and_is_logged_once(
    tmp_path: Path, run: Loop, caplog: pytest.LogCaptureFixture, of_peer: str, why: str
) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    tls = {
        "stranger": stranger.tls("a"),
        "expired": authority.tls("a2", days=-1),
        "elsewhere": authority.tls("a3", hosts="DNS:elsewhere"),
        "plain": Tls(),
    }[of_peer]

    async def refused() -> None:
        async with door(tmp_path, operator=True, tls=tls) as rig:
            config = seen_by_b(tmp_path, rig, authority.tls("b"))
            certificates = read_certificates(config.tls)
            async with contextlib.aclosing(Links(config, "b", certificates)) as links:
                await until(lambda: "no TLS with a at 127.0.0.1" in caplog.text, links)
                await until(lambda: links.silent() == {"a"}, links)
                with pytest.raises(PeerUnavailableError, match=r"peer a at https://127\.0\.0\.1"):
                    await request_status(config, certificates)
            assert not rig.members.beats

    run(refused())
    (line,) = [r.message for r in caplog.records if "no TLS with a " in r.message]
    assert why in line and line.endswith("see tls")


@LOOPS
@pytest.mark.parametrize("shown", ["stranger", "none"])
def test_haproc_without_the_rings_certificate_is_refused_and_logged(
    tmp_path: Path, run: Loop, caplog: pytest.LogCaptureFixture, shown: str
) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    tls = authority.tls("a", client_certificates=REQUIRED)

    async def refused() -> None:
        async with door(tmp_path, operator=True, tls=tls) as rig:
            own = stranger.tls("b", ca_file=authority.file)
            config = seen_by_b(tmp_path, rig, own if shown == "stranger" else Tls())
            async with contextlib.aclosing(
                Links(config, "b", read_certificates(config.tls))
            ) as links:
                if shown == "stranger":
                    await until(lambda: "no TLS with a at" in caplog.text, links)
                await until(lambda: "no TLS with 127.0.0.1" in caplog.text, links)
                with pytest.raises(PeerUnavailableError):
                    await request_status(config, read_certificates(config.tls))
            assert not rig.members.beats

    run(refused())


async def test_commands_use_the_rings_certificate_and_report_a_refused_one(
    tmp_path: Path,
) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    tls = authority.tls("a", client_certificates=REQUIRED)
    async with door(tmp_path, operator=True, tls=tls) as rig:
        config = seen_by_b(tmp_path, rig, tls)
        alone = dataclasses.replace(config, clusters=config.clusters[:1])
        assert "error" not in (await ask_all(alone))["a"]
        async with Asker(alone) as asker:
            assert await asker.ask("a", "GET", "/ha/v1/status")
        other = dataclasses.replace(alone, tls=stranger.tls("b"))
        found = (await ask_all(other))["a"]["error"]
        assert found.startswith(f"no answer from {rig.url}: no TLS: self-signed certificate")


async def test_links_to_peers_use_reloaded_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    ca = tmp_path / "ring-ca.pem"
    ca.write_bytes(authority.file.read_bytes())
    async with door(tmp_path, operator=True, tls=authority.tls("a")) as rig:
        other = Authority(tmp_path, "other")
        trusted = tmp_path / "trusted.pem"
        trusted.write_bytes(other.file.read_bytes())
        config = seen_by_b(tmp_path, rig, authority.tls("b", ca_file=trusted))
        certificates = read_certificates(config.tls)
        assert certificates is not None
        async with contextlib.aclosing(Links(config, "b", certificates)) as links:
            await until(lambda: links.silent() == {"a"}, links)
            with pytest.raises(PeerUnavailableError):
                await request_status(config, certificates)
            trusted.write_bytes(ca.read_bytes())
            certificates.reload()
            await until(lambda: len(rig.members.beats) > 0, links)
            await request_status(config, certificates)
