"""The client at doors with TLS: the certificates that it trusts, and the one that it sends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url

import haclient
import haclient.aio
from haclient.cli import main
from haclient.settings import VARIABLES, tls_files, tls_options
from haclient.sqlalchemy.dialect import HAProcDialect
from haproc.config.tls import ClientCertificates
from tests.certificates import Authority
from tests.unit.door_rig import door

BRIEF: dict[str, Any] = {"outage_s": 0.3, "discover": False}
Ask = Callable[..., Awaitable[None]]


async def sync(url: str, **options: Any) -> None:
    def run_statements() -> None:
        with haclient.connect(url, **BRIEF, **options) as connection:
            for _ in range(3):
                connection.execute("SELECT 1")

    await asyncio.to_thread(run_statements)


async def aio(url: str, **options: Any) -> None:
    async with haclient.aio.connect(url, **BRIEF, **options) as connection:
        for _ in range(3):
            await connection.execute("SELECT 1")


@pytest.mark.parametrize("ask", [sync, aio])
async def test_client_trusts_only_the_given_ca(tmp_path: Path, ask: Ask) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    async with door(tmp_path, tls=authority.tls()) as rig:
        await ask(rig.url, ca_file=authority.file)
        assert len(rig.service.requests) == 3
        for options in ({}, {"ca_file": other.file}):
            with pytest.raises(haclient.OperationalError, match=r"(?i)certificate.verify.failed"):
                await ask(rig.url, **options)
        assert len(rig.service.requests) == 3


@pytest.mark.parametrize("ask", [sync, aio])
async def test_client_sends_its_certificate_if_one_is_required(tmp_path: Path, ask: Ask) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("client")
    tls = authority.tls(client_certificates=ClientCertificates.REQUIRED)
    async with door(tmp_path, tls=tls) as rig:
        given = {"certificate_file": str(own.certificate), "key_file": str(own.key)}
        await ask(rig.url, ca_file=str(authority.file), **given)
        with pytest.raises(haclient.OperationalError):
            await ask(rig.url, ca_file=authority.file)
        assert len(rig.service.requests) == 3


@pytest.mark.parametrize("ask", [sync, aio])
async def test_client_without_tls_at_a_door_with_tls_gets_no_answer(
    tmp_path: Path, ask: Ask
) -> None:
    async with door(tmp_path, tls=Authority(tmp_path).tls()) as rig:
        with pytest.raises(haclient.OperationalError):
            await ask(rig.url.replace("https", "http"))


@pytest.mark.parametrize("connect", [haclient.connect, haclient.aio.connect])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ca_file": "none.pem"}, "ca_file cannot be read"),
        ({"ca_file": "a.key"}, "holds no certificate"),
        ({"certificate_file": "a.pem", "key_file": "ca.key"}, "are no certificate and its key"),
        ({"certificate_file": "a.pem"}, "no key_file"),
        ({"key_file": "a.key"}, "key of no certificate"),
    ],
)
def test_unusable_tls_files_are_refused_at_connect(
    tmp_path: Path, connect: Callable[..., Any], options: dict[str, str], message: str
) -> None:
    Authority(tmp_path).issue("a")
    files = {name: tmp_path / file for name, file in options.items()}
    with pytest.raises(haclient.InterfaceError, match=message):
        connect("https://a:1", **files)


async def test_command_reads_the_tls_files_from_options_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    own = authority.issue("client")
    tls = authority.tls(client_certificates=ClientCertificates.REQUIRED)
    files = {"ca_file": authority.file, "certificate_file": own.certificate, "key_file": own.key}
    async with door(tmp_path, tls=tls) as rig:
        command = ["sql", "--server", rig.url, "--wait", "0.3", "SELECT 1"]
        options = [f"--{name.replace('_', '-')}={file}" for name, file in files.items()]
        assert await asyncio.to_thread(main, [*command, *options]) == 0
        assert await asyncio.to_thread(main, command) == 3
        for name, file in files.items():
            monkeypatch.setenv(VARIABLES[name], str(file))
        assert await asyncio.to_thread(main, command) == 0
        assert await asyncio.to_thread(main, [*command, "--ca-file", str(tmp_path / "none")]) == 2
        assert "ca_file cannot be read" in capsys.readouterr().err


def test_tls_options_take_precedence_over_the_environment() -> None:
    environ = {"HACLIENT_CA_FILE": "/env", "HACLIENT_KEY_FILE": "/key"}
    found = tls_options(environ, {"ca_file": "/given", "key_file": None})
    assert found == {"ca_file": "/given", "key_file": "/key"}
    assert not tls_files() and tls_files("/ca")


def test_sqlalchemy_engine_reads_the_tls_files_from_its_url_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HACLIENT_CA_FILE", "/env")
    url = "haproc://a/?tls=true"
    assert HAProcDialect().create_connect_args(make_url(url))[1]["ca_file"] == "/env"
    url = f"{url}&ca_file=1"
    assert HAProcDialect().create_connect_args(make_url(url))[1]["ca_file"] == "1"
